"""The reference model alone, over every dispatch that its rules allow: properties and exact waits."""

import pytest

from hocket_spec.check import liveness
from hocket_spec.check.explore import Graph, explore
from hocket_spec.check.instances import Instance, family
from hocket_spec.state import DECODE, PREFILL

INSTANCES = 24
NODES_PER_INSTANCE = 8_000


def excess(instance: Instance, graph: Graph) -> list[str]:
    """Measures over their bounds, and fair cycles."""
    cfg = instance.config
    p, d, requests = cfg.prefill_steps, cfg.decode_steps, len(instance.traffic)
    rows = {PREFILL: max(1, cfg.budget // cfg.chunk), DECODE: cfg.budget // (1 + cfg.drafts)}
    bounds = {
        "L1 prefill": d,
        "L1 decode": p,
        "L3 prefill": -(-requests // rows[PREFILL]) - 1,
        "L3 decode": -(-requests // rows[DECODE]) - 1,
        "L4": 2 * d + 1 if p == 1 else d + 1,
        "L7": cfg.depth + max(p, d),
        "end to end": 1_000,
    }
    waits = liveness.waits(graph)
    found = [f"{name}: {waits[name]} > {bound}" for name, bound in bounds.items() if waits[name] > bound]
    cycle = liveness.l5_fair_cycle(graph)
    return found + ([f"L5: {' > '.join(graph.trace(cycle[0]))}"] if cycle else [])


@pytest.mark.parametrize("depth", [3, 2, 1])
def test_every_allowed_dispatch_keeps_the_properties(depth: int) -> None:
    nodes = exhausted = 0
    worst: dict[str, float] = {}
    for instance in family(depth, INSTANCES, watch=True, offset=11):
        graph = explore(instance, NODES_PER_INSTANCE)
        assert not graph.bad, f"{graph.bad}\n{instance}"
        nodes += len(graph.nodes)
        if graph.exhausted:
            exhausted += 1
            assert excess(instance, graph) == [], str(instance)
            worst = {k: max(v, worst.get(k, 0)) for k, v in liveness.waits(graph).items()}
    print(f"depth {depth}: {nodes} states, {exhausted} of {INSTANCES} instances exhausted")
    print(f"exact longest waits: {worst}")
    assert exhausted >= INSTANCES // 3

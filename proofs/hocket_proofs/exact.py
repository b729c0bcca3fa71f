"""Exact longest waits on explored graphs, beside the bounds that the product states (L1, L3, L4, L5, L7)."""

from __future__ import annotations

from typing import NamedTuple

from hocket_proofs.refinement import configs
from hocket_spec.check import liveness
from hocket_spec.check.explore import Graph, explore
from hocket_spec.check.instances import Instance
from hocket_spec.state import DECODE, PREFILL, Config

NODES = 60_000  # of one instance; more than any member of a stated family has
ROWS = {PREFILL: "L3 prefill", DECODE: "L3 decode"}


class Wait(NamedTuple):
    """A measure: longest wait found, its bound, and the configuration in which it was found."""

    name: str
    longest: float
    bound: int


class Found(NamedTuple):
    """What one graph shows; `broken` is '' or what is violated, with the actions that lead there."""

    states: int
    edges: int
    exhausted: bool
    waits: tuple[Wait, ...]
    broken: str


def bounds(cfg: Config, requests: int) -> dict[str, int]:
    """`SchedulerConfig.waiting_bound()`, and L3: ceil(ready rows / rows of a dispatch), less the one served.

    L7 is stated for dispatches that hold all ready rows. Where they do not, rows take turns (L3), and so does
    the most senior one: each dispatch of its phase that it waits for comes with a turn of the other phase.
    """
    stated = configs(cfg)[0].waiting_bound()
    rows = {PREFILL: max(1, cfg.budget // cfg.chunk), DECODE: cfg.budget // (1 + cfg.drafts)}
    queue = {phase: -(-requests // rows[phase]) - 1 for phase in (PREFILL, DECODE)}
    turns = {PREFILL: 1 + cfg.decode_steps, DECODE: 1 + cfg.prefill_steps}
    return {
        "L1 prefill": stated.prefill,
        "L1 decode": stated.decode,
        **{ROWS[phase]: queue[phase] for phase in (PREFILL, DECODE)},
        "L4": stated.admission,
        "L7": stated.senior_progress + max(queue[phase] * turns[phase] for phase in (PREFILL, DECODE)),
    }


def measure(ins: Instance, nodes: int = NODES) -> Found:
    """Explore the model alone, over every dispatch that its rules allow, with one request watched."""
    graph = explore(ins._replace(watch=True), nodes)
    edges = sum(map(len, graph.edges))
    if graph.bad:
        return Found(len(graph.nodes), edges, False, (), graph.bad)
    stated = bounds(ins.config, len(ins.traffic))
    found = liveness.waits(graph)
    waits = tuple(Wait(name, found[name], bound) for name, bound in stated.items())
    over = [f"{w.name}: waits {w.longest}, bound {w.bound}" for w in waits if w.longest > w.bound]
    return Found(len(graph.nodes), edges, graph.exhausted, waits, "; ".join([*fair_cycle(graph), *over]))


def fair_cycle(graph: Graph) -> list[str]:
    """A cycle with results in it in which the watched request stays unfinished, as the actions into it."""
    cycle = liveness.l5_fair_cycle(graph)
    return [f"L5 completion: a cycle without progress | {' > '.join(graph.trace(cycle[0]))}"] if cycle else []

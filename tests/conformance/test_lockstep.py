"""Lock-step of the real scheduler with the reference model, over small instances at depth 1 to 3."""

import gc
from collections.abc import Iterator

import pytest

from hocket_proofs.refinement import Adapter
from hocket_spec.check import gates, lockstep
from hocket_spec.check.instances import Instance, family

INSTANCES = 40
TRANSITIONS_PER_INSTANCE = 2_500
# With depth 1 a call with room in the pipeline has nothing in flight, so there is nothing to wait for.
UNREACHABLE = {
    1: {
        "decode on unread prompt", "fenced block wanted", "nothing serviceable", "own window awaited",
        "undrained head",
    },
    2: set(),
    3: set(),
}  # fmt: skip
TRANSITIONS = {1: 60_000, 2: 70_000, 3: 70_000}  # 200,000 in all


@pytest.fixture(autouse=True)
def without_collection() -> Iterator[None]:
    """Cyclic garbage is collected between instances: a walk makes none, and its states are many."""
    gc.disable()
    yield
    gc.enable()


def walk(instance: Instance, limit: int = TRANSITIONS_PER_INSTANCE) -> lockstep.Report:
    names = tuple(f"g{i}" for i in range(len(instance.config.groups)))
    return lockstep.walk(instance, Adapter(instance.config), names, limit)


@pytest.mark.parametrize("depth", [3, 2, 1])
def test_scheduler_stays_with_the_model(depth: int) -> None:
    met: set[str] = set()
    transitions = exhausted = 0
    for number, instance in enumerate(family(depth, INSTANCES)):
        report = walk(instance)
        assert not report.difference, f"{report.difference}\n{instance}"
        met |= report.met
        transitions += report.transitions
        exhausted += report.exhausted
        if not number % 10:
            print(f"depth {depth}: {number} instances, {transitions} transitions", flush=True)
        gc.collect()
    print(f"depth {depth}: {transitions} transitions, {exhausted} of {INSTANCES} instances exhausted")
    print(f"situations met: {', '.join(sorted(met))}")
    assert set(gates.GATES) - met == UNREACHABLE[depth]
    assert transitions >= TRANSITIONS[depth]

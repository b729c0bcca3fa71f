"""Small instances in lock-step, with all their situations: what is fast enough to run against every mutant.

`make mutate-spec` weakens the specification in every way it knows, and something here, in
`tests/quality/test_specification_refuses.py` or `tests/conformance/test_runner_view.py` must turn red.
"""

from collections.abc import Iterator

import pytest

from hocket_proofs import exact, packs, refute
from hocket_proofs.families import (
    CROWD,
    DRAFTED,
    FINE,
    OWN_WINDOW,
    PAIR,
    PLAIN,
    RANKED,
    SHARED,
    SHARED_WINDOW,
    THREE,
    TRIO,
    TWO_POOLS,
    WINDOW,
    fitted,
)
from hocket_proofs.refuted import fault
from hocket_spec import blocks, rules, walk
from hocket_spec.check.instances import TRAFFIC, Instance

TRANSITIONS, NODES = 200, 300

INSTANCES: dict[str, Instance] = {
    "plain": fault.PLAIN,
    "drafting": fault.DRAFTING,
    "windowed": fault.WINDOWED,
    "holding": fault.HOLDING,
    "aligned": fault.ALIGNED,
    "own window": fault.OWN_WINDOW,
    "marked": fault.MARKED,
    "promising": fault.PROMISING,
    "shared": fitted(SHARED, TRIO, chunk=3, depth=3, reserve=False, prefill_steps=2),
    "shared window": fitted(SHARED_WINDOW, PAIR, drafts=1, reserve=False),
    "shared window, ends": fitted(SHARED_WINDOW, RANKED, ends=(True, 1), depth=3),
    "window, drafts": fitted(WINDOW, DRAFTED, drafts=3, depth=3),
    "own window, drafts": fitted(OWN_WINDOW, DRAFTED, 2, drafts=1),
    "fewer drafts": fitted(FINE, TRAFFIC[2], 2, drafts=2, ends=(True, 0)),
    "two pools": fitted(TWO_POOLS, THREE, ends=(False, 1), depth=3, decode_steps=3),
    "one seat": fitted(PLAIN, PAIR, 1, seats=1, prefill_steps=2),
    "one token": fitted(PLAIN, THREE, 1, budget=1, chunk=1),
    "narrow": fitted(PLAIN, CROWD, 5, chunk=2, budget=2),
    "off alignment": fitted(PLAIN, PAIR, 1, chunk=4, budget=5, alignment=2),
}


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    """What the model remembers of another version of itself would hide a difference."""
    memories = (blocks.capacity, rules.hold, walk.attempt)
    for memory in memories:
        memory.cache_clear()
    yield
    for memory in memories:
        memory.cache_clear()


@pytest.mark.parametrize("name", INSTANCES)
def test_lock_step(name: str) -> None:
    report = refute.lock_step(INSTANCES[name], TRANSITIONS)
    assert report.difference == ""


@pytest.mark.parametrize("name", ["drafting", "holding", "own window", "promising"])
def test_exploration(name: str) -> None:
    found = exact.measure(INSTANCES[name]._replace(aborts=False, preempts=0), NODES)
    assert found.broken == ""


def test_packs() -> None:
    assert packs.first_difference() == (3308, "")

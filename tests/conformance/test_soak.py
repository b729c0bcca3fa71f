"""Simulation: every fault happens, what is wrong is found, and its seed shows it again."""

import io
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout

import pytest

from hocket.cli.main import main
from hocket.core.errors import StepOrderError
from hocket.kv import counts
from hocket.kv.pool import BlockPool
from hocket.sched.scheduler import Scheduler
from hocket_proofs import soak


def test_every_fault_happens() -> None:
    found = soak.soak(2_000, seed=0)
    assert found.failure == ""
    assert {kind for kind in soak.FAULTS if found.met[kind] >= 5} == set(soak.FAULTS), found.met


def test_same_seed_same_world() -> None:
    first, second = soak.world(5), soak.world(5)
    assert (first.said, first.met, first.steps) == (second.said, second.met, second.steps)
    assert soak.world(6).said != first.said


def command(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(["verify", *words])
    return status, out.getvalue(), err.getvalue()


def test_command_shows_progress_and_what_it_met() -> None:
    status, out, err = command("--soak", "1000", "--seed", "3")
    assert status == 0
    assert "reordered" in out
    assert out.endswith("no block lost, every text as in isolation\n")
    assert " of 1,000 steps, " in err


def test_lost_block_is_found_and_the_seed_shows_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    give_back = BlockPool.give_back

    def loses(pool: BlockPool, blocks: Iterable[int]) -> None:
        """The last of the blocks that would make the pool whole."""
        given = list(blocks)
        give_back(pool, given[1:] if pool.num_free + len(given) == pool.num_blocks else given)

    monkeypatch.setattr(BlockPool, "give_back", loses)
    status, out, _ = command("--soak", "2000", "--seed", "7")
    assert status == 1
    assert "FAILED: S5 block-conservation: " in out
    assert out.splitlines()[-1].startswith("again: hocket verify --soak 1 --seed ")
    again = command(*out.splitlines()[-1].split()[3:])
    assert again[0] == 1
    assert again[1].splitlines()[-2:] == out.splitlines()[-2:]


def test_block_that_is_lost_though_it_is_counted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(pool: BlockPool, step_id: int) -> None:
        blocks = pool._fenced.pop(step_id, [])
        pool.counts = counts.after_settle(pool.counts, len(blocks))
        pool._free.extend(blocks[1:])

    monkeypatch.setattr(BlockPool, "settle", forgets)
    monkeypatch.setattr(BlockPool, "_check", lambda pool: None)
    failures = 0
    for seed in range(6):
        try:
            soak.world(seed, 200)
        except soak.Failed as failed:
            failures += "blocks of" in str(failed)
    assert failures


def refuses_late(scheduler: Scheduler, output: object, result: object) -> object:
    """Changes something, and refuses then."""
    scheduler._next_epoch += 1
    raise StepOrderError("late")


@pytest.mark.parametrize(
    ("takes", "what"),
    [(lambda *given: [], "was accepted that is"), (refuses_late, "changed the state")],
    ids=["accepts", "refuses late"],
)
def test_wrong_submission_must_be_refused_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, takes: object, what: str
) -> None:
    world = soak.World(0)
    while not world.flying:
        world.act()
        world.speed = 0.0
        world.step()
    monkeypatch.setattr(Scheduler, "update_from_output", takes)
    with pytest.raises(soak.Failed, match=what):
        world._misplace()
    assert world.met == Counter({key: n for key, n in world.met.items() if key not in soak.FAULTS[4:]})

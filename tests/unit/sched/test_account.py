"""Blocks as an attempt sees them: what windows will return, what a victim gives, who is set aside for."""

from __future__ import annotations

from hocket.core.config import KVGroupSpec
from hocket.sched.preemption import Account, Standing
from hocket.sched.scheduler import Scheduler
from tests.unit.sched.worlds import add, complete, make_of

FULL = KVGroupSpec("full", 2, 40)
WINDOWED = KVGroupSpec("windowed", 2, 30, window=4)
WIDE = {"max_num_batched_tokens": 64, "async_depth": 3}


def standing(scheduler: Scheduler) -> Standing:
    s = scheduler
    return Standing(s.config, s._memory, s._cache, s._ledger, s._running)


def coming(scheduler: Scheduler) -> tuple[int, ...]:
    return scheduler._memory.coming_from_windows(scheduler._running[0], scheduler._ledger)


def test_chunks_in_flight_return_every_column_that_their_end_outdates() -> None:
    scheduler = make_of(FULL, WINDOWED, **WIDE)
    add(scheduler, "r", 24, 4)
    first, _ = scheduler.schedule(), scheduler.schedule()
    # 16 tokens will be processed, so 12 are older than the window: 6 columns of 2.
    assert coming(scheduler) == (0, 6)
    complete(scheduler, first)
    # Two of those 6 are back already.
    assert scheduler.block_table("r", "windowed")[:3] == (0, 0, 3)
    assert coming(scheduler) == (0, 4)


def test_a_decode_row_in_flight_returns_what_one_token_outdates() -> None:
    scheduler = make_of(FULL, WINDOWED, num_speculative_tokens=3, **WIDE)
    add(scheduler, "r", 7, 12)
    complete(scheduler, scheduler.schedule())
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == (4,)
    # 7 tokens outdate 1 column, 8 outdate 2, and all 11 would outdate 3.
    assert coming(scheduler) == (0, 1)


def test_a_victim_gives_what_it_holds_and_what_it_is_promised() -> None:
    scheduler = make_of(FULL, **WIDE)
    for name in ("a", "b"):
        add(scheduler, name, 24, 4)
    complete(scheduler, scheduler.schedule())
    account = Account(standing(scheduler))
    assert (account.free, account.promised) == ((32,), (16,))
    assert account.gain(1) == (12,)
    account.preempt(1)
    assert (account.free, account.promised, account.victims) == ((36,), (8,), {1})
    assert account.available_to(0) == (36,)


def test_nothing_is_set_aside_for_a_victim() -> None:
    scheduler = make_of(FULL, reserve_full_prompt=False, **WIDE)
    for name in ("a", "b", "c"):
        add(scheduler, name, 24, 4)
    complete(scheduler, scheduler.schedule())
    account = Account(standing(scheduler))
    assert (account.free, account.left_for_drafts()) == ((28,), (16,))
    account.preempt(1)
    # 4 blocks of the victim come back; the next rows of the two others are set aside.
    assert (account.free, account.left_for_drafts()) == ((32,), (24,))


def test_a_granted_row_is_set_aside_no_more_and_keeps_the_rest_of_its_promise() -> None:
    scheduler = make_of(FULL, **WIDE)
    for name in ("a", "b"):
        add(scheduler, name, 24, 4)
    complete(scheduler, scheduler.schedule())
    account = Account(standing(scheduler))
    account.grant(0, (4,), ends_replay=False)
    assert (account.free, account.promised, account.own_outstanding(0)) == ((28,), (12,), (4,))
    account.grant(1, (4,), ends_replay=True)
    assert (account.free, account.promised, account.own_outstanding(1)) == ((24,), (4,), (0,))
    account.admit((3,), (5,))
    assert (account.free, account.promised) == ((21,), (9,))
    account.take_drafts((2,))
    assert account.free == (19,)


def test_the_watermark_is_rounded_down_pool_by_pool() -> None:
    scheduler = make_of(FULL, WINDOWED, watermark=0.09, **WIDE)
    assert scheduler._memory.watermark == (3, 2)

"""Blocks as an attempt sees them: what comes back, what a victim gives, who is set aside for, who is held."""

from __future__ import annotations

import pytest

from hocket.core.config import KVCacheConfig, KVGroupSpec, SchedulerConfig
from hocket.kv.cache import GroupedKVCache
from hocket.sched.preemption import FITS, WAITS_FOR_RESULTS, Account, Standing, Verdict, held_back, judge
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
    # Set aside is what the seniors need, not the juniors.
    assert [account.available_to(index) for index in range(3)] == [(28,), (24,), (20,)]
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


def four_that_fill_the_pool(depth: int = 2, more: int = 0) -> Scheduler:
    """Each holds one block; the chunks that wrote them are in flight, and every next row needs a block."""
    scheduler = make_of(KVGroupSpec("full", 2, 4 + more), async_depth=depth, reserve_full_prompt=False)
    for name in "abcd":
        add(scheduler, name, 2, 3)
    return scheduler


def test_the_most_senior_blocked_row_has_its_victims_held() -> None:
    scheduler = four_that_fill_the_pool()
    scheduler.schedule()
    now = standing(scheduler)
    assert (now.free, now.fenced) == ((0,), (0,))
    assert judge(now, Account(now), 0, (1,)) == Verdict(victims=(3,))
    assert held_back(now) == {3}


def test_one_with_a_row_in_this_dispatch_is_no_victim_and_a_victim_is_none_twice() -> None:
    scheduler = four_that_fill_the_pool()
    scheduler.schedule()
    now = standing(scheduler)
    account = Account(now)
    account.grant(3, (0,), ends_replay=True)
    assert judge(now, account, 0, (1,)) == Verdict(victims=(2,))
    account.preempt(2)
    account.free = (0,)
    assert judge(now, account, 0, (1,)) == Verdict(victims=(1,))


def test_where_the_most_senior_blocked_row_waits_for_results_nobody_is_held() -> None:
    """The block of `e` is fenced by the chunk in flight: `a` gets it then, though `b` would have victims."""
    scheduler = four_that_fill_the_pool(more=1)
    add(scheduler, "e", 2, 3)
    scheduler.schedule()
    scheduler.preempt_request("e")
    now = standing(scheduler)
    assert (now.free, now.fenced) == ((0,), (1,))
    account = Account(now)
    assert judge(now, account, 0, (1,)) == WAITS_FOR_RESULTS
    account.keep_aside(0)
    assert judge(now, account, 1, (1,)) == Verdict(victims=(3,))
    assert held_back(now) == frozenset()


def test_a_blocked_row_that_finds_no_victims_leaves_the_claim_to_the_next() -> None:
    """`a` wants 4 blocks of y, of which its juniors hold 3. `b` wants one of x, and what is free there is set
    aside for `a`.
    """
    scheduler = make_of(
        KVGroupSpec("x", 8, 9),
        KVGroupSpec("y", 6, 8),
        prefill_chunk_size=24,
        max_num_batched_tokens=64,
        reserve_full_prompt=False,
    )
    for name, prompt in (("z", 3), ("a", 48), ("b", 8), ("c", 2)):
        add(scheduler, name, prompt, 2 if name != "a" else 1)
    complete(scheduler, scheduler.schedule())
    now = standing(scheduler)
    assert now.free == (3, 0)
    assert now.next_needs == {1: (3, 4), 2: (1, 0)}
    assert judge(now, Account(now), 1, (3, 4)) == Verdict()
    assert held_back(now) == {3}


def test_a_row_that_fits_holds_nobody() -> None:
    scheduler = four_that_fill_the_pool(more=4)
    scheduler.schedule()
    now = standing(scheduler)
    assert [judge(now, Account(now), index, (1,)) for index in range(4)] == [FITS] * 4
    assert held_back(now) == frozenset()


def test_a_request_lacks_no_table() -> None:
    scheduler = make_of(FULL, WINDOWED, **WIDE)
    add(scheduler, "r", 8, 1)
    scheduler.schedule()
    memory, live = scheduler._memory, scheduler._running[0]
    live.tables = live.tables[:1]
    for action in (
        lambda: memory.new_columns(live.tables, 9),
        lambda: memory.need(live.tables, 9),
        lambda: memory.outdated_columns(live, 8),
        lambda: memory._per_pool((1,)),
    ):
        with pytest.raises(ValueError, match="zip"):
            action()


def test_groups_of_one_pool_add_up() -> None:
    groups = (KVGroupSpec("a", 2, pool="main"), KVGroupSpec("b", 4, 9), KVGroupSpec("c", 4, pool="main"))
    cache_config = KVCacheConfig(groups=groups, pools={"main": 20})
    memory = Scheduler(SchedulerConfig(), cache_config)._memory
    tables = GroupedKVCache(cache_config).new_tables()
    by_name = dict(zip(memory.pool_names, memory.need(tables, 9), strict=True))
    assert by_name == {"main": 5 + 3, "b": 3}


def test_the_period_of_a_pool_is_that_of_its_windowed_groups() -> None:
    """Others have no period: with theirs the capacity formula would look at many more starts."""
    groups = (KVGroupSpec("a", 7, 99), KVGroupSpec("b", 4, window=8, pool="p"), KVGroupSpec("c", 5, pool="p"),
              KVGroupSpec("d", 6, window=8, pool="p"))  # fmt: skip
    memory = Scheduler(SchedulerConfig(), KVCacheConfig(groups=groups, pools={"p": 99}))._memory
    assert dict(zip(memory.pool_names, memory._period_of_pool, strict=True)) == {"p": 12, "a": 1}

"""Which rows an attempt takes, in which order, and who gets the blocks for drafts."""

from __future__ import annotations

from hocket.core.config import KVGroupSpec
from hocket.core.request import Request, SamplingParams
from tests.unit.sched.worlds import add, complete, make, make_of, rows


def test_no_row_of_a_dispatch_overtakes_one_that_finds_no_tokens() -> None:
    """`c`, which may emit one token only, would fit where `b` with its draft does not."""
    scheduler = make(num_speculative_tokens=1, prefill_chunk_size=3, max_num_batched_tokens=3)
    for name, outputs in (("a", 9), ("b", 9), ("c", 2)):
        add(scheduler, name, 1, outputs)
    complete(scheduler, scheduler.schedule())
    output = scheduler.schedule()
    assert rows(output) == [("a", 1, 2)]
    complete(scheduler, output)
    assert rows(scheduler.schedule()) == [("b", 1, 2), ("c", 1, 1)]


def test_drafts_get_what_is_left_in_order_of_seniority_not_of_service() -> None:
    """Two rows of three tokens fill a step; in the third the junior comes first and the senior second.

    Each needs a block for its drafts, and one is left.
    """
    knobs = {"num_speculative_tokens": 2, "prefill_chunk_size": 4, "max_num_batched_tokens": 6}
    scheduler = make(blocks=14, block_size=1, **knobs)
    for name in ("senior", "junior", "third"):
        add(scheduler, name, 1, 6)
    complete(scheduler, scheduler.schedule())
    for names in (("senior", "junior"), ("third", "senior")):
        output = scheduler.schedule()
        assert output.request_ids == names
        complete(scheduler, output)
    assert scheduler.free_blocks("a") == 1
    assert rows(scheduler.schedule()) == [("junior", 2, 1), ("senior", 3, 3)]


def test_the_promise_of_a_replay_ends_in_the_dispatch_that_ends_it() -> None:
    """`a` is promised 7 blocks and never holds more than 6; in its third chunk the 7th is free for `b`."""
    scheduler = make_of(KVGroupSpec("windowed", 2, 10, window=4))
    add(scheduler, "a", 24, 1)
    for chunk in (0, 8):
        output = scheduler.schedule()
        assert rows(output) == [("a", chunk, 8)]
        complete(scheduler, output)
    add(scheduler, "b", 8, 1)
    assert rows(scheduler.schedule()) == [("a", 16, 8), ("b", 0, 8)]


def test_an_overdue_head_takes_its_tokens_before_the_prompts_that_run() -> None:
    """`a` alone fills every step of 8 tokens; `b` was passed over once, and then comes before it (L4)."""
    scheduler = make(prefill_chunk_size=8, max_num_batched_tokens=8)
    add(scheduler, "a", 24, 1)
    complete(scheduler, scheduler.schedule())
    add(scheduler, "b", 5, 1)
    output = scheduler.schedule()
    assert rows(output) == [("a", 8, 8)]
    complete(scheduler, output)
    assert rows(scheduler.schedule()) == [("b", 0, 5), ("a", 16, 3)]


def test_a_full_step_looks_for_blocks_for_its_drafts_all_the_same() -> None:
    """`a` fits the 3 tokens of a step and `b` does not; of the blocks for `a`'s two drafts none is free."""
    knobs = {"num_speculative_tokens": 2, "prefill_chunk_size": 2, "max_num_batched_tokens": 4}
    scheduler = make(blocks=6, block_size=1, **knobs)
    for name in ("a", "b"):
        add(scheduler, name, 2, 5)
    complete(scheduler, scheduler.schedule())
    assert scheduler.free_blocks("a") == 2
    assert rows(scheduler.schedule()) == [("a", 2, 1)]


def test_a_request_that_wants_fewer_drafts_gets_shorter_rows() -> None:
    scheduler = make(num_speculative_tokens=3)
    for name, drafts in (("a", None), ("b", 0), ("c", 2), ("d", 9)):
        params = SamplingParams(max_tokens=9, num_speculative_tokens=drafts)
        scheduler.add_request(Request(name, (1,), params))
    complete(scheduler, scheduler.schedule())
    assert scheduler.schedule().num_scheduled_tokens == (4, 1, 3, 4)


def test_a_call_admits_no_more_than_there_are_seats() -> None:
    scheduler = make(max_num_seqs=2, max_num_batched_tokens=64)
    for name in "abcd":
        add(scheduler, name, 4, 4)
    assert scheduler.schedule().request_ids == ("a", "b")
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 2)


def test_nobody_overtakes_a_head_whose_old_rows_are_in_flight() -> None:
    scheduler = make(async_depth=3, max_num_batched_tokens=64)
    add(scheduler, "a", 4, 4)
    flight = [scheduler.schedule()]
    scheduler.preempt_request("a")
    add(scheduler, "b", 4, 4)
    assert scheduler.schedule().is_empty
    complete(scheduler, flight[0])
    assert scheduler.schedule().request_ids == ("a", "b")


def test_nobody_overtakes_a_victim_in_the_call_that_preempts_it() -> None:
    """`a` needs one of the two blocks that `c` gives up; the other would do for `d`, its junior."""
    scheduler = make(blocks=5, block_size=2, prefill_chunk_size=4, reserve_full_prompt=False)
    for name in ("a", "c"):
        add(scheduler, name, 8, 1)
    complete(scheduler, scheduler.schedule())
    add(scheduler, "d", 2, 1)
    output = scheduler.schedule()
    assert (rows(output), output.preempted_request_ids) == ([("a", 4, 4)], ("c",))
    assert scheduler.free_blocks("a") == 1


def test_nobody_overtakes_a_head_whose_chunk_is_floored_to_nothing() -> None:
    """`a` leaves 2 tokens: none for `b`, whose chunks end at multiples of 4, but all that `c` has."""
    scheduler = make(prefill_chunk_size=4, max_num_batched_tokens=6, chunk_alignment=4)
    for name, prompt in (("a", 4), ("b", 8), ("c", 2)):
        add(scheduler, name, prompt, 1)
    output = scheduler.schedule()
    assert rows(output) == [("a", 0, 4)]
    complete(scheduler, output)
    assert rows(scheduler.schedule()) == [("b", 0, 4), ("c", 0, 2)]

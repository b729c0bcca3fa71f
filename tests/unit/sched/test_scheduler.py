"""Single behaviours of the scheduler that a whole-run test would hide. Token ids are arbitrary."""

from __future__ import annotations

import pickle
import sys

import pytest

from hocket.core.config import KVCacheConfig, KVGroupSpec, SchedulerConfig
from hocket.core.errors import QueueFullError
from hocket.core.phase import Phase
from hocket.core.records import BlockIdsByGroup, RequestOutput, SchedulerOutput
from hocket.core.request import Request, SamplingParams
from hocket.sched.scheduler import Scheduler
from tests.unit.sched.worlds import add, complete, make, rows


def test_a_victim_gets_no_row_in_the_attempt_that_preempts_it() -> None:
    """r0 preempts r3 and r1 preempts r2, whose own next row needs no new block and comes later."""
    scheduler = make(blocks=4, prefill_chunk_size=2, reserve_full_prompt=False)
    for name in ("r0", "r1"):
        add(scheduler, name, 6, 1)
    complete(scheduler, scheduler.schedule())
    for name in ("r2", "r3"):
        add(scheduler, name, 6, 1)
    complete(scheduler, scheduler.schedule())
    output = scheduler.schedule()
    assert rows(output) == [("r0", 4, 2), ("r1", 4, 2)]
    assert output.preempted_request_ids == ("r2", "r3")


def test_a_chunk_before_the_last_names_the_token_that_follows_it_also_in_a_replay() -> None:
    scheduler = make()
    add(scheduler, "r", 10, 4)
    first = scheduler.schedule()
    assert first.lookahead_token_ids == (9,)
    complete(scheduler, first)
    last = scheduler.schedule()
    assert last.lookahead_token_ids == (None,)
    complete(scheduler, last, {"r": (70,)})
    complete(scheduler, scheduler.schedule(), {"r": (71,)})
    scheduler.preempt_request("r")
    replay = scheduler.schedule()
    assert (replay.resumed_request_ids, rows(replay)) == (("r",), [("r", 0, 8)])
    assert replay.lookahead_token_ids == (9,)
    assert scheduler.token_ids("r") == (*range(1, 11), 70, 71)
    complete(scheduler, replay)
    assert rows(scheduler.schedule()) == [("r", 8, 4)]


def test_new_blocks_are_named_once_and_a_resumed_row_carries_its_whole_table() -> None:
    scheduler = make()
    add(scheduler, "r", 10, 8)
    named: list[int] = []
    for _ in range(4):
        output = scheduler.schedule()
        named += output.new_block_ids[0]["a"]
        assert tuple(named) == scheduler.block_table("r", "a")
        complete(scheduler, output)
    scheduler.preempt_request("r")
    assert scheduler.block_table("r", "a") == ()
    output = scheduler.schedule()
    assert output.new_block_ids[0]["a"] == scheduler.block_table("r", "a") != ()


def test_seniority_is_priority_then_arrival_and_survives_preemption() -> None:
    scheduler = make(max_num_seqs=1)
    add(scheduler, "low", 4, 4, priority=1)
    add(scheduler, "first", 4, 4)
    add(scheduler, "second", 4, 4)
    order = []
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        order += [name for name, start in zip(output.request_ids, output.num_computed_tokens, strict=True)]
        complete(scheduler, output)
        if order == ["first"]:
            scheduler.preempt_request("first")
    assert list(dict.fromkeys(order)) == ["first", "second", "low"]
    assert order[:2] == ["first", "first"]


def test_stop_tokens_and_eos_end_a_request_but_not_before_min_tokens() -> None:
    scheduler = make()
    params = SamplingParams(max_tokens=9, min_tokens=2, stop_token_ids=(50,))
    scheduler.add_request(Request("stop", (1,), params))
    scheduler.add_request(Request("eos", (1,), SamplingParams(max_tokens=9), eos_token_id=60))
    scheduler.add_request(
        Request("deaf", (1,), SamplingParams(max_tokens=2, ignore_eos=True), eos_token_id=60)
    )
    news = complete(scheduler, scheduler.schedule(), {"stop": (50,), "eos": (60,), "deaf": (60,)})
    assert [(n.request_id, n.finished, n.finish_reason) for n in news] == [
        ("stop", False, None),
        ("eos", True, "stop"),
        ("deaf", False, None),
    ]
    news = complete(scheduler, scheduler.schedule(), {"stop": (50,), "deaf": (60,)})
    assert [(n.request_id, n.finish_reason) for n in news] == [("stop", "stop"), ("deaf", "length")]


def test_the_model_length_ends_a_request_by_length() -> None:
    scheduler = make(max_model_len=6)
    add(scheduler, "r", 4, 100)
    complete(scheduler, scheduler.schedule())
    (news,) = complete(scheduler, scheduler.schedule())
    assert (news.finished, news.finish_reason) == (True, "length")


def test_notices_come_once_and_an_aborted_victim_is_only_finished() -> None:
    scheduler = make(async_depth=2)
    for name in ("r", "s"):
        add(scheduler, name, 4, 8)
    flying = scheduler.schedule()
    scheduler.preempt_request("r")
    scheduler.preempt_request("s")
    out = scheduler.abort_request("r", reason="error")
    assert out == RequestOutput("r", (), True, "error")
    assert scheduler.abort_request("r") is None
    told = scheduler.schedule()
    assert (told.is_empty, told.has_notices) == (True, True)
    assert (told.preempted_request_ids, told.finished_request_ids) == (("s",), ("r",))
    assert not scheduler.schedule().has_notices
    assert complete(scheduler, flying) == []
    assert scheduler.request_state("s") is not None


def test_a_full_pipeline_gives_an_empty_output_that_still_carries_notices() -> None:
    scheduler = make(async_depth=1)
    for name in ("r", "s"):
        add(scheduler, name, 4, 8)
    scheduler.schedule()
    scheduler.abort_request("s")
    told = scheduler.schedule()
    assert (told.step_id, told.phase, told.finished_request_ids) == (None, None, ("s",))


def test_the_queue_limit_counts_waiting_requests_only() -> None:
    scheduler = make(max_num_queued_reqs=1)
    add(scheduler, "r", 4, 8)
    with pytest.raises(QueueFullError, match="max_num_queued_reqs = 1"):
        add(scheduler, "s", 4, 8)
    complete(scheduler, scheduler.schedule())
    add(scheduler, "s", 4, 8)
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 1)


def test_the_watermark_holds_back_admissions_unless_nothing_runs() -> None:
    scheduler = make(blocks=4, watermark=0.5, async_depth=1)
    add(scheduler, "r", 4, 6)
    add(scheduler, "s", 8, 1)
    assert rows(scheduler.schedule()) == [("r", 0, 4)]


def test_a_phase_is_announced_as_a_phase() -> None:
    scheduler = make()
    add(scheduler, "r", 4, 2)
    output = scheduler.schedule()
    assert output.phase is Phase.PREFILL
    complete(scheduler, output)
    assert scheduler.schedule().phase is Phase.DECODE


def test_a_scheduler_and_its_outputs_can_be_pickled() -> None:
    scheduler = make(async_depth=2)
    add(scheduler, "r", 12, 4)
    output = scheduler.schedule()
    twin: Scheduler
    twin, copy = pickle.loads(pickle.dumps((scheduler, output)))
    assert dict(copy.new_block_ids[0]) == dict(output.new_block_ids[0])
    assert rows(twin.schedule()) == rows(scheduler.schedule())
    complete(twin, copy)
    assert twin.num_in_flight == scheduler.num_in_flight - 1


def test_a_promised_chunk_is_not_set_aside_a_second_time() -> None:
    """r0's next chunk is covered by its promise, so r1's decode finds its block and nobody is preempted."""
    scheduler = make(blocks=5, block_size=2, prefill_chunk_size=2)
    for name, prompt, max_tokens in (("r0", 4, 2), ("r1", 2, 2), ("r2", 1, 3)):
        add(scheduler, name, prompt, max_tokens)
    complete(scheduler, scheduler.schedule())
    output = scheduler.schedule()
    assert ("r1", 2, 1) in rows(output)
    assert output.preempted_request_ids == ()


def test_a_row_whose_victims_do_not_suffice_without_a_fence_waits_for_the_fence() -> None:
    """X's block is fenced by its row in flight, so J's alone are not enough for S: nothing may run yet."""
    scheduler = make(blocks=6, block_size=1, prefill_chunk_size=3, async_depth=2, reserve_full_prompt=False)
    add(scheduler, "S", 6, 1)
    add(scheduler, "J", 2, 3)
    first = scheduler.schedule()
    add(scheduler, "X", 1, 2, priority=-1)
    second = scheduler.schedule()
    complete(scheduler, first)
    scheduler.abort_request("X")
    assert (scheduler.free_blocks("a"), scheduler.fenced_blocks("a")) == (0, 1)
    waiting = scheduler.schedule()
    assert (waiting.is_empty, waiting.preempted_request_ids) == (True, ())
    complete(scheduler, second)
    output = scheduler.schedule()
    assert (rows(output), output.preempted_request_ids) == ([("S", 3, 3)], ("J",))


def test_the_seat_of_a_victim_is_free_in_the_same_call() -> None:
    scheduler = make(blocks=8, block_size=1, prefill_chunk_size=3, max_num_seqs=2, reserve_full_prompt=False)
    add(scheduler, "S", 6, 1)
    add(scheduler, "J", 3, 3, priority=5)
    complete(scheduler, scheduler.schedule())
    add(scheduler, "W", 1, 1, priority=1)
    output = scheduler.schedule()
    assert (rows(output), output.preempted_request_ids) == ([("S", 3, 3), ("W", 0, 1)], ("J",))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_ready_rows_take_turns_when_a_step_cannot_hold_them_all(depth: int) -> None:
    """L3: eight decodes at one row a step are served in turn, the most senior one too."""
    scheduler = make(prefill_chunk_size=1, max_num_batched_tokens=1, async_depth=depth)
    names = [f"r{i}" for i in range(8)]
    for name in names:
        add(scheduler, name, 1, 40)
    served: list[str] = []
    flying: list[SchedulerOutput] = []
    while len(served) < 60:
        output = scheduler.schedule()
        if not output.is_empty:
            flying.append(output)
            if output.phase is Phase.DECODE:
                served += output.request_ids
        if output.is_empty or len(flying) == depth:
            complete(scheduler, flying.pop(0))
    last_admitted = max(served.index(name) for name in names)
    for at in range(last_admitted + 1, len(served) - 8):
        assert sorted(served[at : at + 8]) == names


@pytest.mark.parametrize(
    ("depth", "p", "d", "bounds"),
    [(1, 1, 1, (1, 1, 3, 1)), (2, 1, 4, (4, 1, 9, 5)), (3, 2, 4, (4, 2, 5, 6)), (1, 5, 1, (1, 5, 2, 5))],
)
def test_the_bounds_of_waiting_are_those_of_the_design(
    depth: int, p: int, d: int, bounds: tuple[int, ...]
) -> None:
    """L1: prefill waits d, decode p; L4: 2d + 1 if p is 1, else d + 1; L7: depth - 1 + max(p, d)."""
    config = SchedulerConfig(prefill_steps_per_turn=p, decode_steps_per_turn=d, async_depth=depth)
    found = config.waiting_bound()
    assert (found.prefill, found.decode, found.admission, found.senior_progress) == bounds


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("p", "d"), [(1, 1), (2, 1), (1, 3)])
def test_the_most_senior_row_is_passed_over_no_more_than_the_bound_says(depth: int, p: int, d: int) -> None:
    """L7, where a step holds every ready row: memory is tight, so the senior is blocked again and again."""
    scheduler = make(
        blocks=10,
        block_size=2,
        prefill_chunk_size=2,
        max_num_batched_tokens=64,
        async_depth=depth,
        prefill_steps_per_turn=p,
        decode_steps_per_turn=d,
        reserve_full_prompt=False,
    )
    bound = scheduler.config.waiting_bound().senior_progress
    for number in range(6):
        add(scheduler, f"r{number}", 2 + number % 3, 8)
    flying: list[SchedulerOutput] = []
    passed_over = preempted = 0
    while scheduler.has_unfinished_requests():
        running = [n for n in (f"r{i}" for i in range(6)) if _is_running_with_tokens_left(scheduler, n)]
        output = scheduler.schedule()
        preempted += len(output.preempted_request_ids)
        if not running or running[0] in output.request_ids:
            passed_over = 0
        else:
            passed_over += 1
        assert passed_over <= bound
        if not output.is_empty:
            flying.append(output)
        if output.is_empty or len(flying) == depth:
            complete(scheduler, flying.pop(0))
    assert preempted > 0


def _is_running_with_tokens_left(scheduler: Scheduler, name: str) -> bool:
    state = scheduler.request_state(name)
    return (
        state is not None
        and state.status == "running"
        and len(state.output_token_ids) + state.num_output_placeholders < 8
    )


def _calls_of_a_step(num_rows: int) -> int:
    """Python calls of one decode step in which every row needs a new block."""
    scheduler = make(blocks=4096, block_size=1, max_num_batched_tokens=1024, max_num_seqs=1024)
    for number in range(num_rows):
        add(scheduler, f"r{number}", 1, 9)
    complete(scheduler, scheduler.schedule())
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        output = scheduler.schedule()
    finally:
        sys.setprofile(None)
    assert len(output.request_ids) == num_rows
    return calls


def test_a_step_costs_no_more_per_row_when_there_are_many_rows() -> None:
    assert _calls_of_a_step(400) < 4.4 * _calls_of_a_step(100)


def test_a_state_tells_the_epoch_that_rows_carry_and_the_ended_one_of_a_preempted_request() -> None:
    scheduler = make()
    for name in ("a", "b"):
        add(scheduler, name, 4, 4)
    output = scheduler.schedule()
    complete(scheduler, output)
    for name, epoch in zip(output.request_ids, output.epochs, strict=True):
        state = scheduler.request_state(name)
        assert state is not None
        assert state.epoch == epoch
    scheduler.preempt_request("b")
    preempted = scheduler.request_state("b")
    assert preempted is not None
    assert (preempted.status, preempted.epoch) == ("preempted", output.epochs[1])
    complete(scheduler, scheduler.schedule())
    resumed = scheduler.schedule()
    assert resumed.request_ids == ("b",)
    assert resumed.epochs[0] not in output.epochs
    running = scheduler.request_state("b")
    assert running is not None
    assert (running.status, running.epoch) == ("running", resumed.epochs[0])


def test_blocks_by_group_are_a_mapping_that_names_a_group_it_lacks() -> None:
    blocks = BlockIdsByGroup(("a", "b"), ((1, 2), ()))
    assert (dict(blocks), repr(blocks), len(blocks)) == ({"a": (1, 2), "b": ()}, "{'a': (1, 2), 'b': ()}", 2)
    with pytest.raises(KeyError, match="'c'"):
        blocks["c"]
    with pytest.raises(AssertionError):
        BlockIdsByGroup(("a", "b"), ((1, 2),))


def test_a_prompt_may_leave_room_for_one_output() -> None:
    scheduler = make(max_model_len=8)
    add(scheduler, "r", 7, 5)
    (end,) = complete(scheduler, scheduler.schedule())
    assert (end.finished, end.finish_reason) == (True, "length")
    with pytest.raises(ValueError, match="at most max_model_len - 1 = 7 tokens, got 8"):
        add(scheduler, "r", 8, 1)


def test_a_request_leaves_the_queue_once() -> None:
    scheduler = make()
    for name in ("senior", "junior"):
        add(scheduler, name, 4, 4)
    queue = scheduler._waiting
    senior, junior = queue
    assert queue.head is senior
    queue.remove(junior)
    with pytest.raises(AssertionError, match=r"^the request is not waiting"):
        queue.remove(junior)


def test_the_ledger_forgets_epochs_without_rows_and_tells_requests_apart() -> None:
    scheduler = make(async_depth=2)
    for name in ("a", "b"):
        add(scheduler, name, 4, 4)
    ledger, first = scheduler._ledger, scheduler.schedule()
    second = scheduler.schedule()
    a = next(live for live in scheduler._running if live.request_id == "a")
    assert [(step.step_id, row.live) for step, row in ledger.rows_of(a)] == [(2, a), (1, a)]
    assert [ledger.rows_in_flight(epoch) for epoch in (*first.epochs, 99)] == [2, 2, 0]
    assert len(ledger._rows_of_epoch) == 2
    complete(scheduler, first)
    complete(scheduler, second)
    assert len(ledger._rows_of_epoch) == 0


def test_a_scheduler_tells_what_it_was_made_of() -> None:
    config, cache = SchedulerConfig(), KVCacheConfig(groups=(KVGroupSpec("a", 4, 9),))
    scheduler = Scheduler(config, cache)
    assert scheduler.config is config
    assert scheduler.kv_cache_config is cache

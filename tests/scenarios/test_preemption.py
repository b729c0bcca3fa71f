"""Preempt, drain, resume: B04, B05, B07, B22 and B25."""

import pytest

from tests.scenarios.driver import DECODE, PREFILL, Driver, group

DEPTHS = (1, 2, 3)


def b04(depth: int) -> Driver:
    """D1 and D2 prefilled, group A full, and the decode s1 of both at position 11 in flight."""
    d = Driver(group("A", 4, 6), group("B", 8, 8), depth=depth, chunk=16, budget=32)
    d.add("D1", 11, 4)
    d.add("D2", 11, 4)
    d.call()
    d.drain()
    assert d.free()["A"] == 0
    s1 = d.call()
    assert s1 is not None
    assert s1.rows == {"D1": (11, 1), "D2": (11, 1)}
    return d


@pytest.mark.parametrize("depth", DEPTHS)
def test_b04_under_memory_pressure_the_victim_is_drained_first(depth: int) -> None:
    """The report preempts D2 while s1 is in flight. hocket drains it first, so s2 is empty, s1's token of D2
    is kept, and D2 is preempted in the call in which D1 gets its block.
    """
    d = b04(depth)
    if depth > 1:
        assert d.call() is None  # s2: D1 needs a 4th block, D2 is held but not drained
        assert not d.preemptions
    d.complete()
    assert [len(d.outputs_of(name)) for name in ("D1", "D2")] == [2, 2]
    s2 = d.call()
    assert s2 is not None
    assert s2.rows == {"D1": (12, 1)}
    assert d.preemptions == ["D2"]
    assert s2.output.preempted_request_ids == ("D2",)
    status, _, computed, outputs, placeholders, blocks, _ = d.view_of("D2")
    assert (status, computed, placeholders, blocks) == ("preempted", 0, 0, {"A": (), "B": ()})
    assert len(outputs) == 2
    d.finish()
    assert d.stale_rows == 0


@pytest.mark.parametrize("depth", DEPTHS)
def test_b04_the_result_of_a_request_preempted_in_flight_is_dropped(depth: int) -> None:
    """The same with an external preemption, which does not wait: s1's row of D2 is stale."""
    d = b04(depth)
    d.preempt("D2")
    s2 = d.call()
    if depth > 1:
        assert s2 is not None
        assert s2.rows == {"D1": (12, 1)}
        assert s2.output.preempted_request_ids == ("D2",)
    else:
        assert s2 is None  # the pipeline is full
    news = d.complete()
    assert d.stale_rows == 1
    assert {item.request_id for item in news} == {"D1"}
    status, _, computed, outputs, placeholders, blocks, _ = d.view_of("D2")
    assert (status, computed, placeholders, blocks) == ("preempted", 0, 0, {"A": (), "B": ()})
    assert len(outputs) == 1
    assert len(d.outputs_of("D1")) == 2
    d.finish()


def b05(depth: int) -> Driver:
    """a = the first chunks of P1 and D2, completed; b = decode of D2, in flight.

    Differs from the report in D2's prompt, 7 instead of 8: set-aside keeps the blocks of a senior's next
    chunk from a decode row, so that b must be a row that needs no block. `reserve_full_prompt=False` lets P1
    in without its promise.
    """
    d = Driver(group("A", 4, 7), depth=depth, chunk=8, budget=16, reserve_full_prompt=False)
    d.add("P1", 16, 1)
    d.add("D2", 7, 8)
    a = d.call()
    assert a is not None
    assert a.rows == {"P1": (0, 8), "D2": (0, 7)}
    d.complete()
    b = d.call()
    assert b is not None
    assert b.rows == {"D2": (7, 1)}
    return d


@pytest.mark.parametrize("depth", DEPTHS)
def test_b05_as_reported_the_seniors_next_chunk_is_set_aside(depth: int) -> None:
    """With D2's prompt of 8 tokens its decode needs one of the 2 free blocks, and both are P1's: b is no
    decode.
    """
    d = Driver(group("A", 4, 6), depth=depth, chunk=8, budget=16, reserve_full_prompt=False)
    d.add("P1", 16, 1)
    d.add("D2", 8, 8)
    d.call()
    d.complete()
    assert d.free() == {"A": 2}
    b = d.call()
    assert b is not None
    assert b.rows == {"P1": (8, 8)}
    d.finish()
    assert not d.preemptions


@pytest.mark.parametrize("depth", [2, 3])
def test_b05_a_preempted_request_waits_for_its_older_work(depth: int) -> None:
    d = b05(depth)
    d.preempt("D2")
    c = d.call()
    assert c is not None
    assert c.rows == {"P1": (8, 8)}
    assert d.free()["A"] == 2  # exactly what D2's first replay chunk needs
    if depth > 2:
        assert d.call() is None  # blocks and budget would do, but b is not processed
    d.complete()
    assert d.stale_rows == 1
    assert len(d.outputs_of("D2")) == 1
    e = d.call()
    assert e is not None
    assert e.rows == {"D2": (0, 8)}
    assert e.output.resumed_request_ids == ("D2",)
    d.finish()


def test_b05_at_depth_1_the_pipeline_is_full_until_the_older_work_is_processed() -> None:
    d = b05(1)
    d.preempt("D2")
    assert d.call() is None
    d.complete()
    assert d.stale_rows == 1
    e = d.call()
    assert e is not None
    assert e.rows == {"P1": (8, 8), "D2": (0, 8)}
    assert e.output.resumed_request_ids == ("D2",)
    d.finish()


@pytest.mark.parametrize("depth", DEPTHS)
def test_b05_under_memory_pressure_a_chunk_preempts_a_drained_decode(depth: int) -> None:
    """One block less: P1's second chunk does not fit. D2 gets no new row, is drained, and only then
    preempted, so that the report's b is never dispatched and none of D2's tokens is lost.
    """
    d = Driver(group("A", 4, 5), depth=depth, chunk=8, budget=16, reserve_full_prompt=False)
    d.add("P1", 16, 1)
    d.add("D2", 7, 8)
    d.call()
    if depth > 1:
        assert d.call() is None
        assert not d.preemptions
    d.complete()
    assert len(d.outputs_of("D2")) == 1
    c = d.call()
    assert c is not None
    assert c.rows == {"P1": (8, 8)}, "D2's replay needs 2 blocks, 1 is free"
    assert d.preemptions == ["D2"]
    d.finish()
    assert d.rows_of("D2", PREFILL) == [(0, 7), (0, 8)]
    assert d.preemptions == ["D2"]


@pytest.mark.parametrize("depth", DEPTHS)
def test_b07_nothing_is_discarded_when_nothing_was_in_flight(depth: int) -> None:
    d = Driver(group("A", 4, 32), depth=depth, chunk=8, budget=16)
    d.add("D", 8, 6)
    d.run(until=lambda: len(d.outputs_of("D")) == 3, delay=1)
    d.drain()
    assert len(d.outputs_of("D")) == 3
    seen, calls = len(d.dispatches), d.calls
    d.preempt("D")
    d.run(until=lambda: d.ended("D"))
    resumed = d.dispatches[seen:]
    assert [(x.phase, x.rows["D"]) for x in resumed] == [
        (PREFILL, (0, 8)),
        (PREFILL, (8, 3)),
        (DECODE, (11, 1)),
        (DECODE, (12, 1)),
    ]
    assert [x.call - calls for x in resumed] == [1, 2, 3, 4], "an idle call while D is runnable"
    assert d.stale_rows == 0
    d.finish()


@pytest.mark.parametrize("depth", DEPTHS)
def test_b22_a_replay_covers_outputs_and_stays_prefill_past_the_prompt(depth: int) -> None:
    d = Driver(group("A", 4, 64), depth=depth, chunk=4, budget=8)
    d.add("D", 6, 12)
    d.run(until=lambda: len(d.outputs_of("D")) == 7, delay=1)
    assert d.rows_of("D", DECODE) == [(6 + i, 1) for i in range(6)]
    d.preempt("D")
    seen, emitted = len(d.dispatches), list(d.outputs_of("D"))
    d.run(until=lambda: d.ended("D"))
    resumed = d.dispatches[seen:]
    assert [(x.phase, x.rows["D"]) for x in resumed] == [
        *((PREFILL, row) for row in [(0, 4), (4, 4), (8, 4), (12, 1)]),
        *((DECODE, (position, 1)) for position in (13, 14, 15, 16)),
    ]
    assert [x.output.samples for x in resumed[:4]] == [(False,), (False,), (False,), (True,)]
    assert d.outputs_of("D")[:7] == emitted
    assert [len(item.new_token_ids) for item in d.news] == [1] * 12, "a token was emitted twice"
    d.finish()


@pytest.mark.parametrize("depth", DEPTHS)
def test_b25_no_preemption_cascade_while_blocks_wait_for_a_step_in_flight(depth: int) -> None:
    """With drain-before-preempting the report's s2 is empty and takes no victim at all."""
    d = Driver(group("A", 4, 8), depth=depth, chunk=8, budget=32)
    names = ["D0", "D1", "D2", "D3"]
    for name in names:
        d.add(name, 7, 6)
    d.call()
    d.drain()
    assert d.free()["A"] == 0
    s1 = d.call()
    assert s1 is not None
    assert list(s1.rows) == names
    if depth > 1:
        assert d.call() is None
        assert not d.preemptions
    d.complete()
    s2 = d.call()
    assert s2 is not None, "no progress after the step in flight was processed"
    # Two blocks are freed by the one victim: enough for the most senior, and no more victims are needed.
    assert d.preemptions == ["D3"]
    assert {"D0"} <= set(s2.rows)
    d.finish()
    assert len(d.preemptions) <= 4
    assert d.preempted_by_pressure == len(d.preemptions)


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_blocks_of_a_victim_do_not_let_a_junior_overtake_it(depth: int) -> None:
    """P1's chunk preempts V, which gives back more than P1 needs. W, junior to V, would fit into the rest."""
    d = Driver(group("A", 4, 9), depth=depth, chunk=8, budget=16, seats=2, reserve_full_prompt=False)
    d.add("V", 12, 16, priority=1)
    d.run(until=lambda: len(d.outputs_of("V")) == 10)
    d.drain()
    d.add("P1", 16, 1)
    d.add("W", 4, 1, priority=2)
    d.run(until=lambda: bool(d.preemptions))
    assert d.preemptions == ["V"]
    assert list(d.dispatches[-1].rows) == ["P1"]
    assert d.free()["A"] >= 1, "W would fit"
    d.finish()
    resumed = next(x for x in d.dispatches if "V" in x.output.resumed_request_ids)
    assert resumed.call <= d.dispatches_of("W")[0].call


@pytest.mark.parametrize("depth", DEPTHS)
def test_victims_are_few_and_never_dispatched_in_the_call_that_takes_them(depth: int) -> None:
    """M takes J0, which had a place further back in the same dispatch; J1, more junior, would not be enough
    and is superfluous beside J0. J1 gets no row either: it is held back for S, the most senior blocked row.
    """
    d = Driver(group("A", 1, 15), depth=depth, chunk=2, budget=8, seats=4, reserve_full_prompt=False)

    def step() -> dict[str, tuple[int, int]]:
        dispatch = d.call()
        assert dispatch is not None
        d.drain()
        return dispatch.rows

    d.add("S", 4, 8)
    assert [step(), step(), step()] == [{"S": (0, 2)}, {"S": (2, 2)}, {"S": (4, 1)}]
    d.add("J0", 12, 1, priority=2)
    assert [step(), step()] == [{"J0": (0, 2)}, {"S": (5, 1)}]
    d.add("M", 8, 1, priority=1)
    d.add("J1", 12, 1, priority=3)
    assert step() == {"J0": (2, 2), "M": (0, 2), "J1": (0, 2)}
    assert step() == {"S": (6, 1)}
    assert d.free() == {"A": 0}
    assert step() == {"M": (2, 2)}
    assert d.preemptions == ["J0"]
    d.finish()


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_senior_is_never_preempted(depth: int) -> None:
    """P's second chunk does not fit and only a senior holds blocks: P waits for its end."""
    d = Driver(group("A", 4, 5), depth=depth, chunk=8, budget=16, reserve_full_prompt=False)
    d.add("D", 9, 3)
    d.add("P", 16, 1)
    d.run(until=lambda: d.ended("D"))
    assert d.rows_of("P") == [(0, 8)]
    assert d.rows_of("D", DECODE) == [(9, 1), (10, 1)]
    d.finish()
    assert not d.preemptions
    assert d.rows_of("P") == [(0, 8), (8, 8)]

"""Ends, aborts and notices: B29, B31, B32, B35, X2, X7 and X8."""

import pytest

from hocket import ModelRunnerOutput, SamplingParams
from tests.scenarios.driver import DECODE, PREFILL, Driver, group, output_token

DEPTHS = (1, 2, 3)


def all_free(d: Driver) -> bool:
    return d.free() == dict(d.cache.pool_blocks)


def two_groups(depth: int) -> Driver:
    return Driver(group("A", 4, 16), group("B", 8, 8), depth=depth, chunk=8, budget=8)


@pytest.mark.parametrize("when", ["before", "in flight", "after"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_b29_an_abort_around_the_final_chunk(depth: int, when: str) -> None:
    d = two_groups(depth)
    d.add("L", 8, 4)
    if when != "before":
        s1 = d.call()
        assert s1 is not None
        assert s1.rows == {"L": (0, 8)}
    if when == "after":
        d.complete()
    end = d.abort("L")
    assert end is not None
    assert (end.new_token_ids, end.finished, end.finish_reason) == ((), True, "abort")
    assert d.call() is None
    d.drain()
    assert all_free(d)
    assert len(d.outputs_of("L")) == (1 if when == "after" else 0)
    assert d.abort("L") is None
    d.finish("L")


@pytest.mark.parametrize("when", ["waiting", "between chunks", "in flight", "preempted in flight"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_b31_an_abort_in_the_middle_of_a_prompt(depth: int, when: str) -> None:
    d = two_groups(depth)
    d.add("L", 24, 4)
    if when != "waiting":
        d.call()
        d.complete()
    if when in ("in flight", "preempted in flight"):
        second = d.call()
        assert second is not None
        assert second.rows == {"L": (8, 8)}
    if when == "preempted in flight":
        d.preempt("L")
    rows = d.rows_of("L")
    assert d.abort("L") is not None
    assert d.abort("L") is None
    assert d.call() is None
    # Preempted and aborted before the next output: the id is named as finished only.
    assert d.outputs[-1].preempted_request_ids == ()
    assert d.outputs[-1].finished_request_ids == ("L",)
    d.drain()
    assert all_free(d)
    assert d.scheduler.num_waiting == 0
    d.add("M", 24, 1)
    d.finish("L")
    assert d.rows_of("L") == rows
    assert d.rows_of("M") == [(0, 8), (8, 8), (16, 8)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_b31_a_reused_id_is_a_new_request(depth: int) -> None:
    """Rows of the aborted request are in flight when its id comes back: they change nothing, and hold nobody
    up.
    """
    d = two_groups(depth)
    d.add("L", 24, 4)
    d.call()
    d.abort("L")
    d.add("L", 8, 2)
    if depth > 1:
        fresh = d.call()
        assert fresh is not None
        assert fresh.rows == {"L": (0, 8)}
        assert fresh.output.resumed_request_ids == ()
        assert fresh.output.finished_request_ids == ("L",)
    d.complete()
    assert d.stale_rows == 1
    assert d.outputs_of("L") == []
    d.finish()


@pytest.mark.parametrize("depth", DEPTHS)
def test_b32_no_row_is_scheduled_beyond_the_limit(depth: int) -> None:
    d = Driver(group("A", 4, 32), depth=depth, chunk=8, budget=16)
    d.add("D", 4, 4)
    d.finish()
    assert d.rows_of("D", DECODE) == [(4, 1), (5, 1), (6, 1)]
    assert d.stale_rows == 0


@pytest.mark.parametrize("accepted", [(3,), (1, 3, 3, 3)])
@pytest.mark.parametrize("depth", DEPTHS)
def test_b32_drafts_do_not_cross_the_limit(depth: int, accepted: tuple[int, ...]) -> None:
    """`accepted` tokens per decode row. A rejection takes computed back by what was rejected; the driver
    compares computed and placeholders with its own account after every event.
    """
    d = Driver(
        group("A", 4, 32),
        depth=depth,
        chunk=8,
        budget=16,
        drafts=2,
        accept=lambda _name, turn, length: min(length, accepted[turn - 1]),
    )
    d.add("D", 4, 4)
    d.call()
    d.drain()
    first = d.call()
    assert first is not None
    assert first.rows == {"D": (4, 3)}
    assert d.view_of("D")[2:5:2] == (7, 3)
    d.complete()
    if accepted[0] == 1:
        assert d.view_of("D")[2:5:2] == (5, 0)
    d.finish()
    assert len(d.rows_of("D", DECODE)) <= 2
    assert d.news[-1].finish_reason == "length"


@pytest.mark.parametrize("depth", DEPTHS)
def test_b32_tokens_after_a_stop_in_one_row_are_dropped(depth: int) -> None:
    d = Driver(group("A", 4, 32), depth=depth, chunk=8, budget=16, drafts=2)
    stop = output_token("D", 4, 3)
    d.add("D", 4, 12, stop_token_ids=(stop,))
    d.call()
    d.drain()
    d.call()
    assert len(d.in_flight[0].tokens[0]) == 3  # a, STOP and c
    excess = d.call() if depth > 1 else None
    news = d.complete()
    assert news[0].new_token_ids == (output_token("D", 4, 2), stop)
    assert news[0].finish_reason == "stop"
    assert len(d.outputs_of("D")) == 3
    if excess is not None:
        assert d.complete() == []
        assert d.stale_rows == 1
    d.finish()


@pytest.mark.parametrize("depth", DEPTHS)
def test_b32_one_token_needs_no_decode_row(depth: int) -> None:
    d = Driver(group("A", 4, 32), depth=depth, chunk=8, budget=16, drafts=2)
    d.add("D", 4, 1)
    d.finish()
    assert not d.rows_of("D", DECODE)


@pytest.mark.parametrize("depth", DEPTHS)
def test_b35_notices_survive_a_prefill_attempt_that_is_replaced_by_a_decode(depth: int) -> None:
    d = Driver(group("A", 4, 8), depth=depth, chunk=24, budget=24, seats=2)
    d.add("A", 8, 20)
    d.add("B", 8, 2)
    d.run(until=lambda: d.ended("B"))
    seen = len(d.outputs)
    d.add("C", 24, 1)
    with pytest.raises(ValueError, match="'X'"):
        d.add("X", 40, 1)
    d.run(until=lambda: len(d.outputs) > seen)
    # The first output after B's end carries the notice: a decode of A, since C cannot fit.
    assert d.outputs[seen].finished_request_ids == ("B",)
    assert d.outputs[seen].phase is DECODE
    assert d.outputs[seen].request_ids == ("A",)
    d.run(until=lambda: len(d.outputs_of("A")) == 6)
    d.preempt("A")
    after = len(d.outputs)
    if len(d.in_flight) == depth:
        d.complete()
    d.call()
    assert d.outputs[after].preempted_request_ids == ("A",)
    d.finish()
    for kind, name in (("finished_request_ids", "B"), ("preempted_request_ids", "A")):
        assert sum(getattr(output, kind).count(name) for output in d.outputs) == 1
    assert "X" not in d.submissions


@pytest.mark.parametrize("depth", DEPTHS)
def test_x2_empty_prompts_and_zero_tokens_are_refused(depth: int) -> None:
    d = Driver(group("A", 4, 16), depth=depth, chunk=8, budget=16)
    d.add("D", 8, 4)
    d.call()
    with pytest.raises(ValueError, match="prompt_token_ids must hold at least 1 token"):
        d.add("E", [], 4)
    with pytest.raises(ValueError, match="max_tokens must be an int >= 1"):
        SamplingParams(max_tokens=0)
    d.check()
    d.finish()


@pytest.mark.parametrize("depth", DEPTHS)
def test_x7_an_abort_of_a_queued_request_hits_nobody_else(depth: int) -> None:
    def run(cancel: bool) -> list[dict[str, tuple[int, int]]]:
        d = Driver(group("A", 4, 16), depth=depth, chunk=8, budget=16, seats=1)
        d.add("D", 8, 8)
        d.run(until=lambda: len(d.outputs_of("D")) == 3)
        d.add("W", 8, 2)
        d.call()
        if cancel:
            d.abort("W")
        d.run(until=lambda: d.ended("D"))
        rows = [x.rows for x in d.dispatches if "D" in x.rows]
        d.finish(*(("W",) if cancel else ()))
        return rows

    assert run(cancel=True) == run(cancel=False)


@pytest.mark.parametrize("depth", DEPTHS)
def test_x7_an_abort_with_drafts_in_flight_frees_the_seat(depth: int) -> None:
    d = Driver(group("A", 4, 16), depth=depth, chunk=8, budget=16, seats=1, drafts=2)
    d.add("D", 8, 20)
    d.run(until=lambda: len(d.rows_of("D", DECODE)) >= 2)
    assert d.in_flight
    d.add("W", 8, 2)
    d.abort("D")
    d.drain()
    assert all_free(d)
    calls = d.calls
    d.run(until=lambda: bool(d.rows_of("W")))
    assert d.calls <= calls + 2
    d.finish("D")


@pytest.mark.parametrize("depth", DEPTHS)
def test_x8_only_rows_that_sample_carry_a_token(depth: int) -> None:
    d = Driver(group("A", 4, 64), depth=depth, chunk=8, budget=16)
    d.add("r0", 8, 4)
    d.add("r1", 24, 4)
    first = d.call()
    assert first is not None
    assert first.output.samples == (True, False)
    views = [d.view_of(name) for name in ("r0", "r1")]
    token = output_token("r0", 8, 1)
    for tokens in (
        ((token,), (0,)),  # a token for the row that is still chunking
        ((), ()),
        ((token, token), ()),
        ((token,),),
        ((token,), (), ()),
    ):
        with pytest.raises(ValueError, match="sampled_token_ids"):
            d.scheduler.update_from_output(
                first.output, ModelRunnerOutput(step_id=first.step_id, sampled_token_ids=tokens)
            )
        assert [d.view_of(name) for name in ("r0", "r1")] == views
        d.check()
    d.complete()
    assert (len(d.outputs_of("r0")), len(d.outputs_of("r1"))) == (1, 0)
    d.finish()
    # While r1 is chunking r0's decodes run between: r1 sits in none of them.
    chunks = [x.step_id for x in d.dispatches_of("r1", PREFILL)]
    assert all(x.step_id > chunks[-1] for x in d.dispatches_of("r1", DECODE))

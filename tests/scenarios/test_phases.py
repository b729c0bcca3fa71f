"""Which phase runs, and who gets into its dispatch: B01, B02, B10, B20, B23 and X1.

Final KV and MTP digests of a real model, of which B01 and B20 speak, are compared by the end-to-end tests;
here the pretend device checks every cell that a row reads, and tokens against those of an isolated run.
"""

from itertools import pairwise

import pytest

from tests.scenarios.driver import DECODE, PREFILL, Driver, group

DEPTHS = (1, 2, 3)


@pytest.mark.parametrize("drafts", [0, 1])
@pytest.mark.parametrize("depth", DEPTHS)
def test_b01_decodes_run_between_the_chunks_of_a_long_prompt(depth: int, drafts: int) -> None:
    d = Driver(
        group("A", 16, 1024), group("B", 128, 128), depth=depth, chunk=2048, budget=2048, drafts=drafts
    )
    d.add("D", 16, 64)
    d.run(until=lambda: len(d.outputs_of("D")) >= 1)
    d.add("L", 8192, 4)
    d.finish()
    chunks = d.dispatches_of("L", PREFILL)
    assert [c.rows["L"] for c in chunks] == [(0, 2048), (2048, 2048), (4096, 2048), (6144, 2048)]
    last_of_d = d.dispatches_of("D")[-1].step_id
    decodes = {x.step_id for x in d.dispatches_of("D", DECODE)}
    for first, second in zip(d.dispatches_of("L")[:-1], d.dispatches_of("L")[1:], strict=True):
        if second.step_id < last_of_d and second.phase is PREFILL:
            assert decodes & set(range(first.step_id + 1, second.step_id))
    assert last_of_d > chunks[-1].step_id, "the decoder must live while the prompt is prefilled"
    assert chunks[-1].step_id - chunks[0].step_id == 6  # strict alternation: the 7th dispatch


@pytest.mark.parametrize("depth", DEPTHS)
def test_b02_a_prefill_turn_that_can_admit_nobody_falls_back_to_decode(depth: int) -> None:
    d = Driver(group("A", 4, 8), group("B", 8, 4), depth=depth, chunk=8, budget=16)
    d.add("D", 28, 4)
    d.run(until=lambda: len(d.outputs_of("D")) >= 1)
    d.drain()
    start = d.calls
    d.add("W", 8, 1)
    d.run(until=lambda: d.ended("D"))
    calls = {x.call for x in d.dispatches_of("D", DECODE)}
    last_row = max(calls)
    for call in range(start + 1, last_row):
        assert {call, call + 1} & calls, "two calls in a row without the decode"
    # An empty call is allowed, two in a row while D is runnable are not.
    assert not any({call, call + 1} <= set(d.empty_calls) for call in range(start + 1, last_row))
    end = d.calls
    d.finish()
    assert not d.preemptions
    assert d.rows_of("W") == [(0, 8)]
    assert d.dispatches_of("W")[0].call <= end + 2


@pytest.mark.parametrize("depth", DEPTHS)
def test_b10a_a_waiting_prompt_is_prefilled_under_sustained_decode(depth: int) -> None:
    d = Driver(group("A", 4, 256), depth=depth, chunk=8, budget=16)
    replaced = 0
    for name in ("D0", "D1", "D2"):
        d.add(name, 8, 50)
    d.run(until=lambda: d.calls == 20)
    d.add("W", 16, 2)
    arrival = d.calls
    while not d.ended("W"):
        d.run(until=lambda: d.ended("W") or len(d.states()) < 4, limit=50)
        if len(d.states()) < 4 and not d.ended("W"):
            replaced += 1
            d.add(f"N{replaced}", 8, 50)
    first, last = (x.call for x in d.dispatches_of("W", PREFILL))
    assert first <= arrival + 2
    assert last <= arrival + 4
    assert d.dispatches_of("W", DECODE)[0].call <= arrival + 6
    window = [x for x in d.dispatches if arrival < x.call <= arrival + 6]
    for one, two in pairwise(window):
        assert DECODE in (one.phase, two.phase)
    assert all({"D0", "D1", "D2"} <= set(x.rows) for x in window if x.phase is DECODE)
    d.finish()


@pytest.mark.parametrize("depth", DEPTHS)
def test_b10b_failed_prefill_attempts_spend_no_credit(depth: int) -> None:
    d = Driver(group("A", 4, 8), depth=depth, chunk=16, budget=16)
    d.add("D1", 20, 9)
    d.run(until=lambda: len(d.outputs_of("D1")) >= 1)
    d.drain()
    d.add("W", 16, 1)
    start = d.calls
    d.run(until=lambda: d.ended("D1"))
    decodes = d.dispatches_of("D1", DECODE)
    assert len(decodes) == 8
    assert decodes[-1].call - start <= 17
    assert not d.rows_of("W")
    freed = d.calls
    d.finish()
    assert d.rows_of("W") == [(0, 16)]
    assert d.dispatches_of("W")[0].call <= freed + 2


@pytest.mark.parametrize(
    ("drafts", "prompt", "rows"),
    [
        (0, 2049, [(0, 2048), (2048, 1), (2049, 1)]),
        # The decode row has one token left to emit, hence no draft.
        (1, 2050, [(0, 2048), (2048, 2), (2050, 1)]),
        (1, 2, [(0, 2), (2, 1)]),
        (1, 1, [(0, 1), (1, 1)]),
        (0, 1, [(0, 1), (1, 1)]),
    ],
)
@pytest.mark.parametrize("depth", DEPTHS)
def test_b20_a_short_last_chunk_is_prefill(
    depth: int, drafts: int, prompt: int, rows: list[tuple[int, int]]
) -> None:
    """The phase is carried explicitly. A fresh row starts at 0 in a new epoch with its whole table; which
    token a row feeds is checked by the device.
    """
    d = Driver(group("A", 16, 512), depth=depth, chunk=2048, budget=2048, drafts=drafts)
    d.add("D", 16, 40)
    d.run(until=lambda: len(d.outputs_of("D")) >= 2)
    d.add("L", prompt, 2)
    d.finish()
    assert d.rows_of("L") == rows
    assert d.rows_of("L", PREFILL) == rows[:-1]
    for chunk in d.dispatches_of("L", PREFILL):
        assert "D" not in chunk.rows
    first = d.dispatches_of("L")[0].output
    at = first.request_ids.index("L")
    assert first.num_computed_tokens[at] == 0
    assert len(first.new_block_ids[at]["A"]) == -(-min(prompt, 2048) // 16)
    assert "L" not in first.resumed_request_ids
    assert any(x.phase is DECODE for x in d.dispatches if x.step_id < d.dispatches_of("L", DECODE)[0].step_id)


@pytest.mark.parametrize("depth", DEPTHS)
def test_b23_a_partial_continuation_leaves_every_set(depth: int) -> None:
    d = Driver(group("A", 4, 64), depth=depth, chunk=8, budget=20)
    for name in ("r0", "r1", "r2"):
        d.add(name, 10, 4)
    first = d.call()
    assert first is not None
    assert first.rows == {"r0": (0, 8), "r1": (0, 8), "r2": (0, 4)}
    before = {name: d.view_of(name)[2] for name in first.rows}
    assert d.scheduler.num_in_flight == 1
    d.complete()
    assert d.scheduler.num_in_flight == 0
    assert {name: d.view_of(name)[2] for name in first.rows} == before == {"r0": 8, "r1": 8, "r2": 4}
    second = d.call()
    assert second is not None
    assert second.rows == {"r0": (8, 2), "r1": (8, 2), "r2": (4, 6)}
    d.run(until=lambda: len(d.dispatches) == 4)
    assert set().union(*(x.rows for x in d.dispatches[2:4] if x.phase is DECODE)) == {"r0", "r1", "r2"}
    d.finish()


@pytest.mark.parametrize("depth", DEPTHS)
def test_x1_short_prompts_behind_one_long_prompt(depth: int) -> None:
    """The shorts share prefill turns with the long prompt, which is never stopped.

    The report's target, every short within 4 prefill turns, is not what hocket's rules give: only the head of
    the queue takes its tokens first, and only in the dispatch after the one that passed it over. So every
    second turn admits one
    short: it waits at most one prefill turn as the head, and the long prompt has a row in every turn.
    """
    d = Driver(group("A", 4, 256), depth=depth, chunk=8, budget=8, seats=8)
    d.add("L", 64, 1)
    d.call()
    d.drain()
    shorts = ["s0", "s1", "s2", "s3"]
    for name in shorts:
        d.add(name, 4, 1)
    d.finish()
    turns = [x for x in d.dispatches if x.phase is PREFILL]
    assert len(turns) == 10
    assert all("L" in x.rows for x in turns)
    served = [next(i for i, x in enumerate(turns) if name in x.rows) for name in shorts]
    assert served == [2, 4, 6, 8]

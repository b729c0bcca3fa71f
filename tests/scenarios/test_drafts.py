"""Multi-token prediction: B08, B19 and B34.

Draft ids, hidden states and the MTP layer's own cache belong to the runner and are tested end to end; here is
the schedule's part: row lengths, token budgets, lookahead tokens, and that rejected drafts leave no trace.
"""

from itertools import pairwise

import pytest

from tests.scenarios.driver import DECODE, PREFILL, Driver, group, prompt_of

DEPTHS = (1, 2, 3)


@pytest.mark.parametrize("accepted", [1, 2, 3])
@pytest.mark.parametrize("gap", ["prefill", "preempted", "another one ends"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_b08_a_decode_row_after_a_gap(depth: int, gap: str, accepted: int) -> None:
    """D decodes in s1, is absent in s2 and decodes again in s3, over and over, whatever was accepted between.
    The device feeds the last token of (request, epoch) and checks that it stands where the row starts.
    """
    d = Driver(
        group("A", 4, 64),
        depth=depth,
        chunk=8,
        budget=16,
        drafts=2,
        accept=lambda _name, _turn, length: min(length, accepted),
    )
    if gap == "another one ends":
        d.add("S", 4, 3)
    d.add("D", 8, 20)
    d.add("L", 64, 1)
    d.run(until=lambda: len(d.rows_of("D", DECODE)) >= 2)
    if gap == "preempted":
        d.preempt("D")
    d.finish()
    shape = [(x.phase, "D" in x.rows) for x in d.dispatches]
    gaps = zip(shape, shape[1:], shape[2:], strict=False)
    assert ((DECODE, True), (PREFILL, False), (DECODE, True)) in list(gaps)
    for start, length in d.rows_of("D", DECODE):
        # 1 + drafts, fewer only where fewer tokens are left to emit.
        assert 1 <= length <= 3
        assert start + length <= 8 + 20
    # The same text as without drafts: both equal the isolated run (checked by `finish`).


@pytest.mark.parametrize("drafts", [1, 2])
@pytest.mark.parametrize("chunk", range(1, 11))
@pytest.mark.parametrize("depth", DEPTHS)
def test_b19_a_chunk_carries_the_next_prompt_token(depth: int, chunk: int, drafts: int) -> None:
    d = Driver(group("A", 4, 64), depth=depth, chunk=chunk, budget=16, drafts=drafts)
    d.add("D", 4, 30)
    d.run(until=lambda: bool(d.rows_of("D", DECODE)))
    d.add("L", 10, 2)
    d.finish()
    prompt = prompt_of("L", 10)
    chunks = d.dispatches_of("L", PREFILL)
    assert [x.rows["L"] for x in chunks] == [(s, min(chunk, 10 - s)) for s in range(0, 10, chunk)]
    ahead = [x.output.lookahead_token_ids[x.output.request_ids.index("L")] for x in chunks]
    assert ahead == [prompt[end] if end < 10 else None for end in range(chunk, 10 + chunk, chunk)]
    assert sum(length for _, length in d.rows_of("L", PREFILL)) == 10
    if chunk < 10:
        between = d.dispatches[d.dispatches.index(chunks[0]) : d.dispatches.index(chunks[-1])]
        assert any("D" in x.rows and x.phase is DECODE for x in between)


@pytest.mark.parametrize("depth", DEPTHS)
def test_b19_the_lookahead_of_the_report(depth: int) -> None:
    d = Driver(group("A", 4, 64), depth=depth, chunk=4, budget=16, drafts=1)
    d.add("L", 10, 1)
    d.finish()
    prompt = prompt_of("L", 10)
    assert [x.output.lookahead_token_ids for x in d.dispatches] == [(prompt[4],), (prompt[8],), (None,)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_b34a_a_hidden_phase_counts_for_the_seats(depth: int) -> None:
    d = Driver(group("A", 4, 256), depth=depth, chunk=8, budget=16, drafts=3, seats=4)
    for name in ("D0", "D1", "D2", "D3"):
        d.add(name, 8, 30)
    d.run(until=lambda: all(d.outputs_of(name) for name in ("D0", "D1", "D2", "D3")))
    d.add("W", 8, 1)
    d.run(
        until=lambda: bool(d.rows_of("W"))
    )  # the driver checks the number of running requests after every event
    assert any(d.ended(name) for name in ("D0", "D1", "D2", "D3"))
    d.finish()


@pytest.mark.parametrize("depth", DEPTHS)
def test_b34b_drafts_count_for_the_budget_and_decodes_take_turns(depth: int) -> None:
    d = Driver(group("A", 4, 256), depth=depth, chunk=8, budget=16, drafts=3, seats=5, accept=lambda *_: 1)
    names = {"D0", "D1", "D2", "D3", "D4"}
    for name in sorted(names):
        d.add(name, 8, 30)
    d.run(until=lambda: all(d.outputs_of(name) for name in names))
    start = len(d.dispatches)
    d.run(until=lambda: any(len(d.outputs_of(name)) > 10 for name in names))
    decodes = [x for x in d.dispatches[start:] if x.phase is DECODE]
    assert len(decodes) >= 8
    for one, two in pairwise(decodes):
        assert set(one.rows) | set(two.rows) == names
    for x in decodes:
        assert len(x.rows) <= 4
        assert all(length == 4 for _, length in x.rows.values())
    d.finish()


@pytest.mark.parametrize("depth", DEPTHS)
def test_without_blocks_for_drafts_a_row_falls_back_to_one_token(depth: int) -> None:
    """The pool is full and both rows could use a third block for drafts: no preemption, one token each."""
    d = Driver(group("A", 4, 4), depth=depth, chunk=8, budget=16, drafts=3)
    d.add("D1", 7, 4)
    d.add("D2", 7, 4)
    d.call()
    d.drain()
    assert d.free() == {"A": 0}
    decode = d.call()
    assert decode is not None
    assert decode.rows == {"D1": (7, 1), "D2": (7, 1)}
    assert not d.preemptions
    d.finish()

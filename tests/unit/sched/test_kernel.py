"""The decision kernel against dumb alternatives: enumerate everything, then compare."""

from __future__ import annotations

from itertools import combinations
from math import lcm

from hypothesis import given
from hypothesis import strategies as st

from hocket.sched import kernel
from hocket.sched.kernel import DECODE, NO_PHASE, PREFILL, Group, Progress, Turn

small = st.integers(0, 12)
positive = st.integers(1, 12)


@given(owed=st.sampled_from([PREFILL, DECODE]), mine=st.booleans(), theirs=st.booleans())
def test_the_owed_phase_runs_if_it_can_else_the_other_else_none(owed: int, mine: bool, theirs: bool) -> None:
    expected = owed if mine else (kernel.other_phase(owed) if theirs else NO_PHASE)
    assert kernel.choose_phase(owed, mine, theirs) == expected


@given(p=positive, d=positive, ran=st.lists(st.sampled_from([NO_PHASE, PREFILL, DECODE]), max_size=60))
def test_a_turn_counts_only_dispatches_of_the_owed_phase(p: int, d: int, ran: list[int]) -> None:
    turn, owed, count = Turn(DECODE, 0), DECODE, 0
    for phase in ran:
        turn = kernel.turn_after(turn, phase, p, d)
        if phase == owed:
            count += 1
            if count == (p if owed == PREFILL else d):
                owed, count = (DECODE if owed == PREFILL else PREFILL), 0
        assert turn == Turn(owed, count)


@given(chunks=st.integers(0, 6), rest=st.integers(1, 40), size=positive, left=small, alignment=positive)
def test_a_chunk_is_the_longest_that_size_budget_and_alignment_allow(
    chunks: int, rest: int, size: int, left: int, alignment: int
) -> None:
    computed = chunks * alignment
    replay_len = computed + rest
    allowed = [
        n
        for n in range(min(size, rest, left) + 1)
        if computed + n == replay_len or (computed + n) % alignment == 0
    ]
    assert kernel.chunk_len(computed, replay_len, size, left, alignment) == max(allowed)


@given(allowed=positive, drafts=small)
def test_a_decode_row_never_exceeds_what_may_still_be_emitted(allowed: int, drafts: int) -> None:
    assert kernel.decode_len(allowed, drafts) == min(1 + drafts, allowed)


@given(drafts=small, wanted=small)
def test_a_request_gets_the_drafts_it_wants_within_what_is_configured(drafts: int, wanted: int) -> None:
    assert kernel.row_drafts(drafts, wanted) == max(n for n in range(drafts + 1) if n <= wanted)


@given(computed=small, replay_len=positive, allowed=small)
def test_replay_comes_before_outputs(computed: int, replay_len: int, allowed: int) -> None:
    expected = PREFILL if computed < replay_len else (DECODE if allowed else NO_PHASE)
    assert kernel.runnable_phase(computed, replay_len, allowed) == expected


def test_output_limit_is_cut_by_the_model_length() -> None:
    assert kernel.output_limit(10, 16, 4) == 10
    assert kernel.output_limit(10, 16, 12) == 4


def test_only_decode_rows_and_the_end_of_a_replay_sample() -> None:
    assert kernel.row_samples(DECODE, 5, 9)
    assert kernel.row_samples(PREFILL, 9, 9)
    assert not kernel.row_samples(PREFILL, 8, 9)
    assert kernel.reserved_tokens(DECODE, 3, True) == 3
    assert kernel.reserved_tokens(PREFILL, 3, True) == 1
    assert kernel.reserved_tokens(PREFILL, 3, False) == 0


@given(end=st.integers(0, 60), block=positive, columns=small)
def test_new_columns_cover_the_end_and_no_more(end: int, block: int, columns: int) -> None:
    added = kernel.new_columns(end, block, columns)
    assert (columns + added) * block >= end
    assert added == 0 or (columns + added - 1) * block < end


@given(processed=st.integers(0, 60), window=small, block=positive, columns=small)
def test_only_columns_wholly_older_than_the_window_are_outdated(
    processed: int, window: int, block: int, columns: int
) -> None:
    wholly_older = [c for c in range(columns) if window and (c + 1) * block <= processed - window]
    assert kernel.outdated_columns(processed, window, block, columns) == len(wholly_older)


groups = st.lists(st.builds(Group, positive, st.integers(0, 9), st.just(0)), min_size=1, max_size=3)


@given(groups=groups, total=st.integers(1, 70), reach=positive)
def test_capacity_need_is_the_maximum_over_every_start(groups: list[Group], total: int, reach: int) -> None:
    def held(start: int) -> int:
        return sum(
            -(-min(start + reach, total) // g.block_size)
            - (max(0, start - g.window) // g.block_size if g.window else 0)
            for g in groups
        )

    period = lcm(*(g.block_size for g in groups if g.window))
    expected = max(held(start) for start in range(total))
    assert kernel.capacity_need(tuple(groups), total, reach, period) == expected


vectors = st.tuples(st.integers(0, 4), st.integers(0, 4))
signed = st.tuples(st.integers(-3, 4), st.integers(-3, 4))


def covers(need: tuple[int, ...], within: tuple[int, ...], gains: list[tuple[int, ...]]) -> bool:
    return all(
        n == 0 or n <= w + sum(g[k] for g in gains) for k, (n, w) in enumerate(zip(need, within, strict=True))
    )


@given(need=vectors, within=signed, gains=st.lists(vectors, max_size=5))
def test_designated_victims_suffice_and_no_proper_subset_does(
    need: tuple[int, ...], within: tuple[int, ...], gains: list[tuple[int, ...]]
) -> None:
    chosen = kernel.designate(need, within, tuple(gains))
    if not chosen:
        assert covers(need, within, []) or not covers(need, within, gains)
        return
    assert covers(need, within, [gains[i] for i in chosen])
    for size in range(len(chosen)):
        for subset in combinations(chosen, size):
            assert not covers(need, within, [gains[i] for i in subset])
    # From the most junior upward: whoever is more senior than the last one chosen was not needed.
    assert not covers(need, within, gains[: max(chosen)])


def test_a_pool_of_which_nothing_is_asked_stops_nobody() -> None:
    assert kernel.fits((0, 1), (-2, 1))
    assert not kernel.fits((0, 2), (5, 1))


def test_a_victim_must_share_a_scarce_pool() -> None:
    assert kernel.designate((2, 0), (0, 0), ((0, 5), (2, 0))) == (1,)
    assert not kernel.helps((0, 5), (2, 0), (0, 0))


def test_victims_are_taken_from_the_most_junior_upward_and_superfluous_ones_spared() -> None:
    # One block of the most junior, then two of the next: the first one turns out not to be needed.
    assert kernel.designate((2,), (0,), ((1,), (2,), (9,))) == (1,)
    # Of two that could be spared, the more senior is.
    assert kernel.designate((2, 1), (0, 0), ((1, 0), (1, 0), (1, 1))) == (0, 2)
    # Whoever shares no scarce pool is never taken, wherever it stands.
    assert kernel.designate((1, 0), (0, 0), ((0, 3), (1, 0))) == (1,)
    assert kernel.designate((3,), (0,), ((1,), (1,))) == ()


def test_the_watermark_is_waived_when_nothing_runs_and_where_nothing_is_asked() -> None:
    assert kernel.admission_ask((2, 0), (1, 0), (3, 3), True) == (5, 0)
    assert kernel.admission_ask((2, 0), (1, 0), (3, 3), False) == (2, 0)
    assert kernel.admission_ask((0, 0), (1, 1), (0, 0), True) == (1, 1)


@given(rows=small, running=small, seats=positive)
def test_admission_needs_a_drained_request_and_a_seat(rows: int, running: int, seats: int) -> None:
    assert kernel.may_admit(rows, running, seats) == (rows == 0 and running < seats)


@given(row=small, request=small, running=st.booleans())
def test_a_row_is_current_only_in_the_running_epoch(row: int, request: int, running: bool) -> None:
    assert kernel.is_current(row, request, running) == (running and row == request)


def test_a_decode_row_may_write_below_its_planned_start() -> None:
    assert kernel.write_start(PREFILL, 7, 4, 2) == 7
    assert kernel.write_start(DECODE, 7, 4, 2) == 5
    assert kernel.certain_progress(PREFILL, 3) == 3
    assert kernel.certain_progress(DECODE, 3) == 1


@given(column=small, block=positive, first=small, length=positive)
def test_a_row_touches_exactly_the_columns_of_its_tokens(
    column: int, block: int, first: int, length: int
) -> None:
    touched = {token // block for token in range(first, first + length)}
    assert kernel.writes_column(column, block, first, first + length) == (column in touched)


@given(length=positive, data=st.data(), computed=st.integers(0, 30), processed=st.integers(0, 30), held=small)
def test_progress_is_given_back_for_rejected_tokens(
    length: int, data: st.DataObject, computed: int, processed: int, held: int
) -> None:
    accepted = data.draw(st.integers(1, length))
    before = Progress(computed, processed, held)
    scheduled = kernel.progress_scheduled(before, length, length)
    assert scheduled == Progress(computed + length, processed, held + length)
    after = kernel.progress_decode_processed(scheduled, length, accepted)
    assert after == Progress(computed + accepted, processed + accepted, held)
    chunk = kernel.progress_chunk_processed(kernel.progress_scheduled(before, length, 1), length, 1)
    assert chunk == Progress(computed + length, processed + length, held)


@given(outputs=positive, limit=positive, least=small, ends=st.booleans())
def test_a_stop_counts_before_the_length_and_not_before_min_tokens(
    outputs: int, limit: int, least: int, ends: bool
) -> None:
    ending = kernel.end_after_token(outputs, limit, least, ends)
    if ends and outputs >= least:
        assert ending == kernel.ENDS_BY_STOP
    else:
        assert ending == (kernel.ENDS_BY_LENGTH if outputs >= limit else kernel.GOES_ON)

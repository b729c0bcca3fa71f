"""Every decision of the scheduler, as pure and total functions over ints, bools, tuples and NamedTuples.

The shell (planner, ledger, scheduler) keeps containers and identities; what to do it asks here. The functions
are kept so plain (no `is`, no isinstance, no f-strings, dicts, sets or floats: a lint checks it) because the
very functions that ship are also executed symbolically by the proofs. They return codes and numbers; messages
are made elsewhere.

Vocabulary: *computed* is scheduled (optimistic) progress in tokens, *processed* is progress whose results are
in. A *vector* is a tuple with one block count per pool.
"""

from __future__ import annotations

from typing import NamedTuple

NO_PHASE = 0
PREFILL = 1
DECODE = 2

GOES_ON = 0
ENDS_BY_STOP = 1
ENDS_BY_LENGTH = 2

Vector = tuple[int, ...]


class Turn(NamedTuple):
    """Whose turn it is: the owed phase, and how many steps of it this turn has had."""

    owed: int
    steps: int


class Group(NamedTuple):
    """Geometry of one KV cache group.

    Source tokens per block, window in source tokens (0: full history), pool index.
    """

    block_size: int
    window: int
    pool: int


class Progress(NamedTuple):
    """A request's counters that a result changes."""

    computed: int
    processed: int
    placeholders: int


class Epochs(NamedTuple):
    """A request's epoch, and the next one that nobody has had."""

    own: int
    unused: int


# --- Phase choice (L1, L2) ------------------------------------------------------------------------


def has_room(in_flight: int, depth: int) -> bool:
    """Whether the pipeline takes one more dispatch."""
    return in_flight < depth


def first_turn() -> Turn:
    """Decode is owed first: with nothing to decode yet, prefill runs at once as the fallback."""
    return Turn(DECODE, 0)


def other_phase(phase: int) -> int:
    """The phase that is not `phase`."""
    return PREFILL if phase == DECODE else DECODE


def choose_phase(owed: int, owed_serviceable: bool, other_serviceable: bool) -> int:
    """The owed phase if it is serviceable, else the other one in the same call, else none."""
    if owed_serviceable:
        return owed
    if other_serviceable:
        return other_phase(owed)
    return NO_PHASE


def turn_after(turn: Turn, ran: int, prefill_steps: int, decode_steps: int) -> Turn:
    """Only a dispatch of the owed phase counts.

    A fallback and an empty output change nothing, so nobody saves credit.
    """
    if ran != turn.owed:
        return turn
    steps = turn.steps + 1
    if steps >= (prefill_steps if turn.owed == PREFILL else decode_steps):
        return Turn(other_phase(turn.owed), 0)
    return Turn(turn.owed, steps)


# --- Row lengths (S9), fixed before blocks are looked at ------------------------------------------


def output_limit(max_tokens: int, max_model_len: int, prompt_len: int) -> int:
    """Output tokens that a request may have: `max_tokens` cut to what the model length leaves."""
    return min(max_tokens, max_model_len - prompt_len)


def runnable_phase(computed: int, replay_len: int, allowed: int) -> int:
    """The phase in which a running request has tokens left: its replay first, then outputs, else none."""
    if computed < replay_len:
        return PREFILL
    return DECODE if allowed > 0 else NO_PHASE


def may_have_row(phase: int, runnable: int, held: bool, preempted: bool) -> bool:
    """Whether a running request gets a row in a dispatch of `phase`.

    It has tokens left in that very phase (S1), is not held back, and was not preempted in this call (S3).
    """
    return runnable == phase and not held and not preempted


def tokens_allowed(limit: int, outputs: int, placeholders: int) -> int:
    """Tokens that a request may still be scheduled to emit."""
    return limit - outputs - placeholders


def chunk_len(computed: int, replay_len: int, chunk_size: int, budget_left: int, alignment: int) -> int:
    """min(chunk size, remaining, budget left).

    The end of a non-final chunk is floored to the alignment (maybe to 0).
    """
    remaining = replay_len - computed
    length = min(chunk_size, remaining, budget_left)
    if length == remaining:
        return length
    return max(0, length - (computed + length) % alignment)


def row_drafts(drafts: int, wanted: int) -> int:
    """Drafts of a request's decode rows: what is configured, or less if the request wants less."""
    return min(drafts, wanted)


def decode_len(allowed: int, drafts: int) -> int:
    """One token plus drafts, never more than the request may still emit (no phantom step)."""
    return 1 + min(drafts, allowed - 1)


def row_fits(length: int, budget_left: int) -> bool:
    """Whether a row of `length` tokens is one, and finds its tokens."""
    return 0 < length <= budget_left


def budget_after(budget_left: int, length: int) -> int:
    """Effect of a row on the tokens left to its dispatch."""
    return budget_left - length


def row_samples(phase: int, end: int, replay_len: int) -> bool:
    """Every decode row produces a token.

    Of the prefill rows only the one that reaches the end of the replay.
    """
    return phase == DECODE or end >= replay_len


def reserved_tokens(phase: int, length: int, samples: bool) -> int:
    """Placeholders of a row: as many tokens as it may emit."""
    if phase == DECODE:
        return length
    return 1 if samples else 0


# --- Blocks: one formula for refusal, admission, reservation and growth (S5) ----------------------


def columns_for(tokens: int, block_size: int) -> int:
    """Block table columns that hold `tokens` tokens."""
    return -(-tokens // block_size)


def new_columns(end: int, block_size: int, columns: int) -> int:
    """Columns to add to a table of `columns` so that it covers `end` tokens."""
    return max(0, columns_for(end, block_size) - columns)


def outdated_columns(processed: int, window: int, block_size: int, columns: int) -> int:
    """Leading columns wholly older than the window of *processed* progress.

    No row still to be dispatched reads them.
    """
    if window == 0:
        return 0
    return min(columns, max(0, processed - window) // block_size)


def blocks_at(group: Group, start: int, reach: int, total: int) -> int:
    """Blocks that a group holds when a row of up to `reach` tokens starts at `start`, of a request of `total`
    tokens.
    """
    kept = columns_for(min(start + reach, total), group.block_size)
    return kept - outdated_columns(start, group.window, group.block_size, kept)


def blocks_of_all_at(groups: tuple[Group, ...], start: int, reach: int, total: int) -> int:
    """`blocks_at` summed over groups of one pool."""
    return sum(blocks_at(group, start, reach, total) for group in groups)


def last_start(total: int, reach: int) -> int:
    """The last start at which a row of `reach` tokens is not cut by the end: later ones only return
    blocks.
    """
    return max(0, total - reach)


def first_start(last: int, period: int) -> int:
    """The first start of the one period up to `last`."""
    return max(0, last - period + 1)


def first_entry(first: int, reach: int, block_size: int) -> int:
    """The first start from `first` on at which a row of `reach` tokens enters a new block."""
    return first + (1 - reach - first) % block_size


def larger_need(need: int, groups: tuple[Group, ...], start: int, reach: int, total: int) -> int:
    """The larger of `need` and what the groups hold at `start`."""
    return max(need, blocks_of_all_at(groups, start, reach, total))


def capacity_need(groups: tuple[Group, ...], total: int, reach: int, period: int) -> int:
    """Blocks of one pool that a request of `total` tokens needs at most at once, over its `groups` there.

    max over 0 <= q < total of sum of `blocks_at(q)`. Later starts than total - reach only return blocks, and
    moving q by `period` (a multiple of the windowed groups' block sizes) never needs fewer, so one period is
    enough to look at; in it, need grows only where a row of `reach` tokens enters a new block of some group.
    """
    last = last_start(total, reach)
    first = first_start(last, period)
    need = blocks_of_all_at(groups, first, reach, total)
    for group in groups:
        for start in range(first_entry(first, reach, group.block_size), last + 1, group.block_size):
            need = larger_need(need, groups, start, reach, total)
    return need


def outstanding(promise: int, held: int) -> int:
    """Blocks promised but not yet held."""
    return max(0, promise - held)


def uncovered(need: int, outstanding: int) -> int:
    """Blocks of a next row that its own promise does not cover: set aside for it, never counted twice."""
    return max(0, need - outstanding)


def add(a: Vector, b: Vector) -> Vector:
    """Sum of two vectors."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


def subtract(a: Vector, b: Vector) -> Vector:
    """Difference of two vectors."""
    return tuple(x - y for x, y in zip(a, b, strict=True))


def pool_fits(want: int, have: int) -> bool:
    """Whether what is asked of a pool is there.

    A pool of which nothing is asked stops nobody, however short it is.
    """
    return want == 0 or want <= have


def fits(ask: Vector, available: Vector) -> bool:
    """Whether what is asked of each pool is there: all of it or nothing is given (S5)."""
    return all(pool_fits(want, have) for want, have in zip(ask, available, strict=True))


def may_take(free: int, promised: int, own: int, aside: int) -> int:
    """What somebody may take of a pool.

    Free blocks, less what others are promised (all promises but its own), less what is set aside.
    """
    return free - (promised - own) - aside


def promised_after(promised: int, own: int, left: int) -> int:
    """All promises of a pool once somebody's outstanding one changes from `own` to `left`."""
    return promised - own + left


def admission_ask(promise: Vector, first_row: Vector, watermark: Vector, anything_runs: bool) -> Vector:
    """What an admission asks for.

    Its promise or its first row, and on top the watermark, waived when nothing runs.
    """
    return tuple(
        max(p, r) + (w if anything_runs and max(p, r) > 0 else 0)
        for p, r, w in zip(promise, first_row, watermark, strict=True)
    )


# --- Preemption (L6) and hold ---------------------------------------------------------------------


def helps(gain: Vector, need: Vector, within: Vector) -> bool:
    """Whether a victim shares a scarce pool: one in which `need` exceeds what is `within` reach."""
    return any(want > have and more > 0 for want, have, more in zip(need, within, gain, strict=True))


def is_short(need: Vector, covered: Vector) -> bool:
    """Whether what is covered does not suffice."""
    return not fits(need, covered)


def is_designated(short: bool, need: Vector, within: Vector, gain: Vector) -> bool:
    """Whether the next junior is designated: what is covered so far does not suffice, and it helps."""
    return short and helps(gain, need, within)


def with_gain(covered: Vector, gain: Vector, designated: bool) -> Vector:
    """What is covered once a junior has been looked at."""
    return add(covered, gain) if designated else covered


def short_after(short: bool, designated: bool, need: Vector, covered: Vector) -> bool:
    """Whether it is short once a junior has been looked at; looked up anew only if that changed anything."""
    return is_short(need, covered) if designated else short


def is_superfluous(need: Vector, covered: Vector, gain: Vector, designated: bool) -> bool:
    """Whether a junior was designated in vain: the others cover `need` without its `gain`."""
    return designated and fits(need, subtract(covered, gain))


def without_gain(covered: Vector, gain: Vector, superfluous: bool) -> Vector:
    """What is covered once a superfluous one has been dropped again."""
    return subtract(covered, gain) if superfluous else covered


def victims(need: Vector, within: Vector, gains: tuple[Vector, ...]) -> tuple[bool, ...]:
    """Of each strict junior, most junior first, whether it is a victim: `gains` say what they give.

    Designated from the most junior upward until they cover `need` together with `within`, then superfluous
    ones are dropped, most senior first: no proper subset suffices. None are if all together do not suffice.
    """
    covered, short = within, is_short(need, within)
    designated: tuple[bool, ...] = ()
    for gain in gains:
        more = is_designated(short, need, within, gain)
        designated = (*designated, more)
        covered = with_gain(covered, gain, more)
        short = short_after(short, more, need, covered)
    if short:
        return tuple(False for _ in gains)
    kept: tuple[bool, ...] = ()
    for gain, chosen in zip(reversed(gains), reversed(designated), strict=True):
        superfluous = is_superfluous(need, covered, gain, chosen)
        kept = (chosen and not superfluous, *kept)
        covered = without_gain(covered, gain, superfluous)
    return kept


def designate(need: Vector, within: Vector, gains: tuple[Vector, ...]) -> tuple[int, ...]:
    """Indices of the `victims` among `gains`; () if there are none."""
    return tuple(index for index, victim in enumerate(victims(need, within, gains)) if victim)


def seats_taken(running: int, preempted: int, admitted: int) -> int:
    """Running requests at this point of a call that has preempted and admitted so many."""
    return running - preempted + admitted


def may_admit(rows_in_flight: int, running: int, max_num_seqs: int) -> bool:
    """Drained (S3) and a seat free (S9)."""
    return rows_in_flight == 0 and running < max_num_seqs


def overdue_after(overdue: bool, phase: int, admitted: bool) -> bool:
    """Whether the request that was head of the queue at a dispatch goes first in the next prefill (L4).

    A prefill dispatch that leaves it out makes it overdue; admitted it is not any more.
    """
    return (overdue or phase == PREFILL) and not admitted


# --- In flight (S2, S6, S8) -----------------------------------------------------------------------


def epochs_at_arrival(unused: int) -> Epochs:
    """A new request gets an epoch that nobody has had."""
    return Epochs(unused, unused + 1)


def epochs_at_admission(epochs: Epochs, resumed: bool) -> Epochs:
    """A preempted request ended its epoch, and comes back under one that nobody has had."""
    return epochs_at_arrival(epochs.unused) if resumed else epochs


def rows_after_dispatch(rows: int) -> int:
    """Rows of an epoch in flight after one more is dispatched."""
    return rows + 1


def rows_after_result(rows: int) -> int:
    """Rows of an epoch in flight after one of them is processed, stale or not."""
    return rows - 1


def is_current(row_epoch: int, request_epoch: int, running: bool) -> bool:
    """A result row counts only if its epoch is the request's and has not ended."""
    return running and row_epoch == request_epoch


def write_start(phase: int, start: int, prompt_len: int, outputs: int) -> int:
    """First token that an in-flight row can write.

    Rejected earlier drafts move a decode row below its planned start.
    """
    return start if phase == PREFILL else prompt_len + outputs - 1


def writes_column(column: int, block_size: int, first_token: int, end: int) -> bool:
    """Whether a row that writes tokens [first_token, end) touches block table column `column`."""
    return first_token // block_size <= column < columns_for(end, block_size)


def least_tokens(current: bool, reserved: int) -> int:
    """Tokens that a row's result has at least: one if it reserved any; none will do of a stale row."""
    return min(1, reserved) if current else 0


def result_fits(current: bool, reserved: int, tokens: int) -> bool:
    """Whether a row's result has as many tokens as it may."""
    return least_tokens(current, reserved) <= tokens <= reserved


def certain_progress(phase: int, length: int) -> int:
    """Tokens by which the processed progress certainly grows when an in-flight row is processed."""
    return length if phase == PREFILL else 1


def no_progress() -> Progress:
    """Of a request that does not run: its blocks are gone, and what they held."""
    return Progress(0, 0, 0)


def progress_scheduled(progress: Progress, length: int, reserved: int) -> Progress:
    """Effect of dispatching a row."""
    return Progress(progress.computed + length, progress.processed, progress.placeholders + reserved)


def progress_chunk_processed(progress: Progress, length: int, reserved: int) -> Progress:
    """Effect of a prefill row's result."""
    return Progress(progress.computed, progress.processed + length, progress.placeholders - reserved)


def progress_decode_processed(progress: Progress, length: int, accepted: int) -> Progress:
    """Effect of a decode row's result: the rejected part of the row goes back."""
    return Progress(
        progress.computed - (length - accepted),
        progress.processed + accepted,
        progress.placeholders - length,
    )


def progress_after_result(
    progress: Progress, current: bool, phase: int, length: int, reserved: int, accepted: int
) -> Progress:
    """Effect of a row's result on its request: none if the row's epoch has ended (S2)."""
    if not current:
        return progress
    if phase == PREFILL:
        return progress_chunk_processed(progress, length, reserved)
    return progress_decode_processed(progress, length, accepted)


def end_after_token(outputs: int, limit: int, min_tokens: int, ends_text: bool) -> int:
    """Whether a request ends with this token, its `outputs`-th (counted from 1).

    A stop counts before the length does.
    """
    if ends_text and outputs >= min_tokens:
        return ENDS_BY_STOP
    return ENDS_BY_LENGTH if outputs >= limit else GOES_ON

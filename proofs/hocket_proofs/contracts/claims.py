"""One function, one claim, in the notation of PEP 316; `ledger.toml` says what is expected of each.

Tuples are short and block sizes constant, where CrossHair would otherwise not come to an end.
"""

from __future__ import annotations

from hocket.kv import counts
from hocket.kv.counts import PoolCounts
from hocket.runner import packed_rules, slot_rules
from hocket.runner.packed_rules import Code
from hocket.sched import kernel
from hocket.sched.kernel import DECODE, PREFILL, Progress, Turn
from hocket_kernels import slot_rule


def turn_never_ends_late(owed: int, steps: int, ran: int, p: int, d: int) -> bool:
    """L1: a turn has at most its steps.

    pre: owed == 1 and 0 <= steps < p or owed == 2 and 0 <= steps < d
    pre: p >= 1 and d >= 1
    post: __return__
    """
    turn = kernel.turn_after(Turn(owed, steps), ran, p, d)
    return 0 <= turn.steps < (p if turn.owed == PREFILL else d) and turn.owed in (PREFILL, DECODE)


def only_a_serviceable_phase_runs(owed: int, mine: bool, other: bool) -> bool:
    """L2: the owed phase if it can, else the other, else none.

    pre: owed == 1 or owed == 2
    post: __return__
    """
    ran = kernel.choose_phase(owed, mine, other)
    return ran == (owed if mine else 3 - owed if other else 0)


def stale_result_changes_nothing(
    progress: Progress, phase: int, length: int, reserved: int, accepted: int
) -> bool:
    """S2: whatever the row.

    post: __return__
    """
    return kernel.progress_after_result(progress, False, phase, length, reserved, accepted) == progress


def rejected_drafts_are_given_back(progress: Progress, length: int, accepted: int) -> bool:
    """S8: after a decode row and its result only the accepted tokens remain.

    post: __return__
    """
    sent = kernel.progress_scheduled(progress, length, kernel.reserved_tokens(DECODE, length, True))
    done = kernel.progress_after_result(sent, True, DECODE, length, length, accepted)
    return done == Progress(
        progress.computed + accepted, progress.processed + accepted, progress.placeholders
    )


def chunk_keeps_to_its_limits(computed: int, replay: int, size: int, left: int) -> bool:
    """S9: at alignment 4.

    pre: 0 <= computed < replay and size >= 1 and left >= 0
    post: __return__
    """
    length = kernel.chunk_len(computed, replay, size, left, 4)
    end = computed + length
    return 0 <= length <= min(size, left, replay - computed) and (
        length == 0 or end == replay or end % 4 == 0
    )


def decode_row_stays_within_the_limit(allowed: int, drafts: int) -> bool:
    """S9: no phantom step.

    pre: allowed >= 1 and drafts >= 0
    post: __return__
    """
    return 1 <= kernel.decode_len(allowed, drafts) <= min(allowed, 1 + drafts)


def undrained_or_seatless_is_not_admitted(rows: int, running: int, seats: int) -> bool:
    """S3, S9: drained, and a seat free.

    post: __return__
    """
    return kernel.may_admit(rows, running, seats) == (rows == 0 and running < seats)


def pool_keeps_its_blocks(pool: PoolCounts, taken: int, fenced: int) -> bool:
    """S5: take some, fence some of them, return the rest, settle: as before.

    pre: pool.free >= 0 and pool.owned >= 0 and pool.fenced >= 0
    pre: counts.may_take(pool, taken) and 0 <= fenced <= taken
    post: __return__
    """
    after = counts.after_fence(counts.after_take(pool, taken), fenced)
    after = counts.after_settle(counts.after_return(after, taken - fenced), fenced)
    return after == pool


def no_pool_is_overdrawn(ask: tuple[int, int, int], have: tuple[int, int, int]) -> bool:
    """S5: all pools give, or none.

    pre: min(ask) >= 0 and min(have) >= 0
    post: __return__
    """
    return not kernel.fits(ask, have) or min(kernel.subtract(have, ask)) >= 0


def window_keeps_what_is_read(processed: int, window: int, columns: int) -> bool:
    """S7: at 4 tokens to a block.

    pre: processed >= 0 and window >= 1 and columns >= 0
    post: __return__
    """
    return kernel.outdated_columns(processed, window, 4, columns) * 4 <= max(0, processed - window)


def written_column_is_fenced(token: int, first: int, end: int) -> bool:
    """S6: at 4 tokens to a block.

    pre: 0 <= first <= token < end
    post: __return__
    """
    return kernel.writes_column(token // 4, 4, first, end)


def victims_suffice_and_none_is_superfluous(need: int, within: int, one: int, two: int) -> bool:
    """L6: two juniors in one pool.

    pre: need >= 0 and one >= 0 and two >= 0
    post: __return__
    """
    gains = (one, two)
    chosen = kernel.designate((need,), (within,), ((one,), (two,)))
    if not chosen:
        return need == 0 or need <= within or need > within + one + two
    covered = within + sum(gains[k] for k in chosen)
    return need <= covered and all(need > covered - gains[k] for k in chosen)


def newcomers_get_slots_of_their_own(free: tuple[int, int, int, int], newcomers: int) -> bool:
    """One slot, one owner; four slots free.

    pre: free[0] < free[1] < free[2] < free[3] and 0 <= newcomers and slot_rules.enough(4, newcomers)
    post: __return__
    """
    given = slot_rules.lowest(free, newcomers)
    rising = all(given[k] < given[k + 1] for k in range(len(given) - 1))
    free_ones = all(any(slot == other for other in free) for slot in given)
    lowest = newcomers in (0, 4) or given[-1] < free[newcomers]
    return len(given) == newcomers and rising and free_ones and lowest


def one_row_one_place(position: int, block: int, other: int, another: int) -> bool:
    """S6: at 8 tokens and 2 rows to a block.

    pre: position >= 0 and other >= 0
    post: __return__
    """
    mine = slot_rule.physical_row(position, slot_rule.column_of(position, 8), block, 8, 4)
    its = slot_rule.physical_row(other, slot_rule.column_of(other, 8), another, 8, 4)
    return mine != its or (block == another and position % 8 // 4 == other % 8 // 4)


def packs_of_two_rows_lie_end_to_end(
    lengths: tuple[int, int],
    starts: tuple[int, int],
    seq_lens: tuple[int, int],
    offsets: tuple[int, int, int],
) -> bool:
    """S4: exactly the well-formed ones are accepted.

    post: __return__
    """
    accepted = all(
        packed_rules.row_problem(
            row, starts[row], lengths[row], seq_lens[row], offsets[row], offsets[row + 1], starts[row]
        ).code == Code.FINE
        for row in (0, 1)
    )  # fmt: skip
    well_formed = (
        offsets[0] == 0 and offsets[1] == lengths[0] and offsets[2] == lengths[0] + lengths[1]
        and seq_lens[0] == starts[0] + lengths[0] and seq_lens[1] == starts[1] + lengths[1]
    )  # fmt: skip
    return accepted == well_formed


def table_column_holds_what_it_must(column: int, block: int, returned: int, needed: int) -> bool:
    """S4: null past the end, a block where it is read, in range.

    post: __return__
    """
    fine = packed_rules.column_problem(0, column, block, returned, needed).code == Code.FINE
    legal = 0 <= block <= packed_rules.MAX_INDEX
    return fine == (
        legal and (column < needed or block == 0) and not (returned <= column < needed and block == 0)
    )

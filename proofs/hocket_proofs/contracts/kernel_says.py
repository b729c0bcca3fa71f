"""The shipped side of `spec_says.py`: same names, same arguments."""

from __future__ import annotations

from hocket.sched import kernel
from hocket.sched.kernel import DECODE, PREFILL, Turn


def turn(owed_prefill: bool, steps: int, ran: int, prefill_steps: int, decode_steps: int) -> tuple[int, int]:
    """The turn after a dispatch, or after none."""
    after = kernel.turn_after(
        Turn(PREFILL if owed_prefill else DECODE, steps), ran, prefill_steps, decode_steps
    )
    return after.owed, after.steps


def chunk(computed: int, rest: int, size: int, left: int) -> int:
    """A chunk at alignment 4."""
    return kernel.chunk_len(computed, computed + max(1, rest), max(1, size), max(0, left), 4)


def decode_row(allowed: int, drafts: int, wanted: int) -> int:
    """Tokens of a decode row."""
    return kernel.decode_len(allowed, kernel.row_drafts(drafts, wanted))


def phase(computed: int, replay: int, limit: int, outputs: int, placeholders: int) -> int:
    """The phase in which a running request has a next row."""
    return kernel.runnable_phase(computed, replay, kernel.tokens_allowed(limit, outputs, placeholders))


def fits(ask: tuple[int, int], have: tuple[int, int]) -> bool:
    """Whether every pool has what is asked of it."""
    return kernel.fits(ask, have)


def outstanding(promise: int, low: int, high: int) -> int:
    """Blocks promised and not held; who has no promise has none outstanding."""
    return kernel.outstanding(promise, max(0, high)) if promise else 0


def new_blocks(computed: int, tokens: int, columns: int) -> int:
    """Blocks that a row needs, at 4 tokens to a block."""
    return kernel.new_columns(computed + tokens, 4, columns)


def window(processed: int, columns: int) -> int:
    """Leading columns that a window of 5 tokens has left behind, at 4 tokens to a block."""
    return kernel.outdated_columns(processed, 5, 4, max(0, columns))


def written(prefill: bool, start: int, length: int, outputs: int) -> tuple[int, int]:
    """What a row in flight may write."""
    return kernel.write_start(PREFILL if prefill else DECODE, start, 7, outputs), start + length

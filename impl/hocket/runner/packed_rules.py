"""Rules of packed prefill metadata over plain ints.

Every function is pure and total over ints and returns a `Problem`; `FINE` means that the rule holds. Nothing
here formats text, looks at types or touches an array, so that these very functions can be executed
symbolically. The order of the tests inside a function is part of the contract: the first violation is the
one that is reported.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

MAX_INDEX = 2**31 - 1
"""Largest value of any entry: device metadata is int32."""

NULL_BLOCK = 0


class Code(IntEnum):
    """What is wrong with a pack."""

    FINE = 0
    EMPTY = 1
    """No request at all."""
    SHAPE = 2
    """A field that must be one-dimensional is not."""
    COUNT = 3
    """A per-request field has more or fewer entries than there are requests."""
    GROUPS = 4
    """A cache group is missing, or unknown."""
    EMBEDDING_RANK = 5
    """Embeddings are neither a count nor of rank 2."""
    REQUEST_ID = 6
    """A request id is not a string."""
    DUPLICATE = 7
    """One request has two rows."""
    TYPE = 8
    """A value is not an integer (bools and floats are not)."""
    RANGE = 9
    """An integer is outside its allowed range."""
    SEQ_LEN = 10
    """seq_len is not chunk_start + chunk_len."""
    OFFSET = 11
    """Offsets do not start at 0, or have a gap or an overlap."""
    COMPUTED = 12
    """The chunk does not start where the runner's progress ends."""
    TOKEN_EXTENT = 13
    """The token ids are more or fewer than the chunks."""
    EMBEDDING_EXTENT = 14
    """The embedding rows are more or fewer than the token ids."""
    TABLE_SHORT = 15
    """A block table does not reach seq_len."""
    TABLE_NULL = 16
    """A column that the dispatch reads or writes holds the null block."""
    TABLE_TAIL = 17
    """A column past seq_len holds a block."""


class Problem(NamedTuple):
    """One violation: `row` is the request's position in the pack, -1 when no single request is at fault.

    `want` and `got` are the numbers that the rule compared: a bound, a rank, a count, an end; both are 0 if
    it compares none. Of a repeated id `got` is the row that had it first, and -1 was wanted.
    """

    code: int
    row: int
    want: int
    got: int


FINE = Problem(Code.FINE, -1, 0, 0)


def range_problem(row: int, value: int, low: int, high: int) -> Problem:
    """`value` lies in [low, high]; `want` is the bound that it missed."""
    if value < low:
        return Problem(Code.RANGE, row, low, value)
    if value > high:
        return Problem(Code.RANGE, row, high, value)
    return FINE


def row_problem(
    row: int, start: int, length: int, seq_len: int, begin: int, end: int, computed: int
) -> Problem:
    """One row agrees with itself; [begin, end) are its offsets, and `computed` is `start` when it is not
    known.

    Offsets that begin at 0, and of which each ends one row's length further, are contiguous: by induction
    over the rows no token belongs to two requests or to none.
    """
    if seq_len != start + length:
        return Problem(Code.SEQ_LEN, row, start + length, seq_len)
    if row == 0 and begin != 0:
        return Problem(Code.OFFSET, row, 0, begin)
    if end != begin + length:
        return Problem(Code.OFFSET, row, begin + length, end)
    if start != computed:
        return Problem(Code.COMPUTED, row, computed, start)
    return FINE


def extent_problem(last_row: int, end: int, tokens: int, embeddings: int) -> Problem:
    """The chunks, the token ids and the embedding rows (`tokens` when there are none) are equally many."""
    if tokens != end:
        return Problem(Code.TOKEN_EXTENT, last_row, end, tokens)
    if embeddings != tokens:
        return Problem(Code.EMBEDDING_EXTENT, last_row, tokens, embeddings)
    return FINE


def columns_needed(seq_len: int, block_size: int) -> int:
    """Columns of a block table that hold tokens [0, seq_len)."""
    return (seq_len + block_size - 1) // block_size


def columns_returned(start: int, window: int, block_size: int) -> int:
    """Leading columns that hold only tokens older than start - window: a windowed group may have returned
    them.
    """
    return (start - window) // block_size if start > window else 0


def table_problem(row: int, columns: int, needed: int) -> Problem:
    """A block table reaches the end of the chunk."""
    if columns < needed:
        return Problem(Code.TABLE_SHORT, row, needed, columns)
    return FINE


def column_problem(row: int, column: int, block: int, returned: int, needed: int) -> Problem:
    """One column: null past the end, a block where the dispatch reads or writes, either where a window
    returned it.
    """
    if block < 0:
        return Problem(Code.RANGE, row, 0, block)
    if block > MAX_INDEX:
        return Problem(Code.RANGE, row, MAX_INDEX, block)
    if column >= needed and block != NULL_BLOCK:
        return Problem(Code.TABLE_TAIL, row, NULL_BLOCK, block)
    if returned <= column < needed and block == NULL_BLOCK:
        return Problem(Code.TABLE_NULL, row, 1, block)
    return FINE

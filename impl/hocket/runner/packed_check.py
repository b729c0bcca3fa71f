"""Find the first violation of a packed prefill dispatch and say it in words.

The rules are in `packed_rules`; this module walks the fields in a fixed order, applies the rules and formats
what they found. Five stages, each complete before the next: shapes and cardinality, rows, extents, token ids,
block tables. Within a stage the first row at fault is reported, within a row the first field. Healthy fields
of thousands of entries are recognised with a few passes in C; only a field that is not healthy is walked
entry by entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from hocket.core.checks import shown
from hocket.runner.packed_rules import (
    FINE,
    MAX_INDEX,
    NULL_BLOCK,
    Code,
    Problem,
    column_problem,
    columns_needed,
    columns_returned,
    extent_problem,
    range_problem,
    row_problem,
    table_problem,
)

LEVELS = 4
"""Levels of lists that are told apart; nothing that is asked for has more than two."""


class PackedPrefillError(ValueError):
    """A malformed pack; `problem` is the violated rule and the row at fault."""

    def __init__(self, problem: Problem, text: str) -> None:
        super().__init__(text)
        self.problem = problem


class Pack(NamedTuple):
    """The arguments of `validate_packed_prefill`, none of them trusted yet."""

    request_ids: Any
    chunk_starts: Any
    chunk_lens: Any
    seq_lens: Any
    query_start_loc: Any
    token_ids: Any
    block_tables: Any
    block_sizes: Any
    windows: Any = None
    vocab_size: Any = None
    computed: Any = None
    embedding_rows: Any = None


def check_pack(pack: Pack) -> None:
    """Raise `PackedPrefillError` with the first violation, if there is one."""
    check_shapes(pack)
    offsets = check_rows(pack)
    check_extents(pack, offsets)
    check_tokens(pack, offsets)
    check_tables(pack)


def is_integer(value: object) -> bool:
    """True for ints and NumPy integers; bools and floats, integral ones too, are no integers.

    Nor are time differences, although NumPy derives them from its integers.
    """
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))


def rank_of(value: object) -> int:
    """Dimensions of an array or of nested lists, tuples and ranges (seen from first entries); 0 for others.

    A masked array has none, nor has what holds one: a masked entry has no value.
    """
    outer = 0
    while outer < LEVELS and isinstance(value, (list, tuple, range)):
        outer += 1
        if not value:
            return outer
        value = value[0]
    ndim = getattr(value, "ndim", None)
    if not isinstance(ndim, int) or not hasattr(value, "__len__"):
        return outer
    return 0 if isinstance(value, np.ma.MaskedArray) else outer + ndim


def refuse(problem: Problem, text: str, ids: Any = ()) -> NoReturn:
    """Raise `problem`; `text` says field, value and what is allowed. A problem of one row needs `ids`."""
    where = f"request {problem.row} ({shown(ids[problem.row])}): " if problem.row >= 0 else ""
    raise PackedPrefillError(problem, f"packed prefill: {where}{text}")


def checked_int(
    field: str, value: Any, low: int, high: int = MAX_INDEX, *, row: int = -1, ids: Any = ()
) -> int:
    """Return `value` as an int in [low, high], or refuse it: for request `row` of `ids`, or for the pack."""
    if not is_integer(value):
        text = f"{field} {shown(value)} ({type(value).__name__}) is not an integer in [{low}, {high}]"
        refuse(Problem(Code.TYPE, row, 0, 0), text, ids)
    problem = range_problem(row, int(value), low, high)
    if problem != FINE:
        # An int of thousands of digits cannot be printed.
        text = value if int(value).bit_length() <= 64 else f"of {int(value).bit_length()} bits"
        refuse(problem, f"{field} {text} is outside [{low}, {high}]", ids)
    return int(value)


def check_shapes(pack: Pack) -> None:
    """Dimensions, entries per request and groups."""
    ids = pack.request_ids
    check_rank("request_ids", ids, 1)
    requests = len(ids)
    if requests == 0:
        refuse(Problem(Code.EMPTY, -1, 1, 0), "request_ids is empty, expected at least 1 request")
    check_count(ids, "chunk_starts", pack.chunk_starts)
    check_count(ids, "chunk_lens", pack.chunk_lens)
    check_count(ids, "seq_lens", pack.seq_lens)
    check_rank("query_start_loc", pack.query_start_loc, 1)
    bounds = len(pack.query_start_loc)
    if bounds != requests + 1:
        row = max(bounds - 1, 0) if bounds <= requests else -1
        text = f"query_start_loc has {bounds} entries, expected {requests + 1} (one more than requests)"
        refuse(Problem(Code.COUNT, row, requests + 1, bounds), text, ids)
    if pack.computed is not None:
        check_count(ids, "computed", pack.computed)
    check_rank("token_ids", pack.token_ids, 1)
    if pack.embedding_rows is not None and not is_integer(pack.embedding_rows):
        rank = rank_of(pack.embedding_rows)
        if rank != 2:
            text = f"embedding_rows has rank {rank}, expected a count or an array of rank 2"
            refuse(Problem(Code.EMBEDDING_RANK, -1, 2, rank), text)
    if pack.vocab_size is not None:
        checked_int("vocab_size", pack.vocab_size, 1)
    _check_groups(pack)


def check_rank(field: str, value: object, want: int) -> None:
    """Refuse a field of any other rank."""
    rank = rank_of(value)
    if rank != want:
        refuse(Problem(Code.SHAPE, -1, want, rank), f"{field} has rank {rank}, expected {want}")


def check_count(ids: Any, field: str, value: Any) -> None:
    """Refuse a per-request field unless it is one-dimensional and has one entry per request."""
    check_rank(field, value, 1)
    check_entries(ids, field, value)


def check_rows_of(ids: Any, field: str, value: Any) -> None:
    """Refuse a field that is not one row per request; the rows themselves are checked later."""
    if rank_of(value) == 0:
        refuse(Problem(Code.SHAPE, -1, 2, 0), f"{field} has rank 0, expected 2")
    check_entries(ids, field, value)


def check_entries(ids: Any, field: str, value: Any) -> None:
    """Refuse a field unless it has one entry per request."""
    requests, entries = len(ids), len(value)
    if entries != requests:
        # A short field is the fault of the first request that has no entry; a long one is nobody's.
        row = entries if entries < requests else -1
        text = f"{field} has {entries} entries, expected {requests} (one per request)"
        refuse(Problem(Code.COUNT, row, requests, entries), text, ids)


def _check_groups(pack: Pack) -> None:
    ids = pack.request_ids
    nowhere = Problem(Code.GROUPS, -1, 0, 0)
    for field, value in (("block_sizes", pack.block_sizes), ("block_tables", pack.block_tables)):
        if not isinstance(value, Mapping):
            refuse(nowhere, f"{field} is {type(value).__name__}, expected a mapping from group name")
    windows = {} if pack.windows is None else pack.windows
    if not isinstance(windows, Mapping):
        refuse(nowhere, f"windows is {type(windows).__name__}, expected a mapping from group name")
    for group in pack.block_sizes:
        if group not in pack.block_tables:
            refuse(nowhere, f"block_tables has no group {shown(group)}, expected those of block_sizes")
    for field, names in (("block_tables", pack.block_tables), ("windows", windows)):
        for group in names:
            if group not in pack.block_sizes:
                refuse(nowhere, f"{field} has unknown group {shown(group)}, expected those of block_sizes")
    for group, block_size in pack.block_sizes.items():
        checked_int(f"block_sizes[{shown(group)}]", block_size, 1)
        if windows.get(group) is not None:
            checked_int(f"windows[{shown(group)}]", windows[group], 1)
        check_rows_of(ids, f"block_tables[{shown(group)}]", pack.block_tables[group])


def check_rows(pack: Pack) -> list[int]:
    """Every request's own numbers; returns the offsets, contiguous from 0, as plain ints."""
    ids = pack.request_ids
    first_row: dict[str, int] = {}
    offsets: list[int] = []
    for row in range(len(ids)):
        if not isinstance(ids[row], str):
            kind = type(ids[row]).__name__
            refuse(Problem(Code.REQUEST_ID, row, 0, 0), f"request_ids[{row}] is {kind}, expected str", ids)
        twin = first_row.setdefault(ids[row], row)
        if twin != row:
            refuse(Problem(Code.DUPLICATE, row, -1, twin), f"request_ids[{row}] repeats request {twin}", ids)
        start = checked_int(f"chunk_starts[{row}]", pack.chunk_starts[row], 0, row=row, ids=ids)
        length = checked_int(f"chunk_lens[{row}]", pack.chunk_lens[row], 1, row=row, ids=ids)
        seq_len = checked_int(f"seq_lens[{row}]", pack.seq_lens[row], 1, row=row, ids=ids)
        if row == 0:
            offsets.append(checked_int("query_start_loc[0]", pack.query_start_loc[0], 0, row=0, ids=ids))
        offsets.append(
            checked_int(f"query_start_loc[{row + 1}]", pack.query_start_loc[row + 1], 0, row=row, ids=ids)
        )
        computed = start
        if pack.computed is not None:
            computed = checked_int(f"computed[{row}]", pack.computed[row], 0, row=row, ids=ids)
        problem = row_problem(row, start, length, seq_len, offsets[row], offsets[row + 1], computed)
        if problem != FINE:
            refuse(problem, _row_text(problem, start, length, offsets[row]), ids)
    return offsets


def _row_text(problem: Problem, start: int, length: int, begin: int) -> str:
    row, got = problem.row, problem.got
    if problem.code == Code.SEQ_LEN:
        return f"seq_len {got} != chunk_start {start} + chunk_len {length}"
    if problem.code == Code.COMPUTED:
        return f"chunk_start {got} != computed {problem.want}"
    if row == 0 and begin != 0:
        return f"query_start_loc[0] {got} != 0"
    return f"query_start_loc[{row + 1}] {got} != query_start_loc[{row}] {begin} + chunk_len {length}"


def check_extents(pack: Pack, offsets: list[int]) -> None:
    """As many token ids as the chunks hold, and as many embedding rows as token ids."""
    ids = pack.request_ids
    tokens = len(pack.token_ids)
    last = len(ids) - 1
    embeddings = tokens
    if is_integer(pack.embedding_rows):
        embeddings = checked_int("embedding_rows", pack.embedding_rows, 0, row=last, ids=ids)
    elif pack.embedding_rows is not None:
        embeddings = len(pack.embedding_rows)
    problem = extent_problem(last, offsets[-1], tokens, embeddings)
    if problem.code == Code.TOKEN_EXTENT:
        text = f"token_ids has {tokens} entries, query_start_loc[{last + 1}] says {offsets[-1]}"
        refuse(problem, text, ids)
    if problem.code == Code.EMBEDDING_EXTENT:
        refuse(problem, f"embedding_rows {embeddings} != {tokens} token_ids", ids)


def all_in_range(values: Any, high: int) -> bool:
    """True if `values` (one or more) are surely integers in [0, high]; if False they must be looked at one by
    one.
    """
    if isinstance(values, np.ndarray):
        return values.dtype.kind in "iu" and bool(values.min() >= 0) and int(values.max()) <= high
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= high


def check_tokens(pack: Pack, offsets: list[int]) -> None:
    """Every token id is an integer of the vocabulary."""
    high = MAX_INDEX if pack.vocab_size is None else int(pack.vocab_size) - 1
    if all_in_range(pack.token_ids, high):
        return
    for position in range(len(pack.token_ids)):
        row = bisect_right(offsets, position) - 1
        checked_int(
            f"token_ids[{position}]", pack.token_ids[position], 0, high, row=row, ids=pack.request_ids
        )


def check_tables(pack: Pack) -> None:
    """Every block table reaches the chunk's end, is null past it and holds blocks where the dispatch needs
    them.
    """
    windows = {} if pack.windows is None else pack.windows
    for row in range(len(pack.request_ids)):
        for group in pack.block_sizes:
            block_size, window = int(pack.block_sizes[group]), windows.get(group)
            start, seq_len = int(pack.chunk_starts[row]), int(pack.seq_lens[row])
            returned = 0 if window is None else columns_returned(start, int(window), block_size)
            _check_table(pack, row, group, returned, columns_needed(seq_len, block_size))


def _check_table(pack: Pack, row: int, group: Any, returned: int, needed: int) -> None:
    ids, table = pack.request_ids, pack.block_tables[group][row]
    field = f"block_tables[{shown(group)}][{row}]"
    rank = rank_of(table)
    if rank != 1:
        refuse(Problem(Code.SHAPE, row, 1, rank), f"{field} has rank {rank}, expected 1", ids)
    problem = table_problem(row, len(table), needed)
    if problem != FINE:
        text = f"{field} has {len(table)} columns, seq_len {int(pack.seq_lens[row])} needs {needed}"
        refuse(problem, text, ids)
    if _table_is_fine(table, returned, needed):
        return
    for column in range(len(table)):
        block = checked_int(f"{field}[{column}]", table[column], 0, row=row, ids=ids)
        problem = column_problem(row, column, block, returned, needed)
        if problem.code == Code.TABLE_TAIL:
            text = f"{field}[{column}] {block} is past the end ({needed} columns), expected null block 0"
            refuse(problem, text, ids)
        if problem.code == Code.TABLE_NULL:
            text = f"{field}[{column}] is null block 0, columns {returned} to {needed - 1} need a block"
            refuse(problem, text, ids)


def _table_is_fine(table: Any, returned: int, needed: int) -> bool:
    """True if the columns surely obey `column_problem`; if False they must be looked at one by one."""
    if not isinstance(table, np.ndarray):
        body, tail = table[returned:needed], table[needed:]
        return all_in_range(table, MAX_INDEX) and NULL_BLOCK not in body and not any(tail)
    if table.dtype.kind not in "iu":
        return False
    # A dispatch has hundreds of short tables, so that every pass over one of them counts.
    head, tail = table[:returned], table[needed:]
    if table[returned:needed].min() <= NULL_BLOCK or (len(head) and head.min() < 0) or tail.any():
        return False
    return table.dtype == np.int32 or int(table.max()) <= MAX_INDEX

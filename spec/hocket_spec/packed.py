"""What a well-formed packed prefill dispatch is (S4).

The clauses stand in the order in which a reader would look, and the first violation is the one that counts:
later clauses take earlier ones for granted. Lengths are in tokens, tables in blocks; 0 is the null block.
"""

from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any, NamedTuple

INT32_MAX = 2**31 - 1
Found = Iterator[tuple[str, int, str]]  # code, row, text


class Violation(NamedTuple):
    """A broken clause: its code, the row (-1: no single request is at fault), a sentence for people."""

    code: str
    row: int
    message: str


class PackedMetadata(NamedTuple):
    """The metadata of one dispatch as a runner may hand it over: any value may be of any type."""

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


def first_violation(pack: PackedMetadata) -> Violation | None:
    """The violation that is reported, None for a well-formed pack."""
    for code, row, text in _clauses(pack):
        where = f"request {row} ({pack.request_ids[row]!r}): " if row >= 0 else ""
        return Violation(code, row, f"packed prefill: {where}{text}")
    return None


def _clauses(pack: PackedMetadata) -> Found:
    yield from _cardinality(pack)
    yield from _groups(pack)
    for row in range(len(pack.request_ids)):
        yield from _request(pack, row)
    yield from _extents(pack)
    yield from _vocabulary(pack)
    for row in range(len(pack.request_ids)):
        for group in pack.block_sizes:
            yield from _table(pack, row, group)


def _dimensions(value: object, outer: int = 0) -> int:
    """Arrays say it themselves; lists are judged by their first entries. Whatever holds a mask has none."""
    if hasattr(value, "__len__") and isinstance(getattr(value, "ndim", None), int):
        return 0 if hasattr(value, "mask") else outer + getattr(value, "ndim")  # noqa: B009 - `object` has none
    if not isinstance(value, (list, tuple, range)) or outer == 4:
        return outer
    return outer + 1 if len(value) == 0 else _dimensions(value[0], outer + 1)


def _integral(value: object) -> bool:
    """Truth values, floats and time differences are no counts: they are mistakes further up."""
    return isinstance(value, Integral) and type(value).__name__ not in ("bool", "timedelta64")


def _integer(row: int, field: str, value: Any, low: int, high: int = INT32_MAX) -> Found:
    """A number that the device can hold."""
    if not _integral(value):
        yield "type", row, f"{field} {value!r} ({type(value).__name__}) is not an integer in [{low}, {high}]"
    elif not low <= value <= high:
        told = value if int(value).bit_length() <= 64 else f"of {int(value).bit_length()} bits"
        yield "range", row, f"{field} {told} is outside [{low}, {high}]"


def _entries(field: str, value: Any, requests: int, bounds: int = 0) -> Found:
    """One per request, one more for bounds; too few is the fault of the first request without its own."""
    got, want, unit = len(value), requests + bounds, "one more than requests" if bounds else "one per request"
    if got != want:
        row = max(got - bounds, 0) if got < want else -1
        yield "count", row, f"{field} has {got} entries, expected {want} ({unit})"


def _rank(field: str, value: Any, want: int, row: int = -1) -> Found:
    if (got := _dimensions(value)) != want:
        yield "shape", row, f"{field} has rank {got}, expected {want}"


def _cardinality(pack: PackedMetadata) -> Found:
    """Parallel lists are parallel: each describes every request once, and ids form one line."""
    yield from _rank("request_ids", pack.request_ids, 1)
    requests = len(pack.request_ids)
    if requests == 0:
        yield "empty", -1, "request_ids is empty, expected at least 1 request"
    for field in ("chunk_starts", "chunk_lens", "seq_lens", "query_start_loc", "computed"):
        value, bounds = getattr(pack, field), int(field == "query_start_loc")
        if value is not None or field != "computed":
            yield from _rank(field, value, 1)
            yield from _entries(field, value, requests, bounds)
    yield from _rank("token_ids", pack.token_ids, 1)
    rows = pack.embedding_rows
    if rows is not None and not _integral(rows) and (rank := _dimensions(rows)) != 2:
        yield "embedding_rank", -1, f"embedding_rows has rank {rank}, expected a count or an array of rank 2"
    if pack.vocab_size is not None:
        yield from _integer(-1, "vocab_size", pack.vocab_size, 1)


def _groups(pack: PackedMetadata) -> Found:
    """Tables exist for exactly the cache groups that have a block size, one row per request each."""
    sizes, tables = pack.block_sizes, pack.block_tables
    windows = {} if pack.windows is None else pack.windows
    for field, value in (("block_sizes", sizes), ("block_tables", tables), ("windows", windows)):
        if not isinstance(value, Mapping):
            yield "groups", -1, f"{field} is {type(value).__name__}, expected a mapping from group name"
    for group in (group for group in sizes if group not in tables):
        yield "groups", -1, f"block_tables has no group {group!r}, expected those of block_sizes"
    for field, value in (("block_tables", tables), ("windows", windows)):
        for group in (group for group in value if group not in sizes):
            yield "groups", -1, f"{field} has unknown group {group!r}, expected those of block_sizes"
    for group in sizes:
        yield from _integer(-1, f"block_sizes[{group!r}]", sizes[group], 1)
        if windows.get(group) is not None:
            yield from _integer(-1, f"windows[{group!r}]", windows[group], 1)
        if _dimensions(tables[group]) == 0:
            yield "shape", -1, f"block_tables[{group!r}] has rank 0, expected 2"
        yield from _entries(f"block_tables[{group!r}]", tables[group], len(pack.request_ids))


def _request(pack: PackedMetadata, row: int) -> Found:
    """A request stands once; start, length, end and offsets tell one story that begins where it left off."""
    ids, starts, offsets = pack.request_ids, pack.chunk_starts, pack.query_start_loc
    if not isinstance(ids[row], str):
        yield "request_id", row, f"request_ids[{row}] is {type(ids[row]).__name__}, expected str"
    if ids[row] in list(ids[:row]):
        yield "duplicate", row, f"request_ids[{row}] repeats request {list(ids).index(ids[row])}"
    for field, low in (("chunk_starts", 0), ("chunk_lens", 1), ("seq_lens", 1)):
        yield from _integer(row, f"{field}[{row}]", getattr(pack, field)[row], low)
    for at in range(0 if row == 0 else row + 1, row + 2):
        yield from _integer(row, f"query_start_loc[{at}]", offsets[at], 0)
    if pack.computed is not None:
        yield from _integer(row, f"computed[{row}]", pack.computed[row], 0)
    start, length = int(starts[row]), int(pack.chunk_lens[row])
    begin, end = int(offsets[row]), int(offsets[row + 1])
    if int(pack.seq_lens[row]) != start + length:
        yield "seq_len", row, f"seq_len {pack.seq_lens[row]} != chunk_start {start} + chunk_len {length}"
    if row == 0 and begin != 0:
        yield "offset", row, f"query_start_loc[0] {begin} != 0"
    if end - begin != length:
        text = f"query_start_loc[{row + 1}] {end} != query_start_loc[{row}] {begin} + chunk_len {length}"
        yield "offset", row, text
    if pack.computed is not None and int(pack.computed[row]) != start:
        yield "computed", row, f"chunk_start {start} != computed {pack.computed[row]}"


def _extents(pack: PackedMetadata) -> Found:
    """Ids and embeddings are cut to the same chunks; if not, the last request is the likeliest cause."""
    last, tokens, end = len(pack.request_ids) - 1, len(pack.token_ids), pack.query_start_loc[-1]
    rows = pack.embedding_rows
    if _integral(rows):
        yield from _integer(last, "embedding_rows", rows, 0)
    if tokens != end:
        yield "token_extent", last, f"token_ids has {tokens} entries, query_start_loc[{last + 1}] says {end}"
    extent = tokens if rows is None else rows if _integral(rows) else len(rows)
    if extent != tokens:
        yield "embedding_extent", last, f"embedding_rows {extent} != {tokens} token_ids"


def _vocabulary(pack: PackedMetadata) -> Found:
    """Every id can be looked up in the embedding."""
    high = INT32_MAX if pack.vocab_size is None else pack.vocab_size - 1
    for row in range(len(pack.request_ids)):
        for position in range(pack.query_start_loc[row], pack.query_start_loc[row + 1]):
            yield from _integer(row, f"token_ids[{position}]", pack.token_ids[position], 0, high)


def _table(pack: PackedMetadata, row: int, group: Any) -> Found:
    """[0, seq_len) has blocks, but for what a window returned; past it is null, lest a stale id be used."""
    table, size = pack.block_tables[group][row], int(pack.block_sizes[group])
    window, field = (pack.windows or {}).get(group), f"block_tables[{group!r}][{row}]"
    yield from _rank(field, table, 1, row)
    past = -(-int(pack.seq_lens[row]) // size)
    kept = 0 if window is None else max(0, int(pack.chunk_starts[row]) - int(window)) // size
    if len(table) < past:
        text = f"{field} has {len(table)} columns, seq_len {pack.seq_lens[row]} needs {past}"
        yield "table_short", row, text
    for column, block in enumerate(table):
        yield from _integer(row, f"{field}[{column}]", block, 0)
        if column >= past and block != 0:
            text = f"{field}[{column}] {block} is past the end ({past} columns), expected null block 0"
            yield "table_tail", row, text
        if kept <= column < past and block == 0:
            text = f"{field}[{column}] is null block 0, columns {kept} to {past - 1} need a block"
            yield "table_null", row, text

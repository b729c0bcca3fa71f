"""Packed prefill metadata: built once per prefill dispatch, validated before any other input is built.

A prefill dispatch packs the chunks of several requests into one row of tokens. Everything that describes the
packing is derived here, in one place, from the scheduler's (chunk start, chunk length) and the runner's own
tokens and tables; a second derivation elsewhere is how a row's length comes to be that of its prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hocket.runner.packed_check import (
    Pack,
    PackedPrefillError,
    check_count,
    check_pack,
    check_rank,
    check_rows_of,
    checked_int,
    rank_of,
    refuse,
)
from hocket.runner.packed_rules import NULL_BLOCK, Code, Problem

__all__ = ["PackedPrefill", "PackedPrefillError", "pack_prefill", "validate_packed_prefill"]

DType = TypeVar("DType", bound=np.generic)

Ints = Sequence[int] | npt.NDArray[np.integer[Any]]
"""A list or a one-dimensional integer array."""


def validate_packed_prefill(
    *,
    request_ids: Sequence[str],
    chunk_starts: Ints,
    chunk_lens: Ints,
    seq_lens: Ints,
    query_start_loc: Ints,
    token_ids: Ints,
    block_tables: Mapping[str, Sequence[Ints] | npt.NDArray[np.integer[Any]]],
    block_sizes: Mapping[str, int],
    windows: Mapping[str, int | None] | None = None,
    vocab_size: int | None = None,
    computed: Ints | None = None,
    embedding_rows: int | Sequence[Sequence[float]] | npt.NDArray[Any] | None = None,
) -> None:
    """Raise `ValueError` (a `PackedPrefillError`) with the first violation; a well-formed pack passes (S4).

    With n requests and t tokens in all; every value is an integer that an int32 holds, bools and floats are
    none:

    request_ids: n different strings.
    chunk_starts, chunk_lens, seq_lens: n each; seq_len = chunk_start + chunk_len, chunk_len >= 1.
    query_start_loc: n + 1 offsets into the tokens, contiguous from 0 to t.
    token_ids: t ids, in [0, vocab_size) if that is given.
    block_tables: per group n rows of block ids (they may differ in length). Columns that hold tokens of [0,
        seq_len) hold
        a block, except leading ones wholly older than chunk_start - window, which may be null; columns past
        them are null.
    block_sizes: tokens per block, for exactly the groups of `block_tables`.
    windows: tokens that a group needs of the past; None, or no entry, is the full history.
    computed: n; the tokens that the runner has computed of each request, which is where its chunk must start.
    embedding_rows: number of embedding rows, or the array of rank 2 itself; as many as there are token ids.
    """
    check_pack(
        Pack(
            request_ids=request_ids,
            chunk_starts=chunk_starts,
            chunk_lens=chunk_lens,
            seq_lens=seq_lens,
            query_start_loc=query_start_loc,
            token_ids=token_ids,
            block_tables=block_tables,
            block_sizes=block_sizes,
            windows=windows,
            vocab_size=vocab_size,
            computed=computed,
            embedding_rows=embedding_rows,
        )
    )


@dataclass(frozen=True, slots=True, eq=False)
class PackedPrefill:
    """The validated metadata of one prefill dispatch of n requests and t tokens; its arrays are read-only.

    request_ids: n ids, row by row.
    chunk_starts, chunk_lens, seq_lens: int32 [n].
    query_start_loc: int32 [n + 1]; row i's tokens are [query_start_loc[i], query_start_loc[i + 1]) of the
        pack.
    token_ids: int64 [t].
    positions: int64 [t]; the position of every token in its request.
    block_tables: group -> int32 [n, widest row]; null block 0 past a request's own columns.
    """

    request_ids: tuple[str, ...]
    chunk_starts: npt.NDArray[np.int32]
    chunk_lens: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    query_start_loc: npt.NDArray[np.int32]
    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    block_tables: Mapping[str, npt.NDArray[np.int32]]

    @property
    def num_tokens(self) -> int:
        """Tokens of the pack."""
        return len(self.token_ids)

    def packed_rows(self, row: int) -> slice:
        """Where the pack holds the tokens of request `row`."""
        return slice(int(self.query_start_loc[row]), int(self.query_start_loc[row + 1]))

    def source_rows(self, row: int) -> slice:
        """Which of the request's own tokens (or embeddings) row `row` covers: its chunk, not a prefix of that
        length.
        """
        return slice(int(self.chunk_starts[row]), int(self.seq_lens[row]))


def pack_prefill(
    *,
    request_ids: Sequence[str],
    chunk_starts: Ints,
    chunk_lens: Ints,
    histories: Sequence[Ints],
    block_tables: Mapping[str, Sequence[Ints]],
    block_sizes: Mapping[str, int],
    windows: Mapping[str, int | None] | None = None,
    vocab_size: int | None = None,
    computed: Ints | None = None,
    embedding_rows: int | Sequence[Sequence[float]] | npt.NDArray[Any] | None = None,
) -> PackedPrefill:
    """Build the metadata of one prefill dispatch, or raise `ValueError` before any array of it exists.

    `histories` holds each request's tokens from position 0 (prompt and, in a replay, outputs), at least up to
    the chunk's end; the chunk is cut out of it here. `block_tables` are the scheduler's, without padding. The
    other arguments are those of `validate_packed_prefill`.
    """
    starts, lens = _checked_chunks(request_ids, chunk_starts, chunk_lens)
    seq_lens = [start + length for start, length in zip(starts, lens, strict=True)]
    offsets = list(accumulate(lens, initial=0))
    validate_packed_prefill(
        request_ids=request_ids,
        chunk_starts=starts,
        chunk_lens=lens,
        seq_lens=seq_lens,
        query_start_loc=offsets,
        token_ids=(tokens := _cut_tokens(request_ids, starts, seq_lens, histories)),
        block_tables=block_tables,
        block_sizes=block_sizes,
        windows=windows,
        vocab_size=vocab_size,
        computed=computed,
        embedding_rows=embedding_rows,
    )
    start_of_token = np.repeat(np.subtract(starts, offsets[:-1]), lens)
    return PackedPrefill(
        request_ids=tuple(request_ids),
        chunk_starts=_frozen(starts, np.int32),
        chunk_lens=_frozen(lens, np.int32),
        seq_lens=_frozen(seq_lens, np.int32),
        query_start_loc=_frozen(offsets, np.int32),
        token_ids=_frozen(tokens, np.int64),
        positions=_frozen(np.arange(offsets[-1], dtype=np.int64) + start_of_token, np.int64),
        block_tables={group: _padded(block_tables[group]) for group in block_sizes},
    )


def _checked_chunks(ids: Any, starts: Any, lens: Any) -> tuple[list[int], list[int]]:
    """The chunks as plain ints, so that something can be derived from them."""
    check_rank("request_ids", ids, 1)
    check_count(ids, "chunk_starts", starts)
    check_count(ids, "chunk_lens", lens)
    return (
        [checked_int(f"chunk_starts[{row}]", value, 0, row=row, ids=ids) for row, value in enumerate(starts)],
        [checked_int(f"chunk_lens[{row}]", value, 1, row=row, ids=ids) for row, value in enumerate(lens)],
    )


def _cut_tokens(ids: Any, starts: list[int], seq_lens: list[int], histories: Any) -> Any:
    """The chunks' tokens, end to end: an array if every history is one, else a list."""
    check_rows_of(ids, "histories", histories)
    chunks: list[Any] = []
    for row, history in enumerate(histories):
        rank = rank_of(history)
        if rank != 1:
            refuse(Problem(Code.SHAPE, row, 1, rank), f"histories[{row}] has rank {rank}, expected 1", ids)
        if len(history) < seq_lens[row]:
            text = f"histories[{row}] has {len(history)} tokens, seq_len {seq_lens[row]} needs as many"
            refuse(Problem(Code.TOKEN_EXTENT, row, seq_lens[row], len(history)), text, ids)
        chunks.append(history[starts[row] : seq_lens[row]])
    if chunks and all(isinstance(chunk, np.ndarray) for chunk in chunks):
        return np.concatenate(chunks)
    return list(chain.from_iterable(chunks))


def _padded(rows: Sequence[Ints]) -> npt.NDArray[np.int32]:
    """Block tables of one group as one array, null past each row's own columns."""
    table = np.full((len(rows), max(map(len, rows))), NULL_BLOCK, dtype=np.int32)
    for row, blocks in enumerate(rows):
        table[row, : len(blocks)] = blocks
    table.setflags(write=False)
    return table


def _frozen(values: Any, dtype: type[DType]) -> npt.NDArray[DType]:
    array = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array

"""The two inputs of the model: a packed prefill dispatch and a batched decode dispatch. Tensors only.

Both name, per KV cache group, the block ids of each request (`block_tables`): row of position p of request n
lives in block `block_tables[group][n, p // block_size]`. Columns that no row of the dispatch needs hold the
null block 0. All tensors of a dispatch are on the device of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BlockTables = Mapping[str, Tensor]
"""Group name -> int32 [N, max_blocks of the group]."""


@dataclass(frozen=True, eq=False, slots=True)
class PrefillDispatch:
    """Chunks of N requests packed one after the other: T = sum of the chunk lengths. Every chunk has >= 1
    token.

    token_ids: int64 [T].
    positions: int64 [T], absolute.
    query_start_loc: int32 [N + 1], where each request's rows begin in the packed ones; the last entry is T.
    chunk_starts: int64 [N], position of each chunk's first token.
    seq_lens: int64 [N], chunk_starts + chunk lengths.
    sample_rows: int64 [R], indices into the packed rows of those that get logits; R may be 0.
    """

    token_ids: Tensor
    positions: Tensor
    query_start_loc: Tensor
    chunk_starts: Tensor
    seq_lens: Tensor
    sample_rows: Tensor
    block_tables: BlockTables

    @classmethod
    def pack(
        cls,
        chunks: Sequence[Sequence[int]],
        chunk_starts: Sequence[int],
        block_tables: BlockTables,
        sample_rows: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> PrefillDispatch:
        """Pack the chunks' token ids; by default the last row of each request gets logits."""
        lens = [len(c) for c in chunks]
        if len(lens) != len(chunk_starts) or not lens or min(lens) < 1:
            raise ValueError(
                f"chunks must be non-empty, one per chunk start ({len(chunk_starts)}), got lengths {lens}"
            )
        ends = torch.tensor(lens).cumsum(0)
        if sample_rows is None:
            sample_rows = (ends - 1).tolist()
        starts = torch.tensor(chunk_starts)
        positions = torch.cat([torch.arange(s, s + n) for s, n in zip(chunk_starts, lens, strict=True)])
        return cls(
            token_ids=torch.tensor([t for c in chunks for t in c]).to(device),
            positions=positions.to(device),
            query_start_loc=torch.cat((ends.new_zeros(1), ends)).to(device, torch.int32),
            chunk_starts=starts.to(device),
            seq_lens=(starts + torch.tensor(lens)).to(device),
            sample_rows=torch.tensor(list(sample_rows), dtype=torch.int64).to(device),
            block_tables=block_tables,
        )


@dataclass(frozen=True, eq=False, slots=True)
class DecodeDispatch:
    """1 + K rows for each of N requests: the last token and K drafts; a request may use fewer of its rows.

    token_ids: int64 [N, 1 + K]; entries at or past num_tokens are ignored (any valid id).
    starts: int64 [N], position of each request's first row.
    num_tokens: int64 [N], rows in use, 0..1 + K (0: a padding request, its block table row may be all null).
    """

    token_ids: Tensor
    starts: Tensor
    num_tokens: Tensor
    block_tables: BlockTables

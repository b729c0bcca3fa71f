"""The two inputs of the model: a packed prefill dispatch and a batched decode dispatch. Tensors only.

Both name, per KV cache group, the block ids of each request (`block_tables`): row of position p of request n
lives in block `block_tables[group][n, p // block_size]`. Columns that no row of the dispatch needs hold the
null block 0. All tensors of a dispatch are on the device of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

BlockTables = Mapping[str, Tensor]
"""Group name -> int32 [N, max_blocks of the group]."""


class Extent(NamedTuple):
    """What the host knows of the requests' rows: enough to shape every tensor of a forward pass, so that
    nothing has to be read back from the device. Bounds from above are enough, except in a prefill dispatch.

    starts: position of each request's first row. lens: its rows. exact: whether the device's positions are
    these; otherwise they may be lower, as where it is not yet known how many drafts were accepted.
    """

    starts: tuple[int, ...]
    lens: tuple[int, ...]
    exact: bool = True

    @classmethod
    def read(cls, starts: Tensor, lens: Tensor) -> Extent:
        """From the tensors themselves; on an accelerator the host waits for them."""
        return cls(tuple(starts.tolist()), tuple(lens.tolist()))

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Tokens of each request once its rows are computed; 0 where it has no rows."""
        return tuple(s + n if n else 0 for s, n in zip(self.starts, self.lens, strict=True))

    def num_closed(self, ratio: int) -> int:
        """Compressed entries whose last token is among the rows."""
        if self.exact:
            return sum((s + n) // ratio - s // ratio for s, n in zip(self.starts, self.lens, strict=True))
        return sum(-(-n // ratio) for n in self.lens)

    def rows(self, rows: Sequence[int]) -> Extent:
        """Packed rows, each as a request of its own."""
        positions = [s + i for s, n in zip(self.starts, self.lens, strict=True) for i in range(n)]
        return Extent(tuple(positions[row] for row in rows), (1,) * len(rows), self.exact)


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
    extent, host_sample_rows: chunk starts and lengths, and sample_rows, as the host knows them. Without them
    the forward pass begins by reading the tensors, which stalls an accelerator.
    """

    token_ids: Tensor
    positions: Tensor
    query_start_loc: Tensor
    chunk_starts: Tensor
    seq_lens: Tensor
    sample_rows: Tensor
    block_tables: BlockTables
    extent: Extent | None = None
    host_sample_rows: tuple[int, ...] | None = None

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
        ends = list(accumulate(lens))
        rows = tuple(end - 1 for end in ends) if sample_rows is None else tuple(sample_rows)
        starts = torch.tensor(chunk_starts)
        positions = torch.cat([torch.arange(s, s + n) for s, n in zip(chunk_starts, lens, strict=True)])
        return cls(
            token_ids=torch.tensor([t for c in chunks for t in c]).to(device),
            positions=positions.to(device),
            query_start_loc=torch.tensor([0, *ends], dtype=torch.int32).to(device),
            chunk_starts=starts.to(device),
            seq_lens=(starts + torch.tensor(lens)).to(device),
            sample_rows=torch.tensor(rows, dtype=torch.int64).to(device),
            block_tables=block_tables,
            extent=Extent(tuple(chunk_starts), tuple(lens)),
            host_sample_rows=rows,
        )


@dataclass(frozen=True, eq=False, slots=True)
class DecodeDispatch:
    """1 + K rows for each of N requests: the last token and K drafts; a request may use fewer of its rows.

    token_ids: int64 [N, 1 + K]; entries at or past num_tokens are ignored (any valid id).
    starts: int64 [N], position of each request's first row.
    num_tokens: int64 [N], rows in use, 0..1 + K (0: a padding request, its block table row may be all null).
    extent: at least starts and num_tokens of each request, as the host knows them; see `PrefillDispatch`.
    """

    token_ids: Tensor
    starts: Tensor
    num_tokens: Tensor
    block_tables: BlockTables
    extent: Extent | None = None

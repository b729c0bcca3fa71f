"""Packed rows cut into blocks of one request each: how the references batch ragged prefill chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class QueryBlocks(NamedTuple):
    """B blocks of Q rows. The last block of a request repeats its last row to fill up.

    rows: int64 [B, Q], indices of packed rows. requests: int64 [B]. positions: int64 [B, Q]. unblock: int64
    [T], where each packed row lies in the flattened B * Q.
    """

    rows: Tensor
    requests: Tensor
    positions: Tensor
    unblock: Tensor


def query_blocks(
    query_start_loc: Tensor, chunk_starts: Tensor, chunk_lens: Sequence[int], size: int
) -> QueryBlocks:
    """Blocks of at most `size` rows. query_start_loc: int [N + 1]; chunk_starts: int64 [N]; every chunk has a
    row. chunk_lens: rows of each request, as the host knows them, so that no shape depends on data.
    """
    begins, ends = query_start_loc[:-1].to(torch.int64), query_start_loc[1:].to(torch.int64)
    lens = ends - begins
    size = min(size, max(chunk_lens))
    counts = (lens + size - 1) // size
    requests = torch.repeat_interleave(counts, output_size=sum(-(-n // size) for n in chunk_lens))
    first_block = counts.cumsum(0) - counts
    ordinal = torch.arange(requests.shape[0], device=lens.device) - first_block[requests]
    step = torch.arange(size, device=lens.device)
    offsets = torch.minimum((ordinal * size).unsqueeze(1) + step, (lens[requests] - 1).unsqueeze(1))
    owner = torch.repeat_interleave(lens, output_size=sum(chunk_lens))
    within = torch.arange(owner.shape[0], device=lens.device) - begins[owner]
    return QueryBlocks(
        rows=begins[requests].unsqueeze(1) + offsets,
        requests=requests,
        positions=chunk_starts[requests].unsqueeze(1) + offsets,
        unblock=first_block[owner] * size + within,
    )


def visible_entries(positions: Tensor, ratio: int) -> Tensor:
    """How many compressed entries the query at each absolute position sees: floor((t + 1) / ratio).

    The entry that closes with a token is visible to that token. Returns int64, the shape of positions.
    """
    return (positions + 1).div(ratio, rounding_mode="floor")


def decode_positions(starts: Tensor, num_tokens: Tensor, width: int) -> Tensor:
    """Positions [N, width] of decode rows; rows past num_tokens repeat the last one, and -1 where there is
    none.
    """
    step = torch.arange(width, device=starts.device)
    last = (num_tokens - 1).unsqueeze(1)
    return torch.where(last < 0, -1, starts.unsqueeze(1) + torch.minimum(step, last))

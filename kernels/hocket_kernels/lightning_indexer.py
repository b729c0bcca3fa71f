"""Lightning indexer: which ratio-4 entries each query attends to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hocket_kernels.query_blocks import decode_positions, query_blocks, visible_entries
from hocket_kernels.registry import op
from hocket_kernels.slot_mapping import slot_mapping
from hocket_kernels.topk import deterministic_topk

_SCORES_AT_ONCE = 1 << 19  # per-head scores held at a time: 2 MiB, about a core's share of cache
_ROWS_AT_ONCE = 64


def _select(
    q: Tensor,
    weights: Tensor,
    positions: Tensor,
    requests: Tensor,
    keys: Tensor,
    block_table: Tensor,
    block_size: int,
    ratio: int,
    topk: int,
    limits: Sequence[int],
) -> Tensor:
    """The op on blocks: q [B, Q, Hi, Di], weights [B, Q, Hi], positions [B, Q], requests [B] -> int64 [B, Q,
    topk]. limits: for each block as many entries as any of its rows sees, or more.
    """
    blocks, width, heads, dim = q.shape
    visible = visible_entries(positions, ratio)
    first = torch.arange(topk, device=q.device)
    chosen = torch.where(
        first < visible.unsqueeze(-1), first, -1
    )  # all there are, where they are at most topk
    begin = 0
    while begin < blocks:
        entries = limits[begin]
        end = begin + 1
        while (
            end < blocks and width * heads * (end + 1 - begin) * max(entries, limits[end]) <= _SCORES_AT_ONCE
        ):
            entries = max(entries, limits[end])
            end += 1
        if entries > topk:
            index = torch.arange(entries, device=q.device)
            slots = slot_mapping(
                block_table, requests[begin:end].unsqueeze(1), index * ratio, block_size, ratio
            )
            keys_here = (
                keys.index_select(0, slots.flatten()).view(end - begin, entries, dim).to(torch.float32)
            )
            per_head = torch.bmm(
                q[begin:end].to(torch.float32).flatten(1, 2), keys_here.transpose(1, 2)
            ).relu_()
            u = weights[begin:end].reshape(-1, 1, heads)
            scores = torch.bmm(u, per_head.view(-1, heads, entries)).view(end - begin, width, entries)
            seen = visible[begin:end].unsqueeze(-1)
            best = deterministic_topk(scores.masked_fill_(index >= seen, float("-inf")), topk)
            chosen[begin:end] = torch.where(best < seen, best, -1)
        begin = end
    return chosen


def _prefill_fake(
    q: Tensor,
    weights: Tensor,
    keys: Tensor,
    block_table: Tensor,
    block_size: int,
    query_start_loc: Tensor,
    chunk_starts: Tensor,
    chunk_lens: Sequence[int],
    seq_lens: Sequence[int],
    ratio: int,
    topk: int,
) -> Tensor:
    return q.new_empty(q.shape[0], topk, dtype=torch.int64)


def _block_limits(chunk_lens: Sequence[int], seq_lens: Sequence[int], size: int, ratio: int) -> list[int]:
    """Entries that the last row of each block of `size` rows sees."""
    size = min(size, max(chunk_lens))
    return [
        (end - rows + min(begin + size, rows)) // ratio
        for rows, end in zip(chunk_lens, seq_lens, strict=True)
        for begin in range(0, rows, size)
    ]


# Stock npu_lightning_indexer sees every key up to the row's own position, not one in `ratio`, and promises no
# order of ties.
@op(
    "(Tensor q, Tensor weights, Tensor keys, Tensor block_table, int block_size, Tensor query_start_loc,"
    " Tensor chunk_starts, int[] chunk_lens, int[] seq_lens, int ratio, int topk) -> Tensor",
    _prefill_fake,
)
def lightning_indexer_prefill(
    q: Tensor,
    weights: Tensor,
    keys: Tensor,
    block_table: Tensor,
    block_size: int,
    query_start_loc: Tensor,
    chunk_starts: Tensor,
    chunk_lens: Sequence[int],
    seq_lens: Sequence[int],
    ratio: int,
    topk: int,
) -> Tensor:
    """score(t, j) = sum_h weights_h relu(q_h . key_j); each query chooses the topk best of the entries that
    it sees, j < floor((t + 1) / ratio), all of them when they are at most topk; of equal scores the lowest
    entries.

    q: [T, Hi, Di], rotated. weights: float32 [T, Hi], scaled. keys: [P, Di], the indexer's cache group.
    block_table: int [N, M] of that group; block_size in source tokens. query_start_loc: int [N + 1].
    chunk_starts: int64 [N]. chunk_lens, seq_lens: rows of each request, and chunk start + rows, known to the
    host. Scores are float32. Returns entry numbers, int64 [T, topk], ascending, then -1
    for places that stay empty.
    """
    longest = max(seq_lens) // ratio
    size = max(1, min(_ROWS_AT_ONCE, _SCORES_AT_ONCE // max(1, q.shape[1] * longest)))
    b = query_blocks(query_start_loc, chunk_starts, chunk_lens, size)
    chosen = _select(
        q[b.rows], weights[b.rows], b.positions, b.requests, keys, block_table, block_size, ratio, topk,
        _block_limits(chunk_lens, seq_lens, size, ratio),
    )  # fmt: skip
    return chosen.flatten(0, 1).index_select(0, b.unblock)


def _decode_fake(
    q: Tensor,
    weights: Tensor,
    keys: Tensor,
    block_table: Tensor,
    block_size: int,
    starts: Tensor,
    num_tokens: Tensor,
    seq_lens: Sequence[int],
    ratio: int,
    topk: int,
) -> Tensor:
    return q.new_empty(*q.shape[:2], topk, dtype=torch.int64)


@op(
    "(Tensor q, Tensor weights, Tensor keys, Tensor block_table, int block_size, Tensor starts,"
    " Tensor num_tokens, int[] seq_lens, int ratio, int topk) -> Tensor",
    _decode_fake,
)
def lightning_indexer_decode(
    q: Tensor,
    weights: Tensor,
    keys: Tensor,
    block_table: Tensor,
    block_size: int,
    starts: Tensor,
    num_tokens: Tensor,
    seq_lens: Sequence[int],
    ratio: int,
    topk: int,
) -> Tensor:
    """As `lightning_indexer_prefill` for Q rows of each of N requests, from position `starts` on.

    q: [N, Q, Hi, Di]. weights: float32 [N, Q, Hi]. starts, num_tokens: int64 [N]; rows at or past num_tokens
    choose what the last one sees, or nothing when num_tokens is 0. seq_lens: for each request at least
    start + num_tokens, known to the host. Returns int64 [N, Q, topk].
    """
    positions = decode_positions(starts, num_tokens, q.shape[1])
    requests = torch.arange(q.shape[0], device=q.device)
    limits = [length // ratio for length in seq_lens]
    return _select(q, weights, positions, requests, keys, block_table, block_size, ratio, topk, limits)

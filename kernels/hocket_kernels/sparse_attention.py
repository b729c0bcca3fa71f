"""Attention over the sliding window and, in compressed layers, compressed entries, with a sink logit per
head.

One shared head is both key and value. Query t sees window rows s in [max(0, t - W + 1), t] and, with ratio m,
entries j < floor((t + 1) / m): all of them (ratio 128), or those that the indexer chose (ratio 4). p =
softmax([q_h . key * scale, sink_h]); the sink's share is dropped; o_h = sum p * key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hocket_kernels.query_blocks import decode_positions, query_blocks, visible_entries
from hocket_kernels.registry import Implementation, op
from hocket_kernels.shared_kv_attention import NEEDS, refuses_shared_kv, shared_kv_attention
from hocket_kernels.slot_mapping import slot_mapping

_ROWS_AT_ONCE = 64
_VALUES_AT_ONCE = 1 << 20  # gathered keys, or logits, held at a time


class _Paged(NamedTuple):
    """One cache group of one layer: [P, D], int [N, M], source tokens per block, source tokens per row."""

    cache: Tensor
    table: Tensor
    block_size: int
    ratio: int

    def gather(self, requests: Tensor, rows: Tensor) -> Tensor:
        """Rows of requests, as numbers from the request's first on (both int64, broadcastable): [..., D]."""
        slots = slot_mapping(self.table, requests, rows * self.ratio, self.block_size, self.ratio)
        return self.cache.index_select(0, slots.flatten()).view(*slots.shape, -1)


def _window_keys(swa: _Paged, window: int, requests: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Keys [B, W - 1 + Q, D] that the rows of each block may see; who sees which: bool [B, Q, W - 1 + Q].

    Places outside a block's span repeat a row inside it, so that every row read has been written.
    """
    first, last = positions[:, :1], positions[:, -1:]
    span = torch.arange(window - 1 + positions.shape[1], device=positions.device)
    wanted = first - (window - 1) + span
    present = torch.minimum(wanted, last).clamp(min=0)
    t, s = positions.unsqueeze(-1), wanted.unsqueeze(1)
    return swa.gather(requests.unsqueeze(1), present), (s <= t) & (s > t - window) & (s >= 0)


def _entry_keys(entries: _Paged, requests: Tensor, visible: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Keys [B, count, D] of the first entries of each block's request; who sees which: bool [B, Q, count].

    Entries that no row of the block sees may not have been written: they come as zeros.
    """
    index = torch.arange(count, device=visible.device)
    keys = entries.gather(requests.unsqueeze(1), index)
    unseen = (index >= visible.amax(1, keepdim=True)).unsqueeze(-1)
    return keys.masked_fill_(unseen, 0.0), index < visible.unsqueeze(-1)


def _chosen_keys(entries: _Paged, requests: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Keys [B, Q, k, D] of the chosen entries [B, Q, k], zeros for -1; which are real: bool [B, Q, k]."""
    keys = entries.gather(requests.view(-1, 1, 1), chosen.clamp(min=0))
    real = chosen >= 0
    return keys.masked_fill_(~real.unsqueeze(-1), 0.0), real


def _attend(q: Tensor, sinks: Tensor, scale: float, shared: list[tuple[Tensor, Tensor]],
            own: tuple[Tensor, Tensor] | None) -> Tensor:  # fmt: skip
    """q: [B, Q, H, D]. shared: keys [B, S, D] with masks [B, Q, S]; own: keys [B, Q, k, D] with a mask [B, Q,
    k].
    """
    blocks, width, heads, dim = q.shape
    flat = (q * scale).view(blocks, width * heads, dim)
    logits = []
    for keys, seen in shared:
        part = torch.bmm(flat, keys.transpose(1, 2)).view(blocks, width, heads, -1).to(torch.float32)
        logits.append(part.masked_fill_(~seen.unsqueeze(2), float("-inf")))
    if own is not None:
        keys = own[0].flatten(0, 1)
        part = torch.bmm(flat.view(-1, heads, dim), keys.transpose(1, 2)).view(blocks, width, heads, -1)
        logits.append(part.to(torch.float32).masked_fill_(~own[1].unsqueeze(2), float("-inf")))
    logits.append(sinks.view(1, 1, heads, 1).expand(blocks, width, heads, 1))
    p = torch.cat(logits, dim=-1).softmax(dim=-1).to(q.dtype)
    out, at = None, 0
    for keys, _ in shared:
        part = torch.bmm(p[..., at : at + keys.shape[1]].flatten(1, 2), keys).view(q.shape)
        out, at = part if out is None else out.add_(part), at + keys.shape[1]
    assert out is not None
    if own is not None:
        part = torch.bmm(p[..., at:-1].flatten(0, 1), own[0].flatten(0, 1))
        out += part.view(q.shape)
    return out


def _sparse_attention(
    q: Tensor,
    positions: Tensor,
    requests: Tensor,
    sinks: Tensor,
    scale: float,
    window: int,
    swa: _Paged,
    entries: _Paged | None,
    chosen: Tensor | None,
    longest: int,
) -> Tensor:
    """The op on blocks: q [B, Q, H, D], positions [B, Q], requests [B], chosen [B, Q, k] -> [B, Q, H, D].
    longest: above every position.
    """
    blocks, width, heads, dim = q.shape
    visible, count = positions, 0
    if entries is not None:
        visible = visible_entries(positions, entries.ratio)
        count = longest // entries.ratio
    if chosen is not None:
        count = min(count, chosen.shape[-1])
        chosen = chosen[..., :count]  # real choices come first, so no row has more
    keys = window + width + count * (1 if chosen is None else width)
    step = max(1, _VALUES_AT_ONCE // max(keys * dim, width * heads * (window + width + count)))
    out = torch.empty_like(q)
    for begin in range(0, blocks, step):
        cut = slice(begin, begin + step)
        shared = [_window_keys(swa, window, requests[cut], positions[cut])]
        own = None
        if entries is not None and count:
            if chosen is None:
                shared.append(_entry_keys(entries, requests[cut], visible[cut], count))
            else:
                own = _chosen_keys(entries, requests[cut], chosen[cut])
        out[cut] = _attend(q[cut], sinks, scale, shared, own)
    return out


def _paged(cache: Tensor | None, table: Tensor | None, block_size: int, ratio: int) -> _Paged | None:
    if not ratio:
        return None
    assert cache is not None, "compressed layers have a cache group"
    assert table is not None, "compressed layers have a block table"
    return _Paged(cache, table, block_size, ratio)


def _prefill_fake(
    q: Tensor,
    sinks: Tensor,
    scale: float,
    window: int,
    query_start_loc: Tensor,
    chunk_starts: Tensor,
    chunk_lens: Sequence[int],
    seq_lens: Sequence[int],
    swa_cache: Tensor,
    swa_table: Tensor,
    swa_block_size: int,
    ratio: int = 0,
    entry_cache: Tensor | None = None,
    entry_table: Tensor | None = None,
    entry_block_size: int = 0,
    chosen: Tensor | None = None,
) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


def _decode_fake(
    q: Tensor,
    sinks: Tensor,
    scale: float,
    window: int,
    starts: Tensor,
    num_tokens: Tensor,
    seq_lens: Sequence[int],
    swa_cache: Tensor,
    swa_table: Tensor,
    swa_block_size: int,
    ratio: int = 0,
    entry_cache: Tensor | None = None,
    entry_table: Tensor | None = None,
    entry_block_size: int = 0,
    chosen: Tensor | None = None,
) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


def _prefill_custom(
    q: Tensor,
    sinks: Tensor,
    scale: float,
    window: int,
    query_start_loc: Tensor,
    chunk_starts: Tensor,
    chunk_lens: Sequence[int],
    seq_lens: Sequence[int],
    swa_cache: Tensor,
    swa_table: Tensor,
    swa_block_size: int,
    ratio: int = 0,
    entry_cache: Tensor | None = None,
    entry_table: Tensor | None = None,
    entry_block_size: int = 0,
    chosen: Tensor | None = None,
) -> Tensor:
    lens = query_start_loc.diff()
    return shared_kv_attention(
        q, sinks, scale, window, query_start_loc, chunk_starts + lens, max(chunk_lens), max(seq_lens),
        swa_cache, swa_table, swa_block_size, ratio, entry_cache, entry_table, entry_block_size, chosen,
    )  # fmt: skip


def _prefill_refuses(
    q: Tensor,
    sinks: Tensor,
    scale: float,
    window: int,
    query_start_loc: Tensor,
    chunk_starts: Tensor,
    chunk_lens: Sequence[int],
    seq_lens: Sequence[int],
    swa_cache: Tensor,
    swa_table: Tensor,
    swa_block_size: int,
    ratio: int = 0,
    entry_cache: Tensor | None = None,
    entry_table: Tensor | None = None,
    entry_block_size: int = 0,
    chosen: Tensor | None = None,
) -> str:
    return refuses_shared_kv(q, window, swa_cache, swa_block_size, ratio, entry_block_size, chosen)


def _decode_custom(
    q: Tensor,
    sinks: Tensor,
    scale: float,
    window: int,
    starts: Tensor,
    num_tokens: Tensor,
    seq_lens: Sequence[int],
    swa_cache: Tensor,
    swa_table: Tensor,
    swa_block_size: int,
    ratio: int = 0,
    entry_cache: Tensor | None = None,
    entry_table: Tensor | None = None,
    entry_block_size: int = 0,
    chosen: Tensor | None = None,
) -> Tensor:
    """One row each, so that every request has its row: as many in the packed layout as here."""
    requests, width = q.shape[:2]
    loc = torch.arange(requests + 1, device=q.device, dtype=torch.int32)
    out = shared_kv_attention(
        q.flatten(0, 1), sinks, scale, window, loc, (starts + num_tokens).clamp(min=1), width, max(seq_lens),
        swa_cache, swa_table, swa_block_size, ratio, entry_cache, entry_table, entry_block_size,
        None if chosen is None else chosen.flatten(0, 1),
    )  # fmt: skip
    return out.view(q.shape).masked_fill_((num_tokens == 0).view(-1, 1, 1, 1), 0.0)


def _decode_refuses(
    q: Tensor,
    sinks: Tensor,
    scale: float,
    window: int,
    starts: Tensor,
    num_tokens: Tensor,
    seq_lens: Sequence[int],
    swa_cache: Tensor,
    swa_table: Tensor,
    swa_block_size: int,
    ratio: int = 0,
    entry_cache: Tensor | None = None,
    entry_table: Tensor | None = None,
    entry_block_size: int = 0,
    chosen: Tensor | None = None,
) -> str:
    if q.shape[1] != 1:
        return f"{q.shape[1]} rows a request: some may have fewer"
    return refuses_shared_kv(q, window, swa_cache, swa_block_size, ratio, entry_block_size, chosen)


_TAIL = (
    " int[] seq_lens, Tensor swa_cache, Tensor swa_table, int swa_block_size, int ratio=0,"
    " Tensor? entry_cache=None, Tensor? entry_table=None, int entry_block_size=0, Tensor? chosen=None)"
    " -> Tensor"
)


@op(
    "(Tensor q, Tensor sinks, float scale, int window, Tensor query_start_loc, Tensor chunk_starts,"
    " int[] chunk_lens," + _TAIL,
    _prefill_fake,
    [Implementation("custom", NEEDS, _prefill_custom, _prefill_refuses)],
)
def sparse_attention_prefill(
    q: Tensor,
    sinks: Tensor,
    scale: float,
    window: int,
    query_start_loc: Tensor,
    chunk_starts: Tensor,
    chunk_lens: Sequence[int],
    seq_lens: Sequence[int],
    swa_cache: Tensor,
    swa_table: Tensor,
    swa_block_size: int,
    ratio: int = 0,
    entry_cache: Tensor | None = None,
    entry_table: Tensor | None = None,
    entry_block_size: int = 0,
    chosen: Tensor | None = None,
) -> Tensor:
    """Attention for the packed rows of a prefill dispatch, whose own cache rows have been written before.

    q: [T, H, D], rotated. sinks: float32 [H]. window: W. query_start_loc: int [N + 1]. chunk_starts: int64
    [N]. chunk_lens, seq_lens: rows of each request, and chunk start + rows, known to the host. swa_cache: [P,
    D], swa_table: int [N, M], swa_block_size in source tokens. Compressed layers pass ratio (4 or 128),
    entry_cache: [P', D], entry_table: int [N, M'], entry_block_size in source tokens, and ratio 4 the
    indexer's choice: int64 [T, k], empty places (-1) last. Softmax in float32. Returns [T, H, D] in the dtype
    of q.
    """
    b = query_blocks(query_start_loc, chunk_starts, chunk_lens, _ROWS_AT_ONCE)
    swa = _Paged(swa_cache, swa_table, swa_block_size, 1)
    out = _sparse_attention(
        q[b.rows], b.positions, b.requests, sinks, scale, window, swa,
        _paged(entry_cache, entry_table, entry_block_size, ratio), None if chosen is None else chosen[b.rows],
        max(seq_lens),
    )  # fmt: skip
    return out.flatten(0, 1).index_select(0, b.unblock)


@op(
    "(Tensor q, Tensor sinks, float scale, int window, Tensor starts, Tensor num_tokens," + _TAIL,
    _decode_fake,
    [Implementation("custom", NEEDS, _decode_custom, _decode_refuses)],
)
def sparse_attention_decode(
    q: Tensor,
    sinks: Tensor,
    scale: float,
    window: int,
    starts: Tensor,
    num_tokens: Tensor,
    seq_lens: Sequence[int],
    swa_cache: Tensor,
    swa_table: Tensor,
    swa_block_size: int,
    ratio: int = 0,
    entry_cache: Tensor | None = None,
    entry_table: Tensor | None = None,
    entry_block_size: int = 0,
    chosen: Tensor | None = None,
) -> Tensor:
    """As `sparse_attention_prefill` for Q rows of each of N requests, from position `starts` on.

    q: [N, Q, H, D]. starts, num_tokens: int64 [N]. seq_lens: for each request at least start +
    num_tokens, known to the host. chosen: int64 [N, Q, k]. Rows at or past num_tokens see
    what the last one sees; what they return is meaningless, and 0 for requests without rows. Returns [N, Q,
    H, D].
    """
    positions = decode_positions(starts, num_tokens, q.shape[1])
    requests = torch.arange(q.shape[0], device=q.device)
    swa = _Paged(swa_cache, swa_table, swa_block_size, 1)
    out = _sparse_attention(
        q, positions, requests, sinks, scale, window, swa,
        _paged(entry_cache, entry_table, entry_block_size, ratio), chosen, max(seq_lens),
    )  # fmt: skip
    return out.masked_fill_((num_tokens == 0).view(-1, 1, 1, 1), 0.0)

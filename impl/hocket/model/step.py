"""What all layers of one dispatch share: which cache rows are written and closed, and how queries are laid
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hocket.model.cache import GroupedCache
from hocket.model.dispatch import BlockTables, DecodeDispatch, Extent, PrefillDispatch
from hocket.model.kv_geometry import C4, C4_INDEXER, C4_INDEXER_STATE, C4_STATE, C128, C128_STATE, MTP_SWA
from hocket_kernels.lightning_indexer import lightning_indexer_decode, lightning_indexer_prefill
from hocket_kernels.query_blocks import decode_positions
from hocket_kernels.rotary import rotary_angles
from hocket_kernels.slot_mapping import slot_mapping
from hocket_kernels.sparse_attention import sparse_attention_decode, sparse_attention_prefill

Angles = tuple[Tensor, Tensor]
"""cos and sin, float32 [rows, R / 2] each."""

# Compression ratio -> the groups of its entries, each with its state group; and how many tokens an
# entry pools.
ENTRY_GROUPS = {4: ((C4, C4_STATE), (C4_INDEXER, C4_INDEXER_STATE)), 128: ((C128, C128_STATE),)}
POOLED_TOKENS = {4: 8, 128: 128}


class Frequencies(NamedTuple):
    """Inverse frequencies, float32 [R / 2]: of window-only layers, and of layers with compressed entries."""

    plain: Tensor
    compressed: Tensor


class ClosedEntries(NamedTuple):
    """The E entries of one ratio whose last token is in this dispatch.

    slots: entry group -> int64 [E]. window_slots: state group -> int64 [E, pooled tokens], -1 before position
    0. angles: at each entry's first token.
    """

    slots: Mapping[str, Tensor]
    window_slots: Mapping[str, Tensor]
    angles: Angles


@dataclass(frozen=True, eq=False, slots=True)
class Queries:
    """The rows that attend: all rows of the dispatch, or a selection of them (`rows`), laid out as one of the
    two kernels wants them: packed chunks (`query_start_loc` is given) or N requests of `width` rows each.

    rows: int64 [R] or None. token_ids: int64 [R]. starts: int64 [N], each request's first position.
    num_tokens: int64 [N] (decode). angles: kind of layer (compressed or not) -> cos and sin of the rows.
    extent: the requests' rows as the host knows them.
    """

    rows: Tensor | None
    token_ids: Tensor
    angles: Mapping[bool, Angles]
    starts: Tensor
    num_tokens: Tensor
    query_start_loc: Tensor | None
    width: int
    block_tables: BlockTables
    extent: Extent

    def select(self, q: Tensor, weights: Tensor, cache: GroupedCache, layer: int, topk: int) -> Tensor:
        """Lightning indexer. q: [R, Hi, Di]; weights: float32 [R, Hi]. Returns entries int64 [R, topk]."""
        keys, table = cache.rows(C4_INDEXER, layer), self.block_tables[C4_INDEXER]
        size = cache.block_sizes[C4_INDEXER]
        loc, starts = self.query_start_loc, self.starts
        if loc is not None:
            return lightning_indexer_prefill(
                q, weights, keys, table, size, loc, starts, self.extent.lens, self.extent.seq_lens, 4, topk
            )
        q, weights = q.view(-1, self.width, *q.shape[1:]), weights.view(-1, self.width, weights.shape[1])
        chosen = lightning_indexer_decode(
            q, weights, keys, table, size, starts, self.num_tokens, self.extent.seq_lens, 4, topk
        )
        return chosen.flatten(0, 1)

    def attend(
        self,
        q: Tensor,
        sinks: Tensor,
        scale: float,
        window: int,
        cache: GroupedCache,
        layer: int,
        ratio: int,
        chosen: Tensor | None,
    ) -> Tensor:
        """Sparse attention. q: [R, H, D]; chosen: int64 [R, k] or None. Returns [R, H, D]."""
        name = cache.window_group(layer)
        swa, swa_table, swa_size = cache.rows(name, layer), self.block_tables[name], cache.block_sizes[name]
        entries, table, size = None, None, 0
        if ratio:
            group = ENTRY_GROUPS[ratio][0][0]
            entries, table, size = (
                cache.rows(group, layer),
                self.block_tables[group],
                cache.block_sizes[group],
            )
        loc, starts = self.query_start_loc, self.starts
        if loc is not None:
            return sparse_attention_prefill(
                q, sinks, scale, window, loc, starts, self.extent.lens, self.extent.seq_lens,
                swa, swa_table, swa_size, ratio, entries, table, size, chosen,
            )  # fmt: skip
        if chosen is not None:
            chosen = chosen.view(-1, self.width, chosen.shape[1])
        return sparse_attention_decode(
            q.view(-1, self.width, *q.shape[1:]), sinks, scale, window, starts, self.num_tokens,
            self.extent.seq_lens, swa, swa_table, swa_size, ratio, entries, table, size, chosen,
        ).flatten(0, 1)  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """T rows that are written, and the queries among them.

    positions: int64 [T] (rows that are not in use repeat a used one's). angles: as in `Queries`, for all T
    rows. write_slots: group with one row per token -> int64 [T], -1 for rows not in use. closed: ratio ->
    entries. all_rows: queries of every row; sampled: of the rows that get logits.
    """

    positions: Tensor
    angles: Mapping[bool, Angles]
    write_slots: Mapping[str, Tensor]
    closed: Mapping[int, ClosedEntries]
    all_rows: Queries
    sampled: Queries


def prefill_step(
    dispatch: PrefillDispatch, cache: GroupedCache, frequencies: Frequencies, drafting: bool = False
) -> Step:
    """Row metadata of a packed prefill dispatch: for the main layers, or (`drafting`) for the MTP layers."""
    positions, loc = dispatch.positions, dispatch.query_start_loc
    lens = loc.diff()
    extent = dispatch.extent or Extent.read(dispatch.chunk_starts, lens)
    requests = torch.repeat_interleave(lens.to(torch.int64), output_size=positions.shape[0])
    angles = _angles(positions, frequencies)
    every = Queries(
        rows=None, token_ids=dispatch.token_ids, angles=angles, starts=dispatch.chunk_starts,
        num_tokens=lens, query_start_loc=loc, width=0, block_tables=dispatch.block_tables, extent=extent,
    )  # fmt: skip
    rows = dispatch.sample_rows
    host_rows = dispatch.host_sample_rows
    owners = requests[rows]
    # Single rows are laid out like a decode dispatch: each as a request of its own.
    sampled = Queries(
        rows=rows, token_ids=dispatch.token_ids[rows],
        angles={kind: (cos[rows], sin[rows]) for kind, (cos, sin) in angles.items()},
        starts=positions[rows], num_tokens=torch.ones_like(rows), query_start_loc=None, width=1,
        block_tables={group: table[owners] for group, table in dispatch.block_tables.items()},
        extent=extent.rows(rows.tolist() if host_rows is None else host_rows),
    )  # fmt: skip
    return _step(positions, positions, requests, cache, frequencies, every, sampled, drafting)


def decode_step(
    dispatch: DecodeDispatch, cache: GroupedCache, frequencies: Frequencies, drafting: bool = False
) -> Step:
    """As `prefill_step` for a batched decode dispatch; rows past num_tokens write nothing."""
    requests, width = dispatch.token_ids.shape
    extent = dispatch.extent or Extent.read(dispatch.starts, dispatch.num_tokens)
    positions = decode_positions(dispatch.starts, dispatch.num_tokens, width)
    used = torch.arange(width, device=positions.device) < dispatch.num_tokens.unsqueeze(1)
    written = torch.where(used, positions, -1).flatten()
    positions = positions.clamp(min=0).flatten()
    angles = _angles(positions, frequencies)
    every = Queries(
        rows=None, token_ids=dispatch.token_ids.flatten(), angles=angles, starts=dispatch.starts,
        num_tokens=dispatch.num_tokens, query_start_loc=None, width=width, block_tables=dispatch.block_tables,
        extent=extent,
    )  # fmt: skip
    owners = torch.arange(requests, device=positions.device).repeat_interleave(width)
    return _step(positions, written, owners, cache, frequencies, every, every, drafting)


def _angles(positions: Tensor, frequencies: Frequencies) -> dict[bool, Angles]:
    return {
        False: rotary_angles(positions, frequencies.plain),
        True: rotary_angles(positions, frequencies.compressed),
    }


def _step(
    positions: Tensor,
    written: Tensor,
    requests: Tensor,
    cache: GroupedCache,
    frequencies: Frequencies,
    every: Queries,
    sampled: Queries,
    drafting: bool,
) -> Step:
    """`written`: int64 [T], the positions, -1 for rows that are not in use."""
    tables = every.block_tables
    per_token = [
        name for name, layout in cache.layouts.items() if layout.ratio == 1 and (name == MTP_SWA) == drafting
    ]
    slots = {
        name: slot_mapping(tables[name], requests, written, cache.block_sizes[name], 1) for name in per_token
    }
    closed = {
        ratio: _closed(ratio, every, cache, frequencies)
        for ratio, groups in ENTRY_GROUPS.items()
        if groups[0][0] in cache.layouts and not drafting
    }
    return Step(positions, every.angles, slots, closed, every, sampled)


def _closing(ratio: int, queries: Queries) -> tuple[Tensor, Tensor]:
    """The requests whose entries close, int64 [E], and each entry's first position; -1 in places that the
    host counted in vain.

    Entry j closes with the token at position ratio * j + ratio - 1. E comes from the host alone.
    """
    starts, lens = queries.starts, queries.num_tokens
    index = torch.arange(queries.extent.num_closed(ratio), device=starts.device)
    first = starts.div(ratio, rounding_mode="floor")
    counts = (starts + lens).div(ratio, rounding_mode="floor") - first
    ends = counts.cumsum(0)
    owner = torch.searchsorted(ends, index, right=True).clamp(max=starts.shape[0] - 1)
    entry = index - (ends - counts - first)[owner]
    return owner, torch.where(index < ends[-1], entry * ratio, -1)


def _closed(ratio: int, queries: Queries, cache: GroupedCache, frequencies: Frequencies) -> ClosedEntries:
    tables = queries.block_tables
    owner, first = _closing(ratio, queries)
    last = torch.where(first < 0, -1, first + (ratio - 1))
    window = last.unsqueeze(1) - torch.arange(POOLED_TOKENS[ratio] - 1, -1, -1, device=last.device)
    window = torch.where(window < 0, -1, window)
    slots, window_slots = {}, {}
    for group, state in ENTRY_GROUPS[ratio]:
        slots[group] = slot_mapping(tables[group], owner, first, cache.block_sizes[group], ratio)
        window_slots[state] = slot_mapping(
            tables[state], owner.unsqueeze(1), window, cache.block_sizes[state], 1
        )
    return ClosedEntries(slots, window_slots, rotary_angles(first, frequencies.compressed))

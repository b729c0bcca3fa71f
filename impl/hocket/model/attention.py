"""The attention sub-layer: low-rank queries, one shared key-value head, compressed entries, grouped
output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.model.cache import GroupedCache
from hocket.model.config import DeepseekV4Config
from hocket.model.kv_geometry import C4, C4_INDEXER, C4_INDEXER_STATE, C4_STATE, C128, C128_STATE
from hocket.model.step import Queries, Step
from hocket_kernels.compressor import compress_ratio4_, compress_ratio128_
from hocket_kernels.kv_write import grouped_kv_write_
from hocket_kernels.rms_norm import rms_norm
from hocket_kernels.rotary import partial_rotary


@dataclass(frozen=True, eq=False, slots=True)
class CompressorWeights:
    """projection: float32 [2 c D, h], wkv over wgate (c = 2 for ratio 4, else 1). ape: float32 [ratio, c D].
    norm: [D].
    """

    projection: Tensor
    ape: Tensor
    norm: Tensor


@dataclass(frozen=True, eq=False, slots=True)
class AttentionWeights:
    """query_in: [q_lora (+ Hi), h], wq_a over the indexer's weights_proj. query_out: [H D (+ Hi Di), q_lora],
    wq_b over the indexer's. kv: [D, h]. output_a: [G, D H / G, o_lora]. output_b: [h, G o_lora]. Norms and
    sinks float32.
    """

    ratio: int
    query_in: Tensor
    query_norm: Tensor
    query_out: Tensor
    kv: Tensor
    kv_norm: Tensor
    output_a: Tensor
    output_b: Tensor
    sinks: Tensor
    compressor: CompressorWeights | None
    indexer: CompressorWeights | None


def write_keys(
    w: AttentionWeights, x: Tensor, step: Step, cache: GroupedCache, layer: int, eps: float
) -> None:
    """Write what the dispatch's T rows leave in the cache: window rows, compressor states, entries that
    close.

    x: [T, h], normed. k = v = RoPE_t(RMS(wkv x)).
    """
    cos, sin = step.angles[w.ratio > 0]
    kv = partial_rotary(
        rms_norm(torch.nn.functional.linear(x, w.kv), w.kv_norm, eps), cos, sin, inverse=False
    )
    window = cache.window_group(layer)
    grouped_kv_write_(cache.rows(window, layer), step.write_slots[window], kv)
    if w.ratio == 4:
        _compress(w.compressor, x, step, cache, layer, eps, 4, C4, C4_STATE)
        _compress(w.indexer, x, step, cache, layer, eps, 4, C4_INDEXER, C4_INDEXER_STATE)
    elif w.ratio == 128:
        _compress(w.compressor, x, step, cache, layer, eps, 128, C128, C128_STATE)


def _compress(
    w: CompressorWeights | None,
    x: Tensor,
    step: Step,
    cache: GroupedCache,
    layer: int,
    eps: float,
    ratio: int,
    group: str,
    state_group: str,
) -> None:
    assert w is not None, "compressed layers have a compressor"
    closed = step.closed[ratio]
    compress = compress_ratio4_ if ratio == 4 else compress_ratio128_
    kv_score = torch.nn.functional.linear(x.to(torch.float32), w.projection)
    entries = compress(
        cache.rows(state_group, layer), kv_score, w.ape, step.positions, step.write_slots[state_group],
        closed.window_slots[state_group], w.norm, eps, *closed.angles,
    )  # fmt: skip
    grouped_kv_write_(cache.rows(group, layer), closed.slots[group], entries)


def attend(
    w: AttentionWeights,
    x: Tensor,
    queries: Queries,
    cache: GroupedCache,
    layer: int,
    config: DeepseekV4Config,
) -> Tensor:
    """Attention of the query rows over the cache, which holds their own keys already. x: [R, h], normed ->
    [R, h].

    r = RMS(wq_a x); q = RoPE_t(RMS_per_head(wq_b r)); the output is rotated back by -t, because values carry
    their rotation; heads in G groups go through wo_a of their group, then wo_b over all.
    """
    heads, dim, eps = config.num_attention_heads, config.head_dim, config.rms_norm_eps
    cos, sin = queries.angles[w.ratio > 0]
    rank = w.query_norm.shape[0]
    low = torch.nn.functional.linear(x, w.query_in)
    projected = torch.nn.functional.linear(rms_norm(low[:, :rank], w.query_norm, eps), w.query_out)
    q = rms_norm(projected[:, : heads * dim].reshape(-1, heads, dim), None, eps)
    q = partial_rotary(q, cos, sin, inverse=False)
    chosen = None
    if w.ratio == 4:
        index_heads, index_dim = config.index_n_heads, config.index_head_dim
        index_q = projected[:, heads * dim :].reshape(-1, index_heads, index_dim)
        index_q = partial_rotary(index_q, cos, sin, inverse=False)
        weights = low[:, rank:].to(torch.float32) * (index_dim * index_heads) ** -0.5
        chosen = queries.select(index_q, weights, cache, layer, config.index_topk)
    o = queries.attend(q, w.sinks, dim**-0.5, config.sliding_window, cache, layer, w.ratio, chosen)
    grouped = partial_rotary(o, cos, sin, inverse=True).view(-1, config.o_groups, w.output_a.shape[1])
    z = torch.bmm(grouped.transpose(0, 1), w.output_a).transpose(0, 1)
    return torch.nn.functional.linear(z.flatten(1), w.output_b)

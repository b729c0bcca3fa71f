"""One decoder layer: its weights, taken from a state dict of release names, and its forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.model.attention import AttentionWeights, CompressorWeights, attend, write_keys
from hocket.model.cache import GroupedCache
from hocket.model.config import DeepseekV4Config
from hocket.model.moe import MoeWeights, moe
from hocket.model.step import Queries, Step
from hocket_kernels.hyper_connection import hc_post, hc_pre
from hocket_kernels.rms_norm import rms_norm


class WeightSource:
    """A view on a state dict that converts what it hands out: `model` dtype for matrices, float32 for the
    rest.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device | str, prefix: str = ""
    ) -> None:
        self._tensors, self._dtype, self._device, self._prefix = tensors, dtype, device, prefix

    def at(self, prefix: str) -> WeightSource:
        """The same tensors, names relative to `prefix`."""
        return WeightSource(self._tensors, self._dtype, self._device, self._prefix + prefix)

    def raw(self, name: str) -> Tensor:
        """As stored; KeyError for a name that the state dict lacks."""
        return self._tensors[self._prefix + name]

    def matrix(self, *names: str) -> Tensor:
        """The matrices one over the other (joined along the first axis), in the model's dtype."""
        return torch.cat([self.raw(n).to(self._device, self._dtype) for n in names]).contiguous()

    def exact(self, *names: str) -> Tensor:
        """As `matrix`, in float32."""
        return torch.cat([self.raw(n).to(self._device, torch.float32) for n in names]).contiguous()

    def ids(self, name: str) -> Tensor:
        """As int64."""
        return self.raw(name).to(self._device, torch.int64)


@dataclass(frozen=True, eq=False, slots=True)
class HcWeights:
    """Mixing weights of one sub-layer, float32: fn [(2 + n) n, n h]; scale (repeated over its parts), base
    [(2 + n) n].
    """

    fn: Tensor
    scale: Tensor
    base: Tensor

    @classmethod
    def load(cls, source: WeightSource, name: str, streams: int) -> HcWeights:
        """From `{name}_fn`, `{name}_scale` (3 values) and `{name}_base`."""
        parts = (streams, streams, streams * streams)
        scales = source.exact(f"{name}_scale").unbind()
        scale = torch.cat([one.expand(count) for one, count in zip(scales, parts, strict=True)])
        return cls(source.exact(f"{name}_fn"), scale, source.exact(f"{name}_base"))


@dataclass(frozen=True, eq=False, slots=True)
class LayerWeights:
    """All weights of a decoder layer."""

    attn_hc: HcWeights
    attn_norm: Tensor
    attn: AttentionWeights
    ffn_hc: HcWeights
    ffn_norm: Tensor
    moe: MoeWeights


def load_layer(source: WeightSource, config: DeepseekV4Config, ratio: int, hashed: bool) -> LayerWeights:
    """From a source whose names are relative to the layer ("attn.wq_a.weight", ...)."""
    return LayerWeights(
        attn_hc=HcWeights.load(source, "hc_attn", config.hc_mult),
        attn_norm=source.exact("attn_norm.weight"),
        attn=_load_attention(source.at("attn."), config, ratio),
        ffn_hc=HcWeights.load(source, "hc_ffn", config.hc_mult),
        ffn_norm=source.exact("ffn_norm.weight"),
        moe=_load_moe(source.at("ffn."), config, hashed),
    )


def _load_attention(source: WeightSource, config: DeepseekV4Config, ratio: int) -> AttentionWeights:
    indexed = ratio == 4
    output_a = source.matrix("wo_a.weight").view(config.o_groups, config.o_lora_rank, -1)
    return AttentionWeights(
        ratio=ratio,
        query_in=source.matrix("wq_a.weight", *["indexer.weights_proj.weight"] * indexed),
        query_norm=source.exact("q_norm.weight"),
        query_out=source.matrix("wq_b.weight", *["indexer.wq_b.weight"] * indexed),
        kv=source.matrix("wkv.weight"),
        kv_norm=source.exact("kv_norm.weight"),
        output_a=output_a.transpose(1, 2).contiguous(),
        output_b=source.matrix("wo_b.weight"),
        sinks=source.exact("attn_sink"),
        compressor=_load_compressor(source.at("compressor.")) if ratio else None,
        indexer=_load_compressor(source.at("indexer.compressor.")) if indexed else None,
    )


def _load_compressor(source: WeightSource) -> CompressorWeights:
    return CompressorWeights(
        projection=source.exact("wkv.weight", "wgate.weight"),
        ape=source.exact("ape"),
        norm=source.exact("norm.weight"),
    )


def _load_moe(source: WeightSource, config: DeepseekV4Config, hashed: bool) -> MoeWeights:
    experts = range(config.n_routed_experts)
    return MoeWeights(
        gate=source.exact("gate.weight"),
        bias=None if hashed else source.exact("gate.bias"),
        tid2eid=source.ids("gate.tid2eid") if hashed else None,
        w13=torch.stack([source.matrix(f"experts.{e}.w1.weight", f"experts.{e}.w3.weight") for e in experts]),
        w2=torch.stack([source.matrix(f"experts.{e}.w2.weight") for e in experts]),
        shared_w13=source.matrix("shared_experts.w1.weight", "shared_experts.w3.weight"),
        shared_w2=source.matrix("shared_experts.w2.weight"),
    )


def decoder_layer(
    w: LayerWeights,
    streams: Tensor,
    step: Step,
    queries: Queries,
    cache: GroupedCache,
    layer: int,
    config: DeepseekV4Config,
) -> Tensor:
    """One layer over the T rows of a step: all of them are written to the cache, the query rows go on.

    streams: [T, n, h]. layer: index in the cache's groups. Returns [R, n, h], R = T when `queries` are all
    rows.
    """
    mixing = (config.hc_sinkhorn_iters, config.hc_eps, config.rms_norm_eps)
    x, post, comb = hc_pre(streams, w.attn_hc.fn, w.attn_hc.scale, w.attn_hc.base, *mixing)
    x = rms_norm(x, w.attn_norm, config.rms_norm_eps)
    write_keys(w.attn, x, step, cache, layer, config.rms_norm_eps)
    if queries.rows is not None:
        rows = queries.rows
        x, streams, post, comb = x[rows], streams[rows], post[rows], comb[rows]
        if not rows.numel():
            return streams
    streams = hc_post(attend(w.attn, x, queries, cache, layer, config), streams, post, comb)
    x, post, comb = hc_pre(streams, w.ffn_hc.fn, w.ffn_hc.scale, w.ffn_hc.base, *mixing)
    x = rms_norm(x, w.ffn_norm, config.rms_norm_eps)
    top_k, scaling, limit = config.num_experts_per_tok, config.routed_scaling_factor, config.swiglu_limit
    return hc_post(moe(w.moe, x, queries.token_ids, top_k, scaling, limit), streams, post, comb)

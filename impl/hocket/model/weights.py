"""Names and shapes of every tensor of a DeepSeek-V4 checkpoint, in the released spelling. No torch, no files.

`main_weights(config)` and `mtp_weights(config)` say what must be in a checkpoint; loader, random writer and
tests all go by them.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from hocket.model.config import DeepseekV4Config


class Kind(Enum):
    """What a tensor is, and with it what may be done to it.

    LINEAR and EXPERT matrices [out, in] may be stored quantised and are held in the model's dtype; EMBEDDING
    is never quantised; FLOAT (norms, mixing, sinks, router ...) is held in float32; IDS are expert ids.
    """

    LINEAR = "linear"
    EXPERT = "expert"
    EMBEDDING = "embedding"
    FLOAT = "float"
    IDS = "ids"


class WeightSpec(NamedTuple):
    """Shape (logical, before any packing) and kind of one tensor."""

    shape: tuple[int, ...]
    kind: Kind


def main_weights(config: DeepseekV4Config) -> dict[str, WeightSpec]:
    """Release name -> spec for embedding, all layers, final norm and head."""
    vocab, hidden = config.vocab_size, config.hidden_size
    table = {"embed.weight": WeightSpec((vocab, hidden), Kind.EMBEDDING)}
    for layer, ratio in enumerate(config.compress_ratios):
        table |= _layer(config, f"layers.{layer}.", ratio, config.is_hash_layer(layer))
    table["norm.weight"] = WeightSpec((hidden,), Kind.FLOAT)
    table |= _hc_head(config, "")
    table["head.weight"] = WeightSpec((vocab, hidden), Kind.EMBEDDING)
    return table


def mtp_weights(config: DeepseekV4Config) -> dict[str, WeightSpec]:
    """Release name -> spec for the MTP layers; empty without any. Embedding and head are the main model's."""
    hidden = config.hidden_size
    table: dict[str, WeightSpec] = {}
    for layer in range(config.num_nextn_predict_layers):
        prefix = f"mtp.{layer}."
        table |= _layer(config, prefix, ratio=0, hashed=False)
        for name in ("e_proj", "h_proj"):
            table[f"{prefix}{name}.weight"] = WeightSpec((hidden, hidden), Kind.LINEAR)
        for name in ("enorm", "hnorm", "norm"):
            table[f"{prefix}{name}.weight"] = WeightSpec((hidden,), Kind.FLOAT)
        table |= _hc_head(config, prefix)
    return table


def _layer(config: DeepseekV4Config, prefix: str, ratio: int, hashed: bool) -> dict[str, WeightSpec]:
    hidden, streams = config.hidden_size, config.hc_mult
    mixes = (2 + streams) * streams
    table = {
        f"{prefix}attn_norm.weight": WeightSpec((hidden,), Kind.FLOAT),
        f"{prefix}ffn_norm.weight": WeightSpec((hidden,), Kind.FLOAT),
    }
    for part in ("hc_attn", "hc_ffn"):
        table[f"{prefix}{part}_fn"] = WeightSpec((mixes, streams * hidden), Kind.FLOAT)
        table[f"{prefix}{part}_base"] = WeightSpec((mixes,), Kind.FLOAT)
        table[f"{prefix}{part}_scale"] = WeightSpec((3,), Kind.FLOAT)
    return table | _attention(config, f"{prefix}attn.", ratio) | _moe(config, f"{prefix}ffn.", hashed)


def _attention(config: DeepseekV4Config, prefix: str, ratio: int) -> dict[str, WeightSpec]:
    c, hidden, dim = config, config.hidden_size, config.head_dim
    table = {
        f"{prefix}wq_a.weight": WeightSpec((c.q_lora_rank, hidden), Kind.LINEAR),
        f"{prefix}q_norm.weight": WeightSpec((c.q_lora_rank,), Kind.FLOAT),
        f"{prefix}wq_b.weight": WeightSpec((c.num_attention_heads * dim, c.q_lora_rank), Kind.LINEAR),
        f"{prefix}wkv.weight": WeightSpec((dim, hidden), Kind.LINEAR),
        f"{prefix}kv_norm.weight": WeightSpec((dim,), Kind.FLOAT),
        f"{prefix}wo_a.weight": WeightSpec(
            (c.o_groups * c.o_lora_rank, c.num_heads_per_group * dim), Kind.LINEAR
        ),
        f"{prefix}wo_b.weight": WeightSpec((hidden, c.o_groups * c.o_lora_rank), Kind.LINEAR),
        f"{prefix}attn_sink": WeightSpec((c.num_attention_heads,), Kind.FLOAT),
    }
    if ratio:
        table |= _compressor(f"{prefix}compressor.", ratio, dim, hidden)
    if ratio == 4:
        heads, index_dim = c.index_n_heads, c.index_head_dim
        table[f"{prefix}indexer.wq_b.weight"] = WeightSpec((heads * index_dim, c.q_lora_rank), Kind.LINEAR)
        table[f"{prefix}indexer.weights_proj.weight"] = WeightSpec((heads, hidden), Kind.LINEAR)
        table |= _compressor(f"{prefix}indexer.compressor.", ratio, index_dim, hidden)
    return table


def _compressor(prefix: str, ratio: int, dim: int, hidden: int) -> dict[str, WeightSpec]:
    # Ratio 4 pools overlapping windows: every token has a first and a second half.
    width = 2 * dim if ratio == 4 else dim
    return {
        f"{prefix}wkv.weight": WeightSpec((width, hidden), Kind.LINEAR),
        f"{prefix}wgate.weight": WeightSpec((width, hidden), Kind.LINEAR),
        f"{prefix}ape": WeightSpec((ratio, width), Kind.FLOAT),
        f"{prefix}norm.weight": WeightSpec((dim,), Kind.FLOAT),
    }


def _moe(config: DeepseekV4Config, prefix: str, hashed: bool) -> dict[str, WeightSpec]:
    hidden, inner, experts = config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
    table = {f"{prefix}gate.weight": WeightSpec((experts, hidden), Kind.FLOAT)}
    if hashed:
        table[f"{prefix}gate.tid2eid"] = WeightSpec((config.vocab_size, config.num_experts_per_tok), Kind.IDS)
    else:
        table[f"{prefix}gate.bias"] = WeightSpec((experts,), Kind.FLOAT)
    owners = [(f"{prefix}experts.{e}.", Kind.EXPERT) for e in range(experts)]
    for owner, kind in [*owners, (f"{prefix}shared_experts.", Kind.LINEAR)]:
        table[f"{owner}w1.weight"] = WeightSpec((inner, hidden), kind)
        table[f"{owner}w2.weight"] = WeightSpec((hidden, inner), kind)
        table[f"{owner}w3.weight"] = WeightSpec((inner, hidden), kind)
    return table


def _hc_head(config: DeepseekV4Config, prefix: str) -> dict[str, WeightSpec]:
    streams = config.hc_mult
    return {
        f"{prefix}hc_head_fn": WeightSpec((streams, streams * config.hidden_size), Kind.FLOAT),
        f"{prefix}hc_head_base": WeightSpec((streams,), Kind.FLOAT),
        f"{prefix}hc_head_scale": WeightSpec((1,), Kind.FLOAT),
    }

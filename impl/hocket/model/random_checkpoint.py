"""Writes small random checkpoints in the released spelling, for tests, benchmarks and demonstrations.

Everything is random, also what a fresh model usually holds as a constant (sinks, position biases, hash
tables, router biases, mixing parameters): code that ignores one of them gives other logits. Deterministic: a
tensor depends on the seed, its name and its shape, and on nothing else. Logits have a standard deviation of
about 2.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from hocket.model.checkpoint import INDEX_FILE, SINGLE_FILE
from hocket.model.config import DeepseekV4Config, YarnScaling
from hocket.model.weights import Kind, WeightSpec, main_weights, mtp_weights

TINY_CONFIG = DeepseekV4Config(
    vocab_size=128,
    hidden_size=64,
    num_hidden_layers=5,
    num_attention_heads=4,
    head_dim=32,
    qk_rope_head_dim=8,
    q_lora_rank=32,
    o_groups=2,
    o_lora_rank=16,
    compress_ratios=(0, 0, 4, 128, 4),
    index_n_heads=16,  # with few heads many indexer scores tie at exactly 0
    index_head_dim=16,
    index_topk=16,
    n_routed_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    num_hash_layers=2,
    sliding_window=128,
    rope_scaling=YarnScaling(16, 32, 1, 65536),
    num_nextn_predict_layers=1,
    bos_token_id=0,
    eos_token_ids=(1,),
    draft_kind="mtp",
)
"""All layer kinds, both routers and one MTP layer in about half a million parameters."""


def tiny_config(**overrides: Any) -> DeepseekV4Config:
    """`TINY_CONFIG` with fields replaced (num_hidden_layers and draft_kind follow what implies them)."""
    if "compress_ratios" in overrides:
        overrides.setdefault("num_hidden_layers", len(overrides["compress_ratios"]))
        hashed = min(TINY_CONFIG.num_hash_layers, overrides["num_hidden_layers"])
        overrides.setdefault("num_hash_layers", hashed)
    if "num_nextn_predict_layers" in overrides:
        overrides.setdefault("draft_kind", "mtp" if overrides["num_nextn_predict_layers"] else None)
    return dataclasses.replace(TINY_CONFIG, **overrides)


def random_tensors(config: DeepseekV4Config, seed: int = 0) -> dict[str, Tensor]:
    """Float32 (and int64) tensors under every release name of `config`, MTP included."""
    specs = main_weights(config) | mtp_weights(config)
    return {name: _random(config, name, spec, seed) for name, spec in specs.items()}


def random_mtp_tensors(config: DeepseekV4Config, seed: int = 0) -> dict[str, Tensor]:
    """As `random_tensors`, the MTP layers alone."""
    return {name: _random(config, name, spec, seed) for name, spec in mtp_weights(config).items()}


def write_random_checkpoint(
    folder: str | Path,
    config: DeepseekV4Config = TINY_CONFIG,
    *,
    seed: int = 0,
    shards: int = 1,
) -> DeepseekV4Config:
    """Writes `config.json` and the weights (`shards` > 1: with an index) into `folder`; returns `config`.

    ValueError if `config` asks for quantised weights or the folder already holds weights.
    """
    if config.quantized or config.draft_kind == "dspark":
        raise ValueError("config must be one of plain weights and MTP drafts: others cannot be written")
    if not 1 <= shards <= 999:
        raise ValueError(f"shards must be an int in [1, 999], got {shards}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / SINGLE_FILE).exists() or (folder / INDEX_FILE).exists():
        raise ValueError(f"{folder}: already holds weights")
    (folder / "config.json").write_text(
        json.dumps(config.to_release_dict(), indent=1) + "\n", encoding="utf-8"
    )
    tensors = random_tensors(config, seed)
    if shards == 1:
        save_file(tensors, folder / SINGLE_FILE, metadata={"format": "pt"})
        return config
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensor for i, (name, tensor) in enumerate(tensors.items()) if i % shards == shard}
        save_file(part, folder / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file_name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return config


def _random(config: DeepseekV4Config, name: str, spec: WeightSpec, seed: int) -> Tensor:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    if spec.kind is Kind.IDS:
        # The k smallest of random keys: k different experts for every token.
        keys = torch.rand(config.vocab_size, config.n_routed_experts, generator=generator)
        return keys.argsort(dim=-1)[:, : config.num_experts_per_tok].contiguous()
    noise = torch.randn(spec.shape, generator=generator)
    leaf = name.rsplit(".", 2)[-2] if name.endswith(".weight") else name.rsplit(".", 1)[-1]
    if leaf.endswith("norm"):
        return 1 + 0.2 * noise
    if leaf.endswith("_scale"):
        return 0.7 + 0.3 * noise
    if leaf in ("attn_sink", "ape") or leaf.endswith("_base"):
        return 0.5 * noise
    if leaf == "bias":
        return 0.05 * noise
    if leaf == "embed":
        return noise
    return 2.0 / math.sqrt(spec.shape[-1]) * noise

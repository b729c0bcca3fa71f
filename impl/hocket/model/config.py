"""The architecture of a DeepSeek-V4 checkpoint, read from its `config.json`.

`DeepseekV4Config` is frozen and holds nothing but checked values: every bad one is a `ValueError` that names
the field, the value and the allowed range, and whatever this implementation does not do (other architectures,
other scoring functions, other quantisations ...) is refused by name. Two spellings are accepted: that of the
released checkpoints (`compress_ratios`, `num_hash_layers`, `qk_rope_head_dim`, `rope_scaling`) and the newer
one that `transformers` writes (`layer_types`, `mlp_layer_types`, `partial_rotary_factor`, `rope_parameters`),
which `config_spelling` translates. No torch here: schedulers and tools read configurations too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hocket.core.checks import require_int, require_number
from hocket.model.config_spelling import release_spelling

ARCHITECTURE = "DeepseekV4ForCausalLM"
MODEL_TYPE = "deepseek_v4"
COMPRESS_RATIOS = (0, 4, 128)
MAX_CONFIG_BYTES = 1 << 20

_MAX_SIZE = 1 << 24  # no dimension of a real model comes near; larger ones are a broken or hostile file
_MAX_EXPERTS = 1 << 18  # in all layers; ten times what any release has
_INT_RANGES: dict[str, tuple[int, int]] = {
    "vocab_size": (2, _MAX_SIZE),
    "hidden_size": (1, 1 << 20),
    "num_hidden_layers": (1, 1024),
    "num_attention_heads": (1, 4096),
    "head_dim": (2, 1 << 16),
    "qk_rope_head_dim": (2, 1 << 16),
    "q_lora_rank": (1, 1 << 20),
    "o_groups": (1, 4096),
    "o_lora_rank": (1, 1 << 20),
    "sliding_window": (1, _MAX_SIZE),
    "index_n_heads": (1, 4096),
    "index_head_dim": (2, 1 << 16),
    "index_topk": (1, _MAX_SIZE),
    "n_routed_experts": (1, 1 << 16),
    "num_experts_per_tok": (1, 1 << 16),
    "moe_intermediate_size": (1, 1 << 20),
    "num_hash_layers": (0, 1024),
    "hc_mult": (1, 64),
    "hc_sinkhorn_iters": (1, 1000),
    "num_nextn_predict_layers": (0, 16),
    "max_position_embeddings": (1, 1 << 40),
}
_FLOAT_RANGES: dict[str, tuple[float, float]] = {
    "rope_theta": (1.0, 1e12),
    "compress_rope_theta": (1.0, 1e12),
    "routed_scaling_factor": (1e-6, 1e6),
    "swiglu_limit": (1e-6, 1e30),
    "hc_eps": (1e-30, 1.0),
    "rms_norm_eps": (1e-30, 1.0),
}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN on the frequencies of the compressed layers' rotary (no magnitude factor)."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        require_number("rope_scaling.factor", self.factor, 1.0, 1e6)
        require_number("rope_scaling.beta_slow", self.beta_slow, 1e-6, 1e6)
        require_number("rope_scaling.beta_fast", self.beta_fast, 1e-6, 1e6)
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"rope_scaling.beta_fast must exceed beta_slow = {self.beta_slow}, got {self.beta_fast}"
            )
        name = "rope_scaling.original_max_position_embeddings"
        require_int(name, self.original_max_position_embeddings, 1, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekV4Config:
    """One checkpoint's architecture. Field names are those of the released `config.json`.

    `compress_ratios` has exactly `num_hidden_layers` entries, each 0 (window only; a released 1 means the
    same), 4 or 128; entries that released files carry past them (for draft layers) are dropped.
    `rope_scaling` is None or YaRN and concerns ratio-4 and ratio-128 layers only. `dtype` is the file's
    `torch_dtype` ("float32" or "bfloat16"); `quantized` tells whether the file announces FP8 weights and
    `expert_dtype` the routed experts' ("fp4", "fp8" or None). `draft_kind` is "mtp", "dspark" (not run here)
    or None.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    compress_ratios: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    num_hash_layers: int
    sliding_window: int = 128
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    rope_scaling: YarnScaling | None = None
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    num_nextn_predict_layers: int = 0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 1048576
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    quantized: bool = False
    expert_dtype: str | None = None
    draft_kind: str | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _INT_RANGES.items():
            require_int(name, getattr(self, name), low, high)
        for name, (lowf, highf) in _FLOAT_RANGES.items():
            require_number(name, getattr(self, name), lowf, highf)
            # An int in a config file is a fine float; store one type only.
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.rope_scaling is not None and not isinstance(self.rope_scaling, YarnScaling):
            raise ValueError(f"rope_scaling must be None or a YarnScaling, got {_short(self.rope_scaling)}")
        _check_ratios(self)
        _check_relations(self)
        _check_tokens(self)
        _require_choice("dtype", self.dtype, ("float32", "bfloat16"))
        _require_choice("quantized", self.quantized, (False, True))
        _require_choice("expert_dtype", self.expert_dtype, (None, "fp8", "fp4"))
        _require_choice("draft_kind", self.draft_kind, (None, "mtp", "dspark"))

    # -- derived values, in the words of the equations

    @property
    def eos_token_id(self) -> int | None:
        """The first of `eos_token_ids`, or None."""
        return self.eos_token_ids[0] if self.eos_token_ids else None

    @property
    def num_heads_per_group(self) -> int:
        """Attention heads that share one low-rank output projection."""
        return self.num_attention_heads // self.o_groups

    def layers_with_ratio(self, ratio: int) -> tuple[int, ...]:
        """Indices of the layers whose compress ratio is `ratio` (0, 4 or 128), ascending."""
        _require_choice("ratio", ratio, COMPRESS_RATIOS)
        return tuple(i for i, r in enumerate(self.compress_ratios) if r == ratio)

    def is_hash_layer(self, layer: int) -> bool:
        """Whether the MoE of `layer` routes by token id instead of by score."""
        return layer < self.num_hash_layers

    # -- files

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> DeepseekV4Config:
        """From the parsed content of a `config.json` in either spelling; unknown keys are ignored."""
        values = release_spelling(raw)
        known = {f.name for f in fields(cls)}
        missing = sorted(f for f in _REQUIRED if values.get(f) is None)
        if missing:
            raise ValueError(f"config: required keys are missing: {', '.join(missing)}")
        values["rope_scaling"] = _yarn(values.get("rope_scaling"))
        defaulted = {k for k, v in values.items() if v is None and k not in ("bos_token_id", "rope_scaling")}
        return cls(**{k: v for k, v in values.items() if k in known and k not in defaulted})

    @classmethod
    def from_file(cls, path: str | Path) -> DeepseekV4Config:
        """From a `config.json`, or from the folder that holds one. ValueError names the file."""
        path = Path(path)
        if path.is_dir():
            path = path / "config.json"
        if not path.is_file():
            raise ValueError(f"{path}: no such file")
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"{path}: {path.stat().st_size} bytes, allowed are at most {MAX_CONFIG_BYTES}")
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: not a JSON file in UTF-8: {error}") from error
        try:
            return cls.from_dict(raw)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def to_release_dict(self) -> dict[str, Any]:
        """A `config.json` in the released spelling; `from_dict` of it equals this configuration."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("quantized", "draft_kind", "eos_token_ids", "dtype"):
            del plain[name]
        drafts = [0] * self.num_nextn_predict_layers
        eos = self.eos_token_ids
        plain |= {
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            "torch_dtype": self.dtype,
            "compress_ratios": [*self.compress_ratios, *drafts],
            "eos_token_id": list(eos) if len(eos) > 1 else self.eos_token_id,
            "num_key_value_heads": 1,
            "n_shared_experts": 1,
            "scoring_func": "sqrtsoftplus",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
        }
        if self.rope_scaling is not None:
            plain["rope_scaling"] = {"type": "yarn"} | {
                f.name: getattr(self.rope_scaling, f.name) for f in fields(self.rope_scaling)
            }
        if self.quantized:
            plain["quantization_config"] = {
                "quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128],
            }  # fmt: skip
        if self.draft_kind == "dspark":
            plain["dspark_target_layer_ids"] = [self.num_hidden_layers - 1]
        return {k: v for k, v in plain.items() if v is not None or k in ("bos_token_id", "eos_token_id")}


_REQUIRED = tuple(f.name for f in fields(DeepseekV4Config)[:17])


def _yarn(raw: Any) -> YarnScaling | None:
    """YarnScaling of a `rope_scaling` mapping whose kind was checked; None for no scaling."""
    if raw is None:
        return None
    missing = sorted(f.name for f in fields(YarnScaling) if f.name not in raw)
    if missing:
        raise ValueError(f"rope_scaling: required keys are missing: {', '.join(missing)}")
    return YarnScaling(**{f.name: raw[f.name] for f in fields(YarnScaling)})


def _require_choice(field: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(type(value) is type(a) and value == a for a in allowed):
        raise ValueError(f"{field} must be one of {', '.join(map(repr, allowed))}, got {_short(value)}")


def _check_ratios(config: DeepseekV4Config) -> None:
    """Normalises `compress_ratios`: a tuple of num_hidden_layers entries out of 0, 4, 128 (1 becomes 0)."""
    ratios: object = config.compress_ratios
    layers = config.num_hidden_layers
    if not isinstance(ratios, (list, tuple)) or not layers <= len(ratios) <= layers + 16:
        raise ValueError(
            f"compress_ratios must be a list of num_hidden_layers = {layers} entries "
            f"(and at most 16 more, for draft layers), got {_short(ratios)}"
        )
    for i, ratio in enumerate(ratios):
        allowed = (0, 1, 4, 128) if i < layers else (0, 1)
        if isinstance(ratio, bool) or ratio not in allowed or not isinstance(ratio, int):
            raise ValueError(
                f"compress_ratios[{i}] must be one of {', '.join(map(str, allowed))}, got {_short(ratio)}"
            )
    object.__setattr__(config, "compress_ratios", tuple(0 if r == 1 else r for r in ratios[:layers]))


def _check_relations(config: DeepseekV4Config) -> None:
    """What one field's value demands of another's."""
    c = config
    limits = (
        ("qk_rope_head_dim", c.qk_rope_head_dim, "head_dim", c.head_dim),
        ("qk_rope_head_dim", c.qk_rope_head_dim, "index_head_dim", c.index_head_dim),
        ("num_experts_per_tok", c.num_experts_per_tok, "n_routed_experts", c.n_routed_experts),
        ("num_hash_layers", c.num_hash_layers, "num_hidden_layers", c.num_hidden_layers),
    )
    for name, value, other, limit in limits:
        if value > limit:
            raise ValueError(f"{name} must be at most {other} = {limit}, got {value}")
    if c.num_hidden_layers * c.n_routed_experts > _MAX_EXPERTS:
        raise ValueError(
            f"n_routed_experts must be at most {_MAX_EXPERTS} / num_hidden_layers = {c.num_hidden_layers}, "
            f"got {c.n_routed_experts}"
        )
    if c.qk_rope_head_dim % 2:
        raise ValueError(f"qk_rope_head_dim must be even (rotary pairs), got {c.qk_rope_head_dim}")
    if c.num_attention_heads % c.o_groups:
        raise ValueError(
            f"o_groups must divide num_attention_heads = {c.num_attention_heads}, got {c.o_groups}"
        )
    if c.rope_scaling is not None and not math.log(c.compress_rope_theta):
        raise ValueError("compress_rope_theta must exceed 1 where rope_scaling is YaRN, got 1.0")


def _check_tokens(config: DeepseekV4Config) -> None:
    last = config.vocab_size - 1
    if config.bos_token_id is not None:
        require_int("bos_token_id", config.bos_token_id, 0, last)
    if not isinstance(config.eos_token_ids, tuple):
        raise ValueError(f"eos_token_ids must be a tuple of token ids, got {_short(config.eos_token_ids)}")
    for token in config.eos_token_ids:
        require_int("eos_token_id", token, 0, last)

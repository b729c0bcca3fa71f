"""Translates a `config.json` of either spelling to the fields of `DeepseekV4Config`, and refuses what is
unsupported.

`release_spelling(raw)` is the only entry. It checks the keys that select *features* (architecture, scoring
function, quantisation, rotary kind, ...); the values of the remaining fields are checked by
`DeepseekV4Config` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LAYER_TYPES = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
_COMPRESS_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}

# key -> values that mean what is implemented; an absent key or a null means the first of them.
_SUPPORTED: dict[str, tuple[object, ...]] = {
    "model_type": ("deepseek_v4",),
    "num_key_value_heads": (1,),
    "n_shared_experts": (1,),
    "scoring_func": ("sqrtsoftplus",),
    "topk_method": ("noaux_tc",),
    "norm_topk_prob": (True,),
    "n_group": (1,),
    "topk_group": (1,),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "tie_word_embeddings": (False,),
    "compress_rates": (_COMPRESS_RATES,),
    "compress_rate_csa": (4,),
    "compress_rate_hca": (128,),
}
# Parts of other or later models: their mere presence changes what the weights mean.
_FOREIGN = ("text_config", "vision_config", "audio_config", "engram_layer_ids", "kv_source_layer_ids",
            "index_source_layer_ids", "candidate_source_layer_id", "kv_lora_rank")  # fmt: skip
_COPIED = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "q_lora_rank",
    "o_groups", "o_lora_rank", "index_n_heads", "index_head_dim", "index_topk", "n_routed_experts",
    "num_experts_per_tok", "moe_intermediate_size", "sliding_window", "rope_theta", "compress_rope_theta",
    "routed_scaling_factor", "swiglu_limit", "hc_mult", "hc_sinkhorn_iters", "hc_eps",
    "num_nextn_predict_layers", "rms_norm_eps", "max_position_embeddings", "bos_token_id",
)  # fmt: skip


def release_spelling(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Values by field name of `DeepseekV4Config`; None where the file says nothing."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"config must be a JSON object, got a {type(raw).__name__}")
    _refuse_unsupported(raw)
    values: dict[str, Any] = {name: raw.get(name) for name in _COPIED}
    values["compress_ratios"] = _either(raw, "compress_ratios", "layer_types", _ratios_of_layer_types)
    values["num_hash_layers"] = _either(raw, "num_hash_layers", "mlp_layer_types", _hash_layers)
    values["qk_rope_head_dim"] = _either(raw, "qk_rope_head_dim", "partial_rotary_factor", _rope_dim)
    values |= _rope(raw, values)
    values["eos_token_ids"] = _eos(raw.get("eos_token_id"))
    values["dtype"] = _agree("torch_dtype", raw.get("torch_dtype"), "dtype", raw.get("dtype"))
    values |= _quantisation(raw)
    dspark = any(key.startswith("dspark_") and value for key, value in raw.items())
    drafts = raw.get("num_nextn_predict_layers")
    values["draft_kind"] = "dspark" if dspark else "mtp" if drafts else None
    return values


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    architectures = raw.get("architectures")
    if architectures is not None and architectures != ["DeepseekV4ForCausalLM"]:
        raise ValueError(
            f"architectures must be ['DeepseekV4ForCausalLM'], got {architectures!r}: not supported"
        )
    if architectures is None and raw.get("model_type") is None:
        raise ValueError("config: neither 'architectures' nor 'model_type' says which model this is")
    for key, allowed in _SUPPORTED.items():
        value = raw.get(key)
        if value is not None and not any(type(value) is type(a) and value == a for a in allowed):
            raise ValueError(f"{key} must be {' or '.join(map(repr, allowed))}, got {value!r}: not supported")
    for key in _FOREIGN:
        if raw.get(key) is not None:
            raise ValueError(
                f"{key} must be absent (it is no part of DeepSeek-V4), got {raw[key]!r}: not supported"
            )


def _either(raw: Mapping[str, Any], old: str, new: str, translate: Any) -> Any:
    """The released key's value, or the translated one of the newer key; ValueError if the two differ."""
    released = raw.get(old)
    if raw.get(new) is None:
        return released
    translated = translate(raw)
    if released is None:
        return translated
    short = (
        released[: len(translated)]
        if isinstance(translated, list) and isinstance(released, list)
        else released
    )
    if short != translated:
        raise ValueError(f"{old} = {released!r} contradicts {new} = {raw[new]!r}")
    return released


def _agree(name: str, value: Any, other: str, second: Any) -> Any:
    """Whichever of two values of the same thing is there; ValueError if they differ."""
    if value is not None and second is not None and value != second:
        raise ValueError(f"{name} = {value!r} contradicts {other} = {second!r}")
    return second if value is None else value


def _ratios_of_layer_types(raw: Mapping[str, Any]) -> list[int]:
    types = raw["layer_types"]
    if not isinstance(types, list):
        raise ValueError(f"layer_types must be a list of {', '.join(_LAYER_TYPES)}, got {types!r}")
    for i, kind in enumerate(types):
        if not isinstance(kind, str) or kind not in _LAYER_TYPES:
            raise ValueError(f"layer_types[{i}] must be one of {', '.join(_LAYER_TYPES)}, got {kind!r}")
    return [_LAYER_TYPES[kind] for kind in types]


def _hash_layers(raw: Mapping[str, Any]) -> int:
    types = raw["mlp_layer_types"]
    if not isinstance(types, list) or any(kind not in ("hash_moe", "moe") for kind in types):
        raise ValueError(f"mlp_layer_types must be a list of 'hash_moe' and 'moe', got {types!r}")
    count: int = types.count("hash_moe")
    if types != ["hash_moe"] * count + ["moe"] * (len(types) - count):
        raise ValueError(f"mlp_layer_types must have its hash_moe layers first, got {types!r}")
    layers = raw.get("num_hidden_layers")
    if len(types) != layers:
        raise ValueError(
            f"mlp_layer_types must have num_hidden_layers = {layers!r} entries, got {len(types)}"
        )
    return count


def _rope_dim(raw: Mapping[str, Any]) -> int:
    factor, head_dim = raw["partial_rotary_factor"], raw.get("head_dim")
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (factor, head_dim))
    if not numbers or not 0 < factor <= 1 or not isinstance(head_dim, int):
        raise ValueError(
            f"partial_rotary_factor must be a number in (0, 1] beside an int head_dim, got {factor!r}"
        )
    dim: int = round(head_dim * factor)
    if abs(dim - head_dim * factor) > 1e-6:
        raise ValueError(
            f"partial_rotary_factor must cut head_dim = {head_dim} at a whole channel, got {factor!r}"
        )
    return dim


def _rope(raw: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_theta`, `compress_rope_theta`, `rope_scaling`, from the released keys or `rope_parameters`."""
    scaling, parameters = raw.get("rope_scaling"), raw.get("rope_parameters")
    theta, compress_theta = values["rope_theta"], values["compress_rope_theta"]
    if parameters is not None:
        if not isinstance(parameters, Mapping):
            raise ValueError(f"rope_parameters must be a JSON object, got {parameters!r}")
        main, compress = parameters.get("main"), parameters.get("compress")
        if not isinstance(main, Mapping) or not isinstance(compress, Mapping):
            raise ValueError(
                "rope_parameters must have the keys 'main' and 'compress', each with a JSON object"
            )
        if _yarn_keys("rope_parameters.main", main) is not None:
            raise ValueError("rope_parameters.main.rope_type must be 'default', got 'yarn': not supported")
        theta = _agree("rope_theta", theta, "rope_parameters.main.rope_theta", main.get("rope_theta"))
        other = "rope_parameters.compress.rope_theta"
        compress_theta = _agree("compress_rope_theta", compress_theta, other, compress.get("rope_theta"))
        translated = _yarn_keys("rope_parameters.compress", compress)
        if scaling is not None and _yarn_keys("rope_scaling", scaling) != translated:
            raise ValueError(
                f"rope_scaling = {scaling!r} contradicts rope_parameters.compress = {compress!r}"
            )
        scaling = translated
    else:
        scaling = _yarn_keys("rope_scaling", scaling)
    return {"rope_theta": theta, "compress_rope_theta": compress_theta, "rope_scaling": scaling}


def _yarn_keys(field: str, raw: Any) -> dict[str, Any] | None:
    """The YaRN keys of a rotary block, None for plain rotary; ValueError for any other kind."""
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise ValueError(f"{field} must be a JSON object, got {raw!r}")
    kind = _agree(f"{field}.rope_type", raw.get("rope_type"), f"{field}.type", raw.get("type"))
    if kind in (None, "default"):
        return None
    if kind != "yarn":
        raise ValueError(f"{field}.type must be 'yarn' or 'default', got {kind!r}: not supported")
    for key, neutral in (
        ("attention_factor", (1, None)),
        ("mscale", (0, 1, None)),
        ("mscale_all_dim", (0, 1, None)),
    ):
        if raw.get(key) not in neutral:
            raise ValueError(
                f"{field}.{key} must be {neutral[0]} or absent, got {raw[key]!r}: "
                f"a magnitude factor is not supported"
            )
    if raw.get("truncate") not in (None, True):
        raise ValueError(f"{field}.truncate must be true or absent, got {raw['truncate']!r}: not supported")
    keys = ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings")
    return {key: raw[key] for key in keys if key in raw}


def _eos(raw: Any) -> tuple[Any, ...]:
    return () if raw is None else tuple(raw) if isinstance(raw, list) else (raw,)


def _quantisation(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`quantized` and `expert_dtype`; ValueError for any scheme but FP8 in 128 x 128 blocks, FP4 experts."""
    block = raw.get("quantization_config")
    expert = raw.get("expert_dtype")
    if block is None:
        if expert is not None:
            raise ValueError(f"expert_dtype must be absent without a quantization_config, got {expert!r}")
        return {"quantized": False, "expert_dtype": None}
    if not isinstance(block, Mapping):
        raise ValueError(f"quantization_config must be a JSON object, got {block!r}")
    expert = _agree("expert_dtype", expert, "quantization_config.expert_dtype", block.get("expert_dtype"))
    allowed: dict[str, tuple[object, ...]] = {
        "quant_method": ("fp8",),
        "fmt": ("e4m3",),
        "scale_fmt": ("ue8m0",),
        "weight_block_size": ([128, 128],),
        "activation_scheme": ("dynamic",),
    }
    for key, values in allowed.items():
        value = block.get(key)
        if value is None and key not in ("quant_method", "weight_block_size"):
            continue
        if value not in values:
            raise ValueError(f"quantization_config.{key} must be {values[0]!r}, got {value!r}: not supported")
    return {"quantized": True, "expert_dtype": expert}

"""Configurations: both spellings, each refusal with its message, round trips, transformers' reading."""

import json
import re
import subprocess
import sys

import pytest

from hocket.model.config import DeepseekV4Config, YarnScaling
from hocket.model.random_checkpoint import TINY_CONFIG, tiny_config

YARN = {
    "type": "yarn",
    "factor": 16,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 65536,
}


def flash(**changes):
    """The released V4-Flash configuration, with changes; ABSENT removes a key."""
    raw = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "vocab_size": 129280,
        "hidden_size": 4096,
        "num_hidden_layers": 43,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1024,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "sliding_window": 128,
        "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 512,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": YARN,
        "n_routed_experts": 256,
        "num_experts_per_tok": 6,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "num_hash_layers": 3,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1048576,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
        "expert_dtype": "fp4",
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
        "use_cache": True,
        "initializer_range": 0.02,
    }
    raw |= changes
    return {key: value for key, value in raw.items() if value is not ABSENT}


ABSENT = object()


def test_the_released_spelling_gives_every_field():
    config = DeepseekV4Config.from_dict(flash())
    assert config.compress_ratios == (0, 0, *(4, 128) * 20, 4)
    assert len(config.layers_with_ratio(4)) == 21
    assert len(config.layers_with_ratio(128)) == 20
    assert config.layers_with_ratio(0) == (0, 1)
    assert config.rope_scaling == YarnScaling(16, 32, 1, 65536)
    assert (config.rope_theta, config.compress_rope_theta) == (10000.0, 160000.0)
    assert isinstance(config.rope_theta, float)
    assert (config.bos_token_id, config.eos_token_ids, config.eos_token_id) == (0, (1,), 1)
    assert (config.dtype, config.quantized, config.expert_dtype) == ("bfloat16", True, "fp4")
    assert config.draft_kind == "mtp"
    assert [config.is_hash_layer(i) for i in range(5)] == [True, True, True, False, False]
    assert config.num_heads_per_group == 8


def test_the_later_release_with_other_drafts_is_read_and_named():
    ratios = [0, 0, *[4, 128] * 20, 4, 0, 0, 0]
    config = DeepseekV4Config.from_dict(flash(compress_ratios=ratios, dspark_target_layer_ids=[40, 41, 42]))
    assert config.draft_kind == "dspark"
    assert len(config.compress_ratios) == 43


def test_ratio_one_means_the_same_as_ratio_zero():
    ratios = [1, 0, *[4, 128] * 20, 4, 1]
    assert DeepseekV4Config.from_dict(flash(compress_ratios=ratios)) == DeepseekV4Config.from_dict(flash())


@pytest.mark.parametrize(
    "config",
    [
        TINY_CONFIG,
        tiny_config(compress_ratios=(4, 128, 0), num_nextn_predict_layers=0, eos_token_ids=(1, 7)),
        tiny_config(rope_scaling=None, eos_token_ids=(), bos_token_id=None),
        DeepseekV4Config.from_dict(flash()),
        DeepseekV4Config.from_dict(flash(dspark_block_size=5)),
    ],
)
def test_a_configuration_survives_its_own_file(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config.to_release_dict()))
    assert DeepseekV4Config.from_file(tmp_path) == config
    assert DeepseekV4Config.from_file(tmp_path / "config.json") == config


def test_the_spelling_of_transformers_reads_as_the_released_one(tmp_path):
    transformers = pytest.importorskip("transformers")
    plain = flash(expert_dtype=ABSENT, quantization_config=ABSENT, torch_dtype="float32")
    theirs = transformers.DeepseekV4Config(**{k: v for k, v in plain.items() if k != "architectures"})
    theirs.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert "compress_ratios" not in raw  # else this shows nothing
    assert "num_hash_layers" not in raw
    assert DeepseekV4Config.from_file(tmp_path) == DeepseekV4Config.from_dict(plain)
    # Our spelling means the same to them.
    back = transformers.DeepseekV4Config(**DeepseekV4Config.from_dict(plain).to_release_dict())
    assert back.layer_types == theirs.layer_types
    assert back.mlp_layer_types == theirs.mlp_layer_types
    assert back.rope_parameters == theirs.rope_parameters
    assert back.qk_rope_head_dim == theirs.qk_rope_head_dim


NEW_SPELLING = {
    "compress_ratios": ABSENT,
    "num_hash_layers": ABSENT,
    "qk_rope_head_dim": ABSENT,
    "rope_scaling": ABSENT,
    "layer_types": ["sliding_attention"] * 2
    + ["compressed_sparse_attention", "heavily_compressed_attention"] * 20
    + ["compressed_sparse_attention"],
    "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40,
    "partial_rotary_factor": 0.125,
    "rope_parameters": {
        "main": {"rope_type": "default", "rope_theta": 10000.0},
        "compress": {**YARN, "rope_type": "yarn", "rope_theta": 160000.0, "attention_factor": 1.0},
    },
}


def test_the_newer_spelling_is_complete_by_itself():
    assert DeepseekV4Config.from_dict(flash(**NEW_SPELLING)) == DeepseekV4Config.from_dict(flash())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # the model and its features, by name
        (
            {"architectures": ["LlamaForCausalLM"]},
            "architectures must be .* got .'LlamaForCausalLM'.: not supported",
        ),
        ({"architectures": ["DeepseekV41ForCausalLM"]}, "DeepseekV41ForCausalLM"),
        ({"architectures": ABSENT, "model_type": ABSENT}, "neither 'architectures' nor 'model_type'"),
        ({"model_type": "deepseek_v3"}, "model_type must be 'deepseek_v4', got 'deepseek_v3'"),
        ({"num_key_value_heads": 8}, "num_key_value_heads must be 1, got 8"),
        ({"num_key_value_heads": True}, "num_key_value_heads must be 1, got True"),
        ({"n_shared_experts": 2}, "n_shared_experts must be 1, got 2"),
        ({"scoring_func": "sigmoid"}, "scoring_func must be 'sqrtsoftplus', got 'sigmoid'"),
        ({"topk_method": "greedy"}, "topk_method must be 'noaux_tc', got 'greedy'"),
        ({"norm_topk_prob": False}, "norm_topk_prob must be True, got False"),
        ({"n_group": 8}, "n_group must be 1, got 8"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ({"attention_bias": True}, "attention_bias must be False, got True"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings must be False, got True"),
        ({"compress_rate_hca": 64}, "compress_rate_hca must be 128, got 64"),
        ({"vision_config": {"a": 1}}, "vision_config must be absent"),
        ({"engram_layer_ids": [3]}, "engram_layer_ids must be absent"),
        ({"torch_dtype": "float16"}, "dtype must be one of 'float32', 'bfloat16', got 'float16'"),
        # quantisation
        ({"quantization_config": ABSENT}, "expert_dtype must be absent without a quantization_config"),
        (
            {"quantization_config": {"quant_method": "awq"}},
            "quantization_config.quant_method must be 'fp8', got 'awq'",
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
            r"weight_block_size must be \[128, 128\], got \[64, 64\]",
        ),
        ({"expert_dtype": "int4"}, "expert_dtype must be one of None, 'fp8', 'fp4', got 'int4'"),
        # values
        ({"hidden_size": 0}, r"hidden_size must be an int in \[1, 1048576\], got 0"),
        ({"hidden_size": True}, "hidden_size must be an int in .* got True of type bool"),
        ({"hidden_size": 64.0}, "hidden_size must be an int in .* got 64.0 of type float"),
        ({"hidden_size": "64"}, "hidden_size must be an int in .* got '64' of type str"),
        ({"vocab_size": 1 << 40}, "vocab_size must be an int in"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number in"),
        ({"rope_theta": float("inf")}, "rope_theta must be a number in"),
        ({"swiglu_limit": -1}, "swiglu_limit must be a number in .* got -1"),
        ({"hc_sinkhorn_iters": 0}, "hc_sinkhorn_iters must be an int in"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim must be even"),
        ({"qk_rope_head_dim": 640}, "qk_rope_head_dim must be at most head_dim = 512, got 640"),
        ({"index_head_dim": 32}, "qk_rope_head_dim must be at most index_head_dim = 32, got 64"),
        ({"num_experts_per_tok": 257}, "num_experts_per_tok must be at most n_routed_experts = 256, got 257"),
        ({"num_hash_layers": 44}, "num_hash_layers must be at most num_hidden_layers = 43, got 44"),
        ({"o_groups": 7}, "o_groups must divide num_attention_heads = 64, got 7"),
        ({"n_routed_experts": 65536}, "n_routed_experts must be at most 262144 / num_hidden_layers = 43"),
        ({"compress_ratios": [0, 4]}, "compress_ratios must be a list of num_hidden_layers = 43 entries"),
        ({"compress_ratios": [8] * 43}, r"compress_ratios\[0\] must be one of 0, 1, 4, 128, got 8"),
        ({"compress_ratios": [True] * 43}, r"compress_ratios\[0\] must be one of 0, 1, 4, 128, got True"),
        ({"compress_ratios": [0] * 43 + [4]}, r"compress_ratios\[43\] must be one of 0, 1, got 4"),
        ({"eos_token_id": 129280}, r"eos_token_id must be an int in \[0, 129279\], got 129280"),
        ({"eos_token_id": [1, "x"]}, "eos_token_id must be an int"),
        ({"bos_token_id": -1}, "bos_token_id must be an int"),
        ({"q_lora_rank": ABSENT, "head_dim": None}, "required keys are missing: head_dim, q_lora_rank"),
        # rotary
        (
            {"rope_scaling": {"type": "linear", "factor": 2}},
            "rope_scaling.type must be 'yarn' or 'default', got 'linear'",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2}},
            "rope_scaling: required keys are missing: beta_fast, beta_slow",
        ),
        (
            {"rope_scaling": {**YARN, "mscale": 0.7}},
            "mscale must be .* got 0.7: a magnitude factor is not supported",
        ),
        (
            {"rope_scaling": {**YARN, "truncate": False}},
            "rope_scaling.truncate must be true or absent, got False: not supported",
        ),
        ({"rope_scaling": {**YARN, "beta_fast": 1}}, "beta_fast must exceed beta_slow = 1, got 1"),
        ({"rope_scaling": {**YARN, "factor": 0}}, "rope_scaling.factor must be a number in"),
        (
            {"rope_scaling": {**YARN, "rope_type": "default"}},
            "rope_scaling.rope_type = 'default' contradicts",
        ),
        ({"rope_scaling": "yarn"}, "rope_scaling must be a JSON object"),
        ({"compress_rope_theta": 1}, "compress_rope_theta must exceed 1"),
        # two spellings at once
        (
            {**NEW_SPELLING, "rope_theta": 500},
            "rope_theta = 500 contradicts rope_parameters.main.rope_theta = 10000.0",
        ),
        ({**NEW_SPELLING, "num_hash_layers": 2}, "num_hash_layers = 2 contradicts mlp_layer_types"),
        (
            {**NEW_SPELLING, "qk_rope_head_dim": 32},
            "qk_rope_head_dim = 32 contradicts partial_rotary_factor = 0.125",
        ),
        ({**NEW_SPELLING, "compress_ratios": [0] * 43}, "compress_ratios = .* contradicts layer_types"),
        (
            {**NEW_SPELLING, "layer_types": ["full_attention"] * 43},
            r"layer_types\[0\] must be one of .* 'full_attention'",
        ),
        ({**NEW_SPELLING, "layer_types": [[]] * 43}, r"layer_types\[0\] must be one of"),
        (
            {**NEW_SPELLING, "mlp_layer_types": ["moe"] * 42 + ["hash_moe"]},
            "must have its hash_moe layers first",
        ),
        (
            {**NEW_SPELLING, "mlp_layer_types": ["moe"] * 42},
            "mlp_layer_types must have num_hidden_layers = 43",
        ),
        ({**NEW_SPELLING, "mlp_layer_types": "moe"}, "mlp_layer_types must be a list"),
        ({**NEW_SPELLING, "partial_rotary_factor": 0.1251}, "must cut head_dim = 512 at a whole channel"),
        ({**NEW_SPELLING, "partial_rotary_factor": True}, "partial_rotary_factor must be a number"),
        (
            {**NEW_SPELLING, "rope_parameters": {"main": {}}},
            "rope_parameters must have the keys 'main' and 'compress'",
        ),
        (
            {**NEW_SPELLING, "rope_parameters": {"main": YARN, "compress": YARN}},
            "rope_parameters.main.rope_type must be",
        ),
    ],
)
def test_bad_values_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        DeepseekV4Config.from_dict(flash(**changes))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not a JSON file in UTF-8"),
        (b"\xff\xfe", "not a JSON file in UTF-8"),
        (b"[1, 2]", "config must be a JSON object, got a list"),
        (b"[" * 200_000, "not a JSON file"),
        (b" " * (1 << 20) + b"{}", "1048578 bytes, allowed are at most 1048576"),
        (b'{"model_type": "deepseek_v4"}', "required keys are missing: compress_ratios, head_dim"),
    ],
)
def test_bad_files_are_refused_and_named(content, message, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: .*{message}"):
        DeepseekV4Config.from_file(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json: no such file"):
        DeepseekV4Config.from_file(tmp_path)


def test_a_configuration_is_frozen_and_hashable():
    with pytest.raises(AttributeError):
        TINY_CONFIG.hidden_size = 3
    assert hash(TINY_CONFIG) == hash(tiny_config())


def test_only_layers_with_a_known_ratio_can_be_asked_for():
    with pytest.raises(ValueError, match="ratio must be one of 0, 4, 128, got 1"):
        TINY_CONFIG.layers_with_ratio(1)


def test_configuration_geometry_and_tokenizer_need_no_torch():
    modules = "hocket.model.config, hocket.model.kv_geometry, hocket.model.tokenizer, hocket.model.recall"
    code = f"import sys; import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

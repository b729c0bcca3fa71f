"""FP8 and FP4 checkpoints: dequantised as scalar arithmetic does it; refused where anything does not fit."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file

from hocket.model.checkpoint import (
    CheckpointError,
    decode_e8m0,
    dequantise_fp4,
    dequantise_fp8,
    load_checkpoint,
)
from hocket.model.random_checkpoint import random_tensors, tiny_config, write_random_checkpoint
from hocket.model.weights import Kind, main_weights, mtp_weights
from tests.unit.model.checkpoints import SMALL, refused, write

QUANTISED = dataclasses.replace(SMALL, quantized=True, expert_dtype="fp4")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A small checkpoint; tests copy it before they damage it."""
    folder = tmp_path_factory.mktemp("source")
    write_random_checkpoint(folder, SMALL, seed=3)
    return folder


@pytest.fixture
def stored(source):
    return load_file(source / "model.safetensors")


def scalar_e4m3(code):
    """1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinities; codes with all bits set are NaN."""
    sign, exponent, mantissa = -1 if code & 0x80 else 1, code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        return float("nan")
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def scalar_e2m1(code):
    """1 sign, 2 exponent (bias 1), 1 mantissa bit."""
    sign, exponent, mantissa = -1 if code & 8 else 1, code >> 1 & 3, code & 1
    return sign * (mantissa * 0.5 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1))


def random_codes(*shape, seed=0):
    codes = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return torch.where(codes & 0x7F == 0x7F, torch.zeros_like(codes), codes)  # no NaN


def test_e8m0_codes_are_powers_of_two_down_to_subnormal_ones():
    got = decode_e8m0(torch.arange(256, dtype=torch.uint8))
    assert got[:255].tolist() == [2.0 ** (code - 127) for code in range(255)]
    assert torch.isnan(got[255])


@pytest.mark.parametrize("shape", [(128, 128), (256, 384), (130, 257), (1, 5), (127, 129)])
def test_fp8_is_code_times_the_scale_of_its_block(shape):
    codes = random_codes(*shape)
    blocks = [-(-n // 128) for n in shape]
    scale = torch.rand(blocks, generator=torch.Generator().manual_seed(1)) + 0.5
    got = dequantise_fp8(codes, scale)
    assert got.shape == shape
    cells = [(r, c) for r in range(shape[0]) for c in range(shape[1])]
    for r, c in cells[:: max(1, len(cells) // 3000)] + cells[-1:]:
        expected = torch.tensor(scalar_e4m3(int(codes[r, c]))) * scale[r // 128, c // 128]
        assert got[r, c] == expected, (r, c)


def test_all_fp8_codes_decode():
    codes = torch.arange(256, dtype=torch.uint8).view(1, 256)
    got = dequantise_fp8(codes, torch.ones(1, 2))[0].tolist()
    for code, value in enumerate(got):
        expected = scalar_e4m3(code)
        assert value == expected or (value != value and expected != expected), code


def test_fp4_takes_the_low_nibble_first_and_scales_32_columns():
    packed = torch.randint(0, 256, (6, 48), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    scale = 2.0 ** torch.randint(-9, 9, (6, 3), generator=torch.Generator().manual_seed(3))
    got = dequantise_fp4(packed, scale)
    assert got.shape == (6, 96)
    for r in range(6):
        for c in range(96):
            byte = int(packed[r, c // 2])
            code = byte & 15 if c % 2 == 0 else byte >> 4
            assert got[r, c] == scalar_e2m1(code) * scale[r, c // 32], (r, c)


def quantise(tensors, config=QUANTISED):
    """Random FP8 and FP4 codes in place of the matrices; (stored tensors, expected values)."""
    out, expected = {}, {}
    for seed, (name, tensor) in enumerate(tensors.items()):
        kind = (main_weights(config) | mtp_weights(config))[name].kind
        companion = name.removesuffix(".weight") + ".scale"
        rows, columns = tensor.shape if tensor.dim() == 2 else (0, 0)
        if kind is Kind.EXPERT and config.expert_dtype == "fp4":
            codes = random_codes(rows, columns // 2, seed=seed)
            exponents = random_codes(rows, columns // 32, seed=seed + 1) % 16 + 118
            out[name], out[companion] = codes.view(torch.int8), exponents.view(torch.float8_e8m0fnu)
            expected[name] = dequantise_fp4(codes, decode_e8m0(exponents))
        elif kind in (Kind.LINEAR, Kind.EXPERT):
            codes = random_codes(rows, columns, seed=seed)
            exponents = random_codes(-(-rows // 128), -(-columns // 128), seed=seed + 1) % 16 + 118
            scale = decode_e8m0(exponents)
            plain = name.endswith("wo_a.weight")  # both kinds of scales are in use
            out[name] = codes.view(torch.float8_e4m3fn)
            out[companion] = scale if plain else exponents.view(torch.float8_e8m0fnu)
            expected[name] = dequantise_fp8(codes, scale)
        else:
            out[name] = expected[name] = tensor
    return out, expected


@pytest.mark.parametrize("expert_dtype", ["fp4", "fp8", None])
def test_a_quantised_checkpoint_loads_dequantised(stored, tmp_path, expert_dtype):
    config = dataclasses.replace(QUANTISED, expert_dtype=expert_dtype)
    tensors, expected = quantise(stored, config)
    loaded = load_checkpoint(write(tmp_path, tensors, config))
    assert set(loaded.tensors) | set(loaded.mtp) == set(expected)
    for name, tensor in (loaded.tensors | loaded.mtp).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("layers.0.attn.wkv.scale"), "misses tensors: layers.0.attn.wkv.scale$"),
        (lambda t: t.update({"embed.scale": torch.ones(1, 1)}), "has unknown tensors: embed.scale$"),
        (
            lambda t: t.update({"layers.0.attn.wkv.scale": torch.ones(2, 2)}),
            r"'layers.0.attn.wkv.scale': shape must be \[1, 1\] \(F32\), got \[2, 2\]",
        ),
        (
            lambda t: t.update({"layers.0.attn.wkv.scale": torch.ones(1, 1).half()}),
            "'layers.0.attn.wkv.scale': dtype must be F8_E8M0 or F32, got F16",
        ),
        (
            lambda t: t.update({"layers.0.ffn.experts.1.w1.scale": torch.ones(32, 2)}),
            "'layers.0.ffn.experts.1.w1.scale': dtype must be F8_E8M0, got F32",
        ),
        (
            lambda t: t.update({"layers.0.attn.wkv.weight": torch.zeros(32, 32, dtype=torch.int8)}),
            "'layers.0.attn.wkv.weight': dtype must be F32, BF16, F8_E4M3 .*, got I8: not supported",
        ),
        (
            lambda t: t.update({"norm.weight": torch.ones(64).to(torch.float8_e4m3fn)}),
            "'norm.weight': dtype must be F32, BF16, got F8_E4M3: not supported",
        ),
        (
            lambda t: t.update({"layers.0.ffn.experts.1.w1.weight": torch.zeros(32, 64, dtype=torch.int8)}),
            r"'layers.0.ffn.experts.1.w1.weight': shape must be \[32, 32\] \(I8\), got \[32, 64\]",
        ),
    ],
)
def test_damaged_quantisation_is_refused(stored, tmp_path, change, message):
    tensors, _ = quantise(stored)
    change(tensors)
    refused(write(tmp_path, tensors, QUANTISED), message)


def test_quantised_tensors_need_a_configuration_that_announces_them(stored, tmp_path):
    tensors, _ = quantise(stored)
    refused(write(tmp_path, tensors, SMALL), "got F8_E4M3: not supported")
    config = dataclasses.replace(QUANTISED, expert_dtype="fp8")
    refused(write(tmp_path, tensors, config), "got I8: not supported")


def test_fp4_needs_whole_blocks(tmp_path):
    config = tiny_config(compress_ratios=(0,), hidden_size=48, num_nextn_predict_layers=0)
    config = dataclasses.replace(config, quantized=True, expert_dtype="fp4")
    tensors = random_tensors(config)
    tensors["layers.0.ffn.experts.0.w1.weight"] = torch.zeros(32, 24, dtype=torch.int8)
    refused(write(tmp_path, tensors, config), "FP4 needs a multiple of 32 columns, got 48")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("layers.0.attn.wkv.scale", torch.full((1, 1), 255, dtype=torch.uint8).view(torch.float8_e8m0fnu)),
        ("layers.0.attn.wkv.weight", torch.full((32, 64), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)),
        ("norm.weight", torch.full((64,), float("inf"))),
    ],
)
def test_values_that_are_not_finite_are_refused(stored, tmp_path, name, tensor):
    tensors, _ = quantise(stored)
    write(tmp_path, tensors | {name: tensor}, QUANTISED)
    with pytest.raises(CheckpointError, match=f"{name.replace('.scale', '.weight')}' holds NaN or infinity"):
        load_checkpoint(tmp_path)

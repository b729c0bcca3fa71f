"""Our Triton kernels compiled for an Ascend 910B: by triton-ascend, then by ascendnpu-ir as far as it goes.

The last step, from planned memory to machine code, needs CANN and is not taken. What fails before it, fails:
a construct that has no lowering, or tiles that do not fit into the unified buffer.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend

from hocket_kernels import vector_kernels as kernels

TARGET = "Ascend910B3"
COMPILER = Path(triton.__file__).parents[1] / "ascendnpuir/bin/bishengir-compile"
LAST_STEP = "External hivmc run fails"  # it is the external compiler of CANN

FLOAT, INDEX = "*fp32", "*i64"
TILES = {"ROWS": kernels._ROWS, "CHANNELS": kernels._CHANNELS}
POOL = {"state": FLOAT, "window_slots": INDEX, "out": FLOAT, "dim": "i32"}

# Kernel -> types of its arguments, and its tiles at the sizes of DeepSeek-V4.
KERNELS: list[tuple[str, dict[str, str], dict[str, int]]] = [
    ("_slot_mapping", {
        "table": "*i32", "requests": INDEX, "positions": INDEX, "out": INDEX, "count": "i32",
        "columns": "i32", "block_size": "i32", "ratio": "i32"}, {"SPAN": kernels._SPAN}),
    ("_token_gather", {
        "token_ids": INDEX, "sources": INDEX, "device_tokens": INDEX, "out": INDEX, "count": "i32"},
        {"SPAN": kernels._SPAN}),
    ("_rotate_", {
        "x": "*bf16", "cos": FLOAT, "sin": FLOAT, "heads": "i32", "width": "i32", "plain": "i32",
        "half": "i32", "sign": "fp32"}, {"HEADS": kernels._HEADS, "TURNING": 64}),
    ("_write_", {
        "cache": "*bf16", "slots": INDEX, "rows": FLOAT, "count": "i32", "width": "i32"}, TILES),
    ("_update_", {
        "state": FLOAT, "slots": INDEX, "kv_score": FLOAT, "ape": FLOAT, "positions": INDEX, "count": "i32",
        "half": "i32", "ratio": "i32"}, TILES),
    ("_pool", POOL, {"SLOTS": 8, "HALVES": 2, "CHANNELS": kernels._CHANNELS}),
    ("_pool", POOL, {"SLOTS": 128, "HALVES": 1, "CHANNELS": 64}),
]  # fmt: skip


def compiled(kernel: Any, signature: dict[str, str], tiles: dict[str, int], folder: Path) -> str:
    """What the compilers say; "" if they got as far as they can without CANN."""
    target = GPUTarget("npu", TARGET, 0)
    backend = make_backend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(kernel, {**signature, **dict.fromkeys(tiles, "constexpr")}, constants=tiles)
    module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    metadata = {**options.__dict__, "name": "kernel", "hash": "0" * 64, "target": target}
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options)
    try:
        lowered = stages["ttadapter"](stages["ttir"](module, metadata), metadata)
    except subprocess.CalledProcessError as error:
        return f"triton-ascend: {error}"
    (folder / "kernel.mlir").write_text(lowered)
    command = [
        COMPILER, folder / "kernel.mlir", f"--target={TARGET}", "--enable-hfusion-compile=true",
        "--enable-hivm-compile=true", "--enable-triton-kernel-compile=true", f"--save-temps={folder}",
        "-o", folder / "kernel",
    ]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in (said.stdout + said.stderr).splitlines() if "error:" in line]
    if all(LAST_STEP in line for line in errors) and (folder / "module.hivm.opt.mlir").exists():
        return ""
    return "\n".join(errors) or f"{COMPILER.name} ended with status {said.returncode}"


@pytest.mark.parametrize(("name", "signature", "tiles"), KERNELS, ids=[k[0].strip("_") for k in KERNELS])
def test_a_kernel_compiles(
    name: str, signature: dict[str, str], tiles: dict[str, int], tmp_path: Path
) -> None:
    assert compiled(getattr(kernels, name), signature, tiles, tmp_path) == ""


def test_every_kernel_is_compiled() -> None:
    ours = {name for name, value in vars(kernels).items() if isinstance(value, triton.runtime.JITFunction)}
    assert {name for name, _, _ in KERNELS} == ours


def test_a_tile_that_does_not_fit_is_seen(tmp_path: Path) -> None:
    said = compiled(kernels._pool, POOL, {"SLOTS": 128, "HALVES": 1, "CHANNELS": 512}, tmp_path)
    assert re.search(r"ub overflow, requires \d+ bits while 1572864 bits available", said)


@triton.jit
def exchange_(x, half, PAIRS: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """The pairs of a vector, by loads and stores with a stride of 2."""
    pair = tl.arange(0, PAIRS)
    inside = pair < half
    a = tl.load(x + 2 * pair, mask=inside, other=0.0)
    b = tl.load(x + 2 * pair + 1, mask=inside, other=0.0)
    tl.store(x + 2 * pair, b, mask=inside)
    tl.store(x + 2 * pair + 1, a, mask=inside)


def test_a_construct_without_a_lowering_is_seen(tmp_path: Path) -> None:
    assert "triton-ascend" in compiled(exchange_, {"x": FLOAT, "half": "i32"}, {"PAIRS": 32}, tmp_path)

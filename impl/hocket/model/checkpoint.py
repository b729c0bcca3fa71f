"""Loads a DeepSeek-V4 checkpoint folder into a dict of tensors, dequantised, or fails and leaves nothing
behind.

A folder holds `config.json` and either `model.safetensors` or shards with `model.safetensors.index.json`,
tensors under their released names. Supported storage, per tensor:

* F32 and BF16, any tensor. Integer tables (hash routing): I32 and I64.
* FP8: F8_E4M3 (finite, no infinities) matrices [out, in], with a companion `NAME.scale` (for `NAME.weight`)
  of shape [ceil(out / 128), ceil(in / 128)], F8_E8M0 (powers of two) or F32: value = code * scale of its 128
  x 128 block.
* FP4, routed experts only: I8 of shape [out, in / 2], two E2M1 codes a byte, the low nibble first (element
  2j, then 2j + 1), with a companion `NAME.scale` of shape [out, in / 32] in F8_E8M0: value = code * scale of
  its 32 columns.

Quantised tensors need the matching `quantization_config` and `expert_dtype` in `config.json`. Everything else
is refused by name. All names, dtypes, shapes and byte ranges of all files are checked before the first tensor
is allocated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hocket.model.config import DeepseekV4Config
from hocket.model.safetensors_file import CheckpointError, StoredTensor, read_header
from hocket.model.weights import Kind, WeightSpec, main_weights, mtp_weights

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_INDEX_BYTES = 1 << 26
FP8_BLOCK = 128
FP4_BLOCK = 32

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E8M0_NAN = 255


class Checkpoint(NamedTuple):
    """A loaded checkpoint: `tensors` holds the main model, `mtp` the draft layers ("mtp.0...", or nothing).

    Matrices and embeddings are in the dtype asked for, norms, mixing parameters, sinks, position biases and
    routers in float32, expert ids in int64. Every tensor owns its memory, on the CPU.
    """

    config: DeepseekV4Config
    tensors: dict[str, Tensor]
    mtp: dict[str, Tensor]


class _Planned(NamedTuple):
    name: str
    spec: WeightSpec
    stored: StoredTensor
    scale: StoredTensor | None


def load_checkpoint(
    folder: str | Path, *, dtype: torch.dtype = torch.float32, load_mtp: bool = True
) -> Checkpoint:
    """The checkpoint in `folder`. `dtype` is float32 or bfloat16; `load_mtp=False` leaves `mtp.*` tensors
    unread.

    Draft tensors of a configuration without draft layers are skipped; so are absent ones. Raises
    CheckpointError (a ValueError) naming file or tensor, or ValueError for a bad `config.json`.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"dtype must be torch.float32 or torch.bfloat16, got {dtype}")
    folder = Path(folder)
    config = DeepseekV4Config.from_file(folder / "config.json")
    stored = read_folder(folder)
    drafts = {name: t for name, t in stored.items() if name.startswith("mtp.")}
    main = _plan(config, main_weights(config), {n: t for n, t in stored.items() if n not in drafts}, folder)
    mtp: list[_Planned] = []
    if load_mtp and drafts and config.draft_kind is not None:
        if config.draft_kind != "mtp":
            raise CheckpointError(
                f"{folder}: {config.draft_kind} draft layers are not supported; load without MTP"
            )
        mtp = _plan(config, mtp_weights(config), drafts, folder)
    return Checkpoint(
        config,
        {item.name: _read(config, item, dtype) for item in main},
        {item.name: _read(config, item, dtype) for item in mtp},
    )


def read_folder(folder: str | Path) -> dict[str, StoredTensor]:
    """Every tensor stored in a checkpoint folder, by name, from one file or from the shards of an index."""
    folder = Path(folder)
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.exists() and index.exists():
        raise CheckpointError(f"{folder}: holds both {SINGLE_FILE} and {INDEX_FILE}; remove one")
    if single.exists():
        return read_header(single)
    if not index.exists():
        raise CheckpointError(f"{folder}: holds neither {SINGLE_FILE} nor {INDEX_FILE}")
    weight_map = _weight_map(index)
    tensors: dict[str, StoredTensor] = {}
    for file_name in sorted(set(weight_map.values())):
        found = read_header(folder / file_name)
        listed = {name for name, home in weight_map.items() if home == file_name}
        _refuse_difference(index, f"shard {file_name}", listed, set(found))
        tensors |= found
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> shard file name. A shard lies in the folder itself, so its name has no path in it."""
    if not index.is_file() or index.stat().st_size > MAX_INDEX_BYTES:
        raise CheckpointError(f"{index}: must be a regular file of at most {MAX_INDEX_BYTES} bytes")
    try:
        raw = json.loads(index.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{index}: not JSON in UTF-8: {error}") from error
    weight_map = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map must be a non-empty JSON object")
    for name, file_name in weight_map.items():
        plain = (
            isinstance(file_name, str)
            and file_name.endswith(".safetensors")
            and not file_name.startswith(".")
        )
        if not plain or any(c in file_name for c in "/\\:\0") or len(file_name) > 255:
            raise CheckpointError(
                f"{index}: weight_map[{name[:80]!r}] must be the plain name of a .safetensors file in the "
                f"same folder, got {str(file_name)[:80]!r}"
            )
    return weight_map


def _refuse_difference(where: Path, what: str, expected: set[str], found: set[str]) -> None:
    for label, names in (("misses", expected - found), ("has unknown", found - expected)):
        if names:
            some = ", ".join(name[:120] for name in sorted(names)[:4])
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            raise CheckpointError(f"{where}: {what} {label} tensors: {some}{more}")


def _plan(
    config: DeepseekV4Config,
    specs: Mapping[str, WeightSpec],
    stored: Mapping[str, StoredTensor],
    folder: Path,
) -> list[_Planned]:
    """Pairs every expected tensor with what is stored; names, dtypes and shapes must fit exactly."""
    # Unsupported storage is named before its companions are missed.
    storage = {n: _storage(config, n, spec, stored[n].dtype) for n, spec in specs.items() if n in stored}
    scales = {_scale_name(name) for name, (_, scale_shape) in storage.items() if scale_shape}
    _refuse_difference(folder, "the checkpoint", set(specs) | scales, set(stored))
    plan = []
    for name, spec in specs.items():
        scale = stored[_scale_name(name)] if _scale_name(name) in scales else None
        expected = storage[name]
        _require_shape(name, stored[name], expected[0])
        if scale is not None:
            _require_shape(_scale_name(name), scale, expected[1])
            fp4 = stored[name].dtype == "I8"
            allowed = ("F8_E8M0",) if fp4 else ("F8_E8M0", "F32")
            if scale.dtype not in allowed:
                raise CheckpointError(
                    f"{scale.path}: tensor {_scale_name(name)!r}: dtype must be {' or '.join(allowed)}, "
                    f"got {scale.dtype}"
                )
        plan.append(_Planned(name, spec, stored[name], scale))
    return plan


def _scale_name(name: str) -> str:
    return name.removesuffix(".weight") + ".scale"


def _require_shape(name: str, stored: StoredTensor, expected: tuple[int, ...]) -> None:
    if stored.shape != expected:
        raise CheckpointError(
            f"{stored.path}: tensor {name!r}: shape must be {list(expected)} ({stored.dtype}), "
            f"got {list(stored.shape)}"
        )


def _storage(
    config: DeepseekV4Config, name: str, spec: WeightSpec, dtype: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Stored shape of a tensor and of its scales, if any, in this dtype; CheckpointError if unsupported."""
    matrix = spec.kind in (Kind.LINEAR, Kind.EXPERT)
    if spec.kind is Kind.IDS and dtype in ("I32", "I64"):
        return spec.shape, ()
    if spec.kind is not Kind.IDS and dtype in ("F32", "BF16"):
        return spec.shape, ()
    if matrix and dtype == "F8_E4M3" and config.quantized:
        rows, columns = spec.shape
        return spec.shape, (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
    if spec.kind is Kind.EXPERT and dtype == "I8" and config.quantized and config.expert_dtype == "fp4":
        rows, columns = spec.shape
        if columns % FP4_BLOCK:
            raise CheckpointError(
                f"tensor {name!r}: FP4 needs a multiple of {FP4_BLOCK} columns, got {columns}"
            )
        return (rows, columns // 2), (rows, columns // FP4_BLOCK)
    allowed = ["I32", "I64"] if spec.kind is Kind.IDS else ["F32", "BF16"]
    if matrix:
        allowed.append("F8_E4M3 (with a quantization_config)")
    if spec.kind is Kind.EXPERT:
        allowed.append("I8 holding FP4 (with expert_dtype 'fp4')")
    raise CheckpointError(f"tensor {name!r}: dtype must be {', '.join(allowed)}, got {dtype}: not supported")


def _read(config: DeepseekV4Config, item: _Planned, dtype: torch.dtype) -> Tensor:
    """The tensor as the model uses it; CheckpointError for values that no model can use."""
    raw = _bytes(item.stored)
    if item.spec.kind is Kind.IDS:
        ids = raw.view(torch.int32 if item.stored.dtype == "I32" else torch.int64)
        ids = ids.reshape(item.spec.shape).to(torch.int64)
        if int(ids.min()) < 0 or int(ids.max()) >= config.n_routed_experts:
            raise CheckpointError(
                f"{item.stored.path}: tensor {item.name!r}: expert ids must be in "
                f"[0, {config.n_routed_experts - 1}], got {int(ids.min())}..{int(ids.max())}"
            )
        return ids
    if item.scale is not None:
        scale = _scales(item.scale)
        unpack = dequantise_fp4 if item.stored.dtype == "I8" else dequantise_fp8
        value = unpack(raw.view(item.stored.shape), scale)
    else:
        value = raw.view(torch.float32 if item.stored.dtype == "F32" else torch.bfloat16).view(
            item.spec.shape
        )
    if not torch.isfinite(value).all():
        raise CheckpointError(f"{item.stored.path}: tensor {item.name!r} holds NaN or infinity")
    return value.to(torch.float32 if item.spec.kind is Kind.FLOAT else dtype)


def _bytes(stored: StoredTensor) -> Tensor:
    """The stored bytes, uint8 [size], in memory of their own (the file may be replaced or cut later)."""
    out = torch.empty(stored.size, dtype=torch.uint8)
    with stored.path.open("rb") as file:
        file.seek(stored.offset)
        if file.readinto(out.numpy().data) != stored.size:
            raise CheckpointError(f"{stored.path}: ended while its tensors were read")
    return out


def _scales(stored: StoredTensor) -> Tensor:
    raw = _bytes(stored)
    if stored.dtype == "F32":
        return raw.view(torch.float32).view(stored.shape)
    return decode_e8m0(raw).view(stored.shape)


def decode_e8m0(codes: Tensor) -> Tensor:
    """uint8 exponents -> float32 powers of two: 2^(code - 127), code 255 is NaN. Any shape."""
    # A table, because 2^-127 is subnormal in float32 and must not be flushed.
    table = torch.tensor([2.0 ** (code - 127) for code in range(_E8M0_NAN)] + [float("nan")])
    return table[codes.long()]


def dequantise_fp8(codes: Tensor, scale: Tensor) -> Tensor:
    """uint8 E4M3 codes [out, in] and float32 scales [ceil(out/128), ceil(in/128)] -> float32 [out, in]."""
    values = codes.view(torch.float8_e4m3fn).to(torch.float32)
    for rows, row_scales in zip(torch.split(values, FP8_BLOCK), scale, strict=True):
        rows *= row_scales.repeat_interleave(FP8_BLOCK)[: rows.shape[1]]
    return values


def dequantise_fp4(packed: Tensor, scale: Tensor) -> Tensor:
    """uint8 [out, in/2], low nibble first, and float32 scales [out, in/32] -> float32 [out, in]."""
    table = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
    pairs = torch.stack((packed & 0x0F, packed >> 4), dim=-1)
    values = table[pairs.long()].view(packed.shape[0], -1, FP4_BLOCK)
    return (values * scale[:, :, None]).flatten(1)

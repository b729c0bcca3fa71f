"""Reads the header of a safetensors file, trusting nothing in it.

A file is an 8-byte little-endian header length, a JSON header (name -> dtype, shape, data_offsets) and the
data. `read_header` accepts exactly the files in which every byte of the data belongs to exactly one tensor of
the stated size; everything else is a `CheckpointError` that names the file. Nothing is allocated in
proportion to a number that the file merely claims. No torch here.
"""

from __future__ import annotations

import json
import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_DIMENSIONS = 8

# Bits of one stored element. Names that are not here do not exist; the loader decides which of these it
# supports.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; the message names the file or the tensor and what is wrong."""


class StoredTensor(NamedTuple):
    """Where one tensor lies: `size` bytes at `offset` of `path`, and what the header says about it."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """All tensors of one file, by name. CheckpointError for anything that the format does not allow."""
    if not path.is_file():  # a missing file, a folder, or a pipe or device that would block
        raise CheckpointError(f"{path}: no such regular file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise CheckpointError(f"{path}: {size} bytes, too short for a safetensors file")
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path}: header length must be at most {MAX_HEADER_BYTES}, got {length}")
        if length > size - 8:
            raise CheckpointError(
                f"{path}: header of {length} bytes does not fit into a file of {size} (truncated?)"
            )
        raw = file.read(length)
    if len(raw) != length:
        raise CheckpointError(f"{path}: ends inside its header (truncated?)")
    header = _parse(path, raw)
    header.pop("__metadata__", None)
    start = 8 + length
    tensors = {name: _entry(path, name, entry, start) for name, entry in header.items()}
    _check_coverage(path, tensors, start, size)
    return tensors


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            names = sorted(name for name, _ in pairs)
            twice = next(a for a, b in pairwise(names) if a == b)
            raise CheckpointError(f"{path}: header has the key {twice[:80]!r} twice")
        return out

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not JSON, absurd integers
        raise CheckpointError(f"{path}: header is not JSON in UTF-8: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: header must be a JSON object, got a {type(header).__name__}")
    return header


def _entry(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    """One checked header entry; offsets become absolute."""
    where = f"{path}: tensor {name[:120]!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: header entry must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"{where}: dtype {str(dtype)[:40]!r} is unknown")
    if not _naturals(shape) or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(
            f"{where}: shape must be at most {MAX_DIMENSIONS} integers >= 0, got {str(shape)[:80]}"
        )
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(
            f"{where}: data_offsets must be two ascending integers >= 0, got {str(offsets)[:80]}"
        )
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    begin, end = offsets
    if bits != (end - begin) * 8:
        raise CheckpointError(
            f"{where}: {dtype} of shape {shape} takes {bits} bits, data_offsets hold {end - begin} bytes"
        )
    return StoredTensor(path, dtype, tuple(shape), start + begin, end - begin)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_coverage(path: Path, tensors: dict[str, StoredTensor], start: int, size: int) -> None:
    """The tensors cover the data exactly: no overlap, no hole, nothing past the end of the file."""
    position = start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].size)):
        if tensor.offset < position:
            raise CheckpointError(f"{path}: tensor {name[:120]!r} overlaps another one")
        if tensor.offset > position:
            raise CheckpointError(
                f"{path}: {tensor.offset - position} bytes before tensor {name[:120]!r} belong to none"
            )
        position = tensor.offset + tensor.size
    if position > size:
        raise CheckpointError(f"{path}: {size} bytes, but its tensors end at {position} (truncated?)")
    if position < size:
        raise CheckpointError(f"{path}: {size - position} bytes after the last tensor belong to none")

"""Headers of safetensors files: whatever a file claims, it is either exact or refused, and never obeyed."""

import json
import re
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from hocket.model.safetensors_file import CheckpointError, StoredTensor, read_header
from tests.unit.model.checkpoints import DEEP


def raw_file(path, header, data=b"", length=None):
    """A safetensors file with any header (text or object) and any claimed header length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "data", "length", "message"),
    [
        ({}, b"", 1 << 63, "header length must be at most 100000000, got 9223372036854775808"),
        ({}, b"", 1000, "header of 1000 bytes does not fit into a file of 10"),
        (b"{", b"", None, "header is not JSON"),
        (b"\xff\xff", b"", None, "header is not JSON in UTF-8"),
        (b"[]", b"", None, "header must be a JSON object, got a list"),
        (DEEP, b"", None, "header is not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", b"", None, "header is not JSON"),
        (b'{"a": 1, "a": 1}', b"", None, "header has the key 'a' twice"),
        ({"a": 1}, b"", None, "'a': header entry must have exactly dtype, shape and data_offsets"),
        ({"a": entry() | {"x": 1}}, bytes(8), None, "must have exactly dtype, shape and data_offsets"),
        ({"a": entry(dtype="F31")}, bytes(8), None, "dtype 'F31' is unknown"),
        ({"a": entry(dtype=["F32"])}, bytes(8), None, "dtype .* is unknown"),
        ({"a": entry(shape=[-2])}, bytes(8), None, r"shape must be at most 8 integers >= 0, got \[-2\]"),
        ({"a": entry(shape=[True, 2])}, bytes(8), None, "shape must be at most 8 integers"),
        ({"a": entry(shape=[2.0])}, bytes(8), None, "shape must be at most 8 integers"),
        ({"a": entry(shape=[1] * 9 + [2])}, bytes(8), None, "shape must be at most 8 integers"),
        (
            {"a": entry(shape=[1 << 62, 1 << 62])},
            bytes(8),
            None,
            "F32 of shape .* takes .* bits, data_offsets hold 8",
        ),
        ({"a": entry(offsets=[8, 0])}, bytes(8), None, "data_offsets must be two ascending integers"),
        ({"a": entry(offsets=[0, 4, 8])}, bytes(8), None, "data_offsets must be two ascending integers"),
        ({"a": entry(offsets=[0, 12])}, bytes(12), None, "takes 64 bits, data_offsets hold 12 bytes"),
        ({"a": entry(), "b": entry()}, bytes(8), None, "tensor 'b' overlaps another one"),
        ({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12), None, "tensor 'b' overlaps another one"),
        ({"a": entry(offsets=[4, 12])}, bytes(12), None, "4 bytes before tensor 'a' belong to none"),
        ({"a": entry()}, bytes(7), None, "but its tensors end at .* .truncated"),
        ({"a": entry()}, bytes(9), None, "1 bytes after the last tensor belong to none"),
        (
            {"a": entry(offsets=[1 << 62, (1 << 62) + 8])},
            bytes(8),
            None,
            "bytes before tensor 'a' belong to none",
        ),
        ({}, bytes(3), None, "3 bytes after the last tensor belong to none"),
    ],
)
def test_hostile_headers_are_refused(tmp_path, header, data, length, message):
    path = raw_file(tmp_path / "model.safetensors", header, data, length)
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(path))}: .*{message}"):
        read_header(path)


def test_a_file_of_the_library_reads_as_it_was_written(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = {"a": torch.arange(6).view(2, 3), "b": torch.ones(4).bfloat16(), "c": torch.tensor(2.0)}
    save_file(tensors, path, metadata={"format": "pt"})
    found = read_header(path)
    assert {n: (t.dtype, t.shape) for n, t in found.items()} == {
        "a": ("I64", (2, 3)), "b": ("BF16", (4,)), "c": ("F32", ()),
    }  # fmt: skip
    content = path.read_bytes()
    for name, stored in found.items():
        assert isinstance(stored, StoredTensor)
        raw = tensors[name].flatten().view(torch.uint8)
        assert content[stored.offset : stored.offset + stored.size] == bytes(raw.tolist()), name


@settings(max_examples=300)
@given(st.data())
def test_damaged_bytes_never_raise_anything_else(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    header = {"a": entry(), "b": entry("BF16", (2, 2), (8, 16)), "__metadata__": {"k": "v"}}
    content = bytearray(raw_file(path, header, bytes(16)).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    try:
        tensors = read_header(path)
    except CheckpointError:
        return
    for tensor in tensors.values():
        assert 8 <= tensor.offset <= tensor.offset + tensor.size <= path.stat().st_size

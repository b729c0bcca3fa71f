"""Prefill and decode of the whole model without values: no shape depends on data, nothing is read back."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from hocket.model.dispatch import Extent
from tests.npu.whole_model import Inlined, expected_shapes, references, run_whole_model, without_values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_through_fake_kernels(dtype: torch.dtype) -> None:
    with without_values("cpu"):
        found = run_whole_model("cpu", dtype)
    assert {name: tuple(t.shape) for name, t in found.items()} == expected_shapes()


def test_through_the_references() -> None:
    with without_values("cpu"), Inlined(references):
        found = run_whole_model("cpu", torch.bfloat16)
    assert {name: tuple(t.shape) for name, t in found.items()} == expected_shapes()


def test_a_read_is_seen() -> None:
    with without_values("cpu"), pytest.raises(DataDependentOutputException):
        Extent.read(torch.empty(2, dtype=torch.int64), torch.empty(2, dtype=torch.int64))

"""The whole model on device "npu", without values: as ops, as what the registry chooses, as references."""

from collections.abc import Iterator

import pytest
import torch

from hocket.model.config import DeepseekV4Config
from tests.npu.references import defined_without_values
from tests.npu.whole_model import (
    CONFIG,
    REAL_SIZES,
    Inlined,
    chosen,
    expected_shapes,
    references,
    run_whole_model,
    without_values,
)


@pytest.fixture(scope="module", autouse=True)
def libraries() -> Iterator[None]:
    with defined_without_values():
        yield


def kinds(found: dict[str, torch.Tensor]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(t.shape), t.device.type) for name, t in found.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_through_fake_kernels(dtype: torch.dtype) -> None:
    with without_values("npu"):
        found = run_whole_model("npu", dtype)
    assert kinds(found) == {name: (shape, "npu") for name, shape in expected_shapes().items()}


@pytest.mark.parametrize(
    ("config", "dtype", "sources"),
    [
        (CONFIG, torch.float32, {"stock", "reference"}),
        (CONFIG, torch.bfloat16, {"stock", "custom", "reference"}),
        (REAL_SIZES, torch.bfloat16, {"stock", "custom", "reference"}),
    ],
    ids=["tiny float32", "tiny bfloat16", "real sizes"],
)
def test_through_what_the_registry_chooses(
    config: DeepseekV4Config, dtype: torch.dtype, sources: set[str]
) -> None:
    used: set[str] = set()
    with without_values("npu"), Inlined(chosen(used)):
        found = run_whole_model("npu", dtype, config)
    assert kinds(found) == {name: (shape, "npu") for name, shape in expected_shapes(config).items()}
    assert used == sources


def test_through_the_references() -> None:
    with without_values("npu"), Inlined(references):
        found = run_whole_model("npu", torch.bfloat16)
    assert kinds(found) == {name: (shape, "npu") for name, shape in expected_shapes().items()}

"""Every call of a library op, under the library's true schema, against what its documents say it computes."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hocket_kernels.registry import OPS, Choice, choose, find, missing, overview
from tests.npu.checks import check_computes, taken
from tests.npu.references import defined_snapshot, snapshot
from tests.npu.samples import Sample, ints, noise, samples

torch.set_num_threads(1)
SAMPLES = samples()
CALLS = [(source, s) for source in ("stock", "custom") for s in SAMPLES if taken(source, s)]


@pytest.fixture(scope="module", autouse=True)
def libraries() -> Iterator[None]:
    assert not hasattr(torch.ops.npu, "npu_rms_norm"), "this environment has no torch_npu"
    with defined_snapshot():
        yield


@pytest.mark.parametrize(("source", "sample"), CALLS, ids=lambda x: x if isinstance(x, str) else x.id)
def test_a_call_site_computes_what_the_reference_does(source: str, sample: Sample) -> None:
    for implementation in taken(source, sample):
        check_computes(OPS[sample.op], implementation, sample)


def test_every_implementation_takes_some_sample() -> None:
    for op in OPS.values():
        for implementation in op.implementations:
            assert any(implementation in taken(implementation.source, s) for s in SAMPLES if s.op == op.name)


def test_the_snapshot_is_whole() -> None:
    assert len(snapshot("npu")) == 425
    called = {n for op in OPS.values() for i in op.implementations if i.source == "custom" for n in i.needs}
    assert {f"_C_ascend::{name}" for name in called} == set(snapshot("_C_ascend"))


def sample_of(op: str, label: str) -> Sample:
    return next(s for s in SAMPLES if (s.op, s.label) == (op, label))


def chosen(sample: Sample) -> Choice:
    return choose(sample.op, *sample.args)


def test_the_order_is_stock_custom_triton_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(sample_of("rms_norm", "weight")).source == "stock"
    assert chosen(sample_of("partial_rotary", "rows")).source == "stock", "though Triton could run it too"
    assert chosen(sample_of("hc_pre", "bf16")).source == "custom"
    refused = chosen(sample_of("hc_pre", "float32"))
    assert refused.source == "reference"
    assert refused.passed_over == (
        ("custom", "a custom kernel knows 4 streams in bfloat16, not 4 in torch.float32"),
    )
    assert chosen(sample_of("slot_mapping", "tokens")).source == "triton"
    assert chosen(sample_of("moe_gate", "bias")).source == "reference"
    monkeypatch.setattr("hocket_kernels.registry._triton_is_usable", lambda: False)
    without = chosen(sample_of("slot_mapping", "tokens"))
    assert (without.source, without.passed_over) == ("reference", (("triton", "no Triton for this device"),))


REFUSED = [
    ("window", {0: noise(8, 64, 256)}, r"q is \(8, 64, 256\), not rows of \[64, 512\]"),
    ("V4, window", {0: noise(5, 64, 512)}, "q is torch.float32 and the cache torch.bfloat16, not bfloat16"),
    ("V4, window", {3: 64}, "a window of 64 rows, not 128"),
    ("V4, window", {10: 24}, "a block of 24 rows, not a multiple of 16 up to 1024"),
    ("V4, ratio 128", {14: 1024}, "a block of 8 rows, not a multiple of 16 up to 1024"),
    ("V4, ratio 4", {15: ints(0).expand(5, 256)}, "256 chosen entries a row, not 512"),
]


@pytest.mark.parametrize(
    ("label", "changed", "reason"), REFUSED, ids=lambda x: x if isinstance(x, str) else ""
)
def test_the_kernel_for_the_real_sizes_takes_no_others(
    label: str, changed: dict[int, Any], reason: str
) -> None:
    sample = sample_of("sparse_attention_prefill", label)
    args = [changed.get(i, a) for i, a in enumerate(sample.args)]
    (implementation,) = OPS[sample.op].implementations
    assert re.fullmatch(reason, implementation.refuses(*args))
    assert choose(sample.op, *args).source == "reference"


def test_an_overview_names_what_is_loaded() -> None:
    lines = {name: (use, why) for name, use, why in overview("npu")}
    assert lines["rms_norm"][0] == "stock npu_rms_norm"
    assert lines["moe_gate"] == ("reference", "nothing else computes the same")


def test_without_the_libraries_everything_is_the_reference() -> None:
    absent = OPS["rms_norm"].implementations[0]._replace(needs=("npu_rms_norm_of_tomorrow",))
    assert missing(absent) == "npu_rms_norm_of_tomorrow is not loaded"


def test_a_custom_package_is_found_under_either_name() -> None:
    library = torch.library.Library("custom", "FRAGMENT")
    try:
        library.define("npu_op_of_ours(Tensor x) -> Tensor")
        assert find("custom", "npu_op_of_ours") is torch.ops.custom.npu_op_of_ours
        assert find("custom", "npu_hc_post") is torch.ops._C_ascend.npu_hc_post
        assert find("stock", "npu_hc_post") is None
    finally:
        library._destroy()

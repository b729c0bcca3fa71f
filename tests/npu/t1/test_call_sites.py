"""Every call of a stock or custom op on device "npu", without values, and the ops' own dispatch to them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from hocket_kernels import registry
from hocket_kernels.moe_experts import clamped_swiglu
from hocket_kernels.registry import OPS, Choice, Implementation, overview, stock
from tests.npu.checks import check_call_without_values, taken
from tests.npu.references import defined_without_values
from tests.npu.samples import Sample, samples

SAMPLES = {s.id: s for s in samples()}
CALLS = [(source, s) for source in ("stock", "custom") for s in SAMPLES.values() if taken(source, s)]


@pytest.fixture(scope="module", autouse=True)
def libraries() -> Iterator[None]:
    with defined_without_values():
        yield


@pytest.mark.parametrize(("source", "sample"), CALLS, ids=lambda x: x if isinstance(x, str) else x.id)
def test_a_call_site(source: str, sample: Sample) -> None:
    for implementation in taken(source, sample):
        check_call_without_values(implementation, sample, "npu")


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
def test_a_reference_runs_on_the_device(sample: Sample) -> None:
    reference = Implementation("reference", (), OPS[sample.op].reference, lambda *_: "")
    check_call_without_values(reference, sample, "npu")


@pytest.mark.parametrize("name", OPS)
def test_on_the_device_an_op_asks_the_registry(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tensors in the memory of the (fake) device; nothing computes there."""
    sample = next(s for s in SAMPLES.values() if s.op == name)
    asked: list[str] = []

    def choose(asked_for: str, *args: Any, **kwargs: Any) -> Choice:
        asked.append(asked_for)
        return Choice("reference", (), lambda *_: empty_results(sample), ())

    monkeypatch.setattr(registry, "choose", choose)
    OPS[name].overload(*sample.on(lambda t: torch.empty(t.shape, dtype=t.dtype, device="npu")))
    assert asked == [name]


def empty_results(sample: Sample) -> Any:
    made = OPS[sample.op].reference(*sample.fresh())
    if made is None:
        return None
    if isinstance(made, Tensor):
        return torch.empty(made.shape, dtype=made.dtype, device="npu")
    return tuple(torch.empty(t.shape, dtype=t.dtype, device="npu") for t in made)


def test_overview_of_this_environment() -> None:
    lines = {name: (use, why) for name, use, why in overview("npu")}
    assert lines["rms_norm"][0] == "stock npu_rms_norm"
    assert lines["partial_rotary"] == (
        "stock npu_rotary_mul", "where it takes the arguments; triton: no Triton for this device"
    )  # fmt: skip
    assert lines["slot_mapping"] == ("reference", "triton: no Triton for this device")


def wrong_keyword(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return stock("npu_rms_norm")(x, weight, eps=eps)[0]


def wrong_result(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return stock("npu_rms_norm")(x, weight, eps)[1]


def wrong_dtype(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return stock("npu_rms_norm")(x.to(torch.float32), weight, eps)[0]


def wrong_layout(x: Tensor, experts: Tensor, w13: Tensor, w2: Tensor, limit: float) -> Tensor:
    """Weights as [E, out, in]."""
    options = {"split_item": 2, "group_type": 0}
    options["group_list"] = torch.zeros(w13.shape[0], dtype=torch.int64, device=x.device)
    inner = stock("npu_grouped_matmul")([x.repeat_interleave(2, 0)], [w13], **options)[0]
    inner = clamped_swiglu(inner, limit)
    return stock("npu_grouped_matmul")([inner], [w2], **options)[0].view(*experts.shape, -1)


def on_the_host(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return stock("npu_rms_norm")(x, torch.ones(weight.shape), eps)[0]


def reads_a_value(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    index = slots.clamp(min=0).unsqueeze(-1)
    stock("npu_scatter_nd_update_")(cache, index[: int((slots >= 0).sum())], rows)


FAULTS: list[tuple[Callable[..., Any], str, str]] = [
    (wrong_keyword, "rms_norm-weight", "Unknown keyword argument 'eps'"),
    (wrong_result, "rms_norm-weight", r"gives .*torch.Size\(\[5, 1\]\)"),
    (wrong_dtype, "rms_norm-bf16", "gives .*torch.float32"),
    (wrong_layout, "moe_experts-many", r"gives .*torch.Size\(\[600, 2, 16\]\)"),
    (on_the_host, "rms_norm-weight", "cpu"),
    (reads_a_value, "grouped_kv_write_-float32", "_local_scalar_dense"),
]


@pytest.mark.parametrize(("fault", "sample", "message"), FAULTS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_wrong_call_is_refused(fault: Callable[..., Any], sample: str, message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        check_call_without_values(Implementation("stock", (), fault, lambda *_: ""), SAMPLES[sample], "npu")
    assert not isinstance(caught.value, NameError | AttributeError | TypeError)

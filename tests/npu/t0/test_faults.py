"""Seeded faults: each is a mistake that was easy to make, and one of the checks of this tier refuses it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from hocket_kernels.registry import OPS, Implementation, custom, stock
from tests.npu.checks import check_computes, check_fake, check_is_reference, check_static
from tests.npu.references import defined_snapshot
from tests.npu.samples import samples

torch.set_num_threads(1)
SAMPLES = {s.id: s for s in samples()}


@pytest.fixture(scope="module", autouse=True)
def libraries() -> Iterator[None]:
    with defined_snapshot():
        yield


def wrong_keyword(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return stock("npu_rms_norm")(x, weight, eps=eps)[0]


def forgotten_second_result(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return stock("npu_rms_norm")(x, weight, eps)[1]


def two_dtypes(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return stock("npu_rms_norm")(x, weight, eps)[0]


def angles_of_halves(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    r1, r2 = (torch.cat((a, a), -1).view(1, -1, 1, 6) for a in (cos, sin))
    return stock("npu_rotary_mul")(x.unsqueeze(0), r1, -r2 if inverse else r2, "half").squeeze(0)


def heads_before_rows(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    r1, r2 = (a.repeat_interleave(2, -1).view(1, -1, 1, 6) for a in (cos, sin))
    turned = stock("npu_rotary_mul")(x.transpose(0, 1).unsqueeze(0), r1, r2, "interleave")
    return turned.squeeze(0).transpose(0, 1)


def slots_without_an_axis(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    stock("npu_scatter_nd_update_")(cache, slots.clamp(min=0), rows)


def dropped_rows_written(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    stock("npu_scatter_nd_update_")(cache, (slots % len(cache)).unsqueeze(-1), rows)


def rows_not_converted(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    stock("npu_scatter_nd_update_")(cache, slots.clamp(min=0).unsqueeze(-1), rows)


def interleaved_halves(gate_up: Tensor, limit: float) -> Tensor:
    return stock("npu_clipped_swiglu")(gate_up, alpha=1.0, limit=limit, bias=0.0)


def scales_repeated(streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, *rest: Any) -> Any:
    iters, hc_eps, norm_eps = rest
    return custom("npu_hc_pre")(streams, fn, scale, base, 4, iters, norm_eps, hc_eps)


def no_batch_axis(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    return custom("npu_hc_post")(y, streams, post, comb)


def mixing_transposed(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    arguments = (t.unsqueeze(0) for t in (y, streams, post, comb.transpose(1, 2)))
    return custom("npu_hc_post")(*arguments).squeeze(0)


def changed_argument(index: int, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """The shipped implementation, given one argument that is not what the caller meant."""

    def run(*args: Any) -> Any:
        changed = [change(a) if i == index else a for i, a in enumerate(args)]
        return OPS["sparse_attention_prefill"].implementations[0].run(*changed)

    return run


def group_sizes_for_ends(x: Tensor, experts: Tensor, w13: Tensor, w2: Tensor, limit: float) -> Tensor:
    rows = x.repeat_interleave(2, 0)
    sizes = torch.bincount(experts.flatten(), minlength=w13.shape[0])
    options = {"group_list": sizes, "split_item": 2, "group_type": 0, "group_list_type": 0}
    return stock("npu_grouped_matmul")([rows], [w13.transpose(1, 2)], **options)[0]


ATTENTION = "sparse_attention_prefill-V4, ratio 4"
CALLS: list[tuple[Callable[..., Any], str, str]] = [
    (wrong_keyword, "rms_norm-weight", "Unknown keyword argument 'eps' for operator 'npu::npu_rms_norm'"),
    (forgotten_second_result, "rms_norm-weight", "differs from the reference"),
    (two_dtypes, "rms_norm-bf16", "gamma has the dtype of input"),
    (angles_of_halves, "partial_rotary-all channels turn", "differs from the reference"),
    (heads_before_rows, "partial_rotary-all channels turn", "angles are 1S1D"),
    (slots_without_an_axis, "grouped_kv_write_-float32", "indices are int, 2 axes or more"),
    (dropped_rows_written, "grouped_kv_write_-float32", "differs from the reference"),
    (rows_not_converted, "grouped_kv_write_-bf16 cache", "updates have the dtype of input"),
    (interleaved_halves, "clamped_swiglu-rows", "differs from the reference"),
    (scales_repeated, "hc_pre-bf16", "three scales"),
    (no_batch_axis, "hc_post-bf16", "all have a batch axis"),
    (mixing_transposed, "hc_post-bf16", "differs from the reference"),
    (group_sizes_for_ends, "moe_experts-few", "ends ascend up to M"),
    (changed_argument(4, lambda loc: loc.diff()), ATTENTION, "query lengths are cumulative from 0"),
    (changed_argument(5, lambda starts: starts + 1), ATTENTION, "differs|bound"),
    (changed_argument(11, lambda ratio: 2 * ratio), ATTENTION, "differs|view|blocks"),
    (changed_argument(15, lambda chosen: chosen.clamp(min=0)), ATTENTION, "differs from the reference"),
]


@pytest.mark.parametrize(("fault", "sample", "message"), CALLS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_wrong_call_is_refused(fault: Callable[..., Any], sample: str, message: str) -> None:
    faulty = Implementation("stock", (), fault, lambda *_: "")
    chosen = SAMPLES[sample]
    with pytest.raises((AssertionError, RuntimeError), match=message):
        check_computes(OPS[chosen.op], faulty, chosen)


def of_other_shape(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x.new_empty(x.shape[0], 1)


def of_other_dtype(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.float32)


def of_other_strides(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x.new_empty(x.shape[::-1]).t()


@pytest.mark.parametrize("lie", [of_other_shape, of_other_dtype, of_other_strides])
def test_a_lying_fake_kernel_is_refused(lie: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError, match="rms_norm-bf16: fake"):
        check_fake(OPS["rms_norm"]._replace(fake=lie), SAMPLES["rms_norm-bf16"])


def test_an_op_that_is_not_its_reference_is_refused() -> None:
    """The last bit counts."""
    op = OPS["rms_norm"]
    almost = op._replace(reference=lambda x, w, eps: op.reference(x, w, eps) * (1 + 2.0**-23))
    with pytest.raises(AssertionError, match="is not its reference"):
        check_is_reference(almost, SAMPLES["rms_norm-weight"])


def item(slots: Tensor) -> int:
    return int(slots.max())


def boolean_mask(slots: Tensor) -> int:
    return slots[slots >= 0].numel()


@pytest.mark.parametrize("read", [item, boolean_mask, Tensor.tolist])
def test_a_reference_that_reads_values_is_refused(read: Callable[[Tensor], Any]) -> None:
    op = OPS["grouped_kv_write_"]

    def reads(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
        read(slots)
        op.reference(cache, slots, rows)

    refusals = (DataDependentOutputException, DynamicOutputShapeException, RuntimeError)
    with pytest.raises(refusals, match=r"_local_scalar_dense|nonzero|tolist"):
        check_static(op._replace(reference=reads), SAMPLES["grouped_kv_write_-float32"])

"""Every registered op: it is its reference, its shapes are known without values, and torch agrees."""

from importlib import import_module

import pytest
import torch

from hocket_kernels import registry
from hocket_kernels.registry import NAMESPACE, OPS
from tests.npu.checks import check_fake, check_is_reference, check_static
from tests.npu.samples import Sample, samples

torch.set_num_threads(1)
SAMPLES = samples()
every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)


@every_sample
def test_the_registered_op_is_its_reference_bit_by_bit(sample: Sample) -> None:
    check_is_reference(OPS[sample.op], sample)


@every_sample
def test_the_fake_kernel_tells_the_truth(sample: Sample) -> None:
    check_fake(OPS[sample.op], sample)


# The shape function of torch's own grouped_mm takes bfloat16 only, unlike its kernel.
UNKNOWN_TO_TORCH = ["moe_experts-many"]


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.id not in UNKNOWN_TO_TORCH], ids=lambda s: s.id)
def test_the_reference_asks_for_no_value(sample: Sample) -> None:
    check_static(OPS[sample.op], sample)


def test_grouped_mm_in_float32_has_no_shape_function_yet() -> None:
    (sample,) = (s for s in SAMPLES if s.id in UNKNOWN_TO_TORCH)
    with pytest.raises(RuntimeError, match="Expected inputs of BF16"):
        check_static(OPS[sample.op], sample)


@pytest.mark.parametrize("name", OPS)
def test_opcheck(name: str) -> None:
    """One sample of each op: opcheck traces, which takes long."""
    sample = next(s for s in SAMPLES if s.op == name)
    torch.library.opcheck(OPS[name].overload, sample.fresh())


@pytest.mark.parametrize("name", OPS)
def test_the_call_site_dispatches_where_it_must(name: str) -> None:
    """On plain CPU tensors it may go to the reference at once; a mode has to see the op."""
    sample = next(s for s in SAMPLES if s.op == name)
    module = import_module(OPS[name].reference.__module__)
    args = sample.fresh()
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        getattr(module, name)(*args)
    assert seen[0] is OPS[name].overload


def test_an_op_is_registered_once() -> None:
    with pytest.raises(AssertionError, match="'rms_norm' is registered twice"):
        registry.op("(Tensor x) -> Tensor", lambda x: x)(OPS["rms_norm"].reference)
    assert OPS["rms_norm"].overload is getattr(torch.ops, NAMESPACE).rms_norm.default


def test_overview_says_what_would_be_used() -> None:
    assert {line[0] for line in registry.overview("npu")} == set(OPS)
    assert {line[1] for line in registry.overview("cpu")} == {"reference"}

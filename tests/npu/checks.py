"""What is asked of every op. The tests ask it of the ops that ship, and of faulty ones, which must fail."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hocket_kernels.registry import OPS, Implementation, Op
from tests.npu.samples import Sample

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2.0**-6}  # relative to the largest value of the result


def tensors(result: Any) -> list[Tensor]:
    if result is None:
        return []
    return [result] if isinstance(result, Tensor) else list(result)


def run(function: Any, sample: Sample) -> list[Tensor]:
    """The results, and what was written in place, on tensors of the sample's own."""
    args = sample.fresh()
    found = tensors(function(*args))
    # Row 0 lies in the null block: what dropped rows leave there is not defined.
    return found if sample.writes is None else [*found, args[sample.writes][1:]]


def layout(found: list[Tensor]) -> list[tuple[torch.Size, torch.dtype, tuple[int, ...]]]:
    return [(t.shape, t.dtype, t.stride()) for t in found]


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(7e7), b.nan_to_num(7e7))


def check_is_reference(op: Op, sample: Sample) -> None:
    """On CPU the registered op is its reference, bit by bit."""
    through, direct = run(op.overload, sample), run(op.reference, sample)
    assert len(through) == len(direct)
    assert all(map(same_bits, through, direct)), f"{sample.id}: the registered op is not its reference"


def check_fake(op: Op, sample: Sample) -> None:
    """The fake kernel tells the shapes, dtypes and strides of the real results."""
    real = layout(tensors(op.reference(*sample.fresh())))
    with FakeTensorMode() as mode:
        fake = layout(tensors(op.fake(*sample.on(mode.from_tensor))))
    assert fake == real, f"{sample.id}: fake {fake}, real {real}"


def check_static(op: Op, sample: Sample) -> None:
    """The reference asks no tensor for a value: it runs where there are none."""
    real = [kind[:2] for kind in layout(tensors(op.reference(*sample.fresh())))]
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        found = [kind[:2] for kind in layout(tensors(op.reference(*sample.on(mode.from_tensor))))]
    assert found == real


def close(found: Tensor, expected: Tensor) -> bool:
    tolerance = TOLERANCE.get(expected.dtype, 0.0)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return bool(((found - expected).abs() <= tolerance * max(1.0, scale)).all())


def check_computes(op: Op, implementation: Implementation, sample: Sample) -> None:
    """An implementation gives what the reference gives, up to rounding; `sample` is one that it takes."""
    found, expected = run(implementation.run, sample), run(op.reference, sample)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert close(a, b), f"{sample.id}: {implementation.source} differs from the reference"


def taken(source: str, sample: Sample) -> list[Implementation]:
    """Implementations from `source` that take the sample."""
    implementations = OPS[sample.op].implementations
    return [i for i in implementations if i.source == source and not i.refuses(*sample.args)]


def check_call_without_values(implementation: Implementation, sample: Sample, device: str) -> None:
    """On `device` an implementation gives what the op's fake kernel says, from tensors that hold no values.

    The libraries' schemas and shape functions run; tensors of two devices in one op are an error.
    """
    op = OPS[sample.op]
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        args = sample.on(lambda t: mode.from_tensor(t).to(device))
        found, expected = tensors(implementation.run(*args)), tensors(op.fake(*args))
    kinds = [[(t.shape, t.dtype, t.device) for t in ts] for ts in (found, expected)]
    assert kinds[0] == kinds[1], f"{sample.id}: {implementation.source} gives {kinds[0]}, not {kinds[1]}"


def drift(committed: dict[str, str], registered: dict[str, str]) -> list[str]:
    """How the committed schemas differ from those that a library registers."""
    names = sorted(committed.keys() | registered.keys())
    return [
        f"{n}: committed {committed.get(n)}, registered {registered.get(n)}"
        for n in names
        if committed.get(n) != registered.get(n)
    ]

"""Root-mean-square norm."""

from __future__ import annotations

import torch
from torch import Tensor

from hocket_kernels.registry import Implementation, op, stock


def _fake(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _stock(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """npu_rms_norm wants x and weight of one dtype; float32 keeps both as exact as the reference does."""
    gamma = x.new_ones(x.shape[-1], dtype=torch.float32) if weight is None else weight
    return stock("npu_rms_norm")(x.to(torch.float32), gamma, eps)[0].to(x.dtype)  # type: ignore[no-any-return]


def _refuses(x: Tensor, weight: Tensor | None, eps: float) -> str:
    if weight is not None and weight.dtype != torch.float32:
        return f"weight is {weight.dtype}, not float32"
    return "" if 2 <= x.dim() <= 8 else f"x has {x.dim()} axes, not 2 to 8"


@op(
    "(Tensor x, Tensor? weight, float eps) -> Tensor",
    _fake,
    [Implementation("stock", ("npu_rms_norm",), _stock, _refuses)],
)
def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """weight * x / sqrt(mean(x^2) + eps) over the last axis, in float32.

    x: [..., d]. weight: float32 [d], or None for a norm without one. Returns the shape and dtype of x.
    """
    y = x.to(torch.float32)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight
    return y.to(x.dtype)

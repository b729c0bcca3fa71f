"""Root-mean-square norm."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """weight * x / sqrt(mean(x^2) + eps) over the last axis, in float32.

    x: [..., d]. weight: float32 [d], or None for a norm without one. Returns the shape and dtype of x.
    """
    y = x.to(torch.float32)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight
    return y.to(x.dtype)

"""Partial rotary embedding: interleaved pairs in the last R channels."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_angles(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position * frequency.

    positions: int64 [T]. inv_freq: float32 [R / 2]. Returns float32 [T, R / 2] twice.
    """
    angles = positions.unsqueeze(-1).to(torch.float32) * inv_freq
    return angles.cos(), angles.sin()


def partial_rotary(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """Rotate the last R channels of every vector; the others pass through.

    The pair (a, b) of channels (2i, 2i + 1) becomes (a cos - b sin, b cos + a sin) with angle i of the row;
    `inverse` rotates back (sin negated). x: [T, D] or [T, heads, D]. cos, sin: float32 [T, R / 2]. Computed
    in float32; returns the shape and dtype of x.
    """
    plain = x.shape[-1] - 2 * cos.shape[-1]
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turning = x[..., plain:].to(torch.float32)
    a, b = turning[..., 0::2], turning[..., 1::2]
    if inverse:
        sin = -sin
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    return torch.cat((x[..., :plain], turned.to(x.dtype)), dim=-1)

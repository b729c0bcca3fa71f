"""Partial rotary embedding: interleaved pairs in the last R channels."""

from __future__ import annotations

import torch
from torch import Tensor

from hocket_kernels.registry import Implementation, op, stock


def rotary_angles(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position * frequency.

    positions: int64 [T]. inv_freq: float32 [R / 2]. Returns float32 [T, R / 2] twice.
    """
    angles = positions.unsqueeze(-1).to(torch.float32) * inv_freq
    return angles.cos(), angles.sin()


def _fake(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _stock(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """npu_rotary_mul in interleaved mode on the turning channels: as [1, T, heads, R], angles as [1, T, 1,
    R], each angle twice.
    """
    plain = x.shape[-1] - 2 * cos.shape[-1]
    turning = x[..., plain:].to(torch.float32)
    as_bsnd = turning.reshape(1, turning.shape[0], -1, turning.shape[-1])
    r1, r2 = (a.repeat_interleave(2, -1).view(1, -1, 1, turning.shape[-1]) for a in (cos, sin))
    turned = stock("npu_rotary_mul")(as_bsnd, r1, -r2 if inverse else r2, "interleave")
    return torch.cat((x[..., :plain], turned.view(turning.shape).to(x.dtype)), dim=-1)


def _stock_refuses(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> str:
    heads = x.shape[1] if x.dim() == 3 else 1
    if heads >= 1000:
        return f"{heads} heads, not fewer than 1000"
    return "" if 2 * cos.shape[-1] < 896 else f"{2 * cos.shape[-1]} turning channels, not fewer than 896"


def _triton(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    from hocket_kernels.vector_kernels import partial_rotary

    return partial_rotary(x, cos, sin, inverse)


def _triton_refuses(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> str:
    return ""


@op(
    "(Tensor x, Tensor cos, Tensor sin, bool inverse) -> Tensor",
    _fake,
    [
        Implementation("stock", ("npu_rotary_mul",), _stock, _stock_refuses),
        Implementation("triton", ("partial_rotary",), _triton, _triton_refuses),
    ],
)
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

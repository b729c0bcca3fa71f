"""Physical rows of positions: block table lookup."""

from __future__ import annotations

import torch
from torch import Tensor

from hocket_kernels.slot_rule import column_of, physical_row


def slot_mapping(
    block_table: Tensor, requests: Tensor, positions: Tensor, block_size: int, ratio: int
) -> Tensor:
    """The cache rows ("slots") that hold given positions of given requests.

    block_table: int [N, M]. requests, positions: int64 of broadcastable shapes. block_size: source tokens per
    block. ratio: source tokens per row, a divisor of block_size. A negative position has no row: its slot is
    -1. Returns int64, the broadcast shape: table[r, p // block_size] * (block_size / ratio) + (p mod
    block_size) / ratio.
    """
    p = positions.clamp(min=0)
    columns = column_of(p, block_size)
    slots = physical_row(p, columns, block_table[requests, columns], block_size, ratio)
    return torch.where(positions < 0, -1, slots)

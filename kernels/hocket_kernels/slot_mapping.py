"""Physical rows of positions: block table lookup."""

from __future__ import annotations

import torch
from torch import Tensor

from hocket_kernels.registry import Implementation, op
from hocket_kernels.slot_rule import column_of, physical_row


def _fake(block_table: Tensor, requests: Tensor, positions: Tensor, block_size: int, ratio: int) -> Tensor:
    return torch.empty_like(requests + positions)


def _triton(block_table: Tensor, requests: Tensor, positions: Tensor, block_size: int, ratio: int) -> Tensor:
    from hocket_kernels.vector_kernels import slot_mapping

    return slot_mapping(block_table, requests, positions, block_size, ratio)


def _refuses(block_table: Tensor, requests: Tensor, positions: Tensor, block_size: int, ratio: int) -> str:
    return "" if block_table.is_contiguous() else "the block table is not contiguous"


@op(
    "(Tensor block_table, Tensor requests, Tensor positions, int block_size, int ratio) -> Tensor",
    _fake,
    [Implementation("triton", ("slot_mapping",), _triton, _refuses)],
)
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

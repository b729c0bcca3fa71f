"""Write rows of one cache group by slot."""

from __future__ import annotations

import torch
from torch import Tensor

from hocket_kernels.registry import Implementation, op, stock

_TAKEN = (torch.float32, torch.float16, torch.bfloat16, torch.int8)


def _fake(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    return None


def _stock(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """npu_scatter_nd_update_ with one index per row. Dropped rows meet in row 0, in any order."""
    if slots.numel():
        index = slots.clamp(min=0).unsqueeze(-1)
        stock("npu_scatter_nd_update_")(cache, index, rows.to(cache.dtype))


def _stock_refuses(cache: Tensor, slots: Tensor, rows: Tensor) -> str:
    return "" if cache.dtype in _TAKEN else f"the cache is {cache.dtype}"


def _triton(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    from hocket_kernels.vector_kernels import grouped_kv_write_

    grouped_kv_write_(cache, slots, rows)


def _triton_refuses(cache: Tensor, slots: Tensor, rows: Tensor) -> str:
    return "" if cache.is_contiguous() else "the cache is not contiguous"


@op(
    "(Tensor(a!) cache, Tensor slots, Tensor rows) -> ()",
    _fake,
    [
        Implementation("stock", ("npu_scatter_nd_update_",), _stock, _stock_refuses),
        Implementation("triton", ("grouped_kv_write_",), _triton, _triton_refuses),
    ],
)
def grouped_kv_write_(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """cache[slots[i]] = rows[i], in place, converted to the cache's dtype.

    cache: [P, width]. slots: int64 [S]. rows: [S, width]. Slot -1 drops its row: it lands in row 0 of the
    null block, which is never read, so that shapes do not depend on data. Other slots are distinct.
    """
    if slots.numel():
        cache.index_copy_(0, slots.clamp(min=0), rows.to(cache.dtype))

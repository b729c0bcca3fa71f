"""Write rows of one cache group by slot."""

from __future__ import annotations

from torch import Tensor


def grouped_kv_write_(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """cache[slots[i]] = rows[i], in place, converted to the cache's dtype.

    cache: [P, width]. slots: int64 [S]. rows: [S, width]. Slot -1 drops its row: it lands in row 0 of the
    null block, which is never read, so that shapes do not depend on data. Other slots are distinct.
    """
    if slots.numel():
        cache.index_copy_(0, slots.clamp(min=0), rows.to(cache.dtype))

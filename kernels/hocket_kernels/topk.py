"""Top-k whose ties go to the lowest index, whatever the row's length."""

from __future__ import annotations

import torch
from torch import Tensor


def deterministic_topk(scores: Tensor, k: int) -> Tensor:
    """Indices of the k largest scores of each row, ascending; of equal scores the lowest indices win.

    scores: float32 [..., E], E >= k. NaN counts as more than everything, so that it shows.
    Returns int64 [..., k].

    Score and index make one 64-bit key: the score's bits, ordered as integers (a negative float's magnitude
    bits are flipped), above the complement of the index. All keys differ, so that any top-k gives the same
    set.
    """
    ordinary = scores.nan_to_num(nan=float("inf"), posinf=float("inf"), neginf=float("-inf"))
    bits = ordinary.add_(0.0).view(torch.int32)  # adding 0 turns -0 into +0, which is equal to it
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    index = torch.arange(scores.shape[-1], device=scores.device)
    keys = (ordered.to(torch.int64) << 32) | (0xFFFFFFFF - index)
    return keys.topk(k, dim=-1, sorted=False).indices.sort(dim=-1).values

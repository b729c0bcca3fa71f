"""Which tokens of a decode row with drafts are emitted.

Line i of a row has the target's distribution p_i after the drafts before it. The token at that position is
chosen from p_i exactly as it would be without drafts: the best one, or the one that the number of (seed,
position) draws. A draft counts if it is that token; the first that is not is replaced by it, and ends the
row.

For sampled rows this is rejection sampling of a draft that its layer is certain of: the chosen token has
distribution p_i, so the draft d is accepted with probability p_i(d), the most that any method reaches that
keeps the target distribution, and a rejected one is replaced by a draw from p_i without d. Taking both
decisions from one number per position is what makes the text independent of whether there was a draft at all,
and that depends on schedule, memory and neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor


def num_emitted(drafts: Tensor, chosen: Tensor, broken: Tensor, num_tokens: Tensor) -> Tensor:
    """How many tokens each row emits: those up to the first draft that is not what the target chose.

    drafts: int64 [N, K]. chosen: int64 [N, 1 + K], the target's choices, each after the drafts before it.
    broken: bool [N, 1 + K], lines whose logits allow no choice. num_tokens: int64 [N], lines in use, at least
    1; what stands past them is ignored. Returns int64 [N], at least 1; a broken line is left to a later row,
    where it is the first.
    """
    line = torch.arange(1, chosen.shape[1], device=chosen.device)
    goes_on = (drafts == chosen[:, :-1]) & ~broken[:, 1:] & (line < num_tokens.unsqueeze(1))
    return 1 + goes_on.to(torch.int64).cumprod(dim=1).sum(dim=1)

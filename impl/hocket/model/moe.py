"""The mixture-of-experts sub-layer: routed experts and one shared expert, all clamped SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket_kernels.moe_experts import clamped_swiglu, moe_experts
from hocket_kernels.moe_gate import moe_gate


@dataclass(frozen=True, eq=False, slots=True)
class MoeWeights:
    """gate: float32 [E, h]. bias: float32 [E], or tid2eid: int64 [V, k] in hash layers. w13: [E, 2I, h], gate
    over up. w2: [E, h, I]. shared_w13: [2I, h]. shared_w2: [h, I].
    """

    gate: Tensor
    bias: Tensor | None
    tid2eid: Tensor | None
    w13: Tensor
    w2: Tensor
    shared_w13: Tensor
    shared_w2: Tensor


def moe(w: MoeWeights, x: Tensor, token_ids: Tensor, top_k: int, scaling: float, limit: float) -> Tensor:
    """Sum of the weighted routed experts, plus the shared expert. x: [T, h], normed; token_ids: int64 [T]. ->
    [T, h].
    """
    weights, experts = moe_gate(x, w.gate, w.bias, w.tid2eid, token_ids, top_k, scaling)
    shared_inner = clamped_swiglu(torch.nn.functional.linear(x, w.shared_w13), limit)
    shared = torch.nn.functional.linear(shared_inner, w.shared_w2)
    routed = moe_experts(x, experts, w.w13, w.w2, limit)
    combined = torch.bmm(weights.unsqueeze(1), routed.to(torch.float32)).squeeze(1)
    return (combined + shared).to(x.dtype)

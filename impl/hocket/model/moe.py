"""The mixture-of-experts sub-layer: routed experts and one shared expert, all clamped SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket_kernels.moe_gate import moe_gate

_GATHERED_WEIGHTS = (
    1 << 19
)  # up to so many values, copying the chosen experts' weights beats a loop over experts


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


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clip(up, -limit, limit) of the halves of the last axis."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def moe(w: MoeWeights, x: Tensor, token_ids: Tensor, top_k: int, scaling: float, limit: float) -> Tensor:
    """Sum of the weighted routed experts, plus the shared expert. x: [T, h], normed; token_ids: int64 [T]. ->
    [T, h].
    """
    weights, experts = moe_gate(x, w.gate, w.bias, w.tid2eid, token_ids, top_k, scaling)
    shared = torch.nn.functional.linear(
        swiglu(torch.nn.functional.linear(x, w.shared_w13), limit), w.shared_w2
    )
    if experts.numel() * w.w13[0].numel() <= _GATHERED_WEIGHTS:
        routed = _by_gathered_weights(w, x, experts, limit)
    else:
        routed = _by_expert(w, x, experts, limit)
    combined = torch.bmm(weights.unsqueeze(1), routed.to(torch.float32)).squeeze(1)
    return (combined + shared).to(x.dtype)


def _by_gathered_weights(w: MoeWeights, x: Tensor, experts: Tensor, limit: float) -> Tensor:
    """Each chosen expert's output, [T, k, h], for few rows."""
    flat = experts.flatten()
    rows = x.repeat_interleave(experts.shape[1], dim=0).unsqueeze(-1)
    inner = swiglu(torch.bmm(w.w13[flat], rows).squeeze(-1), limit)
    return torch.bmm(w.w2[flat], inner.unsqueeze(-1)).view(*experts.shape, -1)


def _by_expert(w: MoeWeights, x: Tensor, experts: Tensor, limit: float) -> Tensor:
    """Each chosen expert's output, [T, k, h], expert by expert over the rows that chose it."""
    order = experts.flatten().argsort(stable=True)
    counts = torch.bincount(experts.flatten(), minlength=w.w13.shape[0]).tolist()
    rows = x.index_select(0, order.div(experts.shape[1], rounding_mode="floor"))
    outputs = torch.empty_like(rows)
    begin = 0
    for expert, count in enumerate(counts):
        if count:
            cut = slice(begin, begin + count)
            inner = swiglu(torch.nn.functional.linear(rows[cut], w.w13[expert]), limit)
            outputs[cut] = torch.nn.functional.linear(inner, w.w2[expert])
            begin += count
    by_choice = torch.empty_like(outputs)
    by_choice[order] = outputs
    return by_choice.view(*experts.shape, -1)

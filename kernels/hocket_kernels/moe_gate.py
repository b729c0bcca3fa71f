"""Choice and weights of the routed experts."""

from __future__ import annotations

import torch
from torch import Tensor

from hocket_kernels.registry import op
from hocket_kernels.topk import deterministic_topk


def _fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tid2eid: Tensor | None,
    token_ids: Tensor | None,
    top_k: int,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    width = top_k if tid2eid is None else tid2eid.shape[1]
    return weight.new_empty(x.shape[0], width), x.new_empty(x.shape[0], width, dtype=torch.int64)


# Stock npu_moe_gating_top_k documents softmax and sigmoid, not sqrt(softplus), and no order of ties.
@op(
    "(Tensor x, Tensor weight, Tensor? bias, Tensor? tid2eid, Tensor? token_ids, int top_k, float scaling)"
    " -> (Tensor, Tensor)",
    _fake,
)
def moe_gate(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tid2eid: Tensor | None,
    token_ids: Tensor | None,
    top_k: int,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """score = sqrt(softplus(weight x)) in float32. With `bias`, the experts are the top k of score + bias
    (ties: the lowest index); in hash layers they are tid2eid[token id]. Their weights are the scores
    themselves, without bias, divided by their sum, times `scaling`.

    x: [T, h]. weight: float32 [experts, h]. Either bias: float32 [experts], or tid2eid: int64 [V, k] with
    token_ids: int64 [T]. Returns weights float32 [T, k] and experts int64 [T, k].
    """
    scores = torch.nn.functional.softplus(x.to(torch.float32) @ weight.t()).sqrt()
    if tid2eid is not None:
        assert token_ids is not None, "hash layers route by token id"
        experts = tid2eid[token_ids]
    else:
        assert bias is not None, "a gate has a bias or a hash table"
        experts = deterministic_topk(scores + bias, top_k)
    chosen = scores.gather(-1, experts)
    return chosen * (scaling / chosen.sum(-1, keepdim=True)), experts

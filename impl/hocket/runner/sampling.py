"""Next tokens from logits: greedy, temperature, top-k, top-p, min-p, and log probabilities.

Every row is sampled by itself: its token depends on its logits, its parameters, its seed and its position,
never on its neighbours. Filters apply in this order to the tempered distribution: top-k, top-p (over what
top-k left), min-p (relative to the most likely token). The draw is the inverse of the cumulative distribution
in vocabulary order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hocket.core.request import SamplingParams
from hocket.runner.api import TokenLogprobs
from hocket.runner.philox import uniform


class Sampled(NamedTuple):
    """Result of `sample`."""

    token_ids: Tensor
    """`[N]` int64 on the logits' device; 0 in rows that failed."""
    failures: dict[int, str]
    """Row -> reason, for rows whose logits allow no choice (a NaN, or nothing finite)."""


def sample(
    logits: Tensor, params: Sequence[SamplingParams], seeds: Sequence[int], positions: Sequence[int]
) -> Sampled:
    """Choose one token for each row of `logits` `[N, V]` (any float type).

    positions: index in the sequence (prompt included) at which the chosen token will stand.
    """
    rows = len(params)
    assert logits.dim() == 2
    assert logits.shape[0] == rows == len(seeds) == len(positions)
    scores = logits.float()
    # The largest score is NaN if any is, +inf if any is, and -inf only if all are.
    broken = (~torch.isfinite(scores.amax(dim=-1))).tolist()
    failures = {
        row: "the model returned logits without a finite maximum" for row in range(rows) if broken[row]
    }
    token_ids = scores.argmax(dim=-1)
    drawn = [row for row in range(rows) if params[row].temperature > 0 and row not in failures]
    if drawn:
        index = torch.tensor(drawn, device=logits.device)
        points = uniform([seeds[row] for row in drawn], [positions[row] for row in drawn])
        token_ids[index] = _draw(scores[index], [params[row] for row in drawn], torch.from_numpy(points))
    for row in failures:
        token_ids[row] = 0
    return Sampled(token_ids, failures)


def _draw(scores: Tensor, params: Sequence[SamplingParams], points: Tensor) -> Tensor:
    """Draw one token per row of `scores` `[N, V]` float32 with `points` `[N]` in [0, 1): `[N]` int64."""
    device = scores.device
    temperature = torch.tensor([p.temperature for p in params], dtype=scores.dtype, device=device).unsqueeze(
        1
    )
    # Subtracting the maximum first keeps the smallest temperatures finite: the best token stays at exactly 0.
    # A temperature that is 0 in float32 would make 0/0 of it.
    smallest = torch.finfo(scores.dtype).tiny
    tempered = (scores - scores.amax(dim=-1, keepdim=True)) / temperature.clamp_min(smallest)
    probs = torch.softmax(tempered, dim=-1)
    if any(p.top_k or p.top_p < 1 for p in params):
        probs = _keep_top(probs, params)
    min_p = torch.tensor([p.min_p for p in params], dtype=probs.dtype, device=device).unsqueeze(1)
    probs = torch.where(probs >= min_p * probs.amax(dim=-1, keepdim=True), probs, 0.0)
    cumulative = probs.cumsum(dim=-1)
    target = points.to(device=device, dtype=probs.dtype).unsqueeze(1) * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    # Rounding may put the target at the very end; the last token with any probability is then meant.
    last = (probs > 0).long().cumsum(dim=-1).argmax(dim=-1)
    return torch.minimum(chosen, last)


def _keep_top(probs: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Zero what top-k and top-p remove from `probs` `[N, V]`; ties go to the lowest token id."""
    device, vocab = probs.device, probs.shape[1]
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    top_k = torch.tensor([min(p.top_k, vocab) or vocab for p in params], device=device).unsqueeze(1)
    ranked = torch.where(torch.arange(vocab, device=device) < top_k, ranked, 0.0)
    ranked = ranked / ranked.sum(dim=-1, keepdim=True)
    top_p = torch.tensor([p.top_p for p in params], dtype=probs.dtype, device=device).unsqueeze(1)
    # A token stays while the mass before it is below top_p; `top_p == 1` must not lose the tail to rounding.
    before = ranked.cumsum(dim=-1) - ranked
    ranked = torch.where((before < top_p) | (top_p >= 1), ranked, 0.0)
    return torch.zeros_like(probs).scatter(1, order, ranked)


def token_logprobs(
    logits: Tensor, token_ids: Sequence[int], counts: Sequence[int | None]
) -> list[TokenLogprobs | None]:
    """Log probabilities of `token_ids` `[N]` under `logits` `[N, V]`, with `counts[row]` alternatives (None:
    not asked).
    """
    result: list[TokenLogprobs | None] = [None] * len(counts)
    asked = [row for row, count in enumerate(counts) if count is not None]
    if not asked:
        return result
    logprobs = torch.log_softmax(logits[torch.tensor(asked, device=logits.device)].float(), dim=-1)
    ranked, order = logprobs.sort(dim=-1, descending=True, stable=True)
    for line, row in enumerate(asked):
        count = counts[row] or 0
        top = tuple(zip(order[line, :count].tolist(), ranked[line, :count].tolist(), strict=True))
        token = token_ids[row]
        result[row] = TokenLogprobs(token, float(logprobs[line, token]), top)
    return result

"""Next tokens from logits: greedy, temperature, top-k, top-p, min-p, and log probabilities.

Every row is sampled by itself: its token depends on its logits, its parameters, its seed and its position,
never on its neighbours. Filters apply in this order to the tempered distribution: top-k, top-p (over what
top-k left), min-p (relative to the most likely token). The draw is the inverse of the cumulative distribution
in vocabulary order.

What the host knows is prepared first, as arrays (`prepare`, `asked_lines`), and goes to the device with the
step's other inputs; choosing (`sample`, `rank`) looks at no value there, so nobody waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.core.request import SamplingParams
from hocket.runner.api import TokenLogprobs
from hocket.runner.philox import uniform

BROKEN = "the model returned logits without a finite maximum"
"""Why a row fails whose logits allow no choice (a NaN, or nothing finite)."""

Array = NDArray[Any]


class Lines(NamedTuple):
    """Lines of logits: where each one's token will stand, as far as the host knows.

    positions: index in the sequence (prompt included) at the earliest. spread: how much later than that it
    may be, the same for all lines.
    """

    params: Sequence[SamplingParams]
    seeds: Sequence[int]
    positions: Sequence[int]
    spread: int = 0


def prepare(lines: Lines) -> dict[str, Array]:
    """Arrays that `sample` wants of the lines that are drawn; empty if all of them are greedy.

    drawn: int64 [D], line numbers. points: float32 [D, 1 + spread], the draw for each possible position.
    temperature, top_p, min_p: float32 [D]; top_k: int64 [D], 0 for all tokens.
    """
    drawn = [i for i, params in enumerate(lines.params) if params.temperature > 0]
    if not drawn:
        return {}
    params = [lines.params[i] for i in drawn]
    later = range(lines.spread + 1)
    seeds = [lines.seeds[i] for i in drawn for _ in later]
    points = uniform(seeds, [lines.positions[i] + n for i in drawn for n in later])
    # Beyond float32 it would be infinite, and make a NaN of an infinite score.
    hottest = float(np.finfo(np.float32).max)
    temperature = np.array([min(p.temperature, hottest) for p in params]).astype(np.float32)
    return {
        "drawn": np.array(drawn, dtype=np.int64),
        "points": points.astype(np.float32).reshape(len(drawn), -1),
        "temperature": temperature,
        "top_k": np.array([min(p.top_k, np.iinfo(np.int64).max) for p in params], dtype=np.int64),
        "top_p": np.array([p.top_p for p in params], dtype=np.float32),
        "min_p": np.array([p.min_p for p in params], dtype=np.float32),
    }


class Sampled(NamedTuple):
    """Result of `sample`, on the device."""

    token_ids: Tensor
    """int64 [L]; 0 in lines that are broken."""
    broken: Tensor
    """bool [L]: lines whose logits allow no choice."""


def sample(
    logits: Tensor, inputs: Mapping[str, Tensor], filtered: bool = True, later: Tensor | None = None
) -> Sampled:
    """Choose one token for each line of `logits` [L, V] (any float type).

    inputs: what `prepare` made, on the device; it may hold more. filtered: False if no drawn line has a top-k
    or top-p. later: int64 [L], how much later than its earliest position each line stands; None if none does.
    """
    scores = logits.float()
    # The largest score is NaN if any is, +inf if any is, and -inf only if all are.
    broken = ~torch.isfinite(scores.amax(dim=-1))
    token_ids = scores.argmax(dim=-1)
    if "drawn" in inputs:
        drawn, points = inputs["drawn"], inputs["points"]
        if later is None:
            points = points[:, 0]
        else:
            points = points.gather(1, later[drawn].unsqueeze(1)).squeeze(1)
        token_ids[drawn] = _draw(scores[drawn], inputs, points, filtered)
    return Sampled(token_ids.masked_fill_(broken, 0), broken)


def has_filters(params: Sequence[SamplingParams]) -> bool:
    """Whether top-k or top-p takes anything from a line that is drawn."""
    return any(p.temperature > 0 and (p.top_k or p.top_p < 1) for p in params)


def _draw(scores: Tensor, inputs: Mapping[str, Tensor], points: Tensor, filtered: bool) -> Tensor:
    """Draw one token per row of `scores` [D, V] float32 with `points` float32 [D] in [0, 1]: int64 [D]."""
    temperature = inputs["temperature"].unsqueeze(1)
    # Subtracting the maximum first keeps the smallest temperatures finite: the best token stays at exactly 0.
    # A temperature that is 0 in float32 would make 0/0 of it.
    smallest = torch.finfo(scores.dtype).tiny
    tempered = (scores - scores.amax(dim=-1, keepdim=True)) / temperature.clamp_min(smallest)
    probs = torch.softmax(tempered, dim=-1)
    if filtered:
        probs = _keep_top(probs, inputs["top_k"], inputs["top_p"])
    min_p = inputs["min_p"].unsqueeze(1)
    probs = torch.where(probs >= min_p * probs.amax(dim=-1, keepdim=True), probs, 0.0)
    cumulative = probs.cumsum(dim=-1)
    target = points.unsqueeze(1) * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    # Rounding may put the target at the very end; the last token with any probability is then meant.
    last = (probs > 0).long().cumsum(dim=-1).argmax(dim=-1)
    return torch.minimum(chosen, last)


def _keep_top(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Zero what top-k int64 [D] and top-p float32 [D] remove from `probs` [D, V]; ties go to the lowest token
    id.
    """
    vocab = probs.shape[1]
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    limit = torch.where(top_k == 0, vocab, top_k).unsqueeze(1)
    ranked = torch.where(torch.arange(vocab, device=probs.device) < limit, ranked, 0.0)
    ranked = ranked / ranked.sum(dim=-1, keepdim=True)
    # A token stays while the mass before it is below top_p; `top_p == 1` must not lose the tail to rounding.
    # The likeliest stays also where top_p is 0 in float32.
    before = ranked.cumsum(dim=-1) - ranked
    top_p = top_p.clamp_min(torch.finfo(top_p.dtype).tiny).unsqueeze(1)
    ranked = torch.where((before < top_p) | (top_p >= 1), ranked, 0.0)
    return torch.zeros_like(probs).scatter(1, order, ranked)


def asked_lines(counts: Sequence[int | None]) -> Array:
    """int64 [A]: the lines whose log probabilities were asked for (a count of alternatives is given)."""
    return np.array([i for i, count in enumerate(counts) if count is not None], dtype=np.int64)


def rank(logits: Tensor, asked: Tensor, token_ids: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log probabilities of the asked lines of `logits` [L, V], on the device.

    asked: int64 [A]. token_ids: int64 [L], what was chosen. Returns the choices' own, float32 [A], then the
    `most` likeliest tokens, int64 [A, most], ties by lowest id, and theirs, float32 [A, most].
    """
    logprobs = torch.log_softmax(logits[asked].float(), dim=-1)
    ranked, order = logprobs.sort(dim=-1, descending=True, stable=True)
    own = logprobs.gather(1, token_ids[asked].unsqueeze(1)).squeeze(1)
    return own, order[:, :most].contiguous(), ranked[:, :most].contiguous()


def token_logprobs(
    token_ids: Sequence[int], counts: Sequence[int | None], ranked: Sequence[Tensor]
) -> list[TokenLogprobs | None]:
    """What was asked for, line by line: `ranked` is the result of `rank`, on the host."""
    result: list[TokenLogprobs | None] = [None] * len(counts)
    if not ranked:
        return result
    own, order, values = (part.tolist() for part in ranked)
    for entry, line in enumerate(asked_lines(counts).tolist()):
        count = counts[line] or 0
        top = tuple(zip(order[entry][:count], values[entry][:count], strict=True))
        result[line] = TokenLogprobs(token_ids[line], own[entry], top)
    return result

"""The parts of sampling put together, as the model runner puts them."""

from typing import NamedTuple

import torch

from hocket.runner.device import DeviceRuntime
from hocket.runner.sampling import (
    BROKEN,
    Lines,
    asked_lines,
    has_filters,
    prepare,
    rank,
    sample,
    token_logprobs,
)

RUNTIME = DeviceRuntime(torch.device("cpu"))


class Chosen(NamedTuple):
    """Tokens, and the reasons of the lines that failed."""

    token_ids: torch.Tensor
    failures: dict[int, str]


def choose(logits, params, seeds, positions, spread=0, later=None):
    """Sample a line of logits for each of `params`."""
    assert logits.shape[0] == len(params) == len(seeds) == len(positions)
    inputs = RUNTIME.put(prepare(Lines(params, seeds, positions, spread)))
    found = sample(logits, inputs, has_filters(params), later)
    return Chosen(found.token_ids, {i: BROKEN for i, b in enumerate(found.broken.tolist()) if b})


def filters(params):
    """What `_draw` wants to know of the lines."""
    return RUNTIME.put(prepare(Lines(params, [0] * len(params), [0] * len(params))))


def logprobs_of(logits, token_ids, counts):
    """As the runner reports them; `counts`: alternatives, None for a line that did not ask."""
    asked = RUNTIME.put({"asked": asked_lines(counts)})["asked"]
    if not asked.numel():
        return token_logprobs(token_ids, counts, ())
    most = max(count for count in counts if count is not None)
    return token_logprobs(token_ids, counts, rank(logits, asked, torch.tensor(token_ids), most))

"""What a caller hands in: a request and how to sample from it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from hocket.core.checks import require_bool, require_int, require_number, require_str, shown, token_tuple

# Any float will do; larger ints cannot be computed with.
MAX_TEMPERATURE = sys.float_info.max


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample and when to stop. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1.0 switch the filter
    off.

    max_tokens: output tokens at most (cut to max_model_len - prompt by the scheduler).
    min_tokens: before so many outputs neither EOS nor a stop token ends the request.
    stop: strings that end the request; found by the engine after detokenisation, not by the scheduler.
    stop_token_ids: tokens that end the request; the token is part of the output.
    ignore_eos: go on after the request's `eos_token_id`.
    logprobs: number of log probabilities to return per token (None: none).
    num_speculative_tokens: drafts of a decode row at most, within what the scheduler is configured for (None:
        as many as that; 0: no speculation for this request). Output does not depend on it.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    num_speculative_tokens: int | None = None

    def __post_init__(self) -> None:
        require_int("max_tokens", self.max_tokens, 1)
        require_int("min_tokens", self.min_tokens, 0, self.max_tokens)
        require_number("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        require_int("top_k", self.top_k, 0)
        require_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise ValueError(f"top_p must be a number in (0.0, 1.0], got {self.top_p!r}")
        require_number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            require_int("seed (if not None)", self.seed, 0, 2**64 - 1)
        stop: object = self.stop
        if isinstance(stop, str) or not isinstance(stop, Sequence):
            raise ValueError(f"stop must be a sequence of non-empty strings, got {shown(self.stop)}")
        for position, text in enumerate(self.stop):
            require_str(f"stop[{position}]", text)
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", token_tuple("stop_token_ids", self.stop_token_ids))
        require_bool("ignore_eos", self.ignore_eos)
        if self.logprobs is not None:
            require_int("logprobs (if not None)", self.logprobs, 0)
        if self.num_speculative_tokens is not None:
            require_int("num_speculative_tokens (if not None)", self.num_speculative_tokens, 0)


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    `priority`: smaller is more senior; ties go by arrival. The id must be unique among live requests.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    eos_token_id: int | None = None

    def __post_init__(self) -> None:
        require_str("request_id", self.request_id)
        prompt = token_tuple(f"request {self.request_id!r}: prompt_token_ids", self.prompt_token_ids)
        if not prompt:
            raise ValueError(
                f"request {self.request_id!r}: prompt_token_ids must hold at least 1 token, got 0"
            )
        object.__setattr__(self, "prompt_token_ids", prompt)
        if not isinstance(self.sampling_params, SamplingParams):
            raise ValueError(
                f"request {self.request_id!r}: sampling_params must be SamplingParams, "
                f"got {shown(self.sampling_params)}"
            )
        require_int(f"request {self.request_id!r}: priority", self.priority, -(2**63), 2**63 - 1)
        if self.eos_token_id is not None:
            require_int(f"request {self.request_id!r}: eos_token_id (if not None)", self.eos_token_id, 0)

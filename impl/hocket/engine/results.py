"""What a caller gets: updates while a request runs, a result at its end, the clock readings of its life."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.core.records import FinishReason
from hocket.runner.api import TokenLogprobs


@dataclass(slots=True)
class RequestMetrics:
    """Readings of the engine's clock, in seconds; None before the event."""

    arrival_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    finished_s: float | None = None
    worst_gap_s: float = 0.0
    """Longest time between two results with tokens of this request."""
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    """Drafts that its decode rows carried."""
    num_accepted_tokens: int = 0
    """Those of them that became output."""

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the drafts that became output; None without any."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def latency_s(self) -> float | None:
        """Time from arrival to the end."""
        return None if self.finished_s is None else self.finished_s - self.arrival_s

    def tokens_at(self, now: float) -> None:
        """A result with tokens of this request was processed."""
        if self.last_token_s is None:
            self.first_token_s = now
        else:
            self.worst_gap_s = max(self.worst_gap_s, now - self.last_token_s)
        self.last_token_s = now


@dataclass(frozen=True, slots=True)
class RequestResult:
    """A finished request.

    text: the outputs as text, cut before a stop string; empty without a tokenizer.
    token_ids: all output tokens, the one that completed a stop string included.
    finish_reason: "stop" (EOS, stop token or stop string), "length", "abort" or "error".
    logprobs: one entry per output token if the request asked for them, else None.
    error: what went wrong if finish_reason is "error".
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    metrics: RequestMetrics
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """News of one request: tokens, the text that they settled, or its end (then with the whole `result`).

    Text may lag behind the tokens: incomplete characters and possible beginnings of stop strings are held
    back.
    """

    request_id: str
    new_token_ids: tuple[int, ...]
    new_text: str
    finished: bool
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    result: RequestResult | None = None


@dataclass(slots=True)
class EngineStats:
    """Counters of an engine's life. Seconds are those that the runner spent in steps of the phase."""

    prefill_steps: int = 0
    decode_steps: int = 0
    prefill_tokens: int = 0
    """Tokens of prefill rows, replays included."""
    decode_tokens: int = 0
    """Tokens that decode rows sampled."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    preemptions: int = 0
    num_draft_tokens: int = 0
    """Drafts of decode rows whose results counted."""
    num_accepted_tokens: int = 0
    """Those of them that became output."""

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the drafts that became output; None without any."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def prefill_tokens_per_s(self) -> float:
        """Throughput of prefill steps; 0 before the first."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Throughput of decode steps; 0 before the first."""
        return self.decode_tokens / self.decode_s if self.decode_s else 0.0

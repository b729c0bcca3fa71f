"""What an engine and a runner say to each other. No torch here: the simulated runner does without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from hocket.core.records import ModelRunnerOutput, SchedulerOutput
from hocket.core.request import Request


class RunnerError(RuntimeError):
    """The runner was handed a step that contradicts its own state. Its state is unchanged."""


class NewRequest(NamedTuple):
    """Content of a request whose first row is in the step that carries this."""

    request: Request
    seed: int
    """Seed of its sampling: the request's own, or the one that the engine chose."""


class TokenLogprobs(NamedTuple):
    """Log probabilities of one sampled token, from the model's own distribution (before temperature and
    filters).
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The `SamplingParams.logprobs` most likely (token id, log probability), likeliest first, ties by lowest
    id.
    """


@dataclass(frozen=True, slots=True)
class RunnerOutput(ModelRunnerOutput):
    """A `ModelRunnerOutput` plus what only the engine looks at.

    logprobs: per row the log probabilities of its tokens, or None where the request did not ask.
    failures: row -> reason, for rows that failed by themselves. Such a row has no tokens; the engine ends its
        request before it processes the result.
    """

    logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...] = ()
    failures: Mapping[int, str] = field(default_factory=dict)


class Runner(Protocol):
    """Executes dispatches strictly in the order given. One thread at a time may call it."""

    @property
    def vocab_size(self) -> int:
        """Token ids are in [0, vocab_size)."""
        ...

    def execute(
        self, output: SchedulerOutput, new_requests: Sequence[NewRequest] = ()
    ) -> RunnerOutput | None:
        """Apply the notices of `output`, then run its rows. None for an output without rows.

        new_requests: those whose first row ever is in `output`.
        Raises `ValueError` for a malformed pack and `RunnerError` for a step that contradicts the slots, both
        before anything changed. Any other exception leaves the runner in no defined state: drop it.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """JSON-ready facts about model and device, for the header of a trace."""
        ...


class StepFuture(Protocol):
    """A step that was launched: its result comes later."""

    def ready(self) -> bool:
        """True if `wait` would not wait."""
        ...

    def wait(self) -> RunnerOutput:
        """The step's result, once the device has it. Books nothing; may be interrupted and called again."""
        ...

    def settle(self) -> None:
        """Book the result with the runner, after `wait`, once, in the order of the launches. Rows whose epoch
        has ended since the launch change nothing.
        """
        ...


class AsyncRunner(Runner, Protocol):
    """A runner whose device works on its own while the host goes on."""

    asynchronous: bool
    """True if `launch` returns before the step has run. Where it is False, nothing is gained by it."""

    def launch(self, output: SchedulerOutput, new_requests: Sequence[NewRequest] = ()) -> StepFuture | None:
        """As `execute`, but only queue the work. Nothing of a step that is not settled is needed for it."""
        ...

"""What passes between scheduler, engine and runner: immutable step records and views for operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hocket.core.phase import Phase

FinishReason = Literal["stop", "length", "abort", "error"]
AbortReason = Literal["abort", "stop", "error"]
RequestStatus = Literal["waiting", "running", "preempted"]


class BlockIdsByGroup(Mapping[str, tuple[int, ...]]):
    """An immutable mapping from group name to block ids; rows of one scheduler share the tuple of names."""

    __slots__ = ("_ids", "_names")

    def __init__(self, names: tuple[str, ...], ids: tuple[tuple[int, ...], ...]) -> None:
        assert len(names) == len(ids)
        self._names = names
        self._ids = ids

    def __getitem__(self, name: str) -> tuple[int, ...]:
        try:
            return self._ids[self._names.index(name)]
        except ValueError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One `schedule()` call's decision: everything that engine and runner must do, row by row.

    An empty output has `step_id` and `phase` None and no rows; it holds no place in the pipeline and is never
    passed to `update_from_output`, but its notices count. Rows of one output are all of `phase`.

    request_ids, epochs: whose row it is, and of which incarnation; a result row is stale if the epoch has
    ended.
    num_computed_tokens: tokens before the step: the chunk start, or for decode the (optimistic) position of
    the row.
    num_scheduled_tokens: the chunk length, or 1 + drafts.
    samples: whether the row produces a token (all decode rows; of prefill rows the one that ends the replay).
    lookahead_token_ids: for a non-final chunk the token that follows it (for MTP), else None.
    new_block_ids: per group the ids added to the row's table since its last row; a new or resumed row's whole
    table.
    preempted_request_ids, finished_request_ids: ended epochs to drop *before* the rows are looked at.
    resumed_request_ids: those of the rows that start a re-admitted request again from token 0.
    """

    step_id: int | None
    phase: Phase | None
    request_ids: tuple[str, ...] = ()
    epochs: tuple[int, ...] = ()
    num_computed_tokens: tuple[int, ...] = ()
    num_scheduled_tokens: tuple[int, ...] = ()
    samples: tuple[bool, ...] = ()
    lookahead_token_ids: tuple[int | None, ...] = ()
    new_block_ids: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    preempted_request_ids: tuple[str, ...] = ()
    finished_request_ids: tuple[str, ...] = ()
    resumed_request_ids: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if there are no rows to run (there may still be notices)."""
        return self.phase is None

    @property
    def has_notices(self) -> bool:
        """True if a preempted or finished id is named, which the runner must be told even without rows."""
        return bool(self.preempted_request_ids or self.finished_request_ids)


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """The result of one dispatch: per row the sampled tokens.

    Empty for a non-final chunk, exactly one token for a final chunk, 1 to `num_scheduled_tokens` for a decode
    row (accepted drafts plus one). A stale row may carry fewer, down to none.
    """

    step_id: int
    sampled_token_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """News of one request from one result: new tokens, or its end."""

    request_id: str
    new_token_ids: tuple[int, ...]
    finished: bool
    finish_reason: FinishReason | None = None


class RequestState(NamedTuple):
    """A read-only view of a live request (`Scheduler.request_state`)."""

    status: RequestStatus
    epoch: int
    """Current epoch; the ended one between preemption and re-admission."""
    num_computed_tokens: int
    """Scheduled progress in tokens: an upper bound while decode rows are in flight."""
    output_token_ids: tuple[int, ...]
    num_output_placeholders: int
    """Tokens that in-flight rows of this epoch may still emit."""
    block_ids: Mapping[str, tuple[int, ...]]
    """Group name -> owned block ids in table order, null blocks left out."""

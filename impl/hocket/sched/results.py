"""Checks of a step's result before anything is applied."""

from __future__ import annotations

from hocket.core.checks import require_int, token_tuple
from hocket.core.errors import StepOrderError
from hocket.core.records import ModelRunnerOutput, SchedulerOutput
from hocket.sched import kernel
from hocket.sched.in_flight import InFlightStep, Row


def checked_tokens(
    oldest: InFlightStep | None, scheduler_output: object, model_runner_output: object
) -> list[tuple[int, ...]]:
    """Tokens of each row of the oldest step in flight.

    Raises `ValueError` for records of another kind, and for a result whose rows or token counts do not match
    the step; `StepOrderError` for a step that is not the oldest in flight.
    """
    if not isinstance(scheduler_output, SchedulerOutput):
        raise ValueError(f"scheduler_output must be a SchedulerOutput, got {scheduler_output!r}")
    if not isinstance(model_runner_output, ModelRunnerOutput):
        raise ValueError(f"model_runner_output must be a ModelRunnerOutput, got {model_runner_output!r}")
    if scheduler_output.step_id is None:
        raise StepOrderError("scheduler_output must have rows: an empty output has no result to process")
    if oldest is None:
        raise StepOrderError(
            f"scheduler_output.step_id must be a step in flight, got {scheduler_output.step_id!r} and none is"
        )
    for field, step_id in (
        ("scheduler_output.step_id", scheduler_output.step_id),
        ("model_runner_output.step_id", model_runner_output.step_id),
    ):
        if require_int(field, step_id, 1) != oldest.step_id:
            raise StepOrderError(
                f"{field} must be the oldest step in flight, {oldest.step_id}, got {step_id}"
            )
    rows = tuple((row.live.request_id, row.epoch) for row in oldest.rows)
    names, epochs = scheduler_output.request_ids, scheduler_output.epochs
    # Another scheduler's step may bear the same number.
    if names != tuple(name for name, _ in rows) or epochs != tuple(epoch for _, epoch in rows):
        raise StepOrderError(
            f"scheduler_output must be the one dispatched as step {oldest.step_id}, with rows of "
            f"(request, epoch) {rows!r}, got request_ids {names!r} and epochs {epochs!r}"
        )
    sampled: object = model_runner_output.sampled_token_ids
    if not isinstance(sampled, (tuple, list)) or len(sampled) != len(oldest.rows):
        raise ValueError(
            f"sampled_token_ids must hold one sequence for each of the {len(oldest.rows)} rows of step "
            f"{oldest.step_id}, got {sampled!r}"
        )
    return [
        _checked_row(index, oldest.phase, row, tokens)
        for index, (row, tokens) in enumerate(zip(oldest.rows, sampled, strict=True))
    ]


def _checked_row(index: int, phase: int, row: Row, tokens: object) -> tuple[int, ...]:
    """A decode row has 1 to its length, a final chunk exactly 1, another chunk none.

    A stale row may have fewer.
    """
    field = f"sampled_token_ids[{index}] (request {row.live.request_id!r})"
    values = token_tuple(field, tokens)
    high = row.reserved
    low = kernel.least_tokens(row.is_current, high)
    if not kernel.result_fits(row.is_current, high, len(values)):
        allowed = f"{low}" if low == high else f"{low} to {high}"
        kind = "decode" if phase == kernel.DECODE else "prefill"
        raise ValueError(
            f"{field} must hold {allowed} tokens for this {kind} row, got {len(values)}: {values!r}"
        )
    return values

"""Who is told every action of an engine on its scheduler, in the order of the actions: a trace, a shadow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hocket.core.records import AbortReason, RequestOutput, SchedulerOutput
from hocket.core.request import Request


class Recorder(Protocol):
    """What a recorder raises ends the engine: an action that it was not told of would be missing."""

    def add(self, request: Request) -> None:
        """`add_request` accepted it."""
        ...

    def schedule(self, output: SchedulerOutput) -> None:
        """`schedule` returned it; nothing of it has been carried out yet."""
        ...

    def complete(
        self, step_id: int, sampled: Sequence[Sequence[int]], outputs: Sequence[RequestOutput]
    ) -> None:
        """`update_from_output` took the tokens sampled by that step and returned `outputs`."""
        ...

    def preempt(self, request_id: str) -> None:
        """`preempt_request` was called."""
        ...

    def abort(self, request_id: str, reason: AbortReason, output: RequestOutput | None) -> None:
        """`abort_request` returned `output`."""
        ...

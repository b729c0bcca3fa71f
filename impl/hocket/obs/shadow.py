"""Shadow mode: the specification's model runs beside a scheduler and stops it where they part.

It is the walk of `hocket trace check`, fed by the engine instead of a file.
"""

from __future__ import annotations

from collections.abc import Sequence

from hocket.core.config import KVCacheConfig, SchedulerConfig
from hocket.core.records import AbortReason, RequestOutput, SchedulerOutput
from hocket.core.request import Request
from hocket.obs.checkers import checker
from hocket.obs.trace import (
    AbortRecord,
    AddRecord,
    CompleteRecord,
    PreemptRecord,
    ScheduleRecord,
    TraceRecord,
)


class ShadowCheckError(RuntimeError):
    """The scheduler did what the specification does not allow. `why` begins with the property, `before` holds
    the last actions, oldest first, in words.
    """

    def __init__(self, why: str, before: tuple[str, ...]) -> None:
        shown = "".join(f"\n    {action}" for action in before)
        super().__init__(f"{why}\nthe {len(before)} actions before it:{shown}")
        self.why = why
        self.before = before


class Shadow:
    """A `Recorder` that raises `ShadowCheckError`.

    Raises `ValueError` if the specification is not installed.
    """

    def __init__(self, config: SchedulerConfig, kv_cache: KVCacheConfig) -> None:
        replay = checker("replay", "shadow_check")
        self._model = replay.Replay(config, kv_cache)
        self._broken: type[Exception] = replay.Broken

    def add(self, request: Request) -> None:
        """See `Recorder`."""
        self._apply(AddRecord(0.0, request))

    def schedule(self, output: SchedulerOutput) -> None:
        """See `Recorder`."""
        self._apply(ScheduleRecord(0.0, output))

    def complete(
        self, step_id: int, sampled: Sequence[Sequence[int]], outputs: Sequence[RequestOutput]
    ) -> None:
        """See `Recorder`."""
        self._apply(CompleteRecord(0.0, step_id, tuple(map(tuple, sampled)), tuple(outputs)))

    def preempt(self, request_id: str) -> None:
        """See `Recorder`."""
        self._apply(PreemptRecord(0.0, request_id))

    def abort(self, request_id: str, reason: AbortReason, output: RequestOutput | None) -> None:
        """See `Recorder`."""
        self._apply(AbortRecord(0.0, request_id, reason, output))

    def _apply(self, record: TraceRecord) -> None:
        try:
            self._model.apply(record)
        except self._broken as broken:
            raise ShadowCheckError(str(broken), tuple(self._model.shown)) from broken

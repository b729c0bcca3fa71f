"""Notices for engine and runner: which ended epochs to drop. Each is delivered once, with the next output."""

from __future__ import annotations


class Notices:
    """Collected between two outputs. A request preempted and then ended is named as finished only."""

    def __init__(self) -> None:
        # Dicts as ordered sets: an id that ended, came again and ended again before an output is named once.
        self._preempted: dict[str, None] = {}
        self._finished: dict[str, None] = {}

    def preempted(self, request_id: str) -> None:
        self._preempted[request_id] = None

    def finished(self, request_id: str) -> None:
        self._preempted.pop(request_id, None)
        self._finished[request_id] = None

    def take(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(preempted ids, finished ids) since the last output."""
        taken = tuple(self._preempted), tuple(self._finished)
        self._preempted.clear()
        self._finished.clear()
        return taken

"""The queue of waiting requests, in order of seniority."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from hocket.sched.live import LiveRequest


class WaitingQueue:
    """Sorted by (priority, arrival); a preempted request comes back to its old place.

    Kept most senior last, so that admitting the head is O(1) and a step costs the same however many wait.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, LiveRequest]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LiveRequest]:
        """Most senior first."""
        return (entry[2] for entry in reversed(self._entries))

    @property
    def head(self) -> LiveRequest | None:
        """The most senior waiting request."""
        return self._entries[-1][2] if self._entries else None

    def push(self, live: LiveRequest) -> None:
        # Arrivals are unique, so two entries never compare their requests.
        insort(self._entries, self._entry(live))

    def remove(self, live: LiveRequest) -> None:
        index = bisect_left(self._entries, self._entry(live))
        assert self._entries[index][2] is live, "the request is not waiting"
        del self._entries[index]

    @staticmethod
    def _entry(live: LiveRequest) -> tuple[int, int, LiveRequest]:
        priority, arrival = live.seniority
        return (-priority, -arrival, live)

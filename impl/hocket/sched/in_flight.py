"""The ledger of dispatches whose results are not processed yet, oldest first."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

from hocket.sched import kernel
from hocket.sched.live import LiveRequest


class Row(NamedTuple):
    """One dispatched row: whose, of which epoch, tokens [start, start + length), tokens that it may emit."""

    live: LiveRequest
    epoch: int
    start: int
    length: int
    reserved: int

    @property
    def is_current(self) -> bool:
        """Whether its result may still change the request (S2)."""
        return kernel.is_current(self.epoch, self.live.epoch, self.live.running)


class InFlightStep(NamedTuple):
    """One dispatch."""

    step_id: int
    phase: int
    rows: tuple[Row, ...]


class InFlightLedger:
    """Results come back in dispatch order, so the ledger is a queue.

    Per epoch it counts the rows in flight.
    """

    def __init__(self) -> None:
        self._steps: deque[InFlightStep] = deque()
        self._rows_of_epoch: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def oldest(self) -> InFlightStep | None:
        return self._steps[0] if self._steps else None

    def rows_in_flight(self, epoch: int) -> int:
        """Rows of an epoch in flight.

        0 is *drained*. A request's earlier epochs were drained before it got this one.
        """
        return self._rows_of_epoch.get(epoch, 0)

    def dispatch(self, step: InFlightStep) -> None:
        self._steps.append(step)
        for row in step.rows:
            self._rows_of_epoch[row.epoch] = kernel.rows_after_dispatch(self._rows_of_epoch[row.epoch])

    def process_oldest(self) -> InFlightStep:
        """Take the oldest step out; every row of it counts down, stale or not."""
        step = self._steps.popleft()
        for row in step.rows:
            self._rows_of_epoch[row.epoch] = kernel.rows_after_result(self._rows_of_epoch[row.epoch])
            if not self._rows_of_epoch[row.epoch]:
                del self._rows_of_epoch[row.epoch]
        return step

    def rows_of(self, live: LiveRequest) -> Iterator[tuple[InFlightStep, Row]]:
        """The rows in flight of a request's present epoch, newest step first."""
        if self.rows_in_flight(live.epoch):
            for step in reversed(self._steps):
                for row in step.rows:
                    if row.epoch == live.epoch:
                        yield step, row

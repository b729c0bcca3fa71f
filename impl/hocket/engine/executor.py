"""Executors run dispatches strictly in the order given: in the caller's thread, or in one worker thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from hocket.core.records import SchedulerOutput
from hocket.runner.api import NewRequest, Runner, RunnerOutput

Clock = Callable[[], float]


class Executed(NamedTuple):
    """A dispatch's result, or the exception that ended it, and the seconds it took."""

    result: RunnerOutput | BaseException
    seconds: float


class Executor(Protocol):
    """Takes outputs in order and gives results back in the same order."""

    def submit(self, output: SchedulerOutput, new_requests: Sequence[NewRequest]) -> None:
        """Hand over an output with rows or notices; only one with rows has a result."""
        ...

    def ready(self) -> bool:
        """True if `collect` would not wait."""
        ...

    def collect(self) -> Executed:
        """The result of the oldest dispatch that was not dropped yet; waits for it. Takes nothing away: it
        can be interrupted at any moment, after the wait too, and called again.
        """
        ...

    def drop(self) -> None:
        """The result that `collect` returned has been taken: go on to the next."""
        ...

    def shutdown(self) -> None:
        """Finish what was submitted, then stop."""
        ...


def _execute(
    runner: Runner, output: SchedulerOutput, new_requests: Sequence[NewRequest], clock: Clock
) -> Executed | None:
    try:
        begin = clock()
        result = runner.execute(output, new_requests)
        return None if result is None else Executed(result, clock() - begin)
    except BaseException as error:  # noqa: BLE001 - the engine raises it where the result is collected
        return Executed(error, 0.0)


class InlineExecutor:
    """Runs a dispatch when it is submitted. For `async_depth` 1."""

    def __init__(self, runner: Runner, clock: Clock = time.perf_counter) -> None:
        self._runner = runner
        self._clock = clock
        self._results: deque[Executed] = deque()

    def submit(self, output: SchedulerOutput, new_requests: Sequence[NewRequest]) -> None:
        """Run it now."""
        executed = _execute(self._runner, output, new_requests, self._clock)
        if executed is not None:
            self._results.append(executed)

    def ready(self) -> bool:
        """True if a result is there."""
        return bool(self._results)

    def collect(self) -> Executed:
        """The oldest result."""
        return self._results[0]

    def drop(self) -> None:
        """Go on to the next result."""
        self._results.popleft()

    def shutdown(self) -> None:
        """Nothing to stop."""


class ThreadExecutor:
    """A worker thread runs the dispatches while the caller plans ahead.

    on_result: called in the worker thread after each result, to wake whoever waits for it. What it raises is
        the outcome of every later dispatch: whoever relies on being woken would wait for ever.
    """

    def __init__(
        self, runner: Runner, on_result: Callable[[], None] | None = None, clock: Clock = time.perf_counter
    ) -> None:
        self._runner = runner
        self._on_result = on_result
        self._clock = clock
        self._tasks: SimpleQueue[tuple[SchedulerOutput, Sequence[NewRequest]] | None] = SimpleQueue()
        self._results: deque[Executed] = deque()
        # Locked as long as nothing was added since the last wait.
        self._added = threading.Lock()
        self._added.acquire()
        self._thread = threading.Thread(target=self._work, name="hocket-runner", daemon=True)
        self._thread.start()

    def submit(self, output: SchedulerOutput, new_requests: Sequence[NewRequest]) -> None:
        """Queue it for the worker."""
        self._tasks.put((output, new_requests))

    def ready(self) -> bool:
        """True if a result is there."""
        return bool(self._results)

    def collect(self) -> Executed:
        """The oldest result, once it is there."""
        while not self._results:
            self._added.acquire()
        return self._results[0]

    def drop(self) -> None:
        """Go on to the next result."""
        self._results.popleft()

    def shutdown(self) -> None:
        """Let the worker finish its queue, then end it."""
        self._tasks.put(None)
        self._thread.join()

    def _work(self) -> None:
        failure: Executed | None = None
        while (task := self._tasks.get()) is not None:
            # After a failure the runner's state is not to be trusted: nothing more runs, every collect gets
            # the failure.
            executed = failure or _execute(self._runner, *task, self._clock)
            if executed is None:
                continue
            if isinstance(executed.result, BaseException):
                failure = executed
            self._results.append(executed)
            with suppress(RuntimeError):  # it is open already: nobody has waited since
                self._added.release()
            try:
                if self._on_result is not None:
                    self._on_result()
            except BaseException as error:  # noqa: BLE001 - the worker must live: the engine waits for results
                failure = failure or Executed(error, 0.0)

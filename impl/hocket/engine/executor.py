"""Executors run dispatches strictly in the order given: in the caller's thread, in one worker thread, or on a
device that works on its own.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple, Protocol, cast

from hocket.core.records import SchedulerOutput
from hocket.runner.api import AsyncRunner, NewRequest, Runner, RunnerOutput, StepFuture

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


class DeviceExecutor:
    """Launches a dispatch on a device when it is submitted, and looks for its result when it is collected.

    on_result: called in a thread that waits for the device, after each step. What it raises is the outcome of
        every later dispatch, as in `ThreadExecutor`.
    """

    def __init__(
        self,
        runner: AsyncRunner,
        on_result: Callable[[], None] | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._runner = runner
        self._on_result = on_result
        self._clock = clock
        self._steps: deque[_Flying] = deque()
        self._failure: BaseException | None = None
        self._lost = False
        self._idle_since_s = clock()
        self._watched: SimpleQueue[StepFuture | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if on_result is not None:
            self._thread = threading.Thread(target=self._watch, name="hocket-device", daemon=True)
            self._thread.start()

    def submit(self, output: SchedulerOutput, new_requests: Sequence[NewRequest]) -> None:
        """Launch it now. After a failure the runner's state is not to be trusted: nothing more is."""
        begin = self._clock()
        step: StepFuture | None = None
        if self._failure is None:
            try:
                step = self._runner.launch(output, new_requests)
            except BaseException as error:  # noqa: BLE001 - the engine raises it where the result is collected
                self._failure = error
        if not output.is_empty:
            self._steps.append(_Flying(step, begin))
        if step is not None and self._thread is not None:
            self._watched.put(step)

    def ready(self) -> bool:
        """True if the oldest step has run, or nothing will come of it."""
        if not self._steps:
            return False
        step = self._steps[0].step
        return self._lost or step is None or step.ready()

    def collect(self) -> Executed:
        """The oldest result, once the device has it. Its seconds are those since its launch, or since the
        result before it was taken if that came later.
        """
        step, begin = self._steps[0]
        if step is not None and not self._lost:
            try:
                return Executed(step.wait(), self._clock() - max(begin, self._idle_since_s))
            except Exception as error:  # noqa: BLE001 - as above; Ctrl-C while it waits is the caller's
                # No later result counts. The steps stay: the device may work on them yet, see `shutdown`.
                self._failure, self._lost = error, True
        assert self._failure is not None
        return Executed(self._failure, 0.0)

    def drop(self) -> None:
        """Book the result with the runner and go on to the next."""
        step = self._steps.popleft().step
        assert step is not None
        assert not self._lost, "what comes after a lost step is not booked"
        step.settle()
        self._idle_since_s = self._clock()

    def shutdown(self) -> None:
        """Wait for what was launched: the device must not work on memory that is given back."""
        for flying in self._steps:
            if flying.step is not None:
                with suppress(Exception):  # nobody wants these results any more
                    flying.step.wait()
        self._watched.put(None)
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        """Wake whoever waits, step by step; what a step raises is found again where it is collected."""
        assert self._on_result is not None
        while (step := self._watched.get()) is not None:
            with suppress(Exception):
                step.wait()
            try:
                self._on_result()
            except BaseException as error:  # noqa: BLE001 - the thread must live: the engine waits for results
                self._failure = self._failure or error


class _Flying(NamedTuple):
    """A step that was launched, or that cannot be (None), and when."""

    step: StepFuture | None
    begin_s: float


def executor_for(
    runner: Runner | AsyncRunner, depth: int, on_result: Callable[[], None] | None, clock: Clock
) -> Executor:
    """The executor for a pipeline of that depth."""
    if depth == 1:
        return InlineExecutor(runner, clock)
    if getattr(runner, "asynchronous", False):
        return DeviceExecutor(cast(AsyncRunner, runner), on_result, clock)
    return ThreadExecutor(runner, on_result, clock)

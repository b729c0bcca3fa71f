"""The engine: a scheduler that plans, a runner that executes, up to `async_depth` dispatches in flight
between them.

    engine = Engine(scheduler_config, kv_cache_config, runner, tokenizer=tokenizer)
    engine.add_request(request)
    while engine.has_unfinished_requests():
        for update in engine.step():
            ...

With `async_depth` 1 a step runs in the caller's thread. Deeper, a worker thread executes dispatches in order
while this thread plans the next ones and processes results; a device that works on its own needs no such
thread. No torch here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hocket.core.checks import require_bool, require_int, require_str, shown
from hocket.core.config import KVCacheConfig, SchedulerConfig
from hocket.core.errors import SchedulerError
from hocket.core.phase import Phase
from hocket.core.records import AbortReason, RequestOutput, SchedulerOutput
from hocket.core.request import Request
from hocket.engine.errors import EngineDeadError
from hocket.engine.executor import Executor, executor_for
from hocket.engine.output import OutputProcessor
from hocket.engine.results import EngineStats, RequestUpdate
from hocket.obs.recorder import Recorder
from hocket.obs.shadow import Shadow
from hocket.obs.trace import TraceWriter
from hocket.runner.api import NewRequest, Runner, RunnerOutput
from hocket.runner.philox import random_bits
from hocket.sched.scheduler import Scheduler

if TYPE_CHECKING:
    from hocket.engine.build import ModelOptions
    from hocket.model.tokenizer import Decoder


T = TypeVar("T")

# Not failures of the engine but somebody's wish to leave: raised as they are.
_EXITS = (KeyboardInterrupt, SystemExit, GeneratorExit)


class StepReport(NamedTuple):
    """A processed step, for observers."""

    output: SchedulerOutput
    result: RunnerOutput
    seconds: float
    """Time that the runner spent on it."""


class _Change:
    """What scheduler, trace and transcripts must see together. The engine counts as dead in here; whatever
    leaves early, Ctrl-C at any moment included, leaves it dead, unless it was declared whole before
    (`_failure` is None).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        self._engine._require_alive()
        self._engine._failure = RuntimeError("a call was interrupted half way")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None or self._engine._failure is None:
            self._engine._failure = None
            return
        self._engine._failure = error
        if not isinstance(error, _EXITS):
            raise EngineDeadError(f"the engine died: {type(error).__name__}: {error}") from error


class Engine:
    """Not thread-safe: one thread calls it. A request that fails fails alone, with finish_reason "error".

    tokenizer: for text and stop strings; without one, results have no text and stop strings are refused.
    seed: requests without a seed of their own get one from this and from the number of requests before them.
    trace: receives every action; the engine writes the header. If an action cannot be written, the engine
        dies: a trace with a gap cannot be replayed, and scheduler and transcripts would differ by it.
    on_result: called in the worker thread when a dispatch has run (depth > 1). If it raises, the engine dies.
    shadow_check: the specification's model runs beside the scheduler. At the first action that it does not
        allow the engine dies, before that is carried out: `ShadowCheckError` names the property. Slow.

    `observers` are called after each processed step, when its updates are safe; they may call the engine. If
    one raises, the engine dies after that step's updates were handed out.
    """

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        kv_cache_config: KVCacheConfig,
        runner: Runner,
        *,
        tokenizer: Decoder | None = None,
        seed: int = 0,
        trace: TraceWriter | None = None,
        on_result: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        shadow_check: bool = False,
    ) -> None:
        require_int("seed", seed, 0, 2**64 - 1)
        require_bool("shadow_check", shadow_check)
        self.scheduler = Scheduler(scheduler_config, kv_cache_config)
        self.runner = runner
        self.tokenizer = tokenizer
        self.stats = EngineStats()
        self.observers: list[Callable[[StepReport], None]] = []
        self._seed = seed
        self._accepted = 0
        # The trace first: it then ends with the action that the shadow refuses.
        shadow = Shadow(scheduler_config, kv_cache_config) if shadow_check else None
        self._recorders: tuple[Recorder, ...] = tuple(r for r in (trace, shadow) if r is not None)
        self._clock = clock
        self._outputs = OutputProcessor(tokenizer)
        self._unsent: dict[str, NewRequest] = {}
        self._in_flight: deque[SchedulerOutput] = deque()
        # After an empty output only a result or a new action can make another call worth while.
        self._waits = False
        self._updates: list[RequestUpdate] = []
        self._failure: BaseException | None = None
        # It has died, but instead of the error the last call returned updates that were ready before.
        self._untold = False
        if trace is not None:
            trace.header(scheduler_config, kv_cache_config, runner.describe())
        self._executor: Executor = executor_for(runner, scheduler_config.async_depth, on_result, clock)

    @classmethod
    def from_model(
        cls,
        folder: str | Path,
        scheduler_config: SchedulerConfig | None = None,
        options: ModelOptions | None = None,
        *,
        seed: int = 0,
        trace: TraceWriter | None = None,
        shadow_check: bool = False,
    ) -> Engine:
        """Load a checkpoint folder and make an engine for it. `ValueError` names file, tensor or option."""
        from hocket.engine.build import build_engine, load_model  # torch

        config = scheduler_config or SchedulerConfig()
        loaded = load_model(folder, options, mtp=config.num_speculative_tokens > 0)
        return build_engine(loaded, config, seed=seed, trace=trace, shadow_check=shadow_check)

    # --- Requests ---------------------------------------------------------------------------------

    def check_request(self, request: Request) -> None:
        """Raise the `ValueError` with which `add_request` would refuse the request; nothing changes."""
        if not isinstance(request, Request):
            raise ValueError(f"request must be a Request, got {shown(request)}")
        name, params, vocab = request.request_id, request.sampling_params, self.runner.vocab_size
        for field, tokens in (
            ("prompt_token_ids", request.prompt_token_ids),
            ("stop_token_ids", params.stop_token_ids),
        ):
            if tokens and max(tokens) >= vocab:
                at = next(i for i, token in enumerate(tokens) if token >= vocab)
                raise ValueError(
                    f"request {name!r}: {field}[{at}] must be an int in [0, {vocab - 1}], got {tokens[at]}"
                )
        if params.stop and self.tokenizer is None:
            raise ValueError(f"request {name!r}: stop must be () without a tokenizer, got {params.stop!r}")
        if params.logprobs is not None and params.logprobs > vocab:
            raise ValueError(
                f"request {name!r}: logprobs must be an int in [0, {vocab}], got {params.logprobs}"
            )
        self.scheduler.check_request(request)

    def add_request(self, request: Request) -> None:
        """Accept a request. `ValueError` names the field that is wrong, `QueueFullError` says to come back
        later.
        """
        self._require_alive()
        self.check_request(request)
        with _Change(self):
            self._or_refuse(self.scheduler.add_request, request)
            for recorder in self._recorders:
                recorder.add(request)
            own = request.sampling_params.seed
            seed = random_bits(self._seed, self._accepted) if own is None else own
            self._accepted += 1
            self._unsent[request.request_id] = NewRequest(request, seed)
            self._outputs.add(request, self._clock())
            self._waits = False

    def abort_request(self, request_id: str) -> RequestUpdate | None:
        """End a request now; its last update, or None if it is unknown or has ended."""
        require_str("request_id", request_id)
        with _Change(self):
            update = self._end(request_id, "abort", None)
        try:
            with _Change(self):
                self._hand_over_notices()
        except EngineDeadError:
            if update is None:
                raise
            self._untold = True
        return update

    def preempt_request(self, request_id: str) -> None:
        """Take a running request's cache away and let it start again later; its output does not change."""
        with _Change(self):
            self._or_refuse(self.scheduler.preempt_request, request_id)
            for recorder in self._recorders:
                recorder.preempt(request_id)
            self._waits = False

    def has_unfinished_requests(self) -> bool:
        """True while a request has not had its last update, a dispatch is in flight, or the engine has died
        and no call has said so yet.
        """
        unfinished = self.scheduler.has_unfinished_requests() or bool(self._in_flight)
        return unfinished or bool(self._updates) or self._untold or bool(self._outputs.request_ids)

    def can_step(self) -> bool:
        """False if `step(wait=False)` would change nothing before a result, a request or an abort comes."""
        if self._failure is not None:
            return True  # to say so
        has_room = len(self._in_flight) < self.scheduler.config.async_depth
        plans = has_room and not self._waits and self.scheduler.has_unfinished_requests()
        return plans or bool(self._updates) or (bool(self._in_flight) and self._executor.ready())

    # --- Steps ------------------------------------------------------------------------------------

    def step(self, wait: bool = True) -> list[RequestUpdate]:
        """Fill the pipeline, then process the oldest result; returns the news.

        With `wait` False a result that is not there yet is not waited for. Raises `EngineDeadError` if
        scheduler, runner, trace or an observer failed, now and in every later call; updates that were ready
        before are returned first, and the error comes with the next call. Ctrl-C while waiting for a result
        leaves the engine as it was; anywhere else the engine is dead.
        """
        report: StepReport | None = None
        try:
            with _Change(self):
                self._fill()
                if self._in_flight and (wait or self._executor.ready()):
                    report = self._process_oldest()
                self._hand_over_notices()
            if report is not None:
                self._observe(report)
        except EngineDeadError:
            if not self._updates:
                raise
            self._untold = True
        return self._taken_updates()

    def shutdown(self) -> None:
        """Stop the worker thread, after what it was given. Live requests are dropped without an update."""
        self._executor.shutdown()
        if self._failure is None:
            self._failure = RuntimeError("it was shut down")

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.shutdown()

    # --- Carrying out -----------------------------------------------------------------------------

    def _fill(self) -> None:
        """Schedule until the pipeline is full or nothing more can run before a result is processed."""
        while not self._waits and len(self._in_flight) < self.scheduler.config.async_depth:
            output = self.scheduler.schedule()
            for recorder in self._recorders:
                recorder.schedule(output)
            for request_id in output.preempted_request_ids:
                self.stats.preemptions += 1
                self._outputs.preempted(request_id)
            self._waits = output.is_empty
            if output.is_empty and not output.has_notices:
                return
            arrivals = [self._unsent.pop(r) for r in output.request_ids if r in self._unsent]
            self._executor.submit(output, arrivals)
            if not output.is_empty:
                self._in_flight.append(output)

    def _hand_over_notices(self) -> None:
        """Once all is done: an empty output, so that the runner hears of those that have just ended."""
        if not self._in_flight and not self.scheduler.has_unfinished_requests():
            self._fill()

    def _process_oldest(self) -> StepReport:
        """Process one result: first end the requests whose rows failed, then apply the rest."""
        output = self._in_flight[0]
        # All is whole while it waits, and `collect` takes nothing away: Ctrl-C interrupts nothing.
        self._failure, half_way = None, self._failure
        result, seconds = self._executor.collect()
        self._failure = half_way
        if isinstance(result, BaseException):
            raise result
        self._executor.drop()
        self._in_flight.popleft()
        self._waits = False
        for row, reason in result.failures.items():
            if self._is_current(output, row):
                self._fail(output.request_ids[row], reason)
        news = self.scheduler.update_from_output(output, result)
        for recorder in self._recorders:
            recorder.complete(result.step_id, result.sampled_token_ids, news)
        self._count(output, result, seconds)
        row_of = {request_id: row for row, request_id in enumerate(output.request_ids)}
        now = self._clock()
        for item in news:
            self._deliver(item, output, result, row_of[item.request_id], now)
        return StepReport(output, result, seconds)

    def _observe(self, report: StepReport) -> None:
        """Tell the observers. What one raises is the engine's death; Ctrl-C is not: all is whole."""
        try:
            for observer in self.observers:
                observer(report)
        except _EXITS:
            raise
        except BaseException as error:
            self._failure = error
            raise EngineDeadError(f"an observer failed: {type(error).__name__}: {error}") from error

    def _taken_updates(self) -> list[RequestUpdate]:
        updates, self._updates = self._updates, []
        return updates

    def _deliver(
        self, news: RequestOutput, output: SchedulerOutput, result: RunnerOutput, row: int, now: float
    ) -> None:
        """One request's news to the caller."""
        request_id = news.request_id
        logprobs = result.logprobs[row] if result.logprobs else None
        drafts = output.num_scheduled_tokens[row] - 1 if output.phase == Phase.DECODE else 0
        accepted = len(result.sampled_token_ids[row]) - 1
        try:
            processed = self._outputs.process(news, logprobs, now, drafts, accepted)
        except Exception as error:  # noqa: BLE001 - whatever detokenising it raises is this request's own end
            self._fail(request_id, f"{type(error).__name__}: {error}")
            return
        self.stats.num_draft_tokens += drafts
        self.stats.num_accepted_tokens += min(accepted, len(processed.update.new_token_ids))
        if processed.stopped:
            self._abort_in_scheduler(request_id, "stop")
        self._updates.append(processed.update)

    def _fail(self, request_id: str, reason: str) -> None:
        update = self._end(request_id, "error", reason)
        if update is not None:
            self._updates.append(update)

    def _end(self, request_id: str, reason: AbortReason, error: str | None) -> RequestUpdate | None:
        """End a request in scheduler and transcript, wherever it still lives."""
        self._abort_in_scheduler(request_id, reason)
        if request_id not in self._outputs.request_ids:
            return None
        return self._outputs.end(request_id, reason, error, self._clock())

    def _abort_in_scheduler(self, request_id: str, reason: AbortReason) -> None:
        ended = self.scheduler.abort_request(request_id, reason)
        if ended is None:
            return
        for recorder in self._recorders:
            recorder.abort(request_id, reason, ended)
        self._unsent.pop(request_id, None)
        self._waits = False

    def _is_current(self, output: SchedulerOutput, row: int) -> bool:
        """Whether the row's epoch is the one in which its request runs now."""
        state = self.scheduler.request_state(output.request_ids[row])
        return state is not None and state.status == "running" and state.epoch == output.epochs[row]

    def _count(self, output: SchedulerOutput, result: RunnerOutput, seconds: float) -> None:
        stats = self.stats
        if output.phase == Phase.PREFILL:
            stats.prefill_steps += 1
            stats.prefill_tokens += sum(output.num_scheduled_tokens)
            stats.prefill_s += seconds
        else:
            stats.decode_steps += 1
            stats.decode_tokens += sum(map(len, result.sampled_token_ids))
            stats.decode_s += seconds

    def _or_refuse(self, action: Callable[[T], object], argument: T) -> None:
        """An action that the scheduler may refuse; then nothing has changed."""
        try:
            action(argument)
        except (SchedulerError, ValueError):
            self._failure = None
            raise

    def _require_alive(self) -> None:
        if self._failure is not None:
            self._untold = False
            error = self._failure
            raise EngineDeadError(f"the engine is dead: {type(error).__name__}: {error}") from error


def run_all(engine: Engine, requests: Sequence[Request]) -> dict[str, RequestUpdate]:
    """Add `requests`, step until all have ended, return the last update of each by id."""
    for request in requests:
        engine.add_request(request)
    last: dict[str, RequestUpdate] = {}
    while engine.has_unfinished_requests():
        last.update({update.request_id: update for update in engine.step() if update.finished})
    return last

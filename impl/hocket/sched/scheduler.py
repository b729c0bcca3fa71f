"""The scheduler: accepts requests, plans dispatches, applies results.

The caller's loop::

    while scheduler.has_unfinished_requests() or scheduler.num_in_flight:
        output = scheduler.schedule()
        ...hand every output that has rows or notices to the runner...
        ...process the oldest result with update_from_output(), at the latest when an output was empty...

Assumptions under which the properties hold: the device executes dispatches in the order given, results are
processed in that order, and each result is processed once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import get_args

from hocket.core.checks import require_str
from hocket.core.config import KVCacheConfig, SchedulerConfig
from hocket.core.errors import QueueFullError, UnknownRequestError
from hocket.core.phase import Phase
from hocket.core.records import (
    AbortReason,
    BlockIdsByGroup,
    FinishReason,
    ModelRunnerOutput,
    RequestOutput,
    RequestState,
    SchedulerOutput,
)
from hocket.core.request import Request
from hocket.kv.cache import GroupedKVCache
from hocket.sched import kernel
from hocket.sched.in_flight import InFlightLedger, InFlightStep, Row
from hocket.sched.live import LiveRequest
from hocket.sched.memory import Memory
from hocket.sched.notices import Notices
from hocket.sched.planner import Plan, PlannedRow, Planner
from hocket.sched.results import checked_tokens
from hocket.sched.waiting import WaitingQueue

_FINISH_REASON: dict[int, FinishReason] = {kernel.ENDS_BY_STOP: "stop", kernel.ENDS_BY_LENGTH: "length"}
_ABORT_REASONS = get_args(AbortReason)


class Scheduler:
    """Continuous chunked prefill and decode over grouped KV caches, one phase per dispatch, neither starved.

    Not thread-safe: one thread calls it. It reads no clock, draws no random number and does no I/O.
    """

    def __init__(self, config: SchedulerConfig, kv_cache_config: KVCacheConfig) -> None:
        if not isinstance(config, SchedulerConfig):
            raise ValueError(f"config must be a SchedulerConfig, got {config!r}")
        if not isinstance(kv_cache_config, KVCacheConfig):
            raise ValueError(f"kv_cache_config must be a KVCacheConfig, got {kv_cache_config!r}")
        self.config = config
        self.kv_cache_config = kv_cache_config
        self._memory = Memory(config, kv_cache_config)
        self._cache = GroupedKVCache(kv_cache_config)
        self._ledger = InFlightLedger()
        self._planner = Planner(config, self._memory, self._cache, self._ledger)
        self._live: dict[str, LiveRequest] = {}
        self._running: list[LiveRequest] = []  # most senior first
        self._waiting = WaitingQueue()
        self._notices = Notices()
        self._turn = kernel.first_turn()
        self._next_step_id = 1
        self._next_epoch = 1
        self._next_arrival = 1

    # --- Requests ---------------------------------------------------------------------------------

    def check_request(self, request: Request) -> None:
        """Raise the `ValueError` with which `add_request` would refuse the request; nothing changes.

        Refused are a duplicate id, a prompt that leaves no room for an output within `max_model_len`, and a
        request that could never fit into the KV cache.
        """
        if not isinstance(request, Request):
            raise ValueError(f"request must be a Request, got {request!r}")
        name, most = request.request_id, self.config.max_model_len - 1
        if name in self._live:
            raise ValueError(f"request_id must be unique among live requests, got {name!r} again")
        prompt_len = len(request.prompt_token_ids)
        if prompt_len > most:
            raise ValueError(
                f"request {name!r}: prompt_token_ids must hold at most max_model_len - 1 = {most} tokens, "
                f"got {prompt_len}"
            )
        limit = self._output_limit(request)
        need = self._memory.capacity_need(prompt_len + limit - 1)
        for pool, want, usable in zip(self._memory.pool_names, need, self._memory.usable, strict=True):
            if want > usable:
                raise ValueError(
                    f"request {name!r}: prompt {prompt_len} + max_tokens {limit} needs {want} blocks of KV "
                    f"cache pool {pool!r} at once, allowed are at most its {usable}"
                )

    def add_request(self, request: Request) -> None:
        """Accept a request.

        Raises `ValueError` as `check_request` does; `QueueFullError` beyond `max_num_queued_reqs`.
        """
        self.check_request(request)
        most = self.config.max_num_queued_reqs
        if most is not None and len(self._waiting) >= most:
            raise QueueFullError(
                f"request {request.request_id!r}: max_num_queued_reqs = {most} requests wait already"
            )
        epoch, self._next_epoch = kernel.epochs_at_arrival(self._next_epoch)
        live = LiveRequest(
            request,
            self._next_arrival,
            epoch,
            self._output_limit(request),
            self._drafts(request),
            self._cache.new_tables(),
        )
        live.replay_promise = self._promise(live.num_tokens)
        self._next_arrival += 1
        self._live[live.request_id] = live
        self._waiting.push(live)

    def preempt_request(self, request_id: str) -> None:
        """Take a running request's blocks and put it back into the queue at its seniority; nothing if it
        waits already.

        It does not wait for rows in flight: their results will be stale. Raises `UnknownRequestError`.
        """
        live = self._find(request_id)
        if live.running:
            self._preempt(live)

    def abort_request(self, request_id: str, reason: AbortReason = "abort") -> RequestOutput | None:
        """End a request now and return its terminal output; None if the id is unknown or has ended.

        `reason` is "abort", "stop" (the engine found a stop string) or "error" (the request failed alone).
        """
        require_str("request_id", request_id)
        if reason not in _ABORT_REASONS:
            raise ValueError(f"reason must be one of {list(_ABORT_REASONS)}, got {reason!r}")
        live = self._live.get(request_id)
        if live is None:
            return None
        self._end(live)
        return RequestOutput(request_id, (), True, reason)

    def has_unfinished_requests(self) -> bool:
        """True iff an accepted request has no terminal output yet."""
        return bool(self._live)

    # --- Steps ------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide the next dispatch.

        Empty if nothing can run now: process a result, or wait for an arrival, before calling again. With
        nothing in flight and an unfinished request it is never empty. With `async_depth` dispatches in flight
        it is always empty.
        """
        if not kernel.has_room(len(self._ledger), self.config.async_depth):
            return self._empty_output()
        plan = self._planner.plan(self._turn, self._running, self._waiting)
        if plan.phase == kernel.NO_PHASE:
            return self._empty_output()
        return self._dispatch(plan)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[RequestOutput]:
        """Apply the result of the oldest step in flight; returns news of the requests that its current rows
        belong to.

        Rows whose epoch has ended change nothing. Raises `StepOrderError` if the step is not the oldest in
        flight, and `ValueError` if the result does not match the step's rows; both leave the state unchanged.
        """
        tokens_of_row = checked_tokens(self._ledger.oldest, scheduler_output, model_runner_output)
        step = self._ledger.process_oldest()
        news = [
            self._apply(step.phase, row, tokens) for row, tokens in zip(step.rows, tokens_of_row, strict=True)
        ]
        self._cache.settle(step.step_id)
        return [output for output in news if output is not None]

    # --- Introspection ----------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold a seat."""
        return len(self._running)

    @property
    def num_in_flight(self) -> int:
        """Dispatches whose results are not processed yet."""
        return len(self._ledger)

    def free_blocks(self, group: str) -> int:
        """Free blocks of the pool that the group draws on."""
        return self._cache.pool_of(self._known_group(group)).num_free

    def fenced_blocks(self, group: str) -> int:
        """Blocks of the group's pool that wait for a step in flight which can still write them."""
        return self._cache.pool_of(self._known_group(group)).num_fenced

    def block_table(self, request_id: str, group: str) -> tuple[int, ...]:
        """The request's table.

        Null (0) for leading columns that a window returned, then its blocks; no padding.
        """
        live = self._find(request_id)
        return live.tables[self._cache.group_names.index(self._known_group(group))].whole()

    def token_ids(self, request_id: str) -> tuple[int, ...]:
        """Prompt and emitted tokens."""
        live = self._find(request_id)
        return live.request.prompt_token_ids + tuple(live.output_token_ids)

    def request_state(self, request_id: str) -> RequestState | None:
        """A view of a live request, None if the id is unknown or has ended."""
        live = self._live.get(require_str("request_id", request_id))
        if live is None:
            return None
        assert live.status is not None
        names = self._cache.group_names
        owned = tuple(tuple(table.block_ids) for table in live.tables)
        return RequestState(
            status=live.status,
            epoch=live.epoch,
            num_computed_tokens=live.progress.computed,
            output_token_ids=tuple(live.output_token_ids),
            num_output_placeholders=live.progress.placeholders,
            block_ids=BlockIdsByGroup(names, owned),
        )

    # --- Carrying out -----------------------------------------------------------------------------

    def _dispatch(self, plan: Plan) -> SchedulerOutput:
        step_id = self._next_step_id
        self._next_step_id += 1
        head = self._waiting.head
        for victim in plan.victims:
            self._preempt(victim)
        resumed = tuple(row.live.request_id for row in plan.rows if row.live.status == "preempted")
        blocks = [self._start_row(row, step_id) for row in plan.rows]
        rows = tuple(self._advance(plan.phase, row) for row in plan.rows)
        if head is not None:
            head.overdue = kernel.overdue_after(head.overdue, plan.phase, head.running)
        self._ledger.dispatch(InFlightStep(step_id, plan.phase, rows))
        self._turn = kernel.turn_after(
            self._turn, plan.phase, self.config.prefill_steps_per_turn, self.config.decode_steps_per_turn
        )
        preempted, finished = self._notices.take()
        return SchedulerOutput(
            step_id=step_id,
            phase=Phase(plan.phase),
            request_ids=tuple(row.live.request_id for row in rows),
            epochs=tuple(row.epoch for row in rows),
            num_computed_tokens=tuple(row.start for row in rows),
            num_scheduled_tokens=tuple(row.length for row in rows),
            samples=tuple(row.reserved > 0 for row in rows),
            lookahead_token_ids=tuple(
                None if row.reserved else row.live.token_at(row.start + row.length) for row in rows
            ),
            new_block_ids=tuple(blocks),
            preempted_request_ids=preempted,
            finished_request_ids=finished,
            resumed_request_ids=resumed,
        )

    def _start_row(self, row: PlannedRow, step_id: int) -> BlockIdsByGroup:
        """Admit the row's request if it waits, and give it the blocks that the row writes."""
        live = row.live
        if row.admitted:
            self._waiting.remove(live)
            live.epoch, self._next_epoch = kernel.epochs_at_admission(
                kernel.Epochs(live.epoch, self._next_epoch), live.status == "preempted"
            )
            live.status = "running"
            live.overdue = False
            live.replay_len = live.num_tokens
            live.promise = live.replay_promise
            insort(self._running, live, key=lambda other: other.seniority)
        live.served = step_id
        end = live.progress.computed + row.length
        return self._cache.grow(live.tables, self._memory.new_columns(live.tables, end))

    def _advance(self, phase: int, row: PlannedRow) -> Row:
        """Count the row as scheduled."""
        live, start = row.live, row.live.progress.computed
        samples = kernel.row_samples(phase, start + row.length, live.replay_len)
        reserved = kernel.reserved_tokens(phase, row.length, samples)
        live.progress = kernel.progress_scheduled(live.progress, row.length, reserved)
        if samples:
            live.promise = self._memory.nothing
        return Row(live, live.epoch, start, row.length, reserved)

    def _apply(self, phase: int, row: Row, tokens: tuple[int, ...]) -> RequestOutput | None:
        """A row's result: progress, tokens, returned windows, perhaps the end; nothing if it is stale."""
        live, current = row.live, row.is_current
        live.progress = kernel.progress_after_result(
            live.progress, current, phase, row.length, row.reserved, len(tokens)
        )
        if not current:
            return None
        emitted, ending = self._emit(live, tokens)
        if ending == kernel.GOES_ON:
            outdated = self._memory.outdated_columns(live, live.progress.processed)
            self._cache.return_outdated(live.tables, outdated)
            return RequestOutput(live.request_id, emitted, False) if emitted else None
        self._end(live)
        return RequestOutput(live.request_id, emitted, True, _FINISH_REASON[ending])

    def _emit(self, live: LiveRequest, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Append tokens up to the one that ends the request; what follows it in the same row is dropped."""
        for count, token in enumerate(tokens, start=1):
            live.output_token_ids.append(token)
            ending = kernel.end_after_token(
                len(live.output_token_ids), live.limit, live.min_tokens, token in live.stop_tokens
            )
            if ending != kernel.GOES_ON:
                return tokens[:count], ending
        return tokens, kernel.GOES_ON

    def _preempt(self, live: LiveRequest) -> None:
        """End the epoch, take the blocks, go back to the queue. Prompt and outputs will be replayed."""
        self._leave_running(live)
        live.status = "preempted"
        live.progress = kernel.no_progress()
        live.replay_promise = self._promise(live.num_tokens)
        self._waiting.push(live)
        self._notices.preempted(live.request_id)

    def _end(self, live: LiveRequest) -> None:
        """The terminal event: exactly one per accepted request (S10)."""
        if live.running:
            self._leave_running(live)
        else:
            self._waiting.remove(live)
        live.status = None
        del self._live[live.request_id]
        self._notices.finished(live.request_id)

    def _leave_running(self, live: LiveRequest) -> None:
        """Give up seat and blocks; those that rows in flight can still write are fenced (S6)."""
        index = bisect_left(self._running, live.seniority, key=lambda other: other.seniority)
        assert self._running[index] is live
        del self._running[index]
        prompt_len, outputs = len(live.request.prompt_token_ids), len(live.output_token_ids)
        writes = [
            (
                step.step_id,
                kernel.write_start(step.phase, row.start, prompt_len, outputs),
                row.start + row.length,
            )
            for step, row in self._ledger.rows_of(live)
        ]

        def fencing_step(group: int, column: int) -> int | None:
            block_size = self._memory.groups[group].block_size
            return next(
                (step for step, first, end in writes if kernel.writes_column(column, block_size, first, end)),
                None,
            )

        self._cache.release(live.tables, fencing_step)

    # --- Helpers ----------------------------------------------------------------------------

    def _output_limit(self, request: Request) -> int:
        """Output tokens that the request may have."""
        return kernel.output_limit(
            request.sampling_params.max_tokens, self.config.max_model_len, len(request.prompt_token_ids)
        )

    def _drafts(self, request: Request) -> int:
        """Drafts of its decode rows: as many as are configured, fewer if it wants fewer."""
        most, own = self.config.num_speculative_tokens, request.sampling_params.num_speculative_tokens
        return kernel.row_drafts(most, most if own is None else own)

    def _promise(self, replay_len: int) -> kernel.Vector:
        """Blocks per pool to promise to a replay of `replay_len` tokens."""
        return (
            self._memory.capacity_need(replay_len)
            if self.config.reserve_full_prompt
            else self._memory.nothing
        )

    def _empty_output(self) -> SchedulerOutput:
        preempted, finished = self._notices.take()
        return SchedulerOutput(None, None, preempted_request_ids=preempted, finished_request_ids=finished)

    def _find(self, request_id: str) -> LiveRequest:
        live = self._live.get(require_str("request_id", request_id))
        if live is None:
            raise UnknownRequestError(f"request_id must name a live request, got {request_id!r}")
        return live

    def _known_group(self, group: str) -> str:
        if group not in self._cache.group_names:
            raise ValueError(f"group must be one of {list(self._cache.group_names)}, got {group!r}")
        return group

"""Drives the public scheduler API step by step and checks the invariants after every event.

Nothing here looks inside the scheduler: what it should know is recomputed from its outputs, and what it says
of itself (`request_state`, `free_blocks`, ...) is compared with that.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hocket import (
    KVCacheConfig,
    KVGroupSpec,
    ModelRunnerOutput,
    Phase,
    Request,
    RequestOutput,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
)
from tests.scenarios.device import Accept, Device, model_token

PREFILL, DECODE = Phase.PREFILL, Phase.DECODE


class Dispatch(NamedTuple):
    """One `schedule()` call that returned rows."""

    step_id: int
    call: int
    """Number of the call, from 1; empty calls count too."""
    phase: Phase
    rows: dict[str, tuple[int, int]]
    """Request id -> (start, length), in row order."""
    output: SchedulerOutput


class Submission:
    """What must become of one accepted request."""

    def __init__(self, request: Request, limit: int, arrival: int) -> None:
        self.prompt = request.prompt_token_ids
        self.seniority = (request.priority, arrival)
        self.limit = limit
        stops = request.sampling_params.stop_token_ids
        self.expected: list[int] = []  # the tokens of an isolated run
        while len(self.expected) < limit and not (self.expected and self.expected[-1] in stops):
            self.expected.append(model_token(self.prompt, len(self.prompt) + len(self.expected)))
        self.emitted: list[int] = []
        self.reasons: list[str] = []  # of terminal events: exactly one in the end
        self.processed = 0  # tokens whose results are processed in the current epoch
        self.tiles: dict[int, tuple[int, int]] = {}  # epoch -> (tokens of the replay, end of the last chunk)


class InFlight(NamedTuple):
    """A dispatch whose result is not processed, and what the device made of it."""

    dispatch: Dispatch
    tokens: list[tuple[int, ...]]
    writes: list[dict[str, set[int]]]


def group(name: str, block_size: int, num_blocks: int, window: int | None = None) -> KVGroupSpec:
    return KVGroupSpec(name, block_size, num_blocks=num_blocks, window=window)


def prompt_of(name: str, length: int) -> list[int]:
    """A prompt of its own for every request."""
    base = sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 1000 * 10_000
    return [base + place for place in range(length)]


def output_token(name: str, prompt_len: int, number: int) -> int:
    """What the pretend model emits as output `number` (from 1) of a request with the made-up prompt."""
    return model_token(tuple(prompt_of(name, prompt_len)), prompt_len + number - 1)


class Driver:
    """A scheduler, a pretend device and the book-keeping of a client."""

    def __init__(
        self,
        *groups: KVGroupSpec,
        depth: int,
        chunk: int,
        budget: int,
        seats: int = 4,
        drafts: int = 0,
        accept: Accept = lambda _name, _turn, length: length,
        pools: Mapping[str, int] | None = None,
        **config: Any,
    ) -> None:
        self.cache = KVCacheConfig(groups=groups, pools=pools or {})
        self.config = SchedulerConfig(
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            prefill_chunk_size=chunk,
            async_depth=depth,
            num_speculative_tokens=drafts,
            **config,
        )
        self.scheduler = Scheduler(self.config, self.cache)
        self.depth = depth
        self.device = Device(self.cache, seats, accept)
        self.submissions: dict[str, Submission] = {}  # by request id; a later one of the same id replaces it
        self.in_flight: deque[InFlight] = deque()
        self.dispatches: list[Dispatch] = []
        self.arrivals = 0
        self.epochs: set[int] = set()  # of all admissions
        self.calls = 0
        self.empty_calls: list[int] = []
        self.outputs: list[SchedulerOutput] = []
        self.news: list[RequestOutput] = []
        self.preemptions: list[str] = []
        self.preempted_with_rows_in_flight = 0
        self.preempted_by_pressure = 0
        self.stale_rows = 0
        self._told: dict[str, set[str]] = {"preempted": set(), "finished": set()}  # notices due
        self.check()

    # --- events ---

    def add(self, name: str, prompt: int | Sequence[int], max_tokens: int, **params: Any) -> None:
        """Add a request; its prompt is given, or made up for a length."""
        request_params = {key: params.pop(key) for key in ("priority", "eos_token_id") if key in params}
        tokens = prompt_of(name, prompt) if isinstance(prompt, int) else prompt
        request = Request(
            name, tuple(tokens), SamplingParams(max_tokens=max_tokens, **params), **request_params
        )
        self.scheduler.add_request(request)
        limit = min(max_tokens, self.config.max_model_len - len(tokens))
        self.arrivals += 1
        self.submissions[name] = Submission(request, limit, self.arrivals)
        self.device.prompts[name] = request.prompt_token_ids
        self.device.emitted[name] = self.submissions[name].emitted
        self.check()

    def call(self) -> Dispatch | None:
        """Call `schedule()`; the dispatch that it made, None if the output was empty."""
        self.calls += 1
        before = {name: state.status for name, state in self.states().items()}
        waiting_rows = {name: self._rows_in_flight(name) for name in self.submissions}
        full = len(self.in_flight) >= self.depth
        output = self.scheduler.schedule()
        self.outputs.append(output)
        victims = [
            name
            for name, state in self.states().items()
            if before.get(name) == "running" and state.status == "preempted"
        ]
        for name in victims:
            assert waiting_rows[name] == 0, f"{name} was preempted before it was drained"
            self.preempted_by_pressure += 1
            self._preempted(name)
        self._check_notices(output)
        if output.phase is None:
            self.empty_calls.append(self.calls)
            assert not victims, "an attempt that dispatched nothing preempted a request"
            assert self.in_flight or full or not self.scheduler.has_unfinished_requests(), "stuck"
            self.device.execute(output)
            self.check()
            return None
        assert not full
        return self._dispatched(output, victims, before)

    def complete(self) -> list[RequestOutput]:
        """Process the oldest result; the outputs that the client sees."""
        step = self.in_flight.popleft()
        output = step.dispatch.output
        current = []
        for name, epoch in zip(output.request_ids, output.epochs, strict=True):
            state = self.scheduler.request_state(name)
            current.append(state is not None and state.status == "running" and state.epoch == epoch)
        before = {
            name: self.view_of(name)
            for name, fresh in zip(output.request_ids, current, strict=True)
            if not fresh
        }
        result = ModelRunnerOutput(step_id=step.dispatch.step_id, sampled_token_ids=tuple(step.tokens))
        news = self.scheduler.update_from_output(output, result)
        for row, (name, fresh) in enumerate(zip(output.request_ids, current, strict=True)):
            if fresh:
                decode = output.phase is DECODE
                length = len(step.tokens[row]) if decode else output.num_scheduled_tokens[row]
                self.submissions[name].processed += length
            else:
                self.stale_rows += 1
                assert self.view_of(name) == before[name], f"a stale row changed {name}"
        allowed = {name for name, fresh in zip(output.request_ids, current, strict=True) if fresh}
        assert {item.request_id for item in news} <= allowed, "a stale row was emitted"
        for item in news:
            self._hear(item)
        self.check()
        return news

    def preempt(self, name: str) -> None:
        """An external preemption of a running request."""
        state = self.scheduler.request_state(name)
        assert state is not None
        rows = self._rows_in_flight(name)
        self.scheduler.preempt_request(name)
        if state.status == "running":
            self.preempted_with_rows_in_flight += rows > 0
            self._preempted(name)
        self.check()

    def abort(self, name: str) -> RequestOutput | None:
        """An abort by the client."""
        item = self.scheduler.abort_request(name)
        if item is not None:
            self._hear(item)
        self.check()
        return item

    def run(
        self, until: Callable[[], bool] = lambda: False, delay: int | None = None, limit: int = 2000
    ) -> None:
        """Loop as an engine does, keeping at most `delay` results unprocessed (default: the depth)."""
        delay = self.depth if delay is None else delay
        for _ in range(limit):
            if until() or not (self.scheduler.has_unfinished_requests() or self.in_flight):
                return
            if len(self.in_flight) >= delay or self.call() is None:
                self.complete()
        raise AssertionError(f"no end after {limit} events: {self.states()}")

    def drain(self) -> None:
        """Process every result in flight."""
        while self.in_flight:
            self.complete()

    def finish(self, *aborted: str) -> None:
        """Run to the end and check the end state: all finished with an isolated run's tokens, all blocks
        free.
        """
        self.run()
        self.drain()
        self.call()
        assert not any(self._told.values()), f"notices never given: {self._told}"
        assert not self.device.views, "the runner still holds a slot"
        assert self.scheduler.num_running == self.scheduler.num_waiting == self.scheduler.num_in_flight == 0
        for name, blocks in self.cache.pool_blocks.items():
            assert self.free()[name] == blocks
        for name, submission in self.submissions.items():
            assert len(submission.reasons) == 1, f"{name} ended {submission.reasons}"
            if name in aborted:
                assert submission.reasons == ["abort"]
                assert submission.emitted == submission.expected[: len(submission.emitted)]
            else:
                assert submission.emitted == submission.expected

    # --- what happened ---

    def rows_of(self, name: str, phase: Phase | None = None) -> list[tuple[int, int]]:
        """(start, length) of every row of a request, in order."""
        return [d.rows[name] for d in self.dispatches if name in d.rows and phase in (None, d.phase)]

    def dispatches_of(self, name: str, phase: Phase | None = None) -> list[Dispatch]:
        return [d for d in self.dispatches if name in d.rows and phase in (None, d.phase)]

    def outputs_of(self, name: str) -> list[int]:
        """Tokens emitted to the client so far."""
        return self.submissions[name].emitted

    def ended(self, name: str) -> bool:
        return bool(self.submissions[name].reasons)

    def states(self) -> dict[str, Any]:
        """`request_state` of every live request."""
        found = {name: self.scheduler.request_state(name) for name in self.submissions}
        return {name: state for name, state in found.items() if state is not None}

    def view_of(self, name: str) -> Any:
        """Everything that introspection says of one request, for comparisons."""
        state = self.scheduler.request_state(name)
        return state and (*state[:5], dict(state.block_ids), self.scheduler.token_ids(name))

    def free(self) -> dict[str, int]:
        """Pool -> free blocks."""
        return {spec.pool or spec.name: self.scheduler.free_blocks(spec.name) for spec in self.cache.groups}

    def fenced(self) -> dict[str, int]:
        """Pool -> fenced blocks."""
        return {spec.pool or spec.name: self.scheduler.fenced_blocks(spec.name) for spec in self.cache.groups}

    # --- book-keeping ---

    def _rows_in_flight(self, name: str) -> int:
        """Rows of this submission in flight; those of an aborted namesake do not count."""
        first = self.submissions[name].tiles
        return sum(
            row_name == name and epoch in first
            for step in self.in_flight
            for row_name, epoch in zip(
                step.dispatch.output.request_ids, step.dispatch.output.epochs, strict=True
            )
        )

    def _dispatched(self, output: SchedulerOutput, victims: list[str], before: Mapping[str, str]) -> Dispatch:
        """Check one dispatch, run it on the device and put it in flight."""
        assert output.phase in (PREFILL, DECODE)
        assert output.step_id is not None
        rows = dict(
            zip(
                output.request_ids,
                zip(output.num_computed_tokens, output.num_scheduled_tokens, strict=True),
                strict=True,
            )
        )
        assert len(rows) == len(output.request_ids) > 0, "one row per request"
        costs = output.num_scheduled_tokens
        assert sum(costs) <= self.config.max_num_batched_tokens
        most = (
            self.config.prefill_chunk_size
            if output.phase is PREFILL
            else self.config.num_speculative_tokens + 1
        )
        assert all(1 <= cost <= most for cost in costs)
        assert not set(victims) & set(rows), "preempted and dispatched in one call"
        for victim in victims:
            seniors = (self.submissions[name].seniority for name in rows if before[name] == "running")
            assert any(senior < self.submissions[victim].seniority for senior in seniors), (
                "a senior was preempted"
            )
        for row, name in enumerate(output.request_ids):
            submission, epoch = self.submissions[name], output.epochs[row]
            resumed = before[name] == "preempted"
            assert (name in output.resumed_request_ids) == resumed
            if before[name] != "running":
                assert output.phase is PREFILL
                # S3: no row of an older epoch of this request is in flight.
                assert self._rows_in_flight(name) == 0, f"{name} was re-admitted before it was drained"
                assert epoch not in self.epochs, "an epoch was used twice"
                self.epochs.add(epoch)
                submission.processed = 0
                submission.tiles[epoch] = (len(submission.prompt) + len(submission.emitted), 0)
            self._check_row(submission, output, row)
        self._check_no_overtaking([name for name in rows if before[name] != "running"])
        dispatch = Dispatch(output.step_id, self.calls, output.phase, rows, output)
        self.dispatches.append(dispatch)
        tokens, writes = self.device.execute(output)
        self.in_flight.append(InFlight(dispatch, tokens, writes))
        self.check()
        return dispatch

    def _check_no_overtaking(self, admitted: list[str]) -> None:
        """Nobody is admitted past a more senior request that waits, a victim of this call included (L4)."""
        waiting = [name for name, state in self.states().items() if state.status != "running"]
        for name in admitted:
            for other in waiting:
                assert self.submissions[name].seniority < self.submissions[other].seniority, (
                    f"{name} was admitted past {other}"
                )

    def _check_row(self, submission: Submission, output: SchedulerOutput, row: int) -> None:
        """Chunks tile the replay without gap or overlap, decode rows come after it, and only then are tokens
        sampled.
        """
        start, length = output.num_computed_tokens[row], output.num_scheduled_tokens[row]
        replay, done = submission.tiles[output.epochs[row]]
        if output.phase is PREFILL:
            assert start == done
            assert start + length <= replay
            assert output.samples[row] == (start + length == replay)
            if start + length < replay:
                assert (start + length) % self.config.chunk_alignment == 0
            submission.tiles[output.epochs[row]] = (replay, start + length)
        else:
            assert done == replay
            assert start >= replay
            assert output.samples[row]

    def _preempted(self, name: str) -> None:
        self.preemptions.append(name)
        self._told["preempted"].add(name)
        self.submissions[name].processed = 0

    def _hear(self, item: RequestOutput) -> None:
        submission = self.submissions[item.request_id]
        self.news.append(item)
        assert not submission.reasons, f"{item.request_id} speaks after its end"
        submission.emitted.extend(item.new_token_ids)
        assert (item.finish_reason is not None) == item.finished
        if item.finished:
            submission.reasons.append(str(item.finish_reason))
            self._told["finished"].add(item.request_id)
            self._told["preempted"].discard(item.request_id)

    def _check_notices(self, output: SchedulerOutput) -> None:
        """Every notice rides on the first output after its event, once."""
        told = {"preempted": output.preempted_request_ids, "finished": output.finished_request_ids}
        for kind, names in told.items():
            assert len(set(names)) == len(names)
            assert set(names) == self._told[kind], f"{kind}: due {self._told[kind]}, told {names}"
            self._told[kind].clear()

    # --- invariants ---

    def check(self) -> None:
        """What holds after every event."""
        states = self.states()
        running = [name for name, state in states.items() if state.status == "running"]
        assert self.scheduler.num_running == len(running) <= self.config.max_num_seqs
        assert self.scheduler.num_waiting == len(states) - len(running)
        assert self.scheduler.num_in_flight == len(self.in_flight) <= self.depth
        assert self.scheduler.has_unfinished_requests() == bool(states)
        for name, state in states.items():
            self._check_request(name, state)
        self._check_blocks(states)

    def _check_request(self, name: str, state: Any) -> None:
        submission = self.submissions[name]
        assert list(state.output_token_ids) == submission.emitted
        assert submission.emitted == submission.expected[: len(submission.emitted)]
        assert self.scheduler.token_ids(name) == submission.prompt + tuple(submission.emitted)
        reserved = scheduled = 0
        for step in self.in_flight:
            output = step.dispatch.output
            for row, row_name in enumerate(output.request_ids):
                if row_name == name and output.epochs[row] == state.epoch and state.status == "running":
                    length = output.num_scheduled_tokens[row]
                    scheduled += length
                    reserved += length if output.phase is DECODE else int(output.samples[row])
        assert state.num_output_placeholders == reserved
        assert len(submission.emitted) + reserved <= submission.limit
        assert state.num_computed_tokens == submission.processed + scheduled
        for spec in self.cache.groups:
            table = self.scheduler.block_table(name, spec.name)
            owned = [block for block in table if block]
            assert list(state.block_ids[spec.name]) == owned
            assert state.status == "running" or not table
            nulls = len(table) - len(owned)
            assert not any(table[:nulls])
            # A window is cut by processed progress, never by what is only scheduled.
            outdated = max(0, submission.processed - (spec.window or submission.processed)) // spec.block_size
            assert nulls <= outdated
            assert len(table) * spec.block_size >= state.num_computed_tokens

    def _check_blocks(self, states: Mapping[str, Any]) -> None:
        """Free, owned and fenced blocks partition every pool, and nobody owns what another's row still
        writes.
        """
        free, fenced = self.free(), self.fenced()
        owner: dict[tuple[str, int], str] = {}
        for name, state in states.items():
            for spec in self.cache.groups:
                for block in state.block_ids[spec.name]:
                    pool = spec.pool or spec.name
                    assert (pool, block) not in owner, f"{name} and {owner[pool, block]} both own {block}"
                    owner[pool, block] = name
                    assert 1 <= block <= self.cache.pool_blocks[pool]
        for pool, blocks in self.cache.pool_blocks.items():
            assert free[pool] + fenced[pool] + sum(key[0] == pool for key in owner) == blocks
        if not self.in_flight:
            assert not any(fenced.values())
        for step in self.in_flight:
            output = step.dispatch.output
            for name, epoch, writes in zip(output.request_ids, output.epochs, step.writes, strict=True):
                for pool, written in writes.items():
                    for block in written:
                        holder = owner.get((pool, block))
                        assert holder is None or (holder == name and states[name].epoch == epoch), (
                            f"{holder} owns {block} of {pool}, still to be written for {name}"
                        )

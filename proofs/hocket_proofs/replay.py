"""The reference model beside a run: one walk, fed by a trace (trace_check.py) or by an engine (shadow.py).

Every dispatch is offered to the model as its witness, every result is processed by it, and what the record
says of the state after each action (progress, epochs, block tables, emitted tokens, notices) must be what the
model says. The scheduler itself is not run again: what is judged is what happened.
"""

from __future__ import annotations

from collections import deque

from hocket.core.config import KVCacheConfig, SchedulerConfig
from hocket.core.records import RequestOutput, SchedulerOutput
from hocket.core.request import Request
from hocket.obs.trace import (
    AbortRecord,
    AddRecord,
    CompleteRecord,
    PreemptRecord,
    ScheduleRecord,
    TraceRecord,
)
from hocket_proofs.refinement import wanted_drafts
from hocket_spec import actions, properties, runner
from hocket_spec import state as model
from hocket_spec.blocks import held
from hocket_spec.check.instances import Traffic
from hocket_spec.check.pair import Owed
from hocket_spec.rules import drained
from hocket_spec.walk import attempt

ACTIONS_SHOWN = 10
KEPT = 256  # ids that have ended, before they are looked through

# The property that a dispatch breaks when it breaks a rule of schedule().
BROKEN = {
    "pipeline": "S9 budgets", "phase": "L1 bounded-wait", "runnable": "S1 homogeneity",
    "drained": "S3 drained-readmission", "seat": "S9 budgets", "queue": "L4 admission",
    "budget": "S9 budgets", "alignment": "S9 budgets", "blocks": "S5 block-conservation",
    "held": "L7 senior-progress", "length": "S9 budgets", "drafts": "S5 block-conservation",
    "victims": "L6 minimal-preemption", "served": "L3 row-fairness", "admitted": "L4 admission",
}  # fmt: skip


class Broken(Exception):
    """The property that a record contradicts, and how."""


def model_config(config: SchedulerConfig, cache: KVCacheConfig) -> model.Config:
    """The model's configuration that means the same as the product's."""
    blocks = tuple(cache.pool_blocks.values())
    groups = tuple(
        model.Group(g.block_size, g.window or 0, pool)
        for g, pool in zip(cache.groups, cache.pool_of_group, strict=True)
    )
    return model.Config(
        groups, blocks, config.aligned_chunk_size, config.max_num_batched_tokens, config.max_num_seqs,
        config.async_depth, config.num_speculative_tokens, config.prefill_steps_per_turn,
        config.decode_steps_per_turn, config.chunk_alignment, config.reserve_full_prompt,
        tuple(int(config.watermark * n) for n in blocks) if config.watermark else (),
    )  # fmt: skip


class Replay:
    """The model beside a run of a scheduler with this configuration. `shown`: the last actions, in words."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheConfig) -> None:
        self.cfg = model_config(config, cache)
        self.max_model_len = config.max_model_len
        self.state = model.initial()
        self.view = runner.View(tuple(g.name for g in cache.groups), self.cfg.groups)
        self.owed = Owed()
        # The model's name for an id: a new one each time it comes, so that rows of its past are not its own.
        self.numbers: dict[str, int] = {}
        self.ids: dict[int, str] = {}
        self.added = 0
        self.requests: dict[int, Request] = {}
        self.said: dict[int, list[int]] = {}
        self.epochs: dict[int, int] = {}  # recorded -> the model's
        self.flight: deque[SchedulerOutput] = deque()
        self.shown: deque[str] = deque(maxlen=ACTIONS_SHOWN)
        self.dispatches = self.rows = self.preemptions = self.stale_rows = 0

    def apply(self, record: TraceRecord) -> None:
        """Take one record. Raises `Broken` with what it contradicts; `shown` has the actions before it."""
        before = self.state
        try:
            told = self._applied(record)
        except actions.Refused as refused:
            empty = refused.rule == "phase" and str(refused).endswith(("due is prefill)", "due is decode)"))
            idle = empty and isinstance(record, ScheduleRecord) and record.output.phase is None
            raise Broken(
                f"{'L2 work-conservation' if idle else BROKEN[refused.rule]}: {refused}"
            ) from refused
        except runner.Mismatch as mismatch:
            raise Broken(str(mismatch)) from mismatch
        if self.state is not before and (why := properties.violated(self.cfg, active(self.state))):
            raise Broken(why)
        self.shown.append(told)
        if len(self.numbers) > KEPT + 2 * len(self.state.requests):
            self._forget()

    def _applied(self, record: TraceRecord) -> str:
        match record:
            case AddRecord(_, request):
                return self._add(request)
            case ScheduleRecord(_, output):
                return self._schedule(output)
            case CompleteRecord(_, step_id, sampled, outputs):
                return self._complete(step_id, sampled, outputs)
            case PreemptRecord(_, request_id):
                name = self._known(request_id)
                self._move(actions.preempt(self.cfg, self.state, name))
                return f"preempt {request_id}"
            case AbortRecord(_, request_id, reason, output):
                return self._abort(request_id, reason, output)

    def _forget(self) -> None:
        """Drop what was kept of requests that have ended and that nothing in flight or owed names."""
        rows = [x for d in self.state.flight for x in d.rows]
        names = {r.name for r in self.state.requests} | {x.name for x in rows}
        names |= self.owed.preempted | self.owed.finished
        epochs = {r.epoch for r in self.state.requests} | {x.epoch for x in rows}
        self.numbers = {request_id: name for request_id, name in self.numbers.items() if name in names}
        self.ids = {name: request_id for name, request_id in self.ids.items() if name in names}
        self.requests = {name: request for name, request in self.requests.items() if name in names}
        self.said = {name: tokens for name, tokens in self.said.items() if name in names}
        self.epochs = {recorded: epoch for recorded, epoch in self.epochs.items() if epoch in epochs}

    def _known(self, request_id: str) -> int:
        name = self.numbers.get(request_id, -1)
        if model.find(self.state, name) is None:
            raise Broken(f"S10 one-terminal-event: {request_id!r} is not there, or has ended")
        return name

    def _move(self, after: model.State) -> None:
        """The state after an action other than schedule(), and the notices that it leaves due."""
        self.owed = self.owed.after(self.state, after)
        self.state = after

    def _add(self, request: Request) -> str:
        name = self.added
        if model.find(self.state, self.numbers.get(request.request_id, -1)):
            raise Broken(f"S10 one-terminal-event: {request.request_id!r} is added, and has not ended")
        params, prompt = request.sampling_params, len(request.prompt_token_ids)
        limit = min(params.max_tokens, self.max_model_len - prompt)
        traffic = Traffic(prompt, limit, request.priority, wanted_drafts(params))
        try:
            self._move(actions.add(self.cfg, self.state, name, *traffic))
        except ValueError as error:
            raise Broken(f"S9 budgets: {error}") from error
        self.added += 1
        self.numbers[request.request_id], self.ids[name] = name, request.request_id
        self.requests[name], self.said[name] = request, []
        return f"add {request.request_id} ({traffic.prompt}+{traffic.limit})"

    def _abort(self, request_id: str, reason: str, output: RequestOutput | None) -> str:
        name = self.numbers.get(request_id, -1)
        if output is not None or model.find(self.state, name) is not None:
            name = self._known(request_id)
            if output != RequestOutput(request_id, (), True, reason):  # type: ignore[arg-type]
                raise Broken(f"S10 one-terminal-event: abort of {request_id!r} told {output}")
            self._move(actions.abort(self.cfg, self.state, name))
        return f"abort {request_id}"

    def _schedule(self, output: SchedulerOutput) -> str:
        phase = int(output.phase or 0)
        plan = attempt(self.cfg, self.state, phase) if phase else None
        granted = {x.name: x for x in plan.rows} if plan else {}
        rows = []
        for i, request_id in enumerate(output.request_ids):
            name = self.numbers.get(request_id, -1)
            epoch = self._epoch(output.epochs[i], granted.get(name), request_id)
            length, samples = output.num_scheduled_tokens[i], output.samples[i]
            at, start = model.find(self.state, name), output.num_computed_tokens[i]
            if at is not None and at.status != model.RUNNING and not drained(self.state, at):
                raise Broken(f"S3 drained-readmission: {request_id!r} has a row, its old ones are in flight")
            if at is not None and name in granted and start != at.computed:
                raise Broken(
                    f"S4 metadata-well-formed: {request_id!r} starts at {start}, computed {at.computed}"
                )
            reserved = length if phase == model.DECODE else int(samples)
            rows.append(model.Row(name, epoch, start, length, reserved, samples))
        preempted = frozenset([self.numbers.get(r, -1) for r in output.preempted_request_ids])
        witness = actions.Witness(phase, tuple(rows), preempted - self.owed.preempted)
        after = actions.schedule(self.cfg, self.state, witness)
        # By id: who has ended may be back under the same one.
        due = [sorted({self.ids[n] for n in part}) for part in self.owed.after(self.state, after)]
        named = [sorted(set(part)) for part in (output.preempted_request_ids, output.finished_request_ids)]
        if named != due:
            raise Broken(f"S10 one-terminal-event: notices {named}, due are {due}")
        self._same_lookahead(rows, output)
        self.state, self.owed = after, Owed()
        self.view = runner.receive(self.view, output)
        self.preemptions += len(witness.victims)
        if phase:
            self.dispatches += 1
            self.rows += len(rows)
            self.flight.append(output)
            self._same_tables(output)
        return described(output)

    def _same_lookahead(self, rows: list[model.Row], output: SchedulerOutput) -> None:
        """The token after a chunk that is not the last is told, and no other."""
        for x, told in zip(rows, output.lookahead_token_ids, strict=True):
            if told != (None if x.samples else self._token(x.name, x.start + x.length)):
                raise Broken(
                    f"S4 metadata-well-formed: {self.ids[x.name]!r} is told that {told} follows its row"
                )

    def _token(self, name: int, at: int) -> int | None:
        """The token at that place of a request, if it is known."""
        prompt = self.requests[name].prompt_token_ids
        if at < len(prompt):
            return prompt[at]
        said = self.said[name]
        return said[at - len(prompt)] if at - len(prompt) < len(said) else None

    def _epoch(self, recorded: int, granted: model.Row | None, request_id: str) -> int:
        """The model's epoch for a recorded one: the numbering may differ, the identity may not."""
        if recorded not in self.epochs and granted is not None:
            if granted.epoch in self.epochs.values():
                raise Broken(f"S2 no-stale-mutation: {request_id!r} goes on in epoch {recorded}, not its own")
            self.epochs[recorded] = granted.epoch
        epoch = self.epochs.get(recorded, -1)
        if granted is not None and epoch != granted.epoch:
            raise Broken(
                f"S2 no-stale-mutation: {request_id!r} has a row of epoch {recorded}, which is not its own"
            )
        return epoch

    def _same_tables(self, output: SchedulerOutput) -> None:
        """Progress and tables that the trace adds up to are the model's."""
        for request_id in output.request_ids:
            r, slot = model.find(self.state, self.numbers[request_id]), self.view.slots[request_id]
            assert r is not None
            columns = tuple(hi for _, hi in r.columns)
            if slot.computed != r.computed or tuple(map(len, slot.tables)) != columns:
                raise Broken(
                    f"S5 block-conservation: {request_id!r} has computed {slot.computed} in tables of "
                    f"{tuple(map(len, slot.tables))}, expected {r.computed} in {columns}"
                )
            owned = [0] * len(self.cfg.pools)
            for group, table in zip(self.cfg.groups, slot.tables, strict=True):
                owned[group.pool] += sum(block != 0 for block in table)
                usable = self.cfg.pools[group.pool]
                absent = [block for block in table if not 0 <= block <= usable]
                if absent:
                    raise Broken(
                        f"S5 block-conservation: {request_id!r} has block {absent[0]} of 1 to {usable}"
                    )
            if tuple(owned) != held(self.cfg, r):
                raise Broken(f"S7 window-history: {request_id!r} holds {owned}, expected {held(self.cfg, r)}")

    def _complete(
        self, step_id: int, sampled: tuple[tuple[int, ...], ...], outputs: tuple[RequestOutput, ...]
    ) -> str:
        if not self.flight or self.flight[0].step_id != step_id:
            oldest = self.flight[0].step_id if self.flight else None
            raise Broken(f"S2 no-stale-mutation: result of step {step_id}, the oldest in flight is {oldest}")
        output, dispatch = self.flight.popleft(), self.state.flight[0]
        if len(sampled) != len(dispatch.rows):
            raise Broken(
                f"S8 token-accounting: {len(sampled)} rows of results, {len(dispatch.rows)} were dispatched"
            )
        results = tuple(self._result(x, tokens) for x, tokens in zip(dispatch.rows, sampled, strict=True))
        before = self.state
        after, told = actions.complete(self.cfg, before, results)
        expected = []
        for news in told:
            row = next(i for i, x in enumerate(dispatch.rows) if x.name == news.name)
            tokens = sampled[row][: news.tokens]
            self.said[news.name] += tokens
            expected.append((output.request_ids[row], tokens, news.finished, news.reason or None))
        given = [(o.request_id, o.new_token_ids, o.finished, o.finish_reason) for o in outputs]
        if given != expected:
            tokens_only = [g[:2] for g in given] != [e[:2] for e in expected]
            name = "S8 token-accounting" if tokens_only else "S10 one-terminal-event"
            raise Broken(f"{name}: told {given}, expected {expected}")
        self._move(after)
        self.view = runner.settle(self.view, [r.tokens for r in results])
        return f"complete {step_id}: " + " ".join(f"{name}+{len(tokens)}" for name, tokens, *_ in given)

    def _result(self, x: model.Row, tokens: tuple[int, ...]) -> actions.Result:
        """The row's result, ended where the request's own stop tokens and limit end it."""
        r = model.find(self.state, x.name)
        if r is None or r.status != model.RUNNING or r.epoch != x.epoch:
            self.stale_rows += 1
            return actions.Result(len(tokens))
        if not min(1, x.reserved) <= len(tokens) <= x.reserved:
            raise Broken(f"S8 token-accounting: {len(tokens)} tokens for a row that reserves {x.reserved}")
        request = self.requests[x.name]
        params = request.sampling_params
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {request.eos_token_id})
        for count, token in enumerate(tokens, start=1):
            if token in stops and r.outputs + count >= params.min_tokens:
                return actions.Result(count, True)
            if r.outputs + count >= r.limit:
                return actions.Result(count)
        return actions.Result(len(tokens))


def active(s: model.State) -> model.State:
    """Without those that have never run: they hold nothing, and there may be thousands."""
    return s._replace(requests=tuple([r for r in s.requests if r.status != model.WAITING]))


def described(output: SchedulerOutput) -> str:
    """A dispatch in one line."""
    if output.phase is None:
        return "schedule: empty"
    rows = " ".join(
        f"{name}[{start}+{length}]"
        for name, start, length in zip(
            output.request_ids, output.num_computed_tokens, output.num_scheduled_tokens, strict=True
        )
    )
    taken = " ".join(("", "preempts", *output.preempted_request_ids)) if output.preempted_request_ids else ""
    return f"schedule: {output.phase.name.lower()} {rows}{taken}"

"""The refinement mapping: which state of the reference model does this Scheduler stand for?

`Adapter` lets the checks of `hocket_spec.check` drive the real scheduler: requests are named by small ints,
tokens
are numbered in the order in which they are sampled, and token 0 is every request's end.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

from hocket import (
    KVCacheConfig,
    KVGroupSpec,
    ModelRunnerOutput,
    Request,
    RequestOutput,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
)
from hocket_spec import actions, runner
from hocket_spec import state as model

MAX_MODEL_LEN = 64
STATUS = {"waiting": model.WAITING, "running": model.RUNNING, "preempted": model.PREEMPTED}


def configs(cfg: model.Config) -> tuple[SchedulerConfig, KVCacheConfig]:
    """The product's configuration that means the same as the model's; group i is named g{i}."""
    users = [sum(g.pool == k for g in cfg.groups) for k in range(len(cfg.pools))]
    groups = []
    for i, g in enumerate(cfg.groups):
        where: dict[str, Any] = (
            {"pool": f"p{g.pool}"} if users[g.pool] > 1 else {"num_blocks": cfg.pools[g.pool]}
        )
        groups.append(KVGroupSpec(f"g{i}", g.block, window=g.window or None, **where))
    shared = {f"p{k}": blocks for k, blocks in enumerate(cfg.pools) if users[k] > 1}
    fraction = cfg.watermark[0] / cfg.pools[0] if cfg.watermark else 0.0
    scheduler = SchedulerConfig(
        max_num_seqs=cfg.seats,
        max_num_batched_tokens=cfg.budget,
        prefill_chunk_size=cfg.chunk,
        max_model_len=MAX_MODEL_LEN,
        async_depth=cfg.depth,
        num_speculative_tokens=cfg.drafts,
        prefill_steps_per_turn=cfg.prefill_steps,
        decode_steps_per_turn=cfg.decode_steps,
        chunk_alignment=cfg.alignment,
        reserve_full_prompt=cfg.reserve,
        watermark=fraction,
    )
    return scheduler, KVCacheConfig(groups=tuple(groups), pools=shared)


def number(request_id: str) -> int:
    """r7 -> 7."""
    return int(request_id[1:])


def wanted_drafts(params: SamplingParams) -> int:
    """In the model's words."""
    own = params.num_speculative_tokens
    return model.AS_CONFIGURED if own is None else own


def abstract(s: Scheduler, pools: int) -> model.State:
    """The model state that the scheduler stands for. Reads records only; decides nothing."""
    live = sorted(s._live.values(), key=lambda r: r.seniority)
    requests = tuple(
        [
            model.Request(
                name=number(r.request.request_id),
                prompt=len(r.request.prompt_token_ids),
                limit=r.limit,
                priority=r.request.priority,
                epoch=r.epoch,
                status=STATUS[str(r.status)],
                replay=r.replay_len if r.status == "running" else r.num_tokens,
                computed=r.progress.computed,
                processed=r.progress.processed,
                outputs=len(r.output_token_ids),
                placeholders=r.progress.placeholders,
                columns=tuple([(t.num_leading_nulls, t.num_columns) for t in r.tables]),
                promise=(tuple(r.promise) if r.status == "running" else ()) or (0,) * pools,
                served=r.served if r.status == "running" else 0,
                overdue=r.overdue,
                drafts=wanted_drafts(r.request.sampling_params),
            )
            for r in live
        ]
    )
    flight = []
    for step in s._ledger._steps:
        rows = tuple(
            [
                model.Row(number(x.live.request_id), x.epoch, x.start, x.length, x.reserved, x.reserved > 0)
                for x in step.rows
            ]
        )
        fenced = tuple([len(pool._fenced.get(step.step_id, ())) for pool in s._cache._pools])
        flight.append(model.Dispatch(int(step.phase), rows, fenced))
    return model.State(int(s._turn.owed), int(s._turn.steps), requests, tuple(flight), s._next_epoch)


class Adapter:
    """The real scheduler behind the protocol of `hocket_spec.check.pair.System`."""

    def __init__(self, cfg: model.Config, scheduler: type[Scheduler] = Scheduler) -> None:
        self.cfg = cfg
        self.scheduler = scheduler(*configs(cfg))
        self.flight: list[SchedulerOutput] = []
        self.token = 0

    def add(self, name: int, prompt: int, limit: int, priority: int, drafts: int) -> None:
        """Prompt tokens are told apart from sampled ones by their size."""
        tokens = tuple(1000 + 100 * name + i for i in range(prompt))
        own = None if drafts == model.AS_CONFIGURED else drafts
        params = SamplingParams(max_tokens=limit, num_speculative_tokens=own)
        self.scheduler.add_request(Request(f"r{name}", tokens, params, priority=priority, eos_token_id=0))

    def schedule(self) -> SchedulerOutput:
        """Also checks what only tokens can show: the lookahead of a chunk is the token that follows it."""
        out = self.scheduler.schedule()
        if out.phase is not None:
            self.flight.append(out)
        for i, request_id in enumerate(out.request_ids):
            tokens, end = (
                self.scheduler.token_ids(request_id),
                out.num_computed_tokens[i] + out.num_scheduled_tokens[i],
            )
            expected = None if out.samples[i] else tokens[end]
            assert out.lookahead_token_ids[i] == expected, (
                f"lookahead of {request_id}: {out.lookahead_token_ids[i]}"
            )
        return out

    def complete(self, results: tuple[actions.Result, ...]) -> tuple[actions.Output, ...]:
        """Tokens that follow an end in the same row must be dropped, so one is offered where the row has
        room.
        """
        out = self.flight.pop(0)
        sampled = []
        for result, length, samples in zip(results, out.num_scheduled_tokens, out.samples, strict=True):
            count = result.tokens + (
                result.stops and samples and result.tokens < length and out.phase == model.DECODE
            )
            tokens = [self.token + 1 + i for i in range(count)]
            self.token += count
            if result.stops:
                tokens[result.tokens - 1] = 0
            sampled.append(tuple(tokens))
        given = ModelRunnerOutput(step_id=out.step_id or 0, sampled_token_ids=tuple(sampled))
        told = self.scheduler.update_from_output(out, given)
        for news in told:
            row = out.request_ids.index(news.request_id)
            assert news.new_token_ids == sampled[row][: len(news.new_token_ids)], f"S8: emitted {news}"
        return tuple(map(self.output, told))

    def output(self, news: RequestOutput) -> actions.Output:
        """In the model's words."""
        return actions.Output(
            number(news.request_id), len(news.new_token_ids), news.finished, news.finish_reason or ""
        )

    def preempt(self, name: int) -> None:
        self.scheduler.preempt_request(f"r{name}")

    def abort(self, name: int) -> actions.Output:
        news = self.scheduler.abort_request(f"r{name}")
        assert news is not None, "S10: abort of a live request gave no terminal output"
        return self.output(news)

    def state(self) -> model.State:
        return abstract(self.scheduler, len(self.cfg.pools))

    def name(self, request_id: str) -> int:
        return number(request_id)

    def unsound(self, view: runner.View) -> str:
        """Every block is exactly one of free, owned, fenced; runner and introspection agree with it."""
        s = self.scheduler
        for k, pool in enumerate(s._cache._pools):
            groups = [i for i, g in enumerate(self.cfg.groups) if g.pool == k]
            owned = [b for r in s._live.values() for i in groups for b in r.tables[i].block_ids]
            ids = sorted([*pool._free, *owned, *[b for bs in pool._fenced.values() for b in bs]])
            if ids != list(range(1, self.cfg.pools[k] + 1)):
                return f"S5 block-conservation: pool {k} has {ids}"
        for name, r in s._live.items():
            seen = s.request_state(name)
            slot = view.slots.get(name)
            tables = tuple(s.block_table(name, g) for g in view.names)
            if seen is None or seen.status != r.status or seen.num_computed_tokens != r.progress.computed:
                return f"request_state({name}) is {seen}"
            owned_ids = tuple(tuple(b for b in t if b) for t in tables)
            if tuple(tuple(seen.block_ids[g]) for g in view.names) != owned_ids:
                return f"block_ids of {name}: {dict(seen.block_ids)}, tables {tables}"
            if r.status == "running" and (slot is None or slot.tables != tables or slot.epoch != r.epoch):
                return f"the runner maps {name} to {slot}, the scheduler to {tables}"
        if s.num_in_flight != len(self.flight) or s.has_unfinished_requests() != bool(s._live):
            return "num_in_flight or has_unfinished_requests is wrong"
        if s.num_running + s.num_waiting != len(s._live):
            return "num_running + num_waiting is not the number of live requests"
        return ""

    def snapshot(self) -> bytes:
        buffer = io.BytesIO()
        pickler = pickle.Pickler(buffer, protocol=5)
        pickler.dispatch_table = SHARED
        pickler.dump(self)
        return buffer.getvalue()

    def restore(self, snapshot: bytes) -> Adapter:
        restored = pickle.loads(snapshot)
        assert isinstance(restored, Adapter)
        return restored


_KEPT: dict[int, object] = {}


def _kept(key: int) -> object:
    return _KEPT[key]


def _by_identity(value: object) -> tuple[Any, tuple[int]]:
    """Immutable records are shared between snapshots instead of copied."""
    _KEPT[id(value)] = value
    return _kept, (id(value),)


SHARED: dict[type, Any] = {
    **copyreg.dispatch_table,
    SchedulerConfig: _by_identity,
    KVCacheConfig: _by_identity,
    KVGroupSpec: _by_identity,
    Request: _by_identity,
    SchedulerOutput: _by_identity,
    model.Config: _by_identity,
}

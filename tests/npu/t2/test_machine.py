"""The real runner on the fake device beside the specification's view of it: Hypothesis drives both.

A step is planned, launched and processed at different times, as in an engine of some depth; its result is
looked at only when it is processed. The view is fed by scheduler outputs alone, and settled by results. What
the runner knows on the host must be the view's, bound by bound: epochs, the least and the most that is
computed, tables. What requests say is what the CPU says.
"""

import functools
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hocket import KVCacheConfig, Phase, Request, SamplingParams, Scheduler, SchedulerConfig
from hocket.engine.engine import run_all
from hocket.model.cache import GroupedCache
from hocket.runner.api import NewRequest
from hocket.runner.device import runtime_for
from hocket.runner.model_runner import ModelRunner
from hocket_spec.runner import View, receive, settle
from hocket_spec.state import Group
from tests.npu.fake_cann.device import fake_device
from tests.npu.t2.world import engine, loaded, on_cpu, prompt

NAMES = ("a", "b", "c", "d")
PROMPTS = tuple(prompt(length, length) for length in (1, 9, 21, 40))
MOST, SEATS = 7, 3
BLOCKS = {
    "swa": 9, "mtp_swa": 9, "c4": 8, "c4_indexer": 8, "c128": 3, "c4_state": 16, "c4_indexer_state": 16,
    "c128_state": 12,
}  # fmt: skip
MET: Counter[str] = Counter()


def sampled(which: int, count: int) -> SamplingParams:
    """Half of the prompts are answered at random, from a seed."""
    return SamplingParams(max_tokens=count, temperature=float(which % 2), seed=which)


@functools.cache
def solo() -> tuple[tuple[int, ...], ...]:
    """What each prompt says on the CPU, by itself, without drafts."""
    with engine(on_cpu(), 1) as built:
        requests = [Request(str(i), tokens, sampled(i, MOST)) for i, tokens in enumerate(PROMPTS)]
        said = [run_all(built, [request])[request.request_id].result for request in requests]
    return tuple(result.token_ids for result in said if result is not None)


class DeviceMachine(RuleBasedStateMachine):
    @initialize(depth=st.integers(1, 3), chunk=st.sampled_from([5, 16]), drafts=st.sampled_from([0, 1, 2]))
    def start(self, depth: int, chunk: int, drafts: int) -> None:
        solo()
        self.config = SchedulerConfig(
            max_num_seqs=SEATS, max_num_batched_tokens=24, prefill_chunk_size=chunk, max_model_len=64,
            async_depth=depth, num_speculative_tokens=drafts,
        )  # fmt: skip
        self.stack = ExitStack()
        self.device = self.stack.enter_context(fake_device(sanitized=False))
        mine = loaded("npu")
        base = mine.kv_cache_config(self.config)
        self.kv = KVCacheConfig(tuple(replace(g, num_blocks=BLOCKS[g.name]) for g in base.groups))
        self.scheduler = Scheduler(self.config, self.kv)
        cache = GroupedCache(mine.config, self.kv, mine.model.dtype, mine.model.device)
        cache.fill_(float("nan"))
        self.runner = ModelRunner(
            mine.model, cache, self.kv, max_num_seqs=SEATS, max_model_len=64, mtp=mine.mtp,
            num_speculative_tokens=drafts, runtime=runtime_for(mine.model.device, depth),
        )  # fmt: skip
        groups = tuple(
            Group(g.block_size, g.window or 0, pool)
            for g, pool in zip(self.kv.groups, self.kv.pool_of_group, strict=True)
        )
        self.view = View(tuple(g.name for g in self.kv.groups), groups)
        self.unsent: dict[str, NewRequest] = {}
        self.wanted: dict[str, int] = {}
        self.said: dict[str, tuple[int, ...]] = {}
        self.planned: deque[Any] = deque()
        self.launched: deque[Any] = deque()

    @precondition(lambda self: len(self.wanted) < len(NAMES))
    @rule(which=st.integers(0, len(PROMPTS) - 1), count=st.integers(1, MOST), priority=st.integers(0, 1))
    def add(self, which: int, count: int, priority: int) -> None:
        """Names are used again as soon as their request has ended, rows of it in flight or not."""
        name = next(name for name in NAMES if name not in self.wanted)
        item = Request(name, PROMPTS[which], sampled(which, count), priority)
        self.scheduler.add_request(item)
        self.unsent[name] = NewRequest(item, which)
        self.wanted[name], self.said[name] = which, ()

    @precondition(lambda self: any(self.flies(name) for name in self.wanted))
    @rule(data=st.data(), preempts=st.booleans())
    def lose(self, data: st.DataObject, preempts: bool) -> None:
        """A request with rows in flight is preempted or aborted."""
        name = data.draw(st.sampled_from([name for name in self.wanted if self.flies(name)]))
        if preempts and name in self.running():
            self.scheduler.preempt_request(name)
            MET["preempted with rows launched"] += 1
            return
        assert self.scheduler.abort_request(name) is not None
        MET["aborted with rows launched"] += 1
        self.unsent.pop(name, None)
        del self.wanted[name]

    @rule(script=st.lists(st.sampled_from("slslp"), min_size=6, max_size=12))
    def go_on(self, script: list[str]) -> None:
        """Some of an engine's life: schedule, launch, process."""
        for action in script:
            if action == "s" and self.scheduler.num_in_flight < self.config.async_depth:
                self.schedule()
            elif action == "l" and self.planned:
                self.launch()
            elif action == "p" and self.launched:
                self.process()
            self.the_runner_is_as_the_view_says()

    def schedule(self) -> None:
        output = self.scheduler.schedule()
        self.view = receive(self.view, output)
        if not output.is_empty or output.has_notices:
            arrivals = [self.unsent.pop(r) for r in output.request_ids if r in self.unsent]
            self.planned.append((output, arrivals))

    def launch(self) -> None:
        output, arrivals = self.planned.popleft()
        with self.device.watched() as syncs:
            step = self.runner.launch(output, arrivals)
        assert syncs == []
        if step is not None:
            self.launched.append((output, step))
            MET["launched beside others"] += len(self.launched) > 1
            MET[f"rows {output.phase.name.lower()}"] += 1
            rows = zip(output.request_ids, output.num_scheduled_tokens, strict=True)
            MET["rows with drafts"] += output.phase == Phase.DECODE and any(n > 1 for _, n in rows)
            spread = self.runner.slots.at_most - self.runner.slots.computed
            MET["launched without knowing where"] += output.phase == Phase.DECODE and bool(spread.any())

    def process(self) -> None:
        output, step = self.launched.popleft()
        result = step.wait()
        step.settle()
        assert not result.failures
        for name, epoch, tokens in zip(
            output.request_ids, output.epochs, result.sampled_token_ids, strict=True
        ):
            state = self.scheduler.request_state(name)
            MET["processed stale"] += state is None or state.epoch != epoch or state.status != "running"
            MET["drafts accepted"] += len(tokens) > 1
        news = self.scheduler.update_from_output(output, result)
        self.view = settle(self.view, [len(tokens) for tokens in result.sampled_token_ids])
        for item in news:
            self.said[item.request_id] += item.new_token_ids
            mine = self.said[item.request_id]
            assert mine == solo()[self.wanted[item.request_id]][: len(mine)]
            if item.finished:
                del self.wanted[item.request_id]
                MET["finished"] += 1

    @invariant()
    def the_runner_is_as_the_view_says(self) -> None:
        if not hasattr(self, "planned") or self.planned:
            return
        slots = self.runner.slots
        assert set(slots.request_ids) == set(self.view.slots)
        for name, mine in self.view.slots.items():
            slot = slots.slot_of(name)
            assert slot is not None
            assert slots.epochs[slot] == mine.epoch
            assert (slots.computed[slot], slots.at_most[slot]) == (mine.certain, mine.computed)
            for group, table in zip(self.kv.groups, mine.tables, strict=True):
                used = int(slots.columns[group.name][slot])
                left = 0 if group.window is None else max(0, mine.computed - group.window) // group.block_size
                assert used == len(table)
                assert slots.tables[group.name][slot][left:used].tolist() == list(table[left:])

    def teardown(self) -> None:
        if not hasattr(self, "planned"):
            return
        try:
            while self.scheduler.has_unfinished_requests() or self.scheduler.num_in_flight:
                if self.scheduler.num_in_flight < self.config.async_depth:
                    self.schedule()
                while self.planned:
                    self.launch()
                if self.launched:
                    self.process()
            self.schedule()
            while self.planned:
                self.launch()
            assert self.runner.slots.request_ids == ()
        finally:
            self.stack.close()

    def running(self) -> Iterator[str]:
        for name in self.wanted:
            state = self.scheduler.request_state(name)
            if state is not None and state.status == "running":
                yield name

    def flies(self, name: str) -> bool:
        return any(name in output.request_ids for output, _ in self.launched)


DeviceMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=14)

GATES = (
    "aborted with rows launched", "drafts accepted", "finished", "launched beside others",
    "launched without knowing where", "preempted with rows launched", "processed stale", "rows decode",
    "rows prefill", "rows with drafts",
)  # fmt: skip


def test_the_runner_on_the_device_beside_the_specification() -> None:
    MET.clear()
    DeviceMachine.TestCase("runTest").runTest()
    print(dict(MET))
    assert [gate for gate in GATES if not MET[gate]] == [], "a run that never met these shows nothing"

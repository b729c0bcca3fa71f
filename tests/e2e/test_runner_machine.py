"""The real runner beside the specification's view of it: Hypothesis drives both with one scheduler.

Dispatches are planned, executed and processed at different times, as in an engine of some depth, so that
requests are preempted, aborted and used again with rows in any of these states. The view is fed by scheduler
outputs alone; whenever all of them have been executed, slots, epochs, progress and tables must be the view's.
Malformed outputs are refused and change no byte. Neither executing nor processing a row touches a byte of a
request that it does not belong to.
"""

from collections import Counter, deque
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hocket import KVCacheConfig, Phase, Request, SamplingParams, Scheduler, SchedulerConfig
from hocket.model.cache import GroupedCache
from hocket.runner.api import NewRequest
from hocket.runner.model_runner import ModelRunner
from hocket_spec.runner import View, receive, settle
from hocket_spec.state import Group
from tests.e2e.drafting import guide, loaded, plain, prompt, request
from tests.e2e.test_acceptance import live_bytes, owned_blocks, whole_runner
from tests.unit.runner.test_steps import DECODE_FAULTS, PREFILL_FAULTS

NAMES = ("a", "b", "c", "d", "e")
PROMPTS = tuple(prompt(length, length) for length in (1, 4, 9, 21, 40, 131))
MOST = 9
SEATS = 3
BLOCKS = {
    "swa": 9,
    "mtp_swa": 9,
    "c4": 10,
    "c4_indexer": 12,
    "c128": 3,
    "c4_state": 16,
    "c4_indexer_state": 16,
    "c128_state": 24,
}
MET: Counter[str] = Counter()


def solo(tokens, count):
    """What a prompt says in isolation."""
    return plain(request("solo", tokens, max_tokens=MOST)).token_ids[:count]


class Texts:
    """What each of a runner's requests says in the end, prompt included."""

    def __init__(self, runner):
        self.runner = runner

    def __getitem__(self, name):
        tokens = self.runner.slots.records[name].new.request.prompt_token_ids
        return tokens + solo(tokens, MOST)


class RunnerMachine(RuleBasedStateMachine):
    @initialize(
        depth=st.integers(1, 3),
        chunk=st.sampled_from([5, 16]),
        reserve=st.booleans(),
        drafts=st.sampled_from([0, 1, 3]),
        right=st.lists(st.booleans(), min_size=1, max_size=5),
    )
    def start(self, depth, chunk, reserve, drafts, right):
        """right: which drafts are right, by position, over and over."""
        model_and_mtp = loaded()
        self.config = SchedulerConfig(
            max_num_seqs=SEATS, max_num_batched_tokens=24, prefill_chunk_size=chunk, max_model_len=144,
            async_depth=depth, reserve_full_prompt=reserve, num_speculative_tokens=drafts,
        )  # fmt: skip
        base = model_and_mtp.kv_cache_config(self.config)
        self.kv = KVCacheConfig(tuple(replace(g, num_blocks=BLOCKS[g.name]) for g in base.groups))
        self.scheduler = Scheduler(self.config, self.kv)
        model = model_and_mtp.model
        cache = GroupedCache(model.config, self.kv, model.dtype)
        cache.fill_(float("nan"))
        self.runner = ModelRunner(
            model, cache, self.kv, max_num_seqs=SEATS, max_model_len=144, mtp=model_and_mtp.mtp,
            num_speculative_tokens=drafts,
        )  # fmt: skip
        if drafts:
            guide(self, Texts(self.runner), lambda _, position: right[position % len(right)])
        groups = tuple(
            Group(g.block_size, g.window or 0, pool)
            for g, pool in zip(self.kv.groups, self.kv.pool_of_group, strict=True)
        )
        self.view = View(tuple(g.name for g in self.kv.groups), groups)
        self.unsent = {}
        self.wanted = {}
        self.said = {}
        self.pushed = set()  # preempted from outside since the last output
        self.offered = 0
        self.planned = deque()
        self.executed = deque()

    # --- What a caller does -----------------------------------------------------------------------

    @precondition(lambda self: len(self.wanted) < len(NAMES))
    @rule(
        which=st.integers(0, 5),
        count=st.integers(1, MOST),
        priority=st.integers(0, 1),
        speculates=st.sampled_from([True, True, True, False]),
    )
    def add(self, which, count, priority, speculates):
        """Names are used again as soon as their request has ended, rows of it in flight or not."""
        name = next(name for name in NAMES if name not in self.wanted)
        own = None if speculates else 0
        params = SamplingParams(max_tokens=count, num_speculative_tokens=own)
        item = Request(name, PROMPTS[which], params, priority)
        self.scheduler.add_request(item)
        self.unsent[name] = NewRequest(item, 0)
        self.wanted[name] = item
        self.said[name] = ()

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def preempt(self, data):
        name = data.draw(st.sampled_from(self.running()))
        self.scheduler.preempt_request(name)
        self.pushed.add(name)
        MET["preempted with rows in flight" if self.flying(name) else "preempted"] += 1

    @precondition(lambda self: len(self.wanted) > 2)
    @rule(data=st.data())
    def abort(self, data):
        name = data.draw(st.sampled_from(sorted(self.wanted)))
        assert self.scheduler.abort_request(name) is not None
        MET["aborted with rows in flight" if self.flying(name) else "aborted"] += 1
        self.unsent.pop(name, None)
        del self.wanted[name]

    # --- What an engine does ----------------------------------------------------------------------

    def schedule(self):
        output = self.scheduler.schedule()
        self.view = receive(self.view, output)
        by_scheduler = set(output.preempted_request_ids) - self.pushed
        assert not by_scheduler & set(output.request_ids)
        MET["preempted by the scheduler"] += len(by_scheduler)
        self.pushed.clear()
        MET["resumed"] += len(output.resumed_request_ids)
        if output.is_empty and not output.has_notices:
            return
        arrivals = [self.unsent.pop(r) for r in output.request_ids if r in self.unsent]
        self.planned.append((output, arrivals))

    def run_oldest(self):
        """Execute the oldest output; live requests without a row in it keep every byte."""
        output, arrivals = self.planned[0]
        rows = dict(zip(output.request_ids, output.epochs, strict=True))
        owned = owned_blocks(self, self.bystanders(rows))
        before = live_bytes(self, owned)
        result = self.runner.execute(output, arrivals)
        assert live_bytes(self, owned) == before
        self.planned.popleft()
        if result is not None:
            assert not result.failures
            self.executed.append((output, result))
            MET[f"rows {output.phase.name.lower()}"] += len(rows)
            MET["packs of several"] += output.phase == Phase.PREFILL and len(rows) > 1
            longer = [n for n in output.num_scheduled_tokens if output.phase == Phase.DECODE and n > 1]
            MET["rows with drafts"] += len(longer)
            accepted = [len(tokens) for tokens in result.sampled_token_ids]
            MET["drafts accepted"] += any(n > 1 for n in accepted)
            MET["drafts rejected"] += sum(longer) > sum(n for n in accepted if n > 1)
            MET["executed stale"] += any(self.is_stale(*row) for row in rows.items())

    def process(self):
        output, result = self.executed.popleft()
        MET["processed stale"] += any(
            self.is_stale(*row) for row in zip(output.request_ids, output.epochs, strict=True)
        )
        here = [name for name in self.wanted if self.has_slot(name)]
        owned = owned_blocks(self, here)
        before = live_bytes(self, owned)
        stale = {
            name: self.scheduler.request_state(name)
            for name, epoch in zip(output.request_ids, output.epochs, strict=True)
            if self.is_stale(name, epoch)
        }
        news = self.scheduler.update_from_output(output, result)
        assert live_bytes(self, owned) == before
        assert {name: self.scheduler.request_state(name) for name in stale} == stale
        self.view = settle(self.view, [len(tokens) for tokens in result.sampled_token_ids])
        for item in news:
            assert item.request_id not in stale
            self.said[item.request_id] += item.new_token_ids
            wanted = self.wanted[item.request_id]
            assert self.said[item.request_id] == solo(
                wanted.prompt_token_ids, len(self.said[item.request_id])
            )
            if item.finished:
                assert len(self.said[item.request_id]) == wanted.sampling_params.max_tokens
                del self.wanted[item.request_id]
                MET["finished"] += 1

    @rule(script=st.lists(st.sampled_from("seepm"), min_size=8, max_size=24))
    def go_on(self, script):
        """Some of an engine's life: schedule, execute, process, and now and then a malformed output."""
        for action in script:
            if action == "s" and self.scheduler.num_in_flight < self.config.async_depth:
                self.schedule()
            elif action == "e" and self.planned:
                self.run_oldest()
            elif action == "p" and self.executed:
                self.process()
            elif action == "m" and self.planned and not self.planned[0][0].is_empty:
                self.offer_malformed()
            self.the_runner_is_as_the_view_says()

    # --- What must hold ---------------------------------------------------------------------------

    @invariant()
    def the_runner_is_as_the_view_says(self):
        if not hasattr(self, "planned") or self.planned:
            return
        slots = self.runner.slots
        assert set(slots.request_ids) == set(self.view.slots)
        assert len({slots.slot_of(name) for name in slots.request_ids}) + slots.num_free == SEATS
        for name, mine in self.view.slots.items():
            slot = slots.slot_of(name)
            assert slots.epochs[slot] == mine.epoch
            # The view knows bounds; they differ while rows with drafts have been executed and not processed.
            assert mine.certain <= slots.computed[slot] <= mine.computed
            assert mine.certain == mine.computed or self.config.num_speculative_tokens
            for group, table in zip(self.kv.groups, mine.tables, strict=True):
                used = int(slots.columns[group.name][slot])
                left = 0 if group.window is None else max(0, mine.computed - group.window) // group.block_size
                assert used == len(table)
                assert slots.tables[group.name][slot][left:used].tolist() == list(table[left:])
                assert not slots.tables[group.name][slot][used:].any()

    def teardown(self):
        if not hasattr(self, "planned"):
            return
        while self.scheduler.has_unfinished_requests() or self.scheduler.num_in_flight:
            if self.scheduler.num_in_flight < self.config.async_depth:
                self.schedule()
            while self.planned:
                self.run_oldest()
            if self.executed:
                self.process()
        self.schedule()
        while self.planned:
            self.run_oldest()
        assert self.runner.slots.request_ids == ()
        assert self.runner.slots.records == {}

    # --- Helpers ----------------------------------------------------------------------------------

    def offer_malformed(self):
        """Each fault in its turn; one that does not show in this output is passed over."""
        output, arrivals = self.planned[0]
        faults = PREFILL_FAULTS if output.phase == Phase.PREFILL else DECODE_FAULTS
        self.offered += 1
        fault = sorted(faults)[self.offered % len(faults)]
        if fault == "start" and self.config.num_speculative_tokens and output.phase == Phase.DECODE:
            return  # with drafts a row's start is an upper bound: one less may be as good
        if fault == "just finished" and output.request_ids[0] in {new.request.request_id for new in arrivals}:
            return  # no fault: an ended request's name, used again by the one that arrives here
        kind, spoil = faults[fault]
        spoilt = spoil(output)
        if repr(spoilt) == repr(output):
            return
        before = whole_runner(self.runner)
        with pytest.raises(kind):
            self.runner.execute(spoilt, arrivals)
        assert whole_runner(self.runner) == before
        MET["refused"] += 1

    def running(self):
        return [n for n in self.wanted if self.scheduler.request_state(n).status == "running"]

    def has_slot(self, name):
        """Whether scheduler and runner mean the same incarnation of a request that runs."""
        state, slot = self.scheduler.request_state(name), self.runner.slots.slot_of(name)
        return (
            state is not None and state.status == "running" and slot is not None
            and self.runner.slots.epochs[slot] == state.epoch
        )  # fmt: skip

    def bystanders(self, rows):
        """Requests whose current incarnation has no row in the dispatch."""
        return [
            n
            for n in self.wanted
            if self.has_slot(n) and rows.get(n) != self.scheduler.request_state(n).epoch
        ]

    def is_stale(self, name, epoch):
        state = self.scheduler.request_state(name)
        return state is None or state.status != "running" or state.epoch != epoch

    def flying(self, name):
        return any(name in output.request_ids for output, _ in [*self.planned, *self.executed])


RunnerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)


def test_the_runner_beside_the_specification():
    MET.clear()
    RunnerMachine.TestCase("runTest").runTest()
    print(dict(MET))
    gates = [
        "aborted with rows in flight",
        "drafts accepted",
        "drafts rejected",
        "executed stale",
        "finished",
        "packs of several",
        "preempted by the scheduler",
        "preempted with rows in flight",
        "processed stale",
        "refused",
        "resumed",
        "rows decode",
        "rows prefill",
        "rows with drafts",
    ]
    assert [gate for gate in gates if not MET[gate]] == [], "a run that never met these shows nothing"

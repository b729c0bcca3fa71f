"""Hypothesis drives the real scheduler and the reference model side by side, beyond the small scope.

Random groups, pools, chunks, arrivals, aborts, external preemptions, ends, acceptance and completion delays;
memory is tight by construction. At the end of each run arrivals stop, and everybody must finish.
"""

from collections import Counter

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from hocket_proofs.refinement import Adapter
from hocket_spec import actions, properties, runner
from hocket_spec.blocks import capacity
from hocket_spec.check import gates, progress
from hocket_spec.check.instances import Traffic
from hocket_spec.check.pair import Action, Pair, step
from hocket_spec.state import AS_CONFIGURED, DECODE, PREFILL, RUNNING, Config, Group, find, initial

MOST = Traffic(9, 6)  # the largest request that arrives
REQUESTS = 6  # unfinished at once
CALLS_TO_FINISH = 600
RUNS = 400
MET: Counter[str] = Counter()


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Sizes that fit each other; every pool holds the largest request and up to 3 blocks more."""
    groups = [
        Group(draw(st.integers(1, 5)), draw(st.sampled_from((0, 0, 1, 4, 7))), draw(st.integers(0, 1)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    used = list(dict.fromkeys(g.pool for g in groups))  # pools are numbered as groups first use them
    groups = [g._replace(pool=used.index(g.pool)) for g in groups]
    drafts, alignment = draw(st.sampled_from((0, 0, 1, 3))), draw(st.sampled_from((1, 1, 2, 3)))
    chunk = draw(st.integers(1, 3)) * alignment
    cfg = Config(
        tuple(groups),
        (0,) * len(used),
        chunk,
        max(draw(st.sampled_from((3, 5, 8, 99))), alignment, 1 + drafts),
        draw(st.sampled_from((4, 2, 1, 6))),
        draw(st.sampled_from((2, 3, 1, 4))),
        drafts,
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        alignment,
        draw(st.booleans()),
    )
    needs = capacity(cfg, MOST.prompt + MOST.limit - 1)
    return cfg._replace(pools=tuple(n + draw(st.integers(0, 3)) for n in needs))


class SideBySide(RuleBasedStateMachine):
    """Every rule is one action on both sides; a rule that does not apply does nothing."""

    pair: Pair
    cfg: Config

    @initialize(cfg=configs())
    def start(self, cfg: Config) -> None:
        self.cfg = cfg
        names = tuple(f"g{i}" for i in range(len(cfg.groups)))
        self.pair = Pair(Adapter(cfg), initial(), runner.View(names, cfg.groups))
        self.passed = {PREFILL: 0, DECODE: 0}
        self.head = (-1, 0)
        self.met: set[str] = set()
        self.preempted = 0

    def act(self, action: Action) -> None:
        self.pair = step(self.cfg, self.pair, action, self.met)

    @rule(
        prompt=st.integers(1, MOST.prompt),
        limit=st.integers(1, MOST.limit),
        priority=st.integers(0, 1),
        drafts=st.sampled_from((AS_CONFIGURED, AS_CONFIGURED, 0, 1)),
    )
    def add(self, prompt: int, limit: int, priority: int, drafts: int) -> None:
        if len(self.pair.state.requests) < REQUESTS:
            name = next(n for n in range(REQUESTS) if find(self.pair.state, n) is None)
            self.act(Action("add", name, Traffic(prompt, limit, priority, drafts)))

    @rule()
    def schedule(self) -> None:
        """Also L1 and L4 as they show on one path."""
        s, flight = self.pair.state, self.pair.state.flight
        self.met |= gates.of_state(self.cfg, s)
        waiting = next((r for r in s.requests if r.status != RUNNING), None)
        fits = waiting is not None and progress.head_fits(self.cfg, s, waiting)
        able = {p: actions.serviceable(self.cfg, s, p) for p in (PREFILL, DECODE)}
        self.act(Action("schedule"))
        if len(self.pair.state.flight) == len(flight):
            return
        ran = self.pair.state.flight[-1].phase
        steps = {PREFILL: self.cfg.prefill_steps, DECODE: self.cfg.decode_steps}
        for phase in (PREFILL, DECODE):
            self.passed[phase] = 0 if phase == ran else self.passed[phase] + able[phase]
            assert self.passed[phase] <= steps[PREFILL + DECODE - phase], "L1 bounded-wait"
        self.wait_of_head(waiting.name if waiting and fits else -1)
        now = {r.name: r.status for r in self.pair.state.requests}
        self.preempted += sum(r.status == RUNNING != now[r.name] for r in s.requests)

    def wait_of_head(self, name: int) -> None:
        """Consecutive calls at which the same head fitted and was not admitted."""
        after = find(self.pair.state, name)
        if after is None or after.status == RUNNING:
            self.head = (-1, 0)
            return
        self.head = (name, self.head[1] + 1 if self.head[0] == name else 1)
        p, d = self.cfg.prefill_steps, self.cfg.decode_steps
        assert self.head[1] <= (2 * d + 1 if p == 1 else d + 1), "L4 admission"

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        if self.pair.state.flight:
            answer = []
            for x in self.pair.state.flight[0].rows:
                count = data.draw(st.integers(1, max(1, x.reserved))) if x.samples else 0
                answer.append(actions.Result(count, x.samples and data.draw(st.integers(0, 7)) == 0))
            self.act(Action("complete", results=tuple(answer)))

    @rule(data=st.data(), calls=st.integers(1, 4))
    def advance(self, data: st.DataObject, calls: int) -> None:
        """Fill the pipeline, then take a result: keeps runs going in which other rules are switched off."""
        for _ in range(calls):
            self.schedule()
        self.complete(data)

    @rule(k=st.integers(0, 18))
    def abort(self, k: int) -> None:
        """Juniors mostly: their seniors want the blocks."""
        if k < len(self.pair.state.requests):
            self.act(Action("abort", self.pair.state.requests[-1 - k].name))

    @rule(k=st.integers(0, 9))
    def preempt(self, k: int) -> None:
        if k < len(self.pair.state.requests):
            self.act(Action("preempt", self.pair.state.requests[-1 - k].name))

    @rule()
    def nothing(self) -> None:
        """Always possible, so that no run ends for lack of a rule."""

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "pair"):
            assert properties.violated(self.cfg, self.pair.key) == ""
            assert self.pair.system.unsound(self.pair.view) == ""

    def teardown(self) -> None:
        if not hasattr(self, "pair"):
            return
        for _ in range(CALLS_TO_FINISH):
            if not self.pair.state.requests:
                break
            before = self.pair.state
            self.schedule()
            if self.pair.state == before:
                rows = before.flight[0].rows
                self.act(Action("complete", results=tuple(actions.Result(int(x.samples)) for x in rows)))
            self.sound()
        assert not self.pair.state.requests, "L5 completion"
        MET.update(self.met)
        event(f"preemptions: {min(self.preempted, 3)}")


def test_scheduler_and_model_side_by_side() -> None:
    MET.clear()
    profile = settings.default
    assert profile is not None
    runs = max(RUNS, profile.max_examples)
    run_state_machine_as_test(SideBySide, settings=settings(max_examples=runs, stateful_step_count=60))
    print(f"runs that met a situation: {dict(MET.most_common())}")
    assert set(gates.GATES) - set(MET) == set()
    assert MET["drained victim"] >= 20
    assert MET["stale result"] >= 20

"""A check that cannot fail shows nothing: seeded faults that lock-step and model must find."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hocket.kv.cache import GroupedKVCache
from hocket.sched import kernel, planner
from hocket.sched.live import LiveRequest
from hocket.sched.notices import Notices
from hocket.sched.preemption import Account
from hocket_proofs.refinement import Adapter
from hocket_spec import actions, dispatch, properties, rules, walk
from hocket_spec.check import liveness, lockstep
from hocket_spec.check.choices import witnesses
from hocket_spec.check.explore import Graph, explore
from hocket_spec.check.instances import Instance, Traffic
from hocket_spec.state import DECODE, PREFILL, RUNNING, Config, Group, Request, Row, State


@pytest.fixture(autouse=True)
def clean_caches() -> Iterator[None]:
    """The model's memories outlive a patch, and must not."""
    walk.attempt.cache_clear()
    rules.hold.cache_clear()
    yield
    walk.attempt.cache_clear()
    rules.hold.cache_clear()


# --- The implementation, in lock-step with the model ----------------------------------------------

Wrap = Callable[[Any], Callable[..., Any]]
FAULTS: dict[str, tuple[Any, str, Wrap]] = {
    "re-admits before the old rows are drained": (
        kernel, "may_admit", lambda real: lambda rows, running, seats: real(0, running, seats)),
    "takes a seat too many": (
        kernel, "may_admit", lambda real: lambda rows, running, seats: real(rows, running, seats + 1)),
    "applies results of an ended epoch": (
        kernel, "is_current", lambda real: lambda row, request, running: row == request),
    "a fallback uses up the turn": (
        kernel, "turn_after", lambda real: lambda turn, ran, p, d: real(turn, turn.owed, p, d)),
    "no fallback in the same call": (
        kernel, "choose_phase", lambda real: lambda owed, one, two: real(owed, one, False)),
    "freed blocks are handed out at once": (
        GroupedKVCache, "release", lambda real: lambda self, tables, step: real(
            self, tables, lambda g, c: None)),
    "fences forget that drafts are rejected": (
        kernel, "write_start", lambda real: lambda phase, start, prompt, outputs: start),
    "victims are not held back": (
        planner, "held_back", lambda real: lambda standing: frozenset()),
    "nothing is set aside for seniors": (
        Account, "set_aside", lambda real: lambda self, seniors: real(self, 0)),
    "superfluous victims": (
        kernel, "designate", lambda real: lambda need, within, gains: tuple(range(len(gains)))
        if real(need, within, gains) else ()),
    "a windowed block returns too early": (
        kernel, "outdated_columns", lambda real: lambda done, window, block, columns: real(
            done + 1, window, block, columns)),
    "windows keep their blocks": (
        kernel, "outdated_columns", lambda real: lambda done, window, block, columns: real(
            0, window, block, columns)),
    "rejected drafts stay computed": (
        kernel, "progress_decode_processed", lambda real: lambda progress, length, accepted: real(
            progress, length, accepted)._replace(computed=progress.computed)),
    "placeholders of rejected drafts stay": (
        kernel, "progress_decode_processed", lambda real: lambda progress, length, accepted: real(
            progress, length, accepted)._replace(placeholders=progress.placeholders - accepted)),
    "replay forgets what was emitted": (
        LiveRequest, "num_tokens", lambda real: property(  # type: ignore[dict-item, return-value]
            lambda self: len(self.request.prompt_token_ids))),
    "never carries drafts": (kernel, "decode_len", lambda real: lambda allowed, drafts: 1),
    "a request's own limit of drafts is ignored": (
        kernel, "row_drafts", lambda real: lambda drafts, wanted: drafts),
    "drafts past the limit": (kernel, "decode_len", lambda real: lambda allowed, drafts: 1 + drafts),
    "chunks ignore the alignment": (
        kernel, "chunk_len", lambda real: lambda at, end, size, left, alignment: real(
            at, end, size, left, 1)),
    "goes on after a stop": (
        kernel, "end_after_token", lambda real: lambda outputs, limit, least, ends: real(
            outputs, limit, least, False)),
    "ends one token early": (
        kernel, "end_after_token", lambda real: lambda outputs, limit, least, ends: real(
            outputs, limit - (limit > 1), least, ends)),
    "watermark while nothing runs": (
        kernel, "admission_ask", lambda real: lambda promise, row, mark, runs: real(
            promise, row, mark, True)),
    "capacity forgets the window": (
        kernel, "capacity_need", lambda real: lambda groups, total, reach, period: real(
            tuple(g._replace(window=0) for g in groups), total, reach, period)),
    "notices are delivered twice": (
        Notices, "take", lambda real: lambda self: (tuple(self._preempted), tuple(self._finished))),
}  # fmt: skip


PLAIN = Instance(
    Config((Group(2),), (4,), reserve=False),
    (Traffic(4, 2), Traffic(4, 2), Traffic(2, 2)),
    aborts=True,
    preempts=1,
)
TWO = (Traffic(4, 2), Traffic(4, 2))
DRAFTING = Instance(Config((Group(1),), (8,), drafts=2), (Traffic(2, 4), Traffic(1, 4)), aborts=True)
WINDOWED = Instance(Config((Group(2), Group(1, 1, 1)), (3, 4)), TWO)
HOLDING = Instance(Config((Group(2),), (3,), chunk=3, reserve=False), (Traffic(2, 3), Traffic(3, 2)))
# Where a fault shows soonest; everywhere else on PLAIN.
WHERE = {
    "takes a seat too many": PLAIN._replace(config=PLAIN.config._replace(seats=1)),
    "fences forget that drafts are rejected": DRAFTING,
    "victims are not held back": HOLDING,
    "a windowed block returns too early": WINDOWED,
    "windows keep their blocks": WINDOWED,
    "capacity forgets the window": WINDOWED,
    "rejected drafts stay computed": DRAFTING,
    "placeholders of rejected drafts stay": DRAFTING,
    "never carries drafts": DRAFTING,
    "drafts past the limit": DRAFTING,
    "a request's own limit of drafts is ignored": DRAFTING._replace(
        traffic=(Traffic(2, 4, drafts=1), Traffic(1, 4, drafts=0))
    ),
    "chunks ignore the alignment": Instance(Config((Group(2),), (4,), budget=3, alignment=2), TWO),
    "watermark while nothing runs": Instance(Config((Group(2),), (3,), watermark=(1,)), TWO),
}
TRANSITIONS = 5_000


def lock_step(instance: Instance) -> str:
    names = tuple(f"g{i}" for i in range(len(instance.config.groups)))
    return lockstep.walk(instance, Adapter(instance.config), names, TRANSITIONS).difference


@pytest.mark.parametrize("fault", FAULTS)
def test_lock_step_finds(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrap = FAULTS[fault]
    monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))
    found = lock_step(WHERE.get(fault, PLAIN))
    print(f"{fault}: {found}")
    assert found


def test_lock_step_finds_nothing_without_a_fault() -> None:
    for instance in {PLAIN, *WHERE.values()}:
        assert lock_step(instance) == ""


# --- The policy, in the model's own exploration ---------------------------------------------------


def graph_of(instance: Instance) -> Graph:
    walk.attempt.cache_clear()  # what an unpatched model said
    rules.hold.cache_clear()
    return explore(instance._replace(watch=True, aborts=False, preempts=0), 20_000)


def flip(cfg: Config, s: State, phase: int) -> tuple[int, int]:
    return PREFILL + DECODE - phase, 0


def prefill_first(cfg: Config, s: State) -> int:
    return next((p for p in (PREFILL, DECODE) if dispatch.serviceable(cfg, s, p)), 0)


def test_explorer_finds_prefill_that_always_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert liveness.l1_passed_over(graph_of(PLAIN), DECODE) <= 1
    monkeypatch.setattr(dispatch, "due", prefill_first)
    monkeypatch.setattr(actions, "due", prefill_first)
    assert liveness.l1_passed_over(graph_of(PLAIN), DECODE) > 1


def test_explorer_finds_a_system_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two half-read prompts, nobody may preempt: nothing in flight, and nothing can be dispatched."""
    long = Instance(Config((Group(2),), (3,), reserve=False), (Traffic(6, 1), Traffic(6, 1)))
    assert graph_of(long).bad == ""
    nobody = rules.Claim(False, ())
    monkeypatch.setattr(walk, "designate", lambda *given: nobody)
    monkeypatch.setattr(rules, "designate", lambda *given: nobody)
    assert "L2 work-conservation: stuck" in graph_of(long).bad


def test_explorer_finds_a_request_that_never_gets_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without seniority, arrivals without end keep overtaking the watched request."""
    crowd = Instance(
        Config((Group(2),), (4,), depth=1, seats=1), (Traffic(2, 1), Traffic(2, 1), Traffic(2, 1))
    )
    assert liveness.l5_fair_cycle(graph_of(crowd)) == []

    def jump(cfg: Config, s: State, *traffic: int) -> State:
        after = add(cfg, s, *traffic)
        return after._replace(requests=(after.requests[-1], *after.requests[:-1]))

    add = actions.add
    monkeypatch.setattr(actions, "add", jump)
    graph = graph_of(crowd)
    assert liveness.l5_fair_cycle(graph) != []
    assert liveness.end_to_end(graph) == float("inf")


def test_explorer_finds_unnecessary_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rules.designate

    def everybody(cfg: Config, s: State, r: Request, *rest: Any) -> rules.Claim:
        claim = real(cfg, s, r, *rest)
        juniors = s.requests[[x.name for x in s.requests].index(r.name) + 1 :]
        others = tuple(x for x in juniors if x.status == RUNNING and x.name not in rest[-1])
        return rules.Claim(False, others) if claim.victims else claim

    monkeypatch.setattr(walk, "designate", everybody)
    monkeypatch.setattr(rules, "designate", everybody)
    crowd = PLAIN._replace(config=PLAIN.config._replace(pools=(5,)), traffic=(*TWO, Traffic(2, 3)))
    assert "L6 minimal-preemption" in graph_of(crowd).bad


def test_explorer_finds_a_preemption_because_a_promise_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = (Traffic(4, 2), Traffic(2, 2), Traffic(1, 3))
    promises = Instance(Config((Group(2),), (5,), decode_steps=3, depth=1), traffic)
    assert graph_of(promises).bad == ""
    monkeypatch.setattr(rules, "set_aside", rules.next_need)
    assert "L6 minimal-preemption" in graph_of(promises).bad


def test_explorer_finds_a_pool_overdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "fits", lambda ask, have: True)
    assert "S5 block-conservation" in graph_of(PLAIN).bad


# --- Every rule and every property, by mutation ---------------------------------------------------


def states(*instances: Instance) -> Iterator[tuple[Config, State]]:
    for instance in instances:
        for node in explore(instance, 700).nodes:
            yield instance.config, node.state


def wrong_witnesses(cfg: Config, s: State) -> Iterator[actions.Witness]:
    """Dispatches near the allowed one; some of them may be allowed too."""
    right = witnesses(cfg, s)[0]
    for phase in (0, PREFILL, DECODE):
        yield right._replace(phase=phase)
    for i, row in enumerate(right.rows):
        yield right._replace(rows=right.rows[:i] + right.rows[i + 1 :])
        yield right._replace(rows=(*right.rows, row))
        yield right._replace(
            rows=tuple(x._replace(length=x.length + 1) if x is row else x for x in right.rows)
        )
    plan = walk.attempt(cfg, s, right.phase) if right.phase else None
    for r in s.requests:
        yield right._replace(victims=right.victims | {r.name})
        yield right._replace(rows=(*right.rows, Row(r.name, r.epoch, r.computed, 1, 1, True)))
    if plan and right.phase == DECODE:
        longest = [x._replace(length=plan.full[x.name], reserved=plan.full[x.name]) for x in plan.rows]
        yield right._replace(rows=tuple(longest))


ODD = (
    PLAIN,
    DRAFTING._replace(config=DRAFTING.config._replace(pools=(5,))),
    HOLDING,
    PLAIN._replace(config=PLAIN.config._replace(seats=1)),
    Instance(Config((Group(2),), (4,), budget=3, alignment=2), TWO),
    Instance(Config((Group(2),), (6,), budget=1, chunk=1), (Traffic(1, 3), Traffic(1, 3))),
)


def test_every_rule_refuses_something() -> None:
    broken = set()
    for cfg, s in states(*ODD):
        for witness in wrong_witnesses(cfg, s):
            try:
                actions.schedule(cfg, s, witness)
            except actions.Refused as refused:
                broken.add(refused.rule)
    assert broken == set(actions.RULES)


def wrong_states(s: State) -> Iterator[State]:
    """States near a reachable one."""
    for i, r in enumerate(s.requests):
        lo, hi = r.columns[0]
        for odd in (
            r._replace(computed=r.computed + 1),
            r._replace(processed=r.processed + 1),
            r._replace(placeholders=r.placeholders + 1),
            r._replace(outputs=r.limit),
            r._replace(replay=r.replay + 1),
            r._replace(replay=0),
            r._replace(columns=((lo + 1, hi + 1), *r.columns[1:])),
            r._replace(columns=((lo, hi - 1), *r.columns[1:])),
            r._replace(columns=((lo, hi + 9), *r.columns[1:])),
            r._replace(epoch=r.epoch + 9),
        ):
            yield s._replace(requests=(*s.requests[:i], odd, *s.requests[i + 1 :]))
    for i, d in enumerate(s.flight):
        for row in d.rows:
            for x in (row._replace(start=row.start + 1), row._replace(length=row.length + 9)):
                rows = tuple(x if y is row else y for y in d.rows)
                yield s._replace(flight=(*s.flight[:i], d._replace(rows=rows), *s.flight[i + 1 :]))
        yield s._replace(flight=(*s.flight[:i], d._replace(phase=DECODE), *s.flight[i + 1 :]))
    yield s._replace(flight=s.flight * 9)


def test_every_state_property_is_violated_by_something(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for cfg, s in states(PLAIN, DRAFTING, WINDOWED._replace(aborts=True)):
        for odd in wrong_states(s):
            found |= {
                p.__name__
                for p in properties.STATE_PROPERTIES
                if p is not properties.l2_not_stuck and p(cfg, odd)
            }
    expected = {p.__name__ for p in properties.STATE_PROPERTIES}
    assert found == expected - {properties.l2_not_stuck.__name__}  # l2: see the stuck system above


def test_properties_of_transitions_are_violated_by_something() -> None:
    cfg = PLAIN.config
    s = actions.add(cfg, actions.add(cfg, State(DECODE, 0, (), (), 0), 0, 2, 2), 1, 2, 2)
    s = actions.schedule(cfg, s, witnesses(cfg, s)[0])
    away = actions.preempt(cfg, s, 0)
    after, told = actions.complete(cfg, away, (actions.Result(1), actions.Result(1)))
    assert properties.s2_no_stale_mutation(away, after) == ""
    assert properties.s10_one_terminal(away, after, told) == ""
    stale = after._replace(requests=(after.requests[0]._replace(outputs=1), *after.requests[1:]))
    assert "S2" in properties.s2_no_stale_mutation(away, stale)
    assert "S10" in properties.s10_one_terminal(away, after, (actions.Output(1, 1, True, "stop"),))
    fewer = after._replace(requests=(after.requests[0]._replace(outputs=-1), *after.requests[1:]))
    assert "S8" in properties.s10_one_terminal(away, fewer, told)

"""A check that cannot fail shows nothing: each rule refuses something, each property can be violated.

Seeded faults of scheduler, validator, runner and policy are in `hocket_proofs.refuted`.
"""

from collections.abc import Iterator

import pytest

from hocket_proofs import packs, refute
from hocket_proofs.refuted.fault import DRAFTING, HOLDING, PLAIN, TWO, WINDOWED
from hocket_spec import actions, blocks, packed, properties, rules, walk
from hocket_spec.check.choices import witnesses
from hocket_spec.check.explore import explore
from hocket_spec.check.instances import Instance, Traffic
from hocket_spec.state import DECODE, PREFILL, Config, Group, Row, State

STATES = 120  # of an instance


def states(*instances: Instance, count: int = STATES) -> Iterator[tuple[Config, State]]:
    for instance in instances:
        for node in explore(instance, count).nodes:
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


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    """What the model remembers of another version of itself would hide a difference."""
    memories = (blocks.capacity, rules.hold, walk.attempt)
    for memory in memories:
        memory.cache_clear()
    yield
    for memory in memories:
        memory.cache_clear()


def unordered(w: actions.Witness) -> tuple[object, ...]:
    """The order of rows within a dispatch is the scheduler's own business."""
    return w.phase, sorted(w.rows), w.victims


def test_every_rule_refuses_something_and_nothing_else_is_allowed() -> None:
    broken = set()
    for cfg, s in states(*ODD):
        allowed = [unordered(w) for w in witnesses(cfg, s)]
        for witness in wrong_witnesses(cfg, s):
            rule = ""
            try:
                actions.schedule(cfg, s, witness)
            except actions.Refused as refused:
                rule = refused.rule
            assert (rule == "") == (unordered(witness) in allowed), (cfg, s, witness, rule)
            broken.add(rule)
    assert broken == {"", *actions.RULES}


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


def test_every_state_property_is_violated_by_something() -> None:
    found = set()
    for cfg, s in states(PLAIN, DRAFTING, WINDOWED._replace(aborts=True)):
        for odd in wrong_states(s):
            found |= {
                p.__name__
                for p in properties.STATE_PROPERTIES
                if p is not properties.l2_not_stuck and p(cfg, odd)
            }
    expected = {p.__name__ for p in properties.STATE_PROPERTIES}
    assert found == expected - {
        properties.l2_not_stuck.__name__
    }  # l2: a stuck system is one of the refuted policies


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


@pytest.mark.parametrize(
    "clause",
    [
        "_cardinality",
        "_groups",
        "_request",
        "_extents",
        "_vocabulary",
        "_table",
        "_rank",
        "_entries",
        "_integer",
    ],
)
def test_removing_a_clause_of_packs_is_seen(clause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later clauses take earlier ones for granted: without one they may say something else, or stumble."""
    monkeypatch.setattr(packed, clause, lambda *given: iter(()))
    try:
        difference = packs.first_difference()[1]
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        difference = repr(error)
    assert difference


@pytest.mark.parametrize("check", ["s2_no_stale_mutation", "s10_one_terminal"])
def test_lock_step_uses_the_properties_of_transitions(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties, check, lambda *given: "S0: always")
    assert "S0: always" in refute.lock_step(PLAIN, 300).difference
    assert "S0: always" in explore(PLAIN, 300).bad

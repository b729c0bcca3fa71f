"""An implementation and the model side by side: one action on both, and what they must agree on after it.

The output of the implementation is the witness of schedule(); what it then stands for must be the model's
next state, and the runner's view of its outputs must stay sound block by block.
"""

from typing import NamedTuple, Protocol, Self

from hocket_spec import actions, properties, runner
from hocket_spec.check import gates
from hocket_spec.check.choices import canonical, witnesses
from hocket_spec.check.instances import Traffic
from hocket_spec.state import PREEMPTED, RUNNING, Config, Request, State, initial
from hocket_spec.told import Told


class System(Protocol):
    """The adapter around an implementation. Requests are named by small ints."""

    def add(self, name: int, prompt: int, limit: int, priority: int, drafts: int) -> None: ...
    def schedule(self) -> Told: ...
    def complete(self, results: tuple[actions.Result, ...]) -> tuple[actions.Output, ...]: ...
    def preempt(self, name: int) -> None: ...
    def abort(self, name: int) -> actions.Output: ...
    def state(self) -> State: ...  # the refinement mapping
    def name(self, request_id: str) -> int: ...
    def unsound(self, view: runner.View) -> str: ...  # what is wrong with block identities; '' if nothing
    def snapshot(self) -> bytes: ...
    def restore(self, snapshot: bytes) -> Self: ...


class Action(NamedTuple):
    """One thing that may happen: kind, request, the traffic that arrives or the results that come back."""

    kind: str
    subject: int = -1
    traffic: Traffic = Traffic(0, 0)
    results: tuple[actions.Result, ...] = ()

    def __str__(self) -> str:
        given = [f"{r.tokens}{'.' if r.stops else ''}" for r in self.results]
        told = {
            "add": f"{self.subject} ({self.traffic.prompt}+{self.traffic.limit})",
            "complete": " ".join(given),
        }
        return f"{self.kind} {told.get(self.kind, self.subject if self.subject >= 0 else '')}".rstrip()


class Owed(NamedTuple):
    """Notices that the next output must carry."""

    preempted: frozenset[int] = frozenset()
    finished: frozenset[int] = frozenset()

    def after(self, before: State, after: State) -> "Owed":
        """Who ended is named as finished only; who was preempted, as preempted."""
        now = {r.name: r.status for r in after.requests}
        gone = {r.name for r in before.requests if r.name not in now}
        taken = {r.name for r in before.requests if r.status == RUNNING and now.get(r.name) == PREEMPTED}
        return Owed((self.preempted | taken) - gone, self.finished | gone)


class Difference(Exception):
    """The implementation is not where the model is, or its outputs contradict each other."""


class Pair(NamedTuple):
    """Both sides, between two actions."""

    system: System
    state: State
    view: runner.View
    owed: Owed = Owed()
    key: State = initial()  # canonical form of state


def step(cfg: Config, p: Pair, a: Action, met: set[str]) -> Pair:
    """Take the action on both sides and compare; raises Difference."""
    witness = actions.EMPTY
    try:
        if a.kind == "schedule":
            return scheduled(cfg, p, met)
        view = p.view
        if a.kind == "add":
            p.system.add(a.subject, *a.traffic)
            after = actions.add(cfg, p.state, a.subject, *a.traffic)
        elif a.kind == "complete":
            told = p.system.complete(a.results)
            after, expected = actions.complete(cfg, p.state, a.results)
            why = properties.s2_no_stale_mutation(p.state, after) or properties.s10_one_terminal(
                p.state, after, told
            )
            if why or sorted(told) != sorted(expected):
                raise Difference(f"{why} told {told}, expected {expected}")
            view = runner.settle(view, [r.tokens for r in a.results])
        elif a.kind == "preempt":
            p.system.preempt(a.subject)
            after = actions.preempt(cfg, p.state, a.subject)
        else:
            end = p.system.abort(a.subject)
            after = actions.abort(cfg, p.state, a.subject)
            if end != actions.Output(a.subject, 0, True, "abort"):
                raise Difference(f"S10 one-terminal-event: abort told {end}")
        met |= gates.of_edge(p.state, a.kind, a.subject, witness, after)
    except (runner.Mismatch, AssertionError, ValueError, RuntimeError, LookupError) as error:
        raise Difference(f"{type(error).__name__}: {error}") from error
    return same(p, after, view, p.owed.after(p.state, after))


def scheduled(cfg: Config, p: Pair, met: set[str]) -> Pair:
    """One schedule() call: the output is the witness, and the runner obeys it."""
    out = p.system.schedule()
    got = p.system.state()
    owed = p.owed.after(p.state, got)
    rows = got.flight[-1].rows if out.phase is not None and got.flight else ()
    victims = owed.preempted - p.owed.preempted
    w = actions.Witness(int(out.phase or 0), rows, victims)
    if tuple(map(p.system.name, out.request_ids)) != tuple(x.name for x in rows):
        raise Difference(f"rows in flight are {rows}, output says {out.request_ids}")
    try:
        after = actions.schedule(cfg, p.state, w)
    except actions.Refused as refusal:
        raise Difference(str(refusal)) from refusal
    best = witnesses(cfg, p.state)[0]
    if sorted(best.rows) != sorted(w.rows) and p.state != after:
        raise Difference(f"drafts: {w.rows}, there are blocks for {best.rows}")
    named = Owed(
        *(frozenset(map(p.system.name, ids)) for ids in (out.preempted_request_ids, out.finished_request_ids))
    )
    if named != owed:
        raise Difference(f"S10 one-terminal-event: notices {named}, due are {owed}")
    met |= gates.of_edge(p.state, "schedule", -1, w, after)
    return same(p, after, runner.receive(p.view, out), Owed())


def same(p: Pair, after: State, view: runner.View, owed: Owed) -> Pair:
    """The pair after an action, if the implementation stands for the model's state."""
    got = p.system.state()
    mine, yours = canonical(after), canonical(got)
    if mine != yours:
        parts = [
            f"{field} of {a.name} {x} is {y}" for a, b in zip(mine.requests, yours.requests, strict=False)
            for field, x, y in zip(Request._fields, a, b, strict=True) if x != y
        ]  # fmt: skip
        for field, x, y in zip(State._fields, mine, yours, strict=True):
            parts += [f"{field} {x} is {y}"] if x != y and not (parts and field == "requests") else []
        raise Difference(f"model and implementation differ: {'; '.join(parts)}")
    return Pair(p.system, got, view, owed, yours)

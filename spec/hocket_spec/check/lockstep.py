"""Lock-step: a real scheduler and the model walk every path of a small instance together.

A snapshot of the implementation is kept per model state; every edge is a conformance test.
"""

from collections.abc import Iterator
from typing import NamedTuple

from hocket_spec import properties, runner
from hocket_spec.actions import Witness
from hocket_spec.check import gates
from hocket_spec.check.choices import back, canonical, results
from hocket_spec.check.explore import describe
from hocket_spec.check.instances import Instance, Traffic
from hocket_spec.check.pair import Action, Difference, Owed, Pair, System, step
from hocket_spec.state import RUNNING, State, find, initial


def offers(ins: Instance, s: State, absent: tuple[Traffic, ...], preempts: int) -> Iterator[Action]:
    """Everything that may happen in this state."""
    yield Action("schedule")
    if s.flight:
        for answer in results(s, s.flight[0], ins.stops):
            yield Action("complete", results=answer)
    free_name = next(n for n in range(len(s.requests) + 1) if find(s, n) is None)
    for t in sorted(set(absent)):
        yield Action("add", free_name, t)
    for r in s.requests:
        if ins.aborts:
            yield Action("abort", r.name)
        if preempts and r.status == RUNNING:
            yield Action("preempt", r.name)


class Report(NamedTuple):
    """Size of the product explored, the situations met, and the first difference with its shortest trace."""

    states: int
    transitions: int
    met: frozenset[str]
    difference: str
    exhausted: bool


def walk(ins: Instance, system: System, names: tuple[str, ...], limit: int = 1_000_000) -> Report:
    """Explore the product breadth first, up to `limit` transitions."""
    cfg, met = ins.config, set[str]()
    root = Pair(system, initial(), runner.View(names, cfg.groups))
    seen = {(canonical(root.state), tuple(sorted(ins.traffic)), ins.preempts): 0}
    nodes = [(system.snapshot(), root, tuple(sorted(ins.traffic)), ins.preempts)]
    trace: list[tuple[int, str]] = [(0, "")]
    transitions = i = 0
    while i < len(nodes) and transitions < limit:
        blob, at, absent, preempts = nodes[i]
        nodes[i] = (b"", at, (), 0)
        met |= gates.of_state(cfg, at.state)
        for a in offers(ins, at.state, absent, preempts):
            transitions += 1
            why = ""
            try:
                p = step(cfg, at._replace(system=system.restore(blob)), a, met)
            except Difference as error:
                return Report(
                    len(nodes), transitions, frozenset(met), f"{error} | {history(trace, i)}{a}", False
                )
            left = back(absent, at.state, p.state, ins.again)
            if a.kind == "add":
                left = tuple(sorted(left))
                left = left[: left.index(a.traffic)] + left[left.index(a.traffic) + 1 :]
            key = (p.key, left, preempts - (a.kind == "preempt"))
            if key in seen:
                continue
            seen[key] = len(nodes)
            why = properties.violated(cfg, key[0]) or p.system.unsound(p.view)
            if why:
                return Report(
                    len(nodes), transitions, frozenset(met), f"{why} | {history(trace, i)}{a}", False
                )
            nodes.append((p.system.snapshot(), p._replace(system=system), left, key[2]))
            trace.append((i, label(a, at.state, p.state)))
        i += 1
    return Report(len(nodes), transitions, frozenset(met), "", i == len(nodes))


def label(a: Action, before: State, after: State) -> str:
    """The action as counterexamples show it; of a schedule() call, what it dispatched."""
    if a.kind != "schedule":
        return str(a)
    if len(after.flight) == len(before.flight):
        return "schedule empty"
    made = after.flight[-1]
    return describe(Witness(made.phase, made.rows, Owed().after(before, after).preempted))


def history(trace: list[tuple[int, str]], i: int) -> str:
    """The actions that led to node i."""
    steps = []
    while i:
        i, told = trace[i][0], trace[i][1]
        steps.append(told + " > ")
    return "".join(reversed(steps))

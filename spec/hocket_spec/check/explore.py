"""Breadth-first exploration of the model alone, over every dispatch that the rules allow."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hocket_spec import actions, properties
from hocket_spec.check import progress
from hocket_spec.check.choices import back, canonical, results, witnesses
from hocket_spec.check.instances import Instance, Traffic
from hocket_spec.rules import ready_phase
from hocket_spec.state import DECODE, NONE, PREFILL, RUNNING, Config, State, find, initial
from hocket_spec.walk import attempt

NOBODY = -1


class Node(NamedTuple):
    """A canonical state, the traffic that has not arrived, the place of the watched request, preemptions
    left.
    """

    state: State
    absent: tuple[Traffic, ...]
    watched: int
    preempts: int


class Event(NamedTuple):
    """What an edge means to the liveness measures; the last four speak of the watched request."""

    kind: str  # schedule, complete, add, abort, preempt
    phase: int = NONE
    calls: int = (
        0  # schedule() calls on this edge: one that dispatches, or an empty one that a result must follow
    )
    serviceable: tuple[bool, bool, bool] = (False, False, False)  # indexed by phase
    watched: bool = False  # unfinished at both ends
    row: bool = False
    ready: bool = False  # ready for the phase that ran
    fits: bool = False  # head of the waiting queue, and fits
    top: bool = False  # most senior running request that has a next row


class Graph(NamedTuple):
    """nodes[i] was reached from parents[i] by labels[i]; edges[i] = (target, event); bad = (what, node or
    label).
    """

    nodes: list[Node]
    edges: list[list[tuple[int, Event]]]
    parents: list[int]
    labels: list[str]
    exhausted: bool
    bad: str

    def trace(self, i: int) -> list[str]:
        """The shortest action list to node i."""
        steps = []
        while i:
            steps.append(self.labels[i])
            i = self.parents[i]
        return steps[::-1]


def describe(w: actions.Witness) -> str:
    """A witness as it appears in counterexamples: schedule decode 0[3+1] 1[2+1] preempts 2."""
    rows = " ".join(f"{x.name}[{x.start}+{x.length}]" for x in w.rows)
    taken = f" preempts {' '.join(map(str, sorted(w.victims)))}" if w.victims else ""
    return f"schedule {actions.NAMES[w.phase]} {rows}{taken}".rstrip()


def event(cfg: Config, n: Node, kind: str, w: actions.Witness, after: State, idle: bool) -> Event:
    """The liveness view of one edge."""
    s, r = n.state, n.state.requests[n.watched] if n.watched >= 0 else None
    running = kind == "schedule"
    able = (
        (False, bool(attempt(cfg, s, PREFILL).rows), bool(attempt(cfg, s, DECODE).rows))
        if running
        else (False,) * 3
    )
    calls = 1 if running or (idle and kind == "complete") else 0
    if r is None:
        return Event(kind, w.phase, calls, able)
    top = next((x for x in s.requests if ready_phase(x)), None)
    return Event(
        kind, w.phase, calls, able, find(after, r.name) is not None, any(x.name == r.name for x in w.rows),
        running and progress.ready(cfg, s, r, w.phase), running and progress.head_fits(cfg, s, r), top == r,
    )  # fmt: skip


class Broken(Exception):
    """An edge or a state violates a property."""


def moves(
    ins: Instance, n: Node
) -> Iterator[tuple[str, str, actions.Witness, State, tuple[Traffic, ...], int]]:
    """(label, kind, witness, next state, absent, preempts left) of every edge except arrivals."""
    cfg, s, empty = ins.config, n.state, actions.EMPTY
    if len(s.flight) < cfg.depth:
        for w in witnesses(cfg, s):
            if w.phase:
                yield describe(w), "schedule", w, actions.schedule(cfg, s, w), n.absent, n.preempts
    if s.flight:
        for answer in results(s, s.flight[0], ins.stops):
            after, outputs = actions.complete(cfg, s, answer)
            why = properties.s2_no_stale_mutation(s, after) or properties.s10_one_terminal(s, after, outputs)
            if why:
                raise Broken(why)
            told = " ".join(f"{o.name}+{o.tokens}{'.' if o.finished else ''}" for o in outputs)
            yield (
                f"complete {told}".rstrip(),
                "complete",
                empty,
                after,
                back(n.absent, s, after, ins.again),
                n.preempts,
            )
    for r in s.requests:
        if ins.aborts:
            after = actions.abort(cfg, s, r.name)
            yield f"abort {r.name}", "abort", empty, after, back(n.absent, s, after, ins.again), n.preempts
        if n.preempts and r.status == RUNNING:
            yield (
                f"preempt {r.name}",
                "preempt",
                empty,
                actions.preempt(cfg, s, r.name),
                n.absent,
                n.preempts - 1,
            )


def successors(ins: Instance, n: Node) -> Iterator[tuple[str, Event, Node]]:
    """Every edge of the closed system out of this node."""
    cfg, s = ins.config, n.state
    idle = bool(s.requests) and len(s.flight) < cfg.depth and not actions.due(cfg, s)
    for label, kind, w, after, absent, preempts in moves(ins, n):
        place = {r.name: i for i, r in enumerate(after.requests)}
        ev = event(cfg, n, kind, w, after, idle)
        yield label, ev, Node(canonical(after), absent, place.get(n.watched, NOBODY), preempts)
    for k, t in enumerate(n.absent):
        if k and n.absent[k - 1] == t:
            continue
        after = actions.add(cfg, s, len(s.requests), *t)
        absent = n.absent[:k] + n.absent[k + 1 :]
        place = {r.name: i for i, r in enumerate(after.requests)}
        ev = event(cfg, n, "add", actions.EMPTY, after, idle)
        node = Node(canonical(after), absent, place.get(n.watched, NOBODY), n.preempts)
        yield f"add {t.prompt}+{t.limit}", ev, node
        if ins.watch and n.watched < 0 and t.priority <= min(x.priority for x in ins.traffic):
            yield f"add watched {t.prompt}+{t.limit}", ev, node._replace(watched=place[len(s.requests)])


def explore(ins: Instance, limit: int = 1_000_000, report: Callable[[int], None] | None = None) -> Graph:
    """All reachable nodes up to `limit`; stops at the first violation, which is then a shortest one."""
    root = Node(initial(), tuple(sorted(ins.traffic)), NOBODY, ins.preempts)
    ids, g = {root: 0}, Graph([root], [], [0], ["start"], False, "")
    i = 0
    while i < len(g.nodes) and len(g.nodes) < limit:
        edges = []
        try:
            for label, ev, node in successors(ins, g.nodes[i]):
                j = ids.get(node)
                if j is None:
                    j = ids[node] = len(g.nodes)
                    g.nodes.append(node)
                    g.parents.append(i)
                    g.labels.append(label)
                    why = properties.violated(ins.config, node.state)
                    if why:
                        return g._replace(bad=f"{why} | {' > '.join(g.trace(j))}")
                edges.append((j, ev))
            for t in [t for p in (PREFILL, DECODE) for t in attempt(ins.config, g.nodes[i].state, p).takings]:
                if why := progress.l6_minimal_preemption(ins.config, t):
                    raise Broken(why)
        except Broken as error:
            return g._replace(bad=f"{error} | {' > '.join(g.trace(i))}")
        g.edges.append(edges)
        i += 1
        if report and not i % 10_000:
            report(len(g.nodes))
    return g._replace(exhausted=i == len(g.nodes))

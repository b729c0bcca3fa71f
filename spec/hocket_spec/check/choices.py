"""What may happen next, and when two states are the same: shared by exploration and lock-step."""

from collections.abc import Iterator
from itertools import product

from hocket_spec import actions
from hocket_spec.actions import EMPTY, Witness
from hocket_spec.check.instances import Traffic
from hocket_spec.state import NONE, RUNNING, Config, Dispatch, Row, State, find
from hocket_spec.walk import Attempt, attempt, extend


def canonical(s: State) -> State:
    """The same state with names, epochs and served stamps as ranks, so that unbounded counters give a
    finite graph.

    Only the order of (served, seniority) matters. A row whose request or epoch is gone matters to nobody; of
    a row whose epoch has ended, but whose request waits for it to drain, only the existence matters.
    """
    order = sorted([(r.served, i) for i, r in enumerate(s.requests) if r.status == RUNNING])
    rank = {i: k + 1 for k, (_, i) in enumerate(order)}
    place = {(r.name, r.epoch): i for i, r in enumerate(s.requests)}
    requests = tuple([r._replace(name=i, epoch=i, served=rank.get(i, 0)) for i, r in enumerate(s.requests)])
    flight = []
    for d in s.flight:
        rows = [(place[x.name, x.epoch], x) for x in d.rows if (x.name, x.epoch) in place]
        named = [x._replace(name=i, epoch=i) if i in rank else Row(i, i, 0, 0, 0, False) for i, x in rows]
        flight.append(d._replace(rows=tuple(sorted(named))))
    return State(s.owed, s.taken, requests, tuple(flight), len(requests))


def witnesses(cfg: Config, s: State) -> list[Witness]:
    """All dispatches that the rules allow now, up to row order; the one that carries most drafts first."""
    phase = actions.due(cfg, s) if len(s.flight) < cfg.depth else NONE
    if not phase:
        return [EMPTY]
    plan = attempt(cfg, s, phase)
    victims = frozenset([v for t in plan.takings for v in t.victims])
    choices: list[tuple[Attempt, tuple[Row, ...]]] = [(plan, ())]
    for r in s.requests:  # seniors first: they have the first claim to blocks for drafts
        row = next((x for x in plan.rows if x.name == r.name), None)
        if row is None:
            continue
        grown: list[tuple[Attempt, tuple[Row, ...]]] = []
        for p, rows in choices:
            longer = extend(cfg, p, row)
            if longer:
                grown.append((longer[0], (*rows, longer[1])))
            grown.append((p, (*rows, row)))
        choices = grown
    return [Witness(phase, rows, victims) for _, rows in choices]


def results(s: State, d: Dispatch, stops: bool) -> Iterator[tuple[actions.Result, ...]]:
    """Everything that the device may answer to the dispatch, as far as it makes a difference."""
    options = []
    for x in d.rows:
        r = find(s, x.name)
        if r is None or r.status != RUNNING or r.epoch != x.epoch or not x.samples:
            options.append([actions.Result(int(x.samples))])
            continue
        option = [actions.Result(n) for n in range(1, x.reserved + 1)]
        if stops:
            option.append(actions.Result(1, True))
        options.append(option)
    return product(*options)


def back(absent: tuple[Traffic, ...], before: State, after: State, again: bool) -> tuple[Traffic, ...]:
    """The absent traffic once those who left may return."""
    if not again:
        return absent
    gone = [r for r in before.requests if find(after, r.name) is None]
    return tuple(sorted(absent + tuple([Traffic(r.prompt, r.limit, r.priority, r.drafts) for r in gone])))

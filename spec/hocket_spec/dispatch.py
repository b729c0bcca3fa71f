"""schedule(), relationally: the scheduler's own dispatch is the witness, and each rule has a name.

The walk (walk.py) visits requests in token order and says of each what the rules grant. What they leave
open (the order of rows within a dispatch, and whether a decode row that could carry drafts does) is the
scheduler's choice.
"""

from typing import NamedTuple

from hocket_spec.state import DECODE, NONE, PREFILL, RUNNING, Config, Dispatch, Row, State
from hocket_spec.walk import Attempt, attempt, extend

# The rules of schedule(), each with its reason. A refusal names one of them.
RULES = {
    "pipeline": "at most async_depth dispatches are unprocessed; a call beyond that changes nothing",
    "phase": "the owed phase runs if it is serviceable, else the other one, else nothing",
    "runnable": "only a request with tokens to compute in this phase has a row in it",
    "drained": "a request has no row of a new epoch before all rows of its old one are processed",
    "seat": "at most max_num_seqs requests run",
    "queue": "a waiting request is never overtaken: one that cannot be admitted stops admissions",
    "budget": "a dispatch carries at most max_num_batched_tokens, least recently served requests first",
    "alignment": "a chunk that is not the last one ends on the alignment, or is not dispatched",
    "blocks": "a row takes new blocks only from what its seniors' next rows and others' promises leave",
    "held": "the victims of the most senior blocked row get no new row, so that they drain",
    "length": "the length of a row is fixed before blocks are looked at",
    "drafts": "a row carries all its drafts or none; all only if nobody needs the blocks they take",
    "victims": "preempted is whom the dispatched row needs, drained and strictly junior, and nobody else",
    "served": "whoever the rules grant a row gets it: nobody is passed over without need",
    "admitted": "a head that the rules admit is admitted",
}


class Refused(Exception):
    """The witness breaks the named rule."""

    def __init__(self, rule: str, detail: str = "") -> None:
        super().__init__(f"{rule}: {RULES[rule]}" + (f" ({detail})" if detail else ""))
        self.rule = rule


class Witness(NamedTuple):
    """What a schedule() call did: phase (NONE = empty), rows, names preempted in the call."""

    phase: int
    rows: tuple[Row, ...]
    victims: frozenset[int]


EMPTY = Witness(NONE, (), frozenset())
NAMES = ("empty", "prefill", "decode")


def serviceable(cfg: Config, s: State, phase: int) -> bool:
    """The rules allow a non-empty dispatch of that phase in this state, without waiting for any result."""
    return bool(attempt(cfg, s, phase).rows)


def due(cfg: Config, s: State) -> int:
    """The phase that must run now: the owed one, else the other one, else none."""
    if serviceable(cfg, s, s.owed):
        return s.owed
    other = PREFILL + DECODE - s.owed
    return other if serviceable(cfg, s, other) else NONE


def rotate(cfg: Config, s: State, phase: int) -> tuple[int, int]:
    """The turn after a dispatch: only dispatches of the owed phase count, so that a fallback costs nobody a
    turn.
    """
    if phase != s.owed:
        return s.owed, s.taken
    steps = cfg.prefill_steps if phase == PREFILL else cfg.decode_steps
    return (PREFILL + DECODE - phase, 0) if s.taken + 1 >= steps else (phase, s.taken + 1)


def schedule(cfg: Config, s: State, w: Witness) -> State:
    """The state after the call whose output is w; raises Refused when the rules do not allow w."""
    if len(s.flight) >= cfg.depth:
        if w != EMPTY:
            raise Refused("pipeline")
        return s
    phase = due(cfg, s)
    if w.phase != phase:
        raise Refused("phase", f"{NAMES[w.phase]}, due is {NAMES[phase]}")
    if not phase:
        if w != EMPTY:
            raise Refused("victims", "an empty output changes nothing")
        return s
    plan = check(cfg, s, w)
    stamp = 1 + max([r.served for r in s.requests], default=0)
    head = next((r.name for r in s.requests if r.status != RUNNING), None)
    given = {x.name for x in w.rows}
    requests = []
    for r in plan.state.requests:
        if r.name in given:
            r = r._replace(served=stamp)
        elif r.name == head and phase == PREFILL:
            r = r._replace(overdue=True)
        requests.append(r)
    flight = (*s.flight, Dispatch(phase, w.rows, (0,) * len(cfg.pools)))
    owed, count = rotate(cfg, s, phase)
    return State(owed, count, tuple(requests), flight, plan.state.epochs)


def check(cfg: Config, s: State, w: Witness) -> Attempt:
    """Hold every row of the witness against what the rules grant; returns the attempt with its lengths."""
    plan = attempt(cfg, s, w.phase)
    granted = {x.name: x for x in plan.rows}
    names = [x.name for x in w.rows]
    for name in names:
        if name not in granted or names.count(name) > 1:
            raise Refused(plan.refused.get(name, "runnable"), f"row of {name}")
    for r in s.requests:
        if r.name in granted and r.name not in names:
            raise Refused("served" if r.status == RUNNING else "admitted", f"no row of {r.name}")
    if w.victims != frozenset([v for t in plan.takings for v in t.victims]):
        due_victims = [(t.name, t.victims) for t in plan.takings]
        raise Refused("victims", f"{sorted(w.victims)}, due are {due_victims}")
    rows = {x.name: x for x in w.rows}
    for r in s.requests:
        if r.name not in rows or rows[r.name] == granted[r.name]:
            continue
        row, one = rows[r.name], granted[r.name]
        if w.phase == PREFILL or row.length != plan.full[r.name]:
            raise Refused("length", f"{row}, granted {one}")
        longer = extend(cfg, plan, one)
        if longer is None:
            raise Refused("drafts", f"{row}")
        plan = longer[0]
        if row != longer[1]:
            raise Refused("length", f"{row}, granted {longer[1]}")
    return plan

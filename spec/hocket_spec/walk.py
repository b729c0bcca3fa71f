"""The walk over requests in token order: what the rules grant to each in one phase, and why others get
nothing.
"""

from functools import lru_cache
from typing import NamedTuple

from hocket_spec.blocks import ceil_div, fences, fits, free, gain, minus, need, outstanding, plus
from hocket_spec.rules import (
    admission_ask,
    available,
    chunk,
    decode_length,
    designate,
    drained,
    hold,
    promised,
    ready_phase,
    set_aside,
)
from hocket_spec.state import DECODE, PREEMPTED, RUNNING, Config, Request, Row, State, Vector, find, put


class Taking(NamedTuple):
    """One preemption under memory pressure, as evidence for L6: the state before it, who takes what from
    whom.
    """

    state: State
    name: int
    ask: Vector
    given: frozenset[int]
    victims: tuple[int, ...]


class Attempt(NamedTuple):
    """What the rules grant in one phase. Decode rows are granted one token; `full` is their length with
    drafts.
    """

    state: State
    rows: tuple[Row, ...]
    refused: dict[int, str]
    takings: tuple[Taking, ...]
    full: dict[int, int]


def release(cfg: Config, s: State, r: Request, gone: bool) -> State:
    """r lets go of its blocks: each is fenced by the newest in-flight dispatch that can write it, else
    free.
    """
    flight = tuple(
        [d._replace(fenced=plus(d.fenced, v)) for d, v in zip(s.flight, fences(cfg, s, r), strict=True)]
    )
    if gone:
        return s._replace(requests=tuple([x for x in s.requests if x.name != r.name]), flight=flight)
    r = r._replace(
        status=PREEMPTED, replay=r.prompt + r.outputs, computed=0, processed=0, placeholders=0,
        columns=((0, 0),) * len(cfg.groups), promise=(0,) * len(cfg.pools), served=0,
    )  # fmt: skip
    return put(s._replace(flight=flight), r)


def grow(cfg: Config, r: Request, tokens: int) -> Request:
    """r with that many more tokens scheduled, and the blocks for them, in all groups or in none."""
    end = r.computed + tokens
    columns = tuple(
        [(lo, max(hi, ceil_div(end, g.block))) for g, (lo, hi) in zip(cfg.groups, r.columns, strict=True)]
    )
    return r._replace(computed=end, columns=columns)


def grant(cfg: Config, s: State, r: Request, phase: int, length: int) -> tuple[State, Row]:
    """r's row of that length; if the row admits r: its promise, and a fresh epoch if it ran before."""
    if r.status != RUNNING:
        if r.status == PREEMPTED:
            r, s = r._replace(epoch=s.epochs), s._replace(epochs=s.epochs + 1)
        r = r._replace(status=RUNNING, promise=promised(cfg, r), overdue=False)
    samples = phase == DECODE or r.computed + length >= r.replay
    reserved = length if phase == DECODE else int(samples)
    row = Row(r.name, r.epoch, r.computed, length, reserved, samples)
    r = grow(cfg, r, length)._replace(placeholders=r.placeholders + reserved)
    return put(s, r._replace(promise=(0,) * len(cfg.pools)) if samples else r), row


def extend(cfg: Config, plan: Attempt, row: Row) -> tuple[Attempt, Row] | None:
    """The attempt with that decode row at full length, if what nobody else's next row needs has the blocks
    for it.
    """
    more = plan.full[row.name] - row.length
    s, r = plan.state, find(plan.state, row.name)
    if more <= 0 or r is None:
        return None
    have, given = free(cfg, s), {x.name for x in plan.rows}
    for x in s.requests:
        if x.name != r.name:
            have = minus(have, outstanding(cfg, x))
        if x.name not in given:
            have = minus(have, set_aside(cfg, x))
    if not fits(need(cfg, r, more), have):
        return None
    r = grow(cfg, r, more)._replace(placeholders=r.placeholders + more)
    longer = row._replace(length=row.length + more, reserved=row.reserved + more)
    return plan._replace(state=put(s, r)), longer


def token_order(s: State, phase: int) -> list[Request]:
    """Least recently served first; before all of them a head of the waiting queue that was left out."""
    running = sorted([r for r in s.requests if ready_phase(r) == phase], key=lambda r: r.served)
    if phase == DECODE:
        return running
    queue = [r for r in s.requests if r.status != RUNNING]
    first = queue[:1] if queue and queue[0].overdue else []
    return first + running + queue[len(first) :]


def room(
    cfg: Config, s: State, r: Request, tokens: int, given: frozenset[int]
) -> tuple[str, tuple[int, ...]]:
    """('', victims) if a running row gets its blocks now, by preempting the victims if any; else (reason,
    ()).
    """
    ask, have = need(cfg, r, tokens), available(cfg, s, r, given)
    if fits(ask, have):
        return "", ()
    claim = designate(cfg, s, r, ask, have, given)
    if not claim.victims or not all(drained(s, v) for v in claim.victims):
        return "blocks", ()
    if not fits(ask, plus(have, gain(cfg, claim.victims))):
        return "blocks", ()
    return "", tuple([v.name for v in claim.victims])


def admission(cfg: Config, s: State, r: Request, tokens: int, given: frozenset[int]) -> str:
    """Why the head of the waiting queue is not admitted now; '' if it is."""
    if not drained(s, r):
        return "drained"
    if sum(x.status == RUNNING for x in s.requests) >= cfg.seats:
        return "seat"
    if tokens <= 0:
        return "alignment"
    return "" if fits(admission_ask(cfg, s, r, tokens), available(cfg, s, r, given)) else "blocks"


@lru_cache(maxsize=4096)
def attempt(cfg: Config, s: State, phase: int) -> Attempt:
    """Grant, in token order, what the rules grant."""
    left, held, order = cfg.budget, hold(cfg, s), token_order(s, phase)
    rows: list[Row] = []
    refused: dict[int, str] = {}
    takings: list[Taking] = []
    full: dict[int, int] = {}
    stopped = False
    for place, x in enumerate(order):
        r, given = find(s, x.name) or x, frozenset(full)
        if r.status != x.status:
            continue  # preempted in this very call: in no dispatch of it
        length = decode_length(cfg, r) if phase == DECODE else chunk(cfg, r, left)
        victims: tuple[int, ...] = ()
        if r.name in held:
            why = "held"
        elif phase == DECODE and length > left:
            refused |= {y.name: "budget" for y in order[place:]}
            break
        elif r.status != RUNNING:
            head = next(y for y in s.requests if y.status != RUNNING)
            why = "queue" if stopped or head.name != r.name else admission(cfg, s, r, length, given)
            why = "budget" if why == "alignment" and not left else why
            stopped = stopped or why != ""
        elif length <= 0:
            why = "alignment" if left else "budget"
        else:
            why, victims = room(cfg, s, r, 1 if phase == DECODE else length, given)
        if why:
            refused[r.name] = why
            continue
        if victims:
            takings.append(Taking(s, r.name, need(cfg, r, 1 if phase == DECODE else length), given, victims))
        for name in victims:
            s = release(cfg, s, find(s, name) or r, gone=False)
        s, row = grant(cfg, s, r, phase, 1 if phase == DECODE else length)
        rows.append(row)
        full[r.name] = length
        left -= length
    return Attempt(s, tuple(rows), refused, tuple(takings), full)

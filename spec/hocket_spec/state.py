"""The state of the scheduler as one immutable value, and the quantities that the rules speak about.

Blocks are counted, not named: which block a request holds is the runner view's business (runner.py).
Vectors have one entry per pool. Requests are kept in seniority order, in-flight dispatches oldest first;
free blocks are derived.
"""

from typing import NamedTuple

Vector = tuple[int, ...]

NONE, PREFILL, DECODE = 0, 1, 2  # phases; NONE marks an empty output
WAITING, RUNNING, PREEMPTED = 0, 1, 2
AS_CONFIGURED = 99  # drafts that a request wants if it does not say


class Group(NamedTuple):
    """One KV cache group: tokens per block, tokens of history (0 = all), index of its pool."""

    block: int
    window: int = 0
    pool: int = 0


class Config(NamedTuple):
    """Limits of one scheduler; the token units are source tokens, the pool units usable blocks."""

    groups: tuple[Group, ...]
    pools: Vector
    chunk: int = 2
    budget: int = 99
    seats: int = 9
    depth: int = 2
    drafts: int = 0
    prefill_steps: int = 1
    decode_steps: int = 1
    alignment: int = 1
    reserve: bool = True
    watermark: Vector = ()  # blocks per pool; () = none


class Request(NamedTuple):
    """One unfinished request. columns = per group (returned, mapped): leading nulls and table length."""

    name: int
    prompt: int
    limit: int
    priority: int
    epoch: int
    status: int
    replay: int
    computed: int
    processed: int
    outputs: int
    placeholders: int
    columns: tuple[tuple[int, int], ...]
    promise: Vector
    served: int  # stamp of the last dispatch that had a row of it
    overdue: bool  # was head of the waiting queue at a prefill dispatch that left it out
    drafts: int = AS_CONFIGURED  # of a decode row at most


class Row(NamedTuple):
    """One request's share of a dispatch: tokens [start, start + length), placeholders reserved for its
    results.
    """

    name: int
    epoch: int
    start: int
    length: int
    reserved: int
    samples: bool


class Dispatch(NamedTuple):
    """One unprocessed dispatch and the blocks that stay fenced until it is processed."""

    phase: int
    rows: tuple[Row, ...]
    fenced: Vector


class State(NamedTuple):
    """owed, taken: the turn (phase, steps of it so far). epochs: the next fresh epoch."""

    owed: int
    taken: int
    requests: tuple[Request, ...]
    flight: tuple[Dispatch, ...]
    epochs: int


def initial() -> State:
    """Nothing there; decode is owed."""
    return State(DECODE, 0, (), (), 0)


def find(s: State, name: int) -> Request | None:
    """The unfinished request of that name."""
    return next((r for r in s.requests if r.name == name), None)


def rows_of(s: State, r: Request) -> list[tuple[int, Row]]:
    """(dispatch phase, row) of this incarnation in flight, oldest first."""
    return [(d.phase, x) for d in s.flight for x in d.rows if x.name == r.name and x.epoch == r.epoch]


def put(s: State, r: Request) -> State:
    """The state with that request's record exchanged."""
    return s._replace(requests=tuple([r if x.name == r.name else x for x in s.requests]))

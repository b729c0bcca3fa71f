"""Stated families of small closed systems: `exhausted` means in the claims all states of all of these.

A family varies few options fully instead of many a little, small and memory-tight instances first. Sizes are
made to fit each other as in `hocket_spec.check.instances`: every pool holds the largest request, and `spare`
blocks more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from hocket_spec.blocks import capacity
from hocket_spec.check import instances
from hocket_spec.check.instances import GROUPS, Instance, Traffic
from hocket_spec.state import Config, Group

DEPTHS = (1, 2, 3)
TURNS = ((1, 1), (2, 1), (1, 3))  # prefill steps, decode steps
PLAIN, TWO_POOLS, WINDOW, SHARED, SHARED_WINDOW, OWN_WINDOW, FINE = GROUPS


class Family(NamedTuple):
    """What varies, in words, and the instances."""

    name: str
    varies: str
    members: tuple[Instance, ...]


def fitted(
    groups: tuple[Group, ...], traffic: tuple[Traffic, ...], spare: int = 0, ends: Any = None, **options: Any
) -> Instance:
    """An instance whose pools hold its largest request and `spare` blocks more."""
    cfg = Config(groups, (0,) * (1 + max(g.pool for g in groups)), **options)
    needs = [capacity(cfg, t.prompt + t.limit - 1) for t in traffic]
    pools = tuple(max(v) + spare for v in zip(*needs, strict=True))
    aborts, preempts = ends or (False, 0)
    return Instance(cfg._replace(pools=pools), traffic, aborts=aborts, preempts=preempts)


def requests(*sizes: tuple[int, ...]) -> tuple[Traffic, ...]:
    """(prompt, limit) or (prompt, limit, priority) of each."""
    return tuple(Traffic(*size) for size in sizes)


PAIR = requests((3, 3), (4, 2))
TRIO = requests((2, 2), (4, 2), (3, 2))
LONG_AND_SHORT = requests((8, 1), (1, 4))
THREE = requests((1, 3), (2, 2), (4, 1))
FOUR = requests((1, 2), (1, 2), (2, 1), (3, 1))
RANKED = requests((2, 2, 0), (3, 2, 1))
CROWD = requests((6, 1), (1, 6), (2, 1))
TALKERS = requests((1, 3), (1, 3), (1, 3))
DRAFTED = requests((2, 5), (1, 4))


def memory() -> Iterator[Instance]:
    """Pools of every kind, promises or none, chunks unlike blocks."""
    for chunk, reserve, groups, depth in product((2, 3), (True, False), GROUPS, DEPTHS):
        yield fitted(groups, TRIO, chunk=chunk, reserve=reserve, depth=depth)


def turns() -> Iterator[Instance]:
    """Cadences against traffic of two to four requests that never ends."""
    for traffic, spare, turn, depth in product((LONG_AND_SHORT, THREE, FOUR), (0, 1), TURNS, DEPTHS):
        p, d = turn
        yield fitted(PLAIN, traffic, spare, depth=depth, prefill_steps=p, decode_steps=d)


def drafts() -> Iterator[Instance]:
    """Speculative rows: every number of accepted drafts, with blocks for them and without."""
    for k, spare, groups, depth in product((1, 3), (0, 2), (PLAIN, FINE, WINDOW, SHARED_WINDOW), DEPTHS):
        yield fitted(groups, DRAFTED, spare, drafts=k, depth=depth)


def ends() -> Iterator[Instance]:
    """Aborts and preemptions from outside, at any moment."""
    for ending, groups, traffic, depth in product(
        ((True, 0), (False, 1), (True, 1)), (PLAIN, TWO_POOLS, SHARED_WINDOW), (RANKED, PAIR), DEPTHS
    ):
        yield fitted(groups, traffic, ends=ending, depth=depth)


def limits() -> Iterator[Instance]:
    """Seats, token budgets, alignment and watermark."""
    odd: tuple[dict[str, Any], ...] = (
        {"seats": 1}, {"seats": 2}, {"budget": 1, "chunk": 1}, {"budget": 2}, {"budget": 3, "alignment": 2},
        {"chunk": 4, "budget": 4, "alignment": 2}, {"watermark": (1,)},
    )  # fmt: skip
    for options, traffic, depth in product(odd, (PAIR, THREE), DEPTHS):
        yield fitted(PLAIN, traffic, 1, depth=depth, **options)


def narrow() -> Iterator[Instance]:
    """Dispatches that hold one row, against every cadence: rows and the head of the queue take turns."""
    for traffic, turn, depth in product((CROWD, TALKERS), TURNS, DEPTHS):
        p, d = turn
        yield fitted(PLAIN, traffic, 5, chunk=2, budget=2, depth=depth, prefill_steps=p, decode_steps=d)
    # A head that is passed over as often as it can be needs somebody who talks all the while.
    long_talk = requests((6, 1), (1, 12), (2, 1))
    yield fitted(PLAIN, long_talk, 9, chunk=2, budget=2, depth=1, decode_steps=3)


def seniors() -> Iterator[Instance]:
    """A senior that waits for the results of its victims, then for the other phase, against every cadence."""
    for turn, depth in product(TURNS, DEPTHS):
        others = requests((2, 4))
        if turn == (1, 3):  # somebody must talk all the while
            others = requests((1, 5)) if depth == 1 else requests((1, 4), (1, 4))
        p, d = turn
        yield fitted(
            PLAIN, requests((4, 2)) + others, 1, chunk=2, reserve=False, depth=depth, prefill_steps=p,
            decode_steps=d,
        )  # fmt: skip


SMALL = (memory, turns, drafts, ends, limits, narrow, seniors)
WHOLE = (narrow, seniors)  # those that show that bounds are reached: run whole at every profile


def small(every: int = 1) -> tuple[Family, ...]:
    """The families that are exhausted; with `every` > 1 a regular part of each, first member included."""
    return tuple(
        Family(f.__name__, (f.__doc__ or "").rstrip("."), tuple(f())[:: 1 if f in WHOLE else every])
        for f in SMALL
    )


def wide(count: int) -> Family:
    """`count` larger instances per depth, evenly spread over the product of all options."""
    by_depth = [instances.family(depth, count) for depth in DEPTHS]
    members = tuple(ins for together in zip(*by_depth, strict=True) for ins in together)
    return Family("wide", "all options at once, up to four requests", members)

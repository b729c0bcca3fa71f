"""Slots of requests: no slot has two owners, for any number of slots and requests (S6 in the runner).

Free slots by place, and slots by request, are arrays without end. What is at a place afterwards is said by
the shipped rule of one place; that the shipped functions of whole tuples go by it is shown with one arbitrary
turn of their loop, or place by place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import z3

from hocket.runner import slot_rules
from hocket_proofs.symbolic.lifting import integer, lift, run, symbol, symbolic
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import term

INT = z3.IntSort()
SLOTS = z3.Int("max_slots")
HERE, THERE = z3.Ints("place another_place")
Q, R, S = z3.Ints("request another_request third_request")
PAIRS = ((Q, R), (R, S), (S, Q))


class Table(NamedTuple):
    """free: the slot at a place, of which the first `places` count. holds, slot: arrays by request. owners:
    how many requests hold a slot, a ghost.
    """

    free: Callable[[Any], Any]
    places: Any
    holds: Any
    slot: Any
    owners: Any


FREE = z3.Const("free", z3.ArraySort(INT, INT))
TABLE = Table(
    lambda place: FREE[place],
    z3.Int("free_slots"),
    z3.Const("holds", z3.ArraySort(INT, z3.BoolSort())),
    z3.Const("slot", z3.ArraySort(INT, INT)),
    z3.Int("owners"),
)


def table_holds(t: Table, i: Any, j: Any, q: Any, r: Any) -> Any:
    """Of places i and j and requests q and r: what is true of a slot table at any time."""
    a_place = z3.And(0 <= i, i < t.places)
    return z3.And(
        t.places >= 0,
        t.places + t.owners == SLOTS,
        z3.Implies(z3.And(0 <= i, i < j, j < t.places), t.free(i) < t.free(j)),
        z3.Implies(a_place, z3.And(0 <= t.free(i), t.free(i) < SLOTS)),
        z3.Implies(t.holds[q], z3.And(0 <= t.slot[q], t.slot[q] < SLOTS)),
        z3.Implies(z3.And(t.holds[q], a_place), t.slot[q] != t.free(i)),
        z3.Implies(z3.And(t.holds[q], t.holds[r], q != r), t.slot[q] != t.slot[r]),
    )


def always(t: Table) -> Any:
    """For all places and requests: instances for those that an action or a claim can speak of."""
    places = (HERE, THERE, HERE - 1, THERE - 1, HERE + 1, THERE + 1, z3.IntVal(0))
    return z3.And([table_holds(t, i, j, q, r) for i in places for j in places for q, r in PAIRS])


def empty() -> Table:
    """A new table: slot k is at place k, and nobody holds one."""
    nobody = z3.K(INT, z3.BoolVal(False))
    return Table(lambda place: place, SLOTS, nobody, z3.K(INT, z3.IntVal(0)), z3.IntVal(0))


def dropped(t: Table, q: Any) -> Table:
    """Request q ends, and its slot is free: the shipped rule at every place."""
    slot = t.slot[q]

    def free(place: Any) -> Any:
        below = z3.If(place == 0, slot_rules.NO_SLOT, t.free(place - 1))
        above = z3.If(place == t.places, slot, t.free(place))
        return term(run(slot_rules.between, *map(symbolic, (below, slot, above))))

    return t._replace(free=free, places=t.places + 1, holds=z3.Store(t.holds, q, False), owners=t.owners - 1)


def occupied(t: Table, q: Any) -> Table:
    """Request q gets the lowest slot: at each place there is now what was at the next one (`loops`)."""
    return Table(
        lambda place: t.free(place + 1),
        t.places - 1,
        z3.Store(t.holds, q, True),
        z3.Store(t.slot, q, t.free(z3.IntVal(0))),
        t.owners + 1,
    )


def invariant() -> Iterable[Lemma]:
    """Free slots in ascending order, none of them owned, and no slot owned twice: always."""
    known, now = always(TABLE), (always(TABLE), TABLE.holds[Q])
    yield Lemma("a new table", table_holds(empty(), HERE, THERE, R, S), (SLOTS >= 1,))
    yield Lemma("kept when a request is dropped", table_holds(dropped(TABLE, Q), HERE, THERE, R, S), now)
    waiting = (known, z3.Not(TABLE.holds[Q]), TABLE.places >= 1)
    yield Lemma(
        "kept when a newcomer occupies a slot", table_holds(occupied(TABLE, Q), HERE, THERE, R, S), waiting
    )
    after, slot = dropped(TABLE, Q), TABLE.slot[Q]
    behind = z3.Or(HERE == 0, TABLE.free(HERE - 1) < slot)
    ahead = z3.Or(HERE == TABLE.places, slot < TABLE.free(HERE))
    yield Lemma(
        "the slot that a request gives back is free, where it belongs",
        after.free(HERE) == slot,
        (*now, 0 <= HERE, HERE <= TABLE.places, behind, ahead),
    )
    yield Lemma(
        "and no other one is lost",
        z3.If(
            TABLE.free(HERE) < slot,
            after.free(HERE) == TABLE.free(HERE),
            after.free(HERE + 1) == TABLE.free(HERE),
        ),
        (*now, 0 <= HERE, HERE < TABLE.places),
    )


def newcomers() -> Iterable[Lemma]:
    """What `reserve` promises, and that `occupy` finds it: HERE and THERE are two of them."""
    count = integer("newcomers")
    n = term(count)
    found = term(run(slot_rules.enough, symbolic(TABLE.places), count))
    given = (always(TABLE), found, 0 <= HERE, HERE < THERE, THERE < n)
    yield Lemma("newcomers get different slots", TABLE.free(HERE) != TABLE.free(THERE), given)
    yield Lemma(
        "and none that a request holds",
        z3.Implies(
            TABLE.holds[Q], z3.And(TABLE.slot[Q] != TABLE.free(HERE), TABLE.slot[Q] != TABLE.free(THERE))
        ),
        given,
    )
    yield Lemma("there are enough iff no more come than are free", found == (n <= TABLE.places))
    yield Lemma(
        "whoever keeps to the slots that nobody holds finds enough",
        found,
        (always(TABLE), n <= SLOTS - TABLE.owners),
    )
    before = TABLE._replace(free=lambda place: FREE[place + HERE], places=TABLE.places - HERE)
    after = occupied(before, Q)
    yield Lemma(
        "each finds the slot that was reserved for it, whoever came before",
        z3.And(
            after.slot[Q] == FREE[HERE],
            after.free(THERE) == FREE[THERE + HERE + 1],
            after.places == TABLE.places - (HERE + 1),
        ),
    )


def turn(function: Callable[..., Any], count: Any) -> tuple[Any, bool]:
    """One arbitrary turn of the loop of a shipped function: when it keeps the slot, and whether it keeps
    that slot and no other.
    """
    place, slot, free = integer("place"), integer("its slot"), (integer("some slot"),)

    def any_place(of: Any) -> list[Any]:
        if of is not free:
            raise ValueError("places of other slots")
        return [(place, slot)]

    vars(slot_rules)["enumerate"] = any_place
    try:
        paths = lift(function, free, count).paths
    finally:
        del vars(slot_rules)["enumerate"]
    own = all(len(path.result) <= 1 and all(kept is slot for kept in path.result) for path in paths)
    return z3.Or([path.condition for path in paths if path.result]), own


def loops() -> Iterable[Lemma]:
    """`lowest` and `others` go through the free slots: by induction over the places, the k-th newcomer gets
    the k-th, and the k-th of the others is the one so many places later.
    """
    count, taken, left = integer("newcomers"), integer("taken").term, integer("left").term
    n = term(count)
    takes, own = turn(slot_rules.lowest, count)
    leaves, its = turn(slot_rules.others, count)
    yield Lemma("a turn keeps the slot at hand, or nothing", z3.BoolVal(own and its))

    def counted(place: Any, taken: Any, left: Any) -> Any:
        return z3.And(taken == z3.If(place < n, place, n), taken + left == place)

    given = (0 <= HERE, 0 <= n, counted(HERE, taken, left))
    takes, leaves = (z3.substitute(kept, (z3.Int("place"), HERE)) for kept in (takes, leaves))
    yield Lemma("before the first place", counted(z3.IntVal(0), z3.IntVal(0), z3.IntVal(0)), (0 <= n,))
    yield Lemma(
        "every place goes to a newcomer or stays free",
        counted(HERE + 1, taken + z3.If(takes, 1, 0), left + z3.If(leaves, 1, 0)),
        given,
    )
    yield Lemma("the k-th newcomer gets the slot at place k", z3.Implies(takes, taken == HERE), given)
    yield Lemma(
        "the k-th of the others was so many places further", z3.Implies(leaves, left + n == HERE), given
    )
    for size in range(4):
        free, slot = symbol(tuple[int, ...], "free", size), integer("slot")
        found = run(slot_rules.with_freed, free, slot)
        below, above = (slot_rules.NO_SLOT, *free), (*free, slot)
        each = [run(slot_rules.between, b, slot, a) for b, a in zip(below, above, strict=True)]
        equal = [term(one) == term(other) for one, other in zip(found, each, strict=True)]
        yield Lemma(f"of {size} free slots each place goes by its neighbours", z3.And(equal))

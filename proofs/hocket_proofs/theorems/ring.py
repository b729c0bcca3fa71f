"""The ring of staging buffers: no step in flight has its inputs where another's are written (S6).

Steps are numbered in the order in which they are filled, which is the order of dispatch; those in flight are
the newest ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import z3

from hocket.runner import ring_rules
from hocket.sched import kernel
from hocket_proofs.symbolic.lifting import integer, run
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import FLOOR, term
from hocket_proofs.theorems.arithmetic import products_ordered, shifted

DEPTH, FILLED = integer("steps"), integer("filled")
EARLIER, LATER = integer("earlier"), integer("later")


def never_shared() -> Iterable[Lemma]:
    """For any depth, and any number of steps."""
    buffers = run(ring_rules.ring_size, DEPTH)
    size, first, second = term(buffers), term(EARLIER), term(LATER)
    one, other = (term(run(ring_rules.buffer_of, step, buffers)) for step in (EARLIER, LATER))
    turns, more = FLOOR(first, size), FLOOR(second, size)
    # Both lie as far into their turns of the ring: the distance is a multiple of its size.
    hints = (products_ordered(turns + 1, more, size), products_ordered(more, turns, size))
    sane = (term(DEPTH) >= 1, first >= 0)
    yield Lemma("a buffer for each step in flight, and one that is filled", size == term(DEPTH) + 1)
    yield Lemma("every step gets one of the buffers", z3.And(0 <= one, one < size), sane)
    yield Lemma(
        "two steps less than the ring apart have different buffers",
        one != other,
        (*sane, first < second, second - first < size, *hints),
    )
    again = term(run(ring_rules.buffer_of, EARLIER + buffers, buffers))
    yield Lemma(
        "a buffer comes again when all others have had their turn",
        again == one,
        (*sane, shifted(first, size, z3.IntVal(1))),
    )
    flight = integer("in_flight")
    room = term(run(kernel.has_room, flight, DEPTH))
    filling = term(run(ring_rules.buffer_of, FILLED, buffers))
    new = term(FILLED)
    yield Lemma(
        "the buffer that is filled for a dispatch is that of no step in flight",
        filling != one,
        (
            *sane,
            room,
            new - term(flight) <= first,
            first < new,
            products_ordered(turns + 1, FLOOR(new, size), size),
            products_ordered(FLOOR(new, size), turns, size),
        ),
    )

"""Sums of any number of counts, by induction: what holds of none, and is kept by one more, holds of all.

A sum is a function of which nothing is known but how it is made: none of them come to 0, and one more adds
itself. Whatever is proved of it holds of every loop that adds up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import z3

from hocket_proofs.symbolic.lifting import run
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import term
from hocket_proofs.theorems.progress import (
    ACCEPTED,
    LIFE,
    ROW,
    Life,
    begun,
    chunk_sent,
    decode_sent,
    part_of_all,
    sums_are_counts,
    told,
)

INT = z3.IntSort()
COUNT = z3.Function("count", INT, INT)
PART = z3.Function("part", INT, INT)
TOTAL = z3.Function("total of counts", INT, INT)
PARTS = z3.Function("total of parts", INT, INT)
N = z3.Int("how many")


def adds_up(total: Any, count: Any, n: Any) -> Any:
    """How a sum over the first n is made, and over one more."""
    return z3.And(total(0) == 0, total(n + 1) == total(n) + count(n))


def part_of_sum() -> Iterable[Lemma]:
    """Parts of counts, all or nothing of each among them, come to no more than the counts."""
    less = z3.And(0 <= PART(N), PART(N) <= COUNT(N))
    made = (adds_up(TOTAL, COUNT, N), adds_up(PARTS, PART, N))

    def claim(n: Any) -> Any:
        return z3.And(0 <= PARTS(n), PARTS(n) <= TOTAL(n))

    yield Lemma("parts of no counts", claim(z3.IntVal(0)), made)
    yield Lemma("parts of one count more", claim(N + 1), (*made, N >= 0, less, claim(N)))


def one_left_out() -> Iterable[Lemma]:
    """Without one of the counts a sum is less by just that count."""
    out = z3.Int("left out")
    rest = PART(N) == z3.If(N == out, 0, COUNT(N))
    made = (adds_up(TOTAL, COUNT, N), adds_up(PARTS, PART, N))

    def claim(n: Any) -> Any:
        return PARTS(n) == TOTAL(n) - z3.If(out < n, COUNT(out), 0)

    yield Lemma("of no counts none is left out", claim(z3.IntVal(0)), (*made, out >= 0))
    yield Lemma("one of one count more", claim(N + 1), (*made, N >= 0, out >= 0, rest, claim(N)))


LENGTH, RESERVED = (z3.Function(name, INT, INT) for name in ("length of row", "reserved by row"))
TOKENS, ALL_RESERVED = (
    z3.Function(name, INT, INT, INT) for name in ("tokens in flight", "reserved in flight")
)
OLDEST, NEXT = z3.Ints("oldest next")
"""A request's rows in flight in order of dispatch, by number: from `OLDEST` on, before `NEXT`."""


def sum_over(total: Any, count: Any, a: Any, b: Any) -> Any:
    """How a sum over the rows from a on, before b, is made, and over one more."""
    return z3.And(total(a, a) == 0, z3.Implies(a <= b, total(a, b + 1) == total(a, b) + count(b)))


def made(a: Any, b: Any) -> Any:
    """Both sums, of these rows."""
    return z3.And(sum_over(TOKENS, LENGTH, a, b), sum_over(ALL_RESERVED, RESERVED, a, b))


def a_row(k: Any) -> Any:
    """What is true of every row that was dispatched."""
    return z3.And(LENGTH(k) >= 1, RESERVED(k) >= 0)


def counts_hold(a: Any, b: Any) -> Any:
    """Sums over rows are counts, of at least a token each."""
    return z3.And(TOKENS(a, b) >= b - a, ALL_RESERVED(a, b) >= 0)


def oldest_apart(a: Any, b: Any) -> Any:
    """A sum is the oldest row and the sum of the others."""
    return z3.And(
        TOKENS(a, b) == LENGTH(a) + TOKENS(a + 1, b),
        ALL_RESERVED(a, b) == RESERVED(a) + ALL_RESERVED(a + 1, b),
    )


def summed(life: Life, a: Any, b: Any) -> Any:
    """The three sums of a request are those of its rows in flight."""
    rows, tokens, reserved = map(term, life[5:])
    return z3.And(a <= b, rows == b - a, tokens == TOKENS(a, b), reserved == ALL_RESERVED(a, b))


def rows_in_flight() -> Iterable[Lemma]:
    """What S8 and L5 take for granted of sums over the rows in flight, however many there are."""
    a, b = OLDEST, NEXT
    yield Lemma("no rows have no tokens", counts_hold(a, a), (made(a, a),))
    yield Lemma("one row more, one token more", counts_hold(a, b + 1),
                (made(a, b), a <= b, a_row(b), counts_hold(a, b)))  # fmt: skip
    yield Lemma("one row is its own sum", oldest_apart(a, a + 1), (made(a, a), made(a + 1, a + 1)))
    yield Lemma("one row more adds to the others", oldest_apart(a, b + 1),
                (made(a, b), made(a + 1, b), a < b, oldest_apart(a, b)))  # fmt: skip
    yield Lemma("admitted: no rows", summed(begun(LIFE), a, a), (made(a, a),))
    for name, (after, given) in (("chunk", chunk_sent()), ("decode row", decode_sent())):
        new = (LENGTH(b) == term(ROW.length), RESERVED(b) == term(after.reserved) - term(LIFE.reserved))
        now = (*given, *new, made(a, b), summed(LIFE, a, b))
        yield Lemma(f"a {name} has tokens, and reserves some or none", a_row(b), now)
        yield Lemma(f"the sums take in a {name} that is dispatched", summed(after, a, b + 1), now)
    oldest = (term(ROW.length) == LENGTH(a), term(ROW.reserved) == RESERVED(a))
    some = (*oldest, summed(LIFE, a, b), a < b, oldest_apart(a, b))
    yield Lemma("the sums leave out the oldest row when its result comes",
                summed(run(told, LIFE, ROW, ACCEPTED), a + 1, b), some)  # fmt: skip
    others = z3.And(
        counts_hold(a + 1, b), z3.Implies(a + 1 == b, z3.And(TOKENS(b, b) == 0, ALL_RESERVED(b, b) == 0))
    )
    yield Lemma("the oldest row is part of the sums, and all of them if it is alone",
                part_of_all(LIFE, ROW), (*some, others))  # fmt: skip
    yield Lemma("sums are counts, and 0 without rows", sums_are_counts(LIFE),
                (summed(LIFE, a, b), counts_hold(a, b), z3.Implies(a == b, made(a, b))))  # fmt: skip

"""Sums of any number of counts, by induction: what holds of none, and is kept by one more, holds of all.

A sum is a function of which nothing is known but how it is made: none of them come to 0, and one more adds
itself. Whatever is proved of it holds of every loop that adds up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import z3

from hocket_proofs.symbolic.prover import Lemma

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

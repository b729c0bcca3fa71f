"""Facts about quotients that Z3 does not find by itself where the divisor is a symbol.

Each is proved for arbitrary numbers (`facts`), with the products written out, and then given to other proofs
as a hypothesis about the numbers at hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import z3

from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import FLOOR, REST


def ordered(a: Any, b: Any, divisor: Any) -> Any:
    """A larger number has no smaller quotient."""
    return z3.Implies(z3.And(divisor > 0, a <= b), FLOOR(a, divisor) <= FLOOR(b, divisor))


def quotient(a: Any, divisor: Any, q: Any) -> Any:
    """The quotient is the number whose multiple lies less than a divisor below."""
    product = divisor * q
    return z3.Implies(z3.And(divisor > 0, product <= a, a < product + divisor), FLOOR(a, divisor) == q)


def multiple(a: Any, divisor: Any, q: Any) -> Any:
    """A multiple leaves no rest."""
    return z3.Implies(
        z3.And(divisor > 0, a == divisor * q), z3.And(REST(a, divisor) == 0, FLOOR(a, divisor) == q)
    )


def within_one(a: Any, divisor: Any, q: Any) -> Any:
    """Strictly between two neighbouring multiples something is left."""
    product = divisor * q
    return z3.Implies(z3.And(divisor > 0, product < a, a < product + divisor), REST(a, divisor) != 0)


def shifted(a: Any, divisor: Any, times: Any) -> Any:
    """Whole divisors come out of a quotient."""
    whole = a + divisor * times
    return z3.Implies(
        divisor > 0,
        z3.And(FLOOR(whole, divisor) == FLOOR(a, divisor) + times, REST(whole, divisor) == REST(a, divisor)),
    )


def products_ordered(a: Any, b: Any, factor: Any) -> Any:
    """Multiples by a positive number keep the order."""
    return z3.Implies(z3.And(factor > 0, a <= b), factor * a <= factor * b)


def equal_products(a: Any, b: Any, factor: Any) -> Any:
    """Equal numbers have equal multiples."""
    return z3.Implies(a == b, factor * a == factor * b)


def facts() -> Iterable[Lemma]:
    """Each of the above, for arbitrary numbers: the order of products first, and the others from it."""
    a, b, d, q = z3.Ints("a b divisor q")
    yield Lemma("equal_products", equal_products(a, b, q))
    yield Lemma("products_ordered", products_ordered(a, b, d))
    yield Lemma("ordered", ordered(a, b, d), (products_ordered(FLOOR(b, d) + 1, FLOOR(a, d), d),))
    above = products_ordered(q + 1, FLOOR(a, d), d)
    below = products_ordered(FLOOR(a, d) + 1, q, d)
    yield Lemma("quotient", quotient(a, d, q), (above, below))
    yield Lemma("multiple", multiple(a, d, q), (above, below, equal_products(FLOOR(a, d), q, d)))
    yield Lemma("within_one", within_one(a, d, q), (quotient(a, d, q),))
    yield Lemma(
        "shifted",
        shifted(a, d, q),
        (quotient(a + d * q, d, FLOOR(a, d) + q), equal_products(FLOOR(a + d * q, d), FLOOR(a, d) + q, d)),
    )

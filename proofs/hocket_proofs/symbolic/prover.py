"""Asking Z3. A claim is proved if its negation has no model; anything else, `unknown` included, is red."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import z3

from hocket_proofs.symbolic.values import division_facts

EFFORT = 10_000_000
"""What a question may cost in Z3's own steps, a few seconds: unlike time, the same on a busy machine."""

TIMEOUT_MS = 60_000  # a second line of defence
PROVED = ""


class Lemma(NamedTuple):
    """A claim under hypotheses, as terms without quantifiers: what symbols are in it, it says of all values.

    A hypothesis about all requests stands as its instances for those that the claim speaks of. That is why
    Z3 either proves a claim, or gives numbers for which it does not hold. `room`: cases, each of which the
    hypotheses must leave room for, lest they say more than they seem to.
    """

    name: str
    claim: Any
    given: tuple[Any, ...] = ()
    room: tuple[Any, ...] = ()


def _solver(assertions: Iterable[Any], products: bool) -> Any:
    """A solver that knows what products of symbols are, or one that takes them for numbers of their own.

    The second is much faster, and what has no model there has none at all.
    """
    solver = z3.SimpleSolver()
    solver.set("rlimit", EFFORT)
    solver.set("timeout", TIMEOUT_MS)
    solver.set("arith.nl", products)
    solver.set("random_seed", 7)
    asserted = tuple(assertions)
    solver.add(*asserted, *division_facts(asserted))
    return solver


def prove(lemma: Lemma) -> str:
    """`PROVED`, or why not: a counterexample, no answer in time, or hypotheses that nothing satisfies."""
    given = tuple(_boolean(h) for h in lemma.given)
    negated = (*given, z3.Not(_boolean(lemma.claim)))
    if _solver(negated, products=False).check() != z3.unsat:
        solver = _solver(negated, products=True)
        answer = solver.check()
        if answer == z3.sat:
            return f"{lemma.name}: does not hold: {_told(solver.model())}"
        if answer != z3.unsat:
            return f"{lemma.name}: no answer within {EFFORT:,} steps"
    for case in ((), *((_boolean(case),) for case in lemma.room)):
        if (given or case) and (answer := _solver((*given, *case), products=True).check()) != z3.sat:
            return f"{lemma.name}: hypotheses that are {answer}{f' where {case[0]}' if case else ''}"
    return PROVED


def _boolean(claim: Any) -> Any:
    return claim.term if hasattr(claim, "term") else claim


def _told(model: Any) -> str:
    parts = sorted(f"{name} = {model[name]}" for name in model.decls() if name.arity() == 0)
    return ", ".join(parts) or "whatever the input"

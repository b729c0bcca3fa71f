"""Whom a blocked row may preempt, for any numbers of blocks, but few juniors and pools at a time (L6).

How many victims `designate` names depends on the numbers, and its loops run over all juniors, so that it is
looked at path by path for a fixed number of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import z3

from hocket.sched import kernel
from hocket.sched.kernel import Vector
from hocket_proofs.symbolic.lifting import lift, run, symbol
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import term

SHAPES = ((1, 1), (2, 1), (3, 1), (1, 2), (2, 2))  # juniors, pools


def enough(need: Vector, have: list[Any]) -> Any:
    """What is asked of every pool is there."""
    return z3.And([z3.Or(term(n) == 0, term(n) <= h) for n, h in zip(need, have, strict=True)])


def minimal_victims(juniors: int, pools: int) -> Iterable[Lemma]:
    """Victims suffice, none of them is superfluous, and they are sought from the most junior upward."""
    need, within = symbol(Vector, "need", pools), symbol(Vector, "within", pools)
    gains = tuple(symbol(Vector, f"gain {k}", pools) for k in range(juniors))
    sane = z3.And([term(g) >= 0 for g in chain(need, *gains)])

    def with_gains(chosen: Iterable[int]) -> list[Any]:
        chosen = tuple(chosen)
        return [term(w) + z3.Sum([term(gains[k][pool]) for k in chosen]) for pool, w in enumerate(within)]

    claims: dict[str, list[Any]] = {"suffice": [], "none is superfluous": [], "most junior first": [],
                                    "share a scarce pool": [], "are found if there are any": []}  # fmt: skip
    for path in lift(kernel.designate, need, within, gains, assume=(sane,)).paths:
        chosen: tuple[int, ...] = path.result
        told = z3.And(path.condition, sane)
        everybody = enough(need, with_gains(range(juniors)))
        if not chosen:
            none = z3.Or(enough(need, with_gains(())), z3.Not(everybody))
            claims["are found if there are any"].append(z3.Implies(told, none))
            continue
        claims["suffice"].append(z3.Implies(told, enough(need, with_gains(chosen))))
        without = [enough(need, with_gains(set(chosen) - {k})) for k in chosen]
        claims["none is superfluous"].append(z3.Implies(told, z3.Not(z3.Or(without))))
        fewer = enough(need, with_gains(range(max(chosen))))
        claims["most junior first"].append(z3.Implies(told, z3.Not(fewer)))
        for k in chosen:
            scarce = [
                z3.And(term(n) > term(w), term(g) > 0) for n, w, g in zip(need, within, gains[k], strict=True)
            ]
            claims["share a scarce pool"].append(z3.Implies(told, z3.Or(scarce)))
    for what, parts in claims.items():
        yield Lemma(f"victims {what} ({juniors} juniors, {pools} pools)", z3.And(parts))
    helps = term(run(kernel.helps, gains[0], need, within))
    wanted = [z3.And(term(n) > term(w), term(g) > 0) for n, w, g in zip(need, within, gains[0], strict=True)]
    yield Lemma(f"who helps has blocks of a scarce pool ({pools} pools)", helps == z3.Or(wanted))


def all_shapes() -> Iterable[Lemma]:
    """Every number of juniors and pools in turn."""
    return chain.from_iterable(minimal_victims(*shape) for shape in SHAPES)

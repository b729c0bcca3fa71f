"""Whom a blocked row may preempt (L6), for any numbers of blocks and juniors.

The loops over juniors are proved turn by turn: an invariant says what is known before an arbitrary turn, and
the shipped functions of that turn keep it. That the shipped loops are made of these turns is shown for any
functions in their place, with up to three juniors. Besides, the whole is looked at path by path, for few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import z3

from hocket.sched import kernel
from hocket.sched.kernel import Vector
from hocket_proofs.symbolic.lifting import Lifted, boolean, lift, run, symbol
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

    claims: dict[str, list[Any]] = {
        "suffice": [],
        "none is superfluous": [],
        "are the most junior that do": [],
        "share a scarce pool": [],
        "are found if there are any": [],
    }
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
        for k in chosen:
            # All who are more junior, with those chosen who are more senior, do not do without this one.
            others = enough(need, with_gains({*range(k), *(c for c in chosen if c > k)}))
            claims["are the most junior that do"].append(z3.Implies(told, z3.Not(others)))
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


POOLS = (1, 2, 3, 4)


class Turn(NamedTuple):
    """One arbitrary turn of a loop of `victims`, for so many pools. everybody: what all juniors looked at so
    far would cover together; kept: the gain of any one that was kept before.
    """

    need: Vector
    within: Vector
    covered: Vector
    gain: Vector
    everybody: Vector
    kept: Vector
    sane: Any


def a_turn(pools: int) -> Turn:
    """Arbitrary numbers; needs and gains are counts."""
    vectors = {name: symbol(Vector, name, pools) for name in Turn._fields[:-1]}
    counts = chain(vectors["need"], vectors["gain"], vectors["kept"])
    return Turn(**vectors, sane=z3.And([term(count) >= 0 for count in counts]))


def suffices(need: Vector, have: Any) -> Any:
    """The shipped verdict."""
    return term(run(kernel.fits, need, have))


def plus(a: Vector, b: Vector) -> Vector:
    """Pool by pool."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


def minus(a: Vector, b: Vector) -> Vector:
    """Pool by pool."""
    return tuple(x - y for x, y in zip(a, b, strict=True))


def equal(a: Any, b: Any) -> Any:
    """Pool by pool."""
    return z3.And([term(x) == term(y) for x, y in zip(a, b, strict=True)])


def at_most(a: Any, b: Any) -> Any:
    """Pool by pool."""
    return z3.And([term(x) <= term(y) for x, y in zip(a, b, strict=True)])


def search_holds(turn: Turn, short: Any, covered: Any, everybody: Any) -> Any:
    """While what is covered does not suffice, it is what everybody so far gives of the scarce pools."""
    scarce = [
        z3.Implies(term(n) > term(w), term(c) == term(e))
        for n, w, c, e in zip(turn.need, turn.within, covered, everybody, strict=True)
    ]
    return z3.And(
        at_most(turn.within, covered),
        at_most(covered, everybody),
        term(short) == z3.Not(suffices(turn.need, covered)),
        z3.Implies(term(short), z3.And(scarce)),
    )


def search() -> Iterable[Lemma]:
    """The first loop, from the most junior upward."""
    for pools in POOLS:
        turn, of, short = a_turn(pools), f"({pools} pools)", boolean("short")
        need, within, covered, gain, everybody = turn[:5]
        more = run(kernel.is_designated, short, need, within, gain)
        after = run(kernel.with_gain, covered, gain, more)
        later = run(kernel.short_after, short, more, need, after)
        given = (turn.sane, search_holds(turn, short, covered, everybody))
        yield Lemma(
            f"before the first junior {of}",
            search_holds(turn, run(kernel.is_short, need, within), within, within),
            (turn.sane,),
        )
        yield Lemma(
            f"kept by every junior {of}", search_holds(turn, later, after, run(plus, everybody, gain)), given
        )
        yield Lemma(
            f"a junior that is not designated changes no verdict {of}",
            term(run(kernel.short_after, short, False, need, covered)) == term(short),
        )
        yield Lemma(
            f"the next junior is designated iff what is covered does not suffice and it helps {of}",
            term(more)
            == z3.And(z3.Not(suffices(need, covered)), term(run(kernel.helps, gain, need, within))),
            given,
        )
        yield Lemma(
            f"what a designated junior gives is covered, and nothing else {of}",
            z3.If(term(more), equal(after, run(plus, covered, gain)), equal(after, covered)),
        )
        yield Lemma(
            f"while the designated do not suffice, nor do all juniors so far {of}",
            z3.Implies(term(short), z3.Not(suffices(need, everybody))),
            given,
        )
        yield Lemma(
            f"all that are more junior than a designated one do not suffice {of}",
            z3.Not(suffices(need, everybody)),
            (*given, term(more)),
        )
        yield Lemma(
            f"somebody is among those that suffice, unless nobody is needed {of}",
            z3.Or(suffices(need, within), z3.Not(equal(covered, within))),
            (*given, z3.Not(term(short))),
        )


def sparing() -> Iterable[Lemma]:
    """The second loop, from the most senior downward; `kept` is any one that stayed in an earlier turn."""
    for pools in POOLS:
        turn, of, chosen = a_turn(pools), f"({pools} pools)", boolean("designated")
        need, within, covered, gain, kept = turn.need, turn.within, turn.covered, turn.gain, turn.kept
        vain = run(kernel.is_superfluous, need, covered, gain, chosen)
        after = run(kernel.without_gain, covered, gain, vain)
        stays = z3.And(term(chosen), z3.Not(term(vain)))
        given = (turn.sane, suffices(need, covered))
        yield Lemma(f"whoever is left suffices {of}", suffices(need, after), given)
        yield Lemma(
            f"without one that stays the others do not suffice {of}",
            z3.Implies(stays, z3.Not(suffices(need, run(minus, after, gain)))),
            given,
        )
        yield Lemma(
            f"nor without one that stayed before {of}",
            z3.Not(suffices(need, run(minus, after, kept))),
            (*given, z3.Not(suffices(need, run(minus, covered, kept)))),
        )
        yield Lemma(
            f"what a superfluous junior gives is not covered any more, and all else is {of}",
            z3.If(term(vain), equal(after, run(minus, covered, gain)), equal(after, covered)),
        )
        yield Lemma(f"nobody else is superfluous {of}", z3.Implies(term(vain), term(chosen)))
        before = run(minus, covered, gain)
        yield Lemma(
            f"the last one that was designated is a victim {of}",
            z3.Implies(term(chosen), stays),
            (*given, z3.Not(suffices(need, before))),
        )
        fewer = turn.everybody
        yield Lemma(
            f"no set without one that stays suffices {of}",
            z3.Not(suffices(need, fewer)),
            (*given, stays, at_most(fewer, run(minus, after, gain))),
        )
        scarce = [
            z3.And(term(n) > term(w), term(n) > 0, term(g) > 0)
            for n, w, g in zip(need, within, gain, strict=True)
        ]
        yield Lemma(
            f"one that stays has blocks of a pool in which something is asked and short {of}",
            z3.Or(scarce),
            (*given, stays, at_most(within, run(minus, after, gain))),
        )


class Question(NamedTuple):
    """What `victims` asks in a turn: which function, of what, and what it is told."""

    function: str
    given: tuple[Any, ...]
    told: Any


def answered(questions: list[Question], function: Callable[..., Any], *given: Any) -> Lifted:
    """A shipped function, lifted while whatever it asks is answered by the list, question by question."""
    asked: list[str] = []

    def answer(name: str, *of: Any) -> Any:
        expected, wanted, told = questions[len(asked)]
        asked.append(name)
        if (
            name != expected
            or len(of) != len(wanted)
            or any(g is not w for g, w in zip(of, wanted, strict=True))
        ):
            raise ValueError(f"{name} is asked of other things than {expected}")
        return told

    def watched() -> Any:
        asked.clear()
        return function(*given)

    names = {question.function for question in questions}
    real = {name: vars(kernel)[name] for name in names}
    vars(kernel).update({name: partial(answer, name) for name in names})
    try:
        return lift(watched)
    finally:
        vars(kernel).update(real)


def wired(juniors: int) -> Lemma:
    """`victims` as it ships, with anything for the functions of its turns: it asks them junior by junior,
    hands on what it is told, and makes its verdicts of theirs.
    """
    need, within = symbol(Vector, "need", 1), symbol(Vector, "within", 1)
    gains = tuple(symbol(Vector, f"gain {k}", 1) for k in range(juniors))
    covered = (within, *(symbol(Vector, f"covered {k}", 1) for k in range(juniors)))
    left = (covered[-1], *(symbol(Vector, f"left {k}", 1) for k in range(juniors)))
    more = tuple(boolean(f"designated {k}") for k in range(juniors))
    vain = tuple(boolean(f"superfluous {k}") for k in range(juniors))
    short = tuple(boolean(f"short {k}") for k in range(juniors + 1))
    questions = [Question("is_short", (need, within), short[0])]
    for k in range(juniors):
        questions.append(Question("is_designated", (short[k], need, within, gains[k]), more[k]))
        questions.append(Question("with_gain", (covered[k], gains[k], more[k]), covered[k + 1]))
        questions.append(Question("short_after", (short[k], more[k], need, covered[k + 1]), short[k + 1]))
    for k, j in enumerate(reversed(range(juniors))):
        questions.append(Question("is_superfluous", (need, left[k], gains[j], more[j]), vain[j]))
        questions.append(Question("without_gain", (left[k], gains[j], vain[j]), left[k + 1]))
    found = answered(questions, kernel.victims, need, within, gains).terms()
    enough = z3.Not(term(short[-1]))
    wanted = [z3.And(enough, term(m), z3.Not(term(v))) for m, v in zip(more, vain, strict=True)]
    return Lemma(
        f"a victim is who is designated and not superfluous, if all of them suffice ({juniors} juniors)",
        z3.And([one == other for one, other in zip(found, wanted, strict=True)]),
    )


def turns() -> Iterable[Lemma]:
    """The loops of `victims` are made of the turns above, and `designate` names its victims."""
    for juniors in range(4):
        yield wired(juniors)
        needed, gains = (
            symbol(Vector, "need", 1),
            tuple(symbol(Vector, f"gain {k}", 1) for k in range(juniors)),
        )
        verdicts = tuple(boolean(f"victim {k}") for k in range(juniors))
        asked = [Question("victims", (needed, needed, gains), verdicts)]
        for path in answered(asked, kernel.designate, needed, needed, gains).paths:
            yield Lemma(
                f"{path.result} of {juniors} juniors are named iff they are the victims",
                z3.And([term(verdict) == z3.BoolVal(k in path.result) for k, verdict in enumerate(verdicts)]),
                (path.condition,),
            )

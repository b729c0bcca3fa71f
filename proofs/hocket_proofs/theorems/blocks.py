"""Blocks of one pool, counted: conservation, promises, all or nothing, and who may write where (S5, S6).

Vectors have one entry per pool, and every function of vectors works pool by pool, so that one pool stands for
any number of them; that `fits` does is proved for vectors of up to four.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import z3

from hocket.kv import counts
from hocket.kv.counts import PoolCounts
from hocket.sched import kernel
from hocket.sched.kernel import PREFILL
from hocket_proofs.symbolic.lifting import boolean, integer, run, symbol
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import FLOOR, term
from hocket_proofs.theorems.arithmetic import ordered, products_ordered, quotient

COUNTS: PoolCounts = symbol(PoolCounts, "pool", 0)
N = integer("blocks")


def conserved(c: PoolCounts) -> Any:
    """Each count is one, and together they are the pool."""
    free, owned, fenced = map(term, c)
    return z3.And(free >= 0, owned >= 0, fenced >= 0, free + owned + fenced == z3.Int("usable"))


def conservation() -> Iterable[Lemma]:
    """Guard and effect of every transition of a pool."""
    usable = integer("usable")
    new = run(counts.all_free, usable)
    free = term(new.free) == term(usable)
    yield Lemma("in a new pool every block is free", z3.And(conserved(new), free), (term(usable) >= 1,))
    for name, guard, effect, moved in (
        ("take", counts.may_take, counts.after_take, ("free", "owned")),
        ("return", counts.may_release, counts.after_return, ("owned", "free")),
        ("fence", counts.may_release, counts.after_fence, ("owned", "fenced")),
        ("settle", counts.may_settle, counts.after_settle, ("fenced", "free")),
    ):
        may, after = term(run(guard, COUNTS, N)), run(effect, COUNTS, N)
        source, target = moved
        yield Lemma(
            f"{name}: each block stays exactly one of free, owned and fenced",
            conserved(after),
            (conserved(COUNTS), may),
        )
        yield Lemma(
            f"{name}: the blocks go from {source} to {target}",
            z3.And(
                term(getattr(after, source)) == term(getattr(COUNTS, source)) - term(N),
                term(getattr(after, target)) == term(getattr(COUNTS, target)) + term(N),
            ),
        )
        yield Lemma(
            f"{name}: refused iff there are not so many",
            may == z3.And(0 <= term(N), term(N) <= term(getattr(COUNTS, source))),
        )


FREE, PROMISED, OWN, ASIDE = (integer(n) for n in ("free", "promised", "own", "aside"))
PROMISE, HELD, NEED, MARK = (integer(n) for n in ("promise", "held", "need", "watermark"))


def covered(free: Any, promised: Any, own: Any) -> Any:
    """Promises are covered by free blocks, and one's own is one of them."""
    return z3.And(0 <= term(own), term(own) <= term(promised), term(promised) <= term(free))


def promises() -> Iterable[Lemma]:
    """What the planner's guards let somebody take leaves no pool short, and every promise covered."""
    own = run(kernel.outstanding, PROMISE, HELD)
    may = run(kernel.may_take, FREE, PROMISED, own, ASIDE)
    amounts = (term(ASIDE) >= 0, term(NEED) >= 0, term(HELD) >= 0, term(PROMISE) >= 0)
    given = (*amounts, covered(FREE, PROMISED, own), term(run(kernel.pool_fits, NEED, may)))
    free = FREE - NEED
    after = {
        "while the promise lasts": run(kernel.outstanding, PROMISE, HELD + NEED),
        "when the promise ends": integer("nothing") * 0,
    }
    yield Lemma("a grant takes no more than is free", term(free) >= 0, given)
    for name, left in after.items():
        all_left = run(kernel.promised_after, PROMISED, own, left)
        yield Lemma(
            f"a grant leaves every promise covered, {name}",
            z3.And(term(left) >= 0, covered(free, all_left, left)),
            given,
        )
    yield Lemma(
        "a grant leaves what is set aside for others",
        z3.Implies(term(NEED) > 0, term(free) - (term(PROMISED) - term(own)) >= term(ASIDE)),
        given,
    )
    yield Lemma(
        "what nobody needs is never refused", term(run(kernel.pool_fits, NEED, may)), (term(NEED) == 0,)
    )
    yield Lemma(
        "what is there is never refused", term(run(kernel.pool_fits, NEED, FREE)), (term(NEED) <= term(FREE),)
    )
    yield Lemma(
        "what one may take is free and neither promised to others nor set aside",
        term(may) == term(FREE) - (term(PROMISED) - term(own)) - term(ASIDE),
    )
    gone = run(kernel.promised_after, PROMISED, own, 0)
    yield Lemma(
        "a preemption gives back blocks and promise",
        covered(FREE + HELD, gone, 0),
        (*amounts, covered(FREE, PROMISED, own)),
    )
    yield Lemma(
        "outstanding is what is promised and not held",
        term(own) == z3.If(term(PROMISE) > term(HELD), term(PROMISE) - term(HELD), 0),
    )
    extra = run(kernel.uncovered, NEED, own)
    yield Lemma(
        "set aside is what a promise does not cover: together they cover the need, and no more",
        z3.If(term(NEED) >= term(own), term(extra) + term(own) == term(NEED), term(extra) == 0),
    )


def admission() -> Iterable[Lemma]:
    """An admission that fits leaves promises covered, its own included, and the watermark."""
    runs = boolean("anything runs")
    (ask,) = run(kernel.admission_ask, (PROMISE,), (NEED,), (MARK,), runs)
    may = run(kernel.may_take, FREE, PROMISED, 0, ASIDE)
    left = run(kernel.outstanding, PROMISE, NEED)
    amounts = (term(ASIDE) >= 0, term(NEED) >= 0, term(PROMISE) >= 0, term(MARK) >= 0)
    given = (*amounts, covered(FREE, PROMISED, 0), term(run(kernel.pool_fits, ask, may)))
    free, promised = FREE - NEED, run(kernel.promised_after, PROMISED, 0, left)
    yield Lemma(
        "an admission leaves every promise covered, its own too", covered(free, promised, left), given
    )
    more = z3.If(term(PROMISE) > term(NEED), term(PROMISE), term(NEED))
    yield Lemma(
        "it asks for its promise or its first row, whichever is more, and the watermark if anything runs",
        term(ask) == z3.If(z3.And(term(runs), more > 0), more + term(MARK), more),
        amounts,
    )
    yield Lemma(
        "what it leaves free beyond promises is at least the watermark",
        z3.Implies(z3.And(term(runs), more > 0), term(free) - term(promised) >= term(MARK)),
        given,
    )


def all_or_nothing() -> Iterable[Lemma]:
    """Vectors fit iff every pool does; sums and differences are taken pool by pool."""
    for pools in range(1, 5):
        ask, have = (symbol(kernel.Vector, name, pools) for name in ("ask", "have"))
        each = [term(run(kernel.pool_fits, a, b)) for a, b in zip(ask, have, strict=True)]
        yield Lemma(
            f"{pools} pools: given only if every pool has its part",
            term(run(kernel.fits, ask, have)) == z3.And(each),
        )
        total, rest = run(kernel.add, ask, have), run(kernel.subtract, ask, have)
        yield Lemma(
            f"{pools} pools: sums and differences",
            z3.And(
                [
                    z3.And(term(t) == term(a) + term(b), term(r) == term(a) - term(b))
                    for a, b, t, r in zip(ask, have, total, rest, strict=True)
                ]
            ),
        )


def unlike(function: Any, *vectors: Any) -> bool:
    """Vectors of unlike pools are a mistake of ours, and raise."""
    try:
        run(function, *vectors)
    except ValueError:
        return True
    return False


def unlike_vectors() -> Iterable[Lemma]:
    """No pool is left out without notice."""
    two, one = symbol(kernel.Vector, "two", 2), symbol(kernel.Vector, "one", 1)
    runs = boolean("anything runs")
    for function, vectors in (
        (kernel.add, ((two, one), (one, two))),
        (kernel.subtract, ((two, one), (one, two))),
        (kernel.fits, ((two, one), (one, two))),
        (kernel.helps, ((one, two, two), (two, one, two), (two, two, one))),
        (kernel.admission_ask, ((one, two, two, runs), (two, one, two, runs), (two, two, one, runs))),
    ):
        refused = all(unlike(function, *given) for given in vectors)
        yield Lemma("vectors of unlike pools are refused", z3.BoolVal(refused))


def writes() -> Iterable[Lemma]:
    """S6: every column that a row in flight may write is recognised as such, and no other."""
    column, size, first, end, token = (integer(n) for n in ("column", "block_size", "first", "end", "token"))
    c, b, f, e, t = map(term, (column, size, first, end, token))
    verdict = term(run(kernel.writes_column, column, size, first, end))
    given = (b >= 1, 0 <= f, f < e)
    inside = (f <= t, t < e, c == FLOOR(t, b))
    yield Lemma(
        "a token that is written lies in a column that counts as written",
        verdict,
        (*given, *inside, ordered(f, t, b), ordered(-e, -t - 1, b), *ceiling(t, b)),
    )
    last = z3.If(b * c >= f, b * c, f)
    yield Lemma(
        "a column that counts as written holds a token that is",
        z3.And(f <= last, last < e, b * c <= last, last < b * c + b),
        (*given, verdict, *below(f, b, c), *above(e, b, c)),
    )
    phase, start, prompt, outputs, later = (
        integer(n) for n in ("phase", "start", "prompt_len", "outputs", "more outputs")
    )
    begins = term(run(kernel.write_start, phase, start, prompt, outputs))
    begins_later = term(run(kernel.write_start, phase, start, prompt, outputs + later))
    yield Lemma(
        "a chunk writes from its start on, a decode row from the last token processed",
        begins == z3.If(term(phase) == PREFILL, term(start), term(prompt) + term(outputs) - 1),
    )
    yield Lemma(
        "results only move a write set up: what was fenced was enough",
        begins <= begins_later,
        (term(later) >= 0,),
    )


def ceiling(t: Any, b: Any) -> tuple[Any, ...]:
    """Rounding up t + 1 is one more than rounding down t, in the form that the kernel uses."""
    return (quotient(-t - 1, b, -FLOOR(t, b) - 1),)


def below(f: Any, b: Any, c: Any) -> tuple[Any, ...]:
    """A quotient that is at most c lies before the end of column c."""
    return (products_ordered(FLOOR(f, b), c, b),)


def above(e: Any, b: Any, c: Any) -> tuple[Any, ...]:
    """Fewer columns than it takes to hold e tokens begin before e."""
    return (products_ordered(c + 1, -FLOOR(-e, b), b),)

"""How long the most senior running request waits for blocks (L7, its first part), one pool at a time.

While it is blocked, its victims are held. Steps are numbered in order of dispatch; in flight, when the
victims are first held, are those from `OLDEST` on, before `MARK`. Results come in that order, so that the
number of these steps that are still in flight is a rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import z3

from hocket.kv import counts
from hocket.kv.counts import PoolCounts
from hocket.sched import kernel
from hocket.sched.kernel import DECODE, PREFILL
from hocket_proofs.symbolic.lifting import boolean, integer, run, symbol, symbolic
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import term
from hocket_proofs.theorems.arithmetic import ordered
from hocket_proofs.theorems.blocks import conserved
from hocket_proofs.theorems.sums import INT, sum_over

IN_STEP = z3.Function("rows in step", INT, INT)
ROWS = z3.Function("rows in steps", INT, INT, INT)
OLDEST, MARK, NOW = z3.Ints("oldest mark oldest_now")
DEPTH = integer("async_depth")


def rows_made(a: Any, b: Any) -> Any:
    """Rows in flight of one request, over the steps from a on, before b: at most one in each."""
    one = z3.And([z3.And(0 <= IN_STEP(k), IN_STEP(k) <= 1) for k in (a, b)])
    return z3.And(one, sum_over(ROWS, IN_STEP, a, b))


def few(a: Any, b: Any) -> Any:
    """No more rows than steps."""
    return z3.And(0 <= ROWS(a, b), ROWS(a, b) <= b - a)


def oldest_apart(a: Any, b: Any) -> Any:
    """The oldest step, and the others."""
    return ROWS(a, b) == IN_STEP(a) + ROWS(a + 1, b)


def rows_of_held() -> Iterable[Lemma]:
    """Whoever gets no row has none in flight when the steps that were in flight are processed."""
    a, b = OLDEST, MARK
    runnable, gone = integer("runnable"), boolean("preempted")
    may = [term(run(kernel.may_have_row, phase, runnable, True, gone)) for phase in (PREFILL, DECODE)]
    yield Lemma("who is held gets no row, whatever the phase", z3.Not(z3.Or(may)))
    yield Lemma("in no steps there are no rows", few(a, a), (rows_made(a, a),))
    yield Lemma("one step more, one row more at most", few(a, b + 1), (rows_made(a, b), a <= b, few(a, b)))
    yield Lemma("one step is its own sum", oldest_apart(a, a + 1), (rows_made(a, a), rows_made(a + 1, a + 1)))
    yield Lemma(
        "one step more adds to the others",
        oldest_apart(a, b + 1),
        (rows_made(a, b), rows_made(a + 1, b), a < b, oldest_apart(a, b)),
    )


def drained_in_time() -> Iterable[Lemma]:
    """The rank: steps in flight that may hold a row of it. It falls with every result, and depth - 1 results
    bring it to 0.
    """
    rows, now = integer("rows_in_flight"), NOW
    counted = z3.And(now <= MARK, term(rows) == ROWS(now, MARK))
    room = term(run(kernel.has_room, symbolic(MARK - OLDEST), DEPTH))
    known = (OLDEST <= now, counted, few(now, MARK))
    yield Lemma(
        "a call with room finds at most depth - 1 steps in flight, and a row in each at most",
        z3.And(MARK - OLDEST <= term(DEPTH) - 1, term(rows) <= term(DEPTH) - 1),
        (room, *known, now == OLDEST),
    )
    fewer = term(run(kernel.rows_after_result, rows))
    after = z3.If(IN_STEP(now) == 1, fewer, term(rows))
    yield Lemma(
        "a result leaves the rows of the steps after it",
        after == ROWS(now + 1, MARK),
        (*known, now < MARK, rows_made(now, now), oldest_apart(now, MARK)),
    )
    yield Lemma(
        "after depth - 1 results at most it is drained",
        term(run(kernel.may_admit, rows, 0, 1)),
        (room, *known, now - OLDEST >= term(DEPTH) - 1, z3.Implies(now == MARK, rows_made(now, MARK))),
    )


NEED, AVAILABLE = integer("senior's need"), integer("available")
FREE, OTHERS = integer("free"), integer("promised to others")
PROMISE, HELD, ROW, MORE = (integer(n) for n in ("promise", "held", "row", "set aside for others"))
OWN = integer("senior's outstanding")


def has(free: Any, promised: Any) -> Any:
    """What the most senior running request may take: nothing is set aside for anybody before it."""
    return run(kernel.may_take, free, promised, OWN, 0)


def no_worse(free: Any, promised: Any) -> Any:
    """It may take as much as before, or all that it needs."""
    before, after = term(has(FREE, OWN + OTHERS)), term(has(free, promised))
    return z3.Or(after >= before, after >= term(NEED))


def shortage() -> Iterable[Lemma]:
    """Whatever junior takes blocks, in whichever call: it never takes them from the senior's next row."""
    everything = OWN + OTHERS
    aside = run(kernel.uncovered, NEED, OWN) + MORE
    theirs = run(kernel.outstanding, PROMISE, HELD)
    amounts = [term(n) >= 0 for n in (NEED, FREE, OTHERS, OWN, PROMISE, HELD, ROW, MORE)]
    may = run(kernel.may_take, FREE, everything, theirs, aside)
    granted = term(run(kernel.pool_fits, ROW, may))
    lasts = run(kernel.outstanding, PROMISE, HELD + ROW)
    for name, left in (("while its promise lasts", lasts), ("when its promise ends", integer("none") * 0)):
        yield Lemma(
            f"a row of a junior takes nothing from the senior's, {name}",
            no_worse(FREE - ROW, run(kernel.promised_after, everything, theirs, left)),
            (*amounts, term(theirs) <= term(OTHERS), granted),
        )
    (ask,) = run(kernel.admission_ask, (PROMISE,), (ROW,), (HELD,), boolean("anything runs"))
    open_to_all = run(kernel.may_take, FREE, everything, 0, aside)
    for name, left in (
        ("that keeps a promise", run(kernel.outstanding, PROMISE, ROW)),
        ("that reads its prompt at once", integer("none") * 0),
    ):
        yield Lemma(
            f"an admission of a junior takes nothing from it, {name}",
            no_worse(FREE - ROW, run(kernel.promised_after, everything, 0, left)),
            (*amounts, term(run(kernel.pool_fits, ask, open_to_all))),
        )
    yield Lemma(
        "drafts take nothing from it",
        no_worse(FREE - ROW, everything),
        (*amounts, term(run(kernel.pool_fits, ROW, open_to_all))),
    )
    yield Lemma(
        "a preemption takes nothing from it",
        no_worse(FREE + HELD, run(kernel.promised_after, everything, theirs, 0)),
        tuple(amounts),
    )
    yield Lemma(
        "so what fits goes on to fit, and what is short never gets shorter",
        z3.And(
            z3.Implies(term(AVAILABLE) >= term(NEED), term(ROW) >= term(NEED)),
            z3.Implies(term(AVAILABLE) < term(NEED), term(ROW) >= term(AVAILABLE)),
        ),
        (z3.Or(term(ROW) >= term(AVAILABLE), term(ROW) >= term(NEED)),),
    )


def results() -> Iterable[Lemma]:
    """A result takes no blocks and makes no next row longer."""
    pool: PoolCounts = symbol(PoolCounts, "pool", 0)
    blocks = integer("blocks")
    for name, guard, effect in (
        ("a window's blocks that are returned", counts.may_release, counts.after_return),
        ("an end's blocks that are fenced", counts.may_release, counts.after_fence),
        ("fenced blocks that are settled", counts.may_settle, counts.after_settle),
    ):
        after = run(effect, pool, blocks)
        yield Lemma(
            f"{name} leave no fewer that are free or fenced, and none fewer that are free",
            z3.And(
                term(after.free) + term(after.fenced) >= term(pool.free) + term(pool.fenced),
                term(after.free) >= term(pool.free),
            ),
            (conserved(pool), term(run(guard, pool, blocks))),
        )
    computed, fewer, size, columns = (integer(n) for n in ("computed", "fewer", "block_size", "columns"))
    now = term(run(kernel.new_columns, computed + 1, size, columns))
    later = term(run(kernel.new_columns, fewer + 1, size, columns))
    yield Lemma(
        "rejected drafts leave the next row no more to ask for",
        later <= now,
        (
            term(size) >= 1,
            term(fewer) <= term(computed),
            ordered(-term(computed) - 1, -term(fewer) - 1, term(size)),
        ),
    )


def victims_exist() -> Iterable[Lemma]:
    """All juniors together suffice for a drained most senior request: with `capacity.tables`, what it holds
    and its next row are no more than the pool was asked for when it was accepted. What juniors hold, and what
    they are promised, are sums.
    """
    pool: PoolCounts = symbol(PoolCounts, "pool", 0)
    own, juniors, coming = (integer(n) for n in ("senior holds", "juniors hold", "coming"))
    available = has(pool.free, OWN + OTHERS)
    (within,) = run(kernel.add, run(kernel.add, (available,), (pool.fenced,)), (coming,))
    (reach,) = run(kernel.add, (within,), (juniors + OTHERS,))
    given = (
        conserved(pool),
        term(pool.owned) == term(own) + term(juniors),
        *[term(n) >= 0 for n in (own, juniors, coming, NEED, OWN, OTHERS)],
        term(own) + term(NEED) <= z3.Int("usable"),
    )
    yield Lemma("all juniors together suffice", term(run(kernel.pool_fits, NEED, reach)), given)
    yield Lemma(
        "with no junior it waits for results at most",
        term(run(kernel.pool_fits, NEED, within)),
        (*given, term(juniors) == 0, term(OTHERS) == 0),
    )


BACK = z3.Function("back with result", INT, INT)
BACKS = z3.Function("back with results", INT, INT, INT)
VICTIMS_HOLD, VICTIMS_OWN, AT_FIRST = (
    integer(n) for n in ("victims hold", "victims' outstanding", "reach at first")
)


def reach(free: Any, others: Any, held: Any, own: Any) -> Any:
    """What the senior may take once its victims are preempted: what it may take now, and their gains."""
    return term(has(free, OWN + others + own) + held + own)


def stage_holds(now: Any, reaches: Any) -> Any:
    """Its need is met, or what was within reach at first still is, and what has come back since."""
    return z3.Or(reaches >= term(NEED), reaches >= term(AT_FIRST) + BACKS(OLDEST, now))


def stage() -> Iterable[Lemma]:
    """While the same victims are designated, or none because the row only waits for results: `BACK(k)` blocks
    of the pool come back with the result of step k, those that are fenced for it among them.
    """
    pool: PoolCounts = symbol(PoolCounts, "pool", 0)
    blocks, free, victims = integer("blocks"), integer("free later"), (VICTIMS_HOLD, VICTIMS_OWN)
    now = reach(pool.free, OTHERS, *victims)
    counted = [term(n) >= 0 for n in (NEED, OWN, OTHERS, VICTIMS_HOLD, VICTIMS_OWN)]
    known = (*counted, conserved(pool), stage_holds(NOW, now), BACK(NOW) >= 0)
    back = sum_over(BACKS, BACK, OLDEST, NOW)
    yield Lemma(
        "at first",
        stage_holds(OLDEST, now),
        (term(AT_FIRST) == now, sum_over(BACKS, BACK, OLDEST, OLDEST)),
    )
    before = term(has(pool.free, OWN + OTHERS + VICTIMS_OWN))
    after = term(has(free, OWN + OTHERS + VICTIMS_OWN))
    yield Lemma(
        "kept by whoever takes blocks, as shown above",
        stage_holds(NOW, reach(free, OTHERS, *victims)),
        (*known, z3.Or(after >= before, after >= term(NEED))),
    )
    settled = run(counts.after_settle, pool, blocks)
    yield Lemma(
        "kept by a result, which gives back what is fenced for its step",
        stage_holds(NOW + 1, reach(settled.free, OTHERS, *victims)),
        (*known, back, OLDEST <= NOW, term(blocks) >= BACK(NOW)),
    )
    returned = run(counts.after_return, pool, blocks)
    some = (*known, term(run(counts.may_release, pool, blocks)))
    yield Lemma(
        "kept when a victim's window returns blocks",
        stage_holds(NOW, reach(returned.free, OTHERS, VICTIMS_HOLD - blocks, integer("outstanding later"))),
        some,
    )
    theirs, later = (run(kernel.outstanding, PROMISE, held) for held in (HELD, HELD - blocks))
    yield Lemma(
        "kept when another window returns blocks",
        stage_holds(NOW, reach(returned.free, OTHERS - theirs + later, *victims)),
        (*some, term(theirs) <= term(OTHERS)),
    )
    yield Lemma(
        "kept when another request ends, its blocks fenced",
        stage_holds(NOW, reach(run(counts.after_fence, pool, blocks).free, OTHERS - theirs, *victims)),
        (*some, term(theirs) >= 0),
    )
    yield Lemma(
        "what sufficed with all that comes back suffices when it has come back",
        term(run(kernel.pool_fits, NEED, symbolic(now))),
        (*known, NOW == MARK, term(NEED) <= term(AT_FIRST) + BACKS(OLDEST, MARK)),
    )


def waiting() -> Iterable[Lemma]:
    """Who only waits for results goes on to, and designates nobody any more, until its row fits."""
    fenced, later, after = integer("fenced"), integer("available later"), integer("fenced later")
    waits = term(run(kernel.pool_fits, NEED, AVAILABLE + fenced))
    still = term(run(kernel.pool_fits, NEED, later + after))
    given = (waits, term(fenced) >= 0, term(after) >= 0)
    yield Lemma(
        "whoever takes blocks",
        still,
        (
            *given,
            z3.Or(term(later) >= term(AVAILABLE), term(later) >= term(NEED)),
            term(after) == term(fenced),
        ),
    )
    yield Lemma(
        "whatever a result gives back",
        still,
        (*given, term(later) + term(after) >= term(AVAILABLE) + term(fenced)),
    )

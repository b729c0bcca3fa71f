"""The capacity formula is what tables need at most, for any block sizes, windows, lengths and drafts (S5).

Need is a sum over the groups of a pool, so that what holds of every group at two starts holds of the sum; a
group stands for any number of them. `capacity_need` itself is a loop over starts whose number is not known
beforehand: proved is that the starts which it is told to look at are enough, that each turn keeps the larger
of what it was given and what it meets, and, by induction over the turns, that the largest of any number is
kept. That `range` visits what it is told to is taken for granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import z3

from hocket.core.config import SchedulerConfig
from hocket.sched import kernel
from hocket.sched.kernel import Group
from hocket_proofs.symbolic.lifting import integer, run, symbol, symbolic
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import FLOOR, quotients, term
from hocket_proofs.theorems.arithmetic import ordered, products_ordered, quotient, shifted

INT = z3.IntSort()
GROUP: Group = symbol(Group, "group", 0)
START, REACH, TOTAL, PERIOD = (integer(n) for n in ("start", "reach", "total", "period"))
SIZE, WINDOW = term(GROUP.block_size), term(GROUP.window)
Q, F, N = term(START), term(REACH), term(TOTAL)
SHAPE = (SIZE >= 1, WINDOW >= 0, F >= 1, N >= 1, 0 <= Q, Q < N)


def held_at(start: Any) -> Any:
    """Blocks of the group when a row starts at `start`, as the shipped function says."""
    return term(run(kernel.blocks_at, GROUP, start, REACH, TOTAL))


def orders(*terms: Any) -> list[Any]:
    """Of all quotients in `terms` by the group's block size: the larger number has no smaller one."""
    numbers = [a for a, d in quotients(*terms) if d.eq(SIZE)]
    return [ordered(a, b, SIZE) for a in numbers for b in numbers if not a.eq(b)]


def slope(number: Any) -> int:
    """By how much a number grows with the start."""
    grown = z3.substitute(number, (Q, Q + 1)) - number
    return int(z3.simplify(grown, som=True).as_long())


def enough_starts() -> Iterable[Lemma]:
    """Whatever the start, one that is looked at needs no less."""
    last = run(kernel.last_start, TOTAL, REACH)
    first = run(kernel.first_start, last, PERIOD)
    here, before, further = held_at(START), held_at(START - 1), held_at(START + PERIOD)
    yield Lemma(
        "starts past the last one only return blocks",
        here <= before,
        (*SHAPE, Q > term(last), *orders(here, before)),
    )
    times, p = integer("blocks per period").term, term(PERIOD)
    by_period = [shifted(a, SIZE, slope(a) * times) for a, d in quotients(here) if d.eq(SIZE) and slope(a)]
    yield Lemma(
        "a whole period later a windowed group needs no fewer",
        here <= further,
        (
            *SHAPE,
            WINDOW >= 1,
            times >= 1,
            p == SIZE * times,
            Q + p <= term(last),
            *by_period,
            *orders(here, further),
        ),
    )
    yield Lemma(
        "and a group without a window never does",
        here <= further,
        (*SHAPE, WINDOW == 0, p >= 1, *orders(here, further)),
    )
    entry = term(run(kernel.first_entry, first, REACH, GROUP.block_size))
    low, place = term(first), FLOOR(Q + F - 1, SIZE)
    period = (p >= 1,)
    enters = z3.IntVal(0) == Q + F - 1 - SIZE * place
    yield Lemma(
        "from one start to the next need grows only where a row enters a new block",
        here <= before,
        (
            *SHAPE,
            Q >= 1,
            Q <= term(last),
            z3.Not(enters),
            *orders(here, before),
            quotient(-(Q + F), SIZE, -place - 1),
            quotient(-(Q - 1 + F), SIZE, -place - 1),
        ),
    )
    steps = place + FLOOR(1 - F - low, SIZE)
    yield Lemma(
        "every start of the period at which a row enters a new block is visited",
        z3.And(entry <= Q, Q - entry == SIZE * steps),
        (*SHAPE, *period, low <= Q, Q <= term(last), enters, products_ordered(steps, z3.IntVal(-1), SIZE)),
    )
    yield Lemma(
        "no start is visited before the period or past the request",
        z3.And(0 <= low, low <= entry, low <= term(last), term(last) < N),
        (*SHAPE, *period),
    )
    yield Lemma(
        "the period is whole, or begins with the request",
        z3.Or(low == 0, low + p == term(last) + 1),
        (*SHAPE, *period),
    )


def loop_body() -> Iterable[Lemma]:
    """The body of the loop keeps the largest need; groups of a pool add up."""
    need = integer("need")
    for size in (1, 2, 3):
        groups = tuple(symbol(Group, f"group {k}", 0) for k in range(size))
        here = run(kernel.blocks_of_all_at, groups, START, REACH, TOTAL)
        each = [term(run(kernel.blocks_at, group, START, REACH, TOTAL)) for group in groups]
        yield Lemma(f"need of {size} groups is the sum of theirs", term(here) == z3.Sum(each))
    larger = term(run(kernel.larger_need, need, (GROUP,), START, REACH, TOTAL))
    here = held_at(START)
    yield Lemma("the larger need is kept", larger == z3.If(term(need) < here, here, term(need)))


def visiting(groups: tuple[Group, ...]) -> tuple[Any, ...]:
    """`capacity_need` as it ships, with one arbitrary start in place of each loop's starts, and an arbitrary
    need at every start: the result, and what each loop was told to visit.
    """
    told: list[Any] = []

    def any_start(low: Any, high: Any, step: Any) -> list[Any]:
        visited = integer(f"visited {len(told)}")
        told.append((low, high, step, visited))
        return [visited]

    def any_need(of: tuple[Group, ...], *where: Any) -> Any:
        if of is not groups:
            raise ValueError("need of other groups")
        return symbolic(NEED_AT(*map(term, where)))

    with shipped_with(range=any_start, blocks_of_all_at=any_need):
        return (kernel.capacity_need(groups, TOTAL, REACH, PERIOD), *told)


@contextmanager
def shipped_with(**others: Any) -> Iterator[None]:
    """The kernel with other functions for some that it asks."""
    real = {name: vars(kernel)[name] for name in others if name in vars(kernel)}
    vars(kernel).update(others)
    try:
        yield
    finally:
        for name in others:
            del vars(kernel)[name]
        vars(kernel).update(real)


NEED_AT = z3.Function("need at", *[INT] * 4)


def whole_loop() -> Iterable[Lemma]:
    """The loop: it visits what it should for every group, and the result is the largest need that it met."""
    groups = tuple(symbol(Group, f"group {k}", 0) for k in range(2))
    need, *told = run(visiting, groups)
    last = run(kernel.last_start, TOTAL, REACH)
    first = run(kernel.first_start, last, PERIOD)
    for group, (low, high, step, _) in zip(groups, told, strict=True):
        entry = run(kernel.first_entry, first, REACH, group.block_size)
        yield Lemma(
            "every group's entries up to the last start are visited",
            z3.And(
                term(low) == term(entry), term(high) == term(last) + 1, term(step) == term(group.block_size)
            ),
        )
    met = [NEED_AT(term(start), F, N) for start in (first, *(visited for *_, visited in told))]
    yield Lemma("no need that was met is larger", z3.And([term(need) >= one for one in met]))
    yield Lemma("the result is a need that was met", z3.Or([term(need) == one for one in met]))


LARGER = z3.Function("larger", INT, INT, INT)
KEPT, MET, AT = (
    z3.Function(name, INT, INT) for name in ("need kept before turn", "need met in turn", "met at")
)
TURN, EARLIER = z3.Ints("turn earlier_turn")


def threaded(groups: tuple[Group, ...], starts: int) -> tuple[Any, Any]:
    """`capacity_need` with so many starts to a group, and anything for what a turn keeps: the result, and
    what it is if each turn goes on from the one before.
    """
    visited: list[Any] = []

    def some_starts(low: Any, high: Any, step: Any) -> list[Any]:
        new = [integer(f"visited {len(visited) + k}") for k in range(starts)]
        visited.extend(new)
        return new

    def kept(need: Any, of: tuple[Group, ...], start: Any, reach: Any, total: Any) -> Any:
        if of is not groups or reach is not REACH or total is not TOTAL:
            raise ValueError("need of something else")
        return symbolic(LARGER(term(need), term(start)))

    def first(of: tuple[Group, ...], start: Any, reach: Any, total: Any) -> Any:
        return symbolic(NEED_AT(*map(term, (start, reach, total))))

    def need() -> Any:
        visited.clear()
        with shipped_with(range=some_starts, larger_need=kept, blocks_of_all_at=first):
            return kernel.capacity_need(groups, TOTAL, REACH, PERIOD)

    found = term(run(need))
    begin = run(kernel.first_start, run(kernel.last_start, TOTAL, REACH), PERIOD)
    expected = NEED_AT(term(begin), F, N)
    for start in visited:
        expected = LARGER(expected, term(start))
    return found, expected


def fold() -> Iterable[Lemma]:
    """The largest of any number of turns is kept: `KEPT(k)` is what turn k begins with, `MET(k)` what it
    meets; before the first turn the need at the first start has been met.
    """
    for size, starts in ((0, 2), (1, 0), (1, 1), (1, 3), (2, 2)):
        groups = tuple(symbol(Group, f"group {k}", 0) for k in range(size))
        found, expected = threaded(groups, starts)
        yield Lemma(
            f"each turn goes on from the one before ({size} groups, {starts} starts)", found == expected
        )

    def any_need(of: tuple[Group, ...], *where: Any) -> Any:
        return symbolic(MET(TURN))

    with shipped_with(blocks_of_all_at=any_need):
        turn = run(kernel.larger_need, symbolic(KEPT(TURN)), (GROUP,), START, REACH, TOTAL)
    step = (TURN >= 0, KEPT(TURN + 1) == term(turn))

    def largest(before: Any) -> Any:
        return z3.And(
            KEPT(before) >= KEPT(0),
            z3.Implies(z3.And(0 <= EARLIER, EARLIER < before), KEPT(before) >= MET(EARLIER)),
        )

    def was_met(before: Any) -> Any:
        return z3.And(AT(before) < before, KEPT(before) == z3.If(AT(before) < 0, KEPT(0), MET(AT(before))))

    yield Lemma("before the first turn nothing larger was met", largest(z3.IntVal(0)))
    yield Lemma("after any turn nothing larger was met", largest(TURN + 1), (*step, largest(TURN)))
    where = AT(TURN + 1) == z3.If(KEPT(TURN + 1) == KEPT(TURN), AT(TURN), TURN)
    yield Lemma("before the first turn what is kept was met", was_met(z3.IntVal(0)), (AT(0) == -1,))
    yield Lemma("after any turn what is kept was met", was_met(TURN + 1), (*step, where, was_met(TURN)))


def shipped(name: str) -> Any:
    """The function behind a property of the configuration."""
    return vars(SchedulerConfig)[name].fget


def tables() -> Iterable[Lemma]:
    """What the formula counts is what a table holds once a row has got its blocks."""
    columns, length = integer("columns"), integer("length")
    n, row = term(columns), term(length)
    end = START + length
    grown = columns + run(kernel.new_columns, end, GROUP.block_size, columns)
    kept = grown - run(kernel.outdated_columns, START, GROUP.window, GROUP.block_size, grown)
    formula, hints = held_at(START), orders(term(kept), held_at(START))
    # A table never reaches past what has been scheduled: here up to the start of the row.
    before = term(run(kernel.columns_for, START, GROUP.block_size))
    given = (*SHAPE, row >= 1, Q + row <= N, row <= F, 0 <= n, n <= before)
    yield Lemma(
        "no row from processed progress on makes a table hold more than the formula says",
        term(kept) <= formula,
        (*given, *hints, *orders(term(kept), formula, before)),
    )
    yield Lemma(
        "the longest row makes it hold just that",
        term(kept) == formula,
        (*given, *orders(term(kept), formula, before), z3.Or(row == F, Q + row == N)),
    )
    config = SimpleNamespace(
        prefill_chunk_size=integer("chunk_size"),
        chunk_alignment=integer("alignment"),
        num_speculative_tokens=integer("drafts"),
    )
    config.aligned_chunk_size = run(shipped("aligned_chunk_size"), config)
    reach = term(run(shipped("max_row_len"), config))
    chunk, drafts, budget = integer("chunk_size"), integer("drafts"), integer("budget")
    cut = run(kernel.chunk_len, START, TOTAL, config.aligned_chunk_size, budget, config.chunk_alignment)
    aligned = term(config.chunk_alignment)
    sane = (term(chunk) >= 1, aligned >= 1, aligned <= term(chunk), term(drafts) >= 0, term(budget) >= 1)
    yield Lemma("no chunk is longer than the reach", term(cut) <= reach, (*SHAPE, *sane))
    yield Lemma(
        "no decode row is, drafts included",
        term(run(kernel.decode_len, integer("allowed"), drafts)) <= reach,
        sane,
    )

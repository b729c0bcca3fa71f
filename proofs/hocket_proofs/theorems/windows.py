"""Windows: what is returned is never read again, what is kept is needed, tables reach as far as rows (S7)."""

from __future__ import annotations

from collections.abc import Iterable

import z3

from hocket.sched import kernel
from hocket_proofs.symbolic.lifting import integer, run
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import FLOOR, term
from hocket_proofs.theorems.arithmetic import products_ordered

PROCESSED, WINDOW, SIZE, COLUMNS = (integer(n) for n in ("processed", "window", "block_size", "columns"))
COLUMN, END = integer("column"), integer("end")


def history() -> Iterable[Lemma]:
    """S7: a row that begins at or past processed progress reads nothing that was returned."""
    p, w, b, n, c = map(term, (PROCESSED, WINDOW, SIZE, COLUMNS, COLUMN))
    outdated = term(run(kernel.outdated_columns, PROCESSED, WINDOW, SIZE, COLUMNS))
    given = (b >= 1, w >= 0, n >= 0, p >= 0, 0 <= c, c < n)
    past = z3.If(p > w, p - w, 0)
    hints = (
        products_ordered(c + 1, FLOOR(past, b), b),
        products_ordered(FLOOR(past, b), c, b),
        products_ordered(c + 1, FLOOR(p - w, b), b),
        products_ordered(FLOOR(p - w, b), c, b),
    )
    start = term(integer("start"))
    read = z3.If(start > w, start - w, 0)
    yield Lemma(
        "every token of a returned column is older than whatever a row from processed progress on reads",
        b * (c + 1) <= read,
        (*given, *hints, w >= 1, c < outdated, start >= p),
    )
    yield Lemma(
        "a column that is kept in a windowed group holds a token that the next row reads",
        b * (c + 1) > p - w,
        (*given, *hints, w >= 1, c >= outdated),
    )
    yield Lemma("a group without a window returns nothing", outdated == 0, (*given, w == 0))
    yield Lemma("no more is returned than there is", z3.And(0 <= outdated, outdated <= n), given)
    later = integer("later progress")
    after = term(run(kernel.outdated_columns, later, WINDOW, SIZE, COLUMNS))
    order = (
        products_ordered(FLOOR(term(later) - w, b) + 1, FLOOR(p - w, b), b),
        products_ordered(FLOOR(z3.IntVal(0), b) + 1, FLOOR(p - w, b), b),
        products_ordered(FLOOR(term(later) - w, b) + 1, FLOOR(z3.IntVal(0), b), b),
    )
    yield Lemma("a window never moves back", outdated <= after, (*given, *order, term(later) >= p))


def growth() -> Iterable[Lemma]:
    """Tables reach the end of a row, and no further."""
    b, n, e = term(SIZE), term(COLUMNS), term(END)
    new = term(run(kernel.new_columns, END, SIZE, COLUMNS))
    whole = term(run(kernel.columns_for, END, SIZE))
    given = (b >= 1, n >= 0, e >= 0)
    hints = (products_ordered(whole, n + new, b), products_ordered(n, whole, b))
    yield Lemma("a table reaches the end of the row", b * (n + new) >= e, (*given, *hints))
    yield Lemma("as few columns as will do", z3.And(b * whole >= e, b * (whole - 1) < e), given)
    yield Lemma(
        "a table gets what it lacks and keeps what it has", new == z3.If(whole > n, whole - n, 0), given
    )

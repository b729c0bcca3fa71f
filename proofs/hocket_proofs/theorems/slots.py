"""Where a token lies in the cache: no two tokens of a group share a row (S6 on the device)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import z3

from hocket_kernels import slot_rule
from hocket_proofs.symbolic.lifting import integer, run
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import FLOOR, REST, term
from hocket_proofs.theorems.arithmetic import equal_products, multiple, products_ordered, quotient

ROWS, RATIO = z3.Ints("rows_per_block ratio")
SIZE = RATIO * ROWS
"""Source tokens of a block: `ratio` for each of its rows."""


def row_of(name: str) -> tuple[Any, Any, Any, tuple[Any, ...]]:
    """(block, row within the block, physical row) of an arbitrary position, and what is known of them."""
    position, block, size, ratio = (
        integer(f"{name} {n}") for n in ("position", "block", "block_size", "ratio")
    )
    place = run(slot_rule.column_of, position, size)
    found = term(run(slot_rule.physical_row, position, place, block, size, ratio))
    found = z3.substitute(found, (term(size), SIZE), (term(ratio), RATIO))
    p, b = term(position), term(block)
    column, within = FLOOR(p, SIZE), REST(p, SIZE)
    row = FLOOR(within, RATIO)
    known = (
        p >= 0,
        b >= 1,
        ROWS >= 1,
        RATIO >= 1,
        multiple(SIZE, RATIO, ROWS),
        # p = size * column + ratio * row + what is left, all written out in products.
        SIZE * column == RATIO * (ROWS * column),
        quotient(p, RATIO, ROWS * column + row),
        equal_products(FLOOR(SIZE, RATIO), ROWS, b),
        equal_products(FLOOR(SIZE, RATIO), ROWS, column),
        products_ordered(z3.IntVal(1), RATIO, ROWS),
        products_ordered(ROWS, row, RATIO),
        products_ordered(row, z3.IntVal(-1), RATIO),
    )
    return b, row, found, known


def injective() -> Iterable[Lemma]:
    """One position, one row; one row, one block and one place in it."""
    b, row, found, known = row_of("a")
    yield Lemma("a block's rows are numbered 0 to rows per block - 1", z3.And(0 <= row, row < ROWS), known)
    yield Lemma("a position lies in its block, at the row of its place in it", found == ROWS * b + row, known)
    c, other, its, _ = row_of("another")
    yield Lemma(
        "two positions with one physical row are in one block, at one place of it",
        z3.And(b == c, row == other),
        (
            found == ROWS * b + row,
            its == ROWS * c + other,
            found == its,
            0 <= row,
            row < ROWS,
            0 <= other,
            other < ROWS,
            ROWS >= 1,
            products_ordered(b + 1, c, ROWS),
            products_ordered(c + 1, b, ROWS),
        ),
    )
    yield Lemma(
        "the null block's rows are nobody's",
        found >= ROWS,
        (found == ROWS * b + row, 0 <= row, b >= 1, ROWS >= 1, products_ordered(z3.IntVal(1), b, ROWS)),
    )

"""The validator accepts exactly the well-formed packs, for any number of rows, columns and tokens (S4).

The rules are the shipped ones (`packed_rules.py`), one row and one column at a time; that `packed_check.py`
asks them of every row and column, in order, is exhausted and tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import z3

from hocket.runner import packed_rules
from hocket.runner.packed_rules import FINE, MAX_INDEX, NULL_BLOCK, Code, Problem
from hocket_proofs.symbolic.lifting import integer, run
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import term
from hocket_proofs.theorems.arithmetic import products_ordered

INT = z3.IntSort()
OFFSET, LENGTH, FROM, TO, COMPUTED = (
    z3.Function(name, INT, INT) for name in ("offset", "length", "chunk_start", "seq_len", "computed")
)
"""The numbers of an arbitrary pack, by row."""
K, J, ROWS, TOKEN = z3.Ints("k j rows token")
ROW, START, LEN, SEQ, BEGIN, END, DONE = (
    integer(n) for n in ("row", "start", "len", "seq_len", "begin", "end", "computed")
)


def is_fine(problem: Problem) -> Any:
    """The shipped verdict: nothing is wrong."""
    return term(problem.code) == int(Code.FINE)


def row_fine(row: Any) -> Any:
    """The shipped verdict on one row of the arbitrary pack."""
    verdict = is_fine(run(packed_rules.row_problem, ROW, START, LEN, SEQ, BEGIN, END, DONE))
    return z3.substitute(
        verdict,
        (term(ROW), row),
        (term(START), FROM(row)),
        (term(LEN), LENGTH(row)),
        (term(SEQ), TO(row)),
        (term(DONE), COMPUTED(row)),
        (term(BEGIN), OFFSET(row)),
        (term(END), OFFSET(row + 1)),
    )


def exact_rules() -> Iterable[Lemma]:
    """Each rule is fine iff what it is about is as it should be, and names the row otherwise."""
    int32 = z3.And(z3.IntVal(MAX_INDEX) == 2**31 - 1, z3.IntVal(NULL_BLOCK) == 0)
    yield Lemma("an entry is at most what an int32 holds, and the null block is 0", int32)
    row, start, length, seq, begin, end, done = map(term, (ROW, START, LEN, SEQ, BEGIN, END, DONE))
    found = run(packed_rules.row_problem, ROW, START, LEN, SEQ, BEGIN, END, DONE)
    well = z3.And(
        seq == start + length, z3.Implies(row == 0, begin == 0), end == begin + length, start == done
    )
    yield Lemma(
        "a row is fine iff it agrees with itself, its neighbour and the runner", is_fine(found) == well
    )
    first = z3.If(
        seq != start + length,
        int(Code.SEQ_LEN),
        z3.If(
            z3.Or(z3.And(row == 0, begin != 0), end != begin + length), int(Code.OFFSET), int(Code.COMPUTED)
        ),
    )
    yield Lemma(
        "what is wrong with a row is the first thing that is",
        z3.Or(well, z3.And(term(found.code) == first, term(found.row) == row)),
    )
    wants = z3.If(
        term(found.code) == int(Code.SEQ_LEN),
        z3.And(term(found.want) == start + length, term(found.got) == seq),
        z3.If(
            term(found.code) == int(Code.COMPUTED),
            z3.And(term(found.want) == done, term(found.got) == start),
            z3.If(
                z3.And(row == 0, begin != 0),
                z3.And(term(found.want) == 0, term(found.got) == begin),
                z3.And(term(found.want) == begin + length, term(found.got) == end),
            ),
        ),
    )
    yield Lemma("it says what it wants and what it got", z3.Or(well, wants))
    value, low, high = (integer(n) for n in ("value", "low", "high"))
    v, lo, hi = map(term, (value, low, high))
    found = run(packed_rules.range_problem, ROW, value, low, high)
    missed = z3.If(v < lo, lo, hi)
    yield Lemma(
        "a number is fine iff it lies in its range, else the bound that it missed is named",
        z3.If(
            z3.And(lo <= v, v <= hi), same(found, FINE), same(found, Problem(Code.RANGE, ROW, missed, value))
        ),
    )
    tokens, embeddings = integer("tokens"), integer("embeddings")
    found = run(packed_rules.extent_problem, ROW, END, tokens, embeddings)
    yield Lemma(
        "extents are fine iff chunks, ids and embeddings are equally many",
        z3.If(
            term(tokens) != end,
            same(found, Problem(Code.TOKEN_EXTENT, ROW, END, tokens)),
            z3.If(
                term(embeddings) != term(tokens),
                same(found, Problem(Code.EMBEDDING_EXTENT, ROW, tokens, embeddings)),
                same(found, FINE),
            ),
        ),
    )


def same(found: Problem, wanted: Problem) -> Any:
    """Two problems are equal, field by field."""
    return z3.And([term(a) == term(b) for a, b in zip(found, wanted, strict=True)])


def any_number_of_rows() -> Iterable[Lemma]:
    """Induction over the rows: offsets that the row rule accepts are the chunks, end to end."""
    accepted = [
        # Lengths of at least 1 are what the range check of chunk_lens asks for.
        z3.Implies(z3.And(0 <= k, k < ROWS), z3.And(row_fine(k), LENGTH(k) >= 1))
        for k in (z3.IntVal(0), K, J)
    ]
    pack = (ROWS >= 1, *accepted)
    unlike = (
        z3.And(
            ROWS >= 3,
            0 < K,
            K < J,
            J < ROWS,
            LENGTH(K) != LENGTH(J),
            LENGTH(K) != LENGTH(z3.IntVal(0)),
            FROM(K) != FROM(J),
        ),
    )
    # Z3 is asked for one step at a time; what the step before gave is a hypothesis.
    total = z3.Function("tokens before", INT, INT)
    sums = (total(z3.IntVal(0)) == 0, total(J + 1) == total(J) + LENGTH(J))
    inside = (0 <= J, J < ROWS)
    yield Lemma("offsets are sums of lengths: the first", OFFSET(0) == total(0), (*pack, *sums), unlike)
    yield Lemma(
        "offsets are sums of lengths: from each to the next",
        OFFSET(J + 1) == total(J + 1),
        (*pack, *sums, *inside, OFFSET(J) == total(J)),
        unlike,
    )
    yield Lemma(
        "offsets rise: from each to the next",
        OFFSET(K) < OFFSET(J + 1),
        (*pack, *inside, 0 <= K, K <= J, z3.Or(K == J, OFFSET(K) < OFFSET(J))),
        unlike,
    )
    rise = z3.And(
        [
            z3.Implies(z3.And(0 <= a, a < b, b <= ROWS), OFFSET(a) < OFFSET(b))
            for a, b in ((K, J), (K + 1, J), (K + 1, ROWS), (z3.IntVal(0), K), (K, K + 1))
        ]
    )
    yield Lemma(
        "no token belongs to two rows",
        z3.Not(z3.And(OFFSET(K) <= TOKEN, TOKEN < OFFSET(K + 1), OFFSET(J) <= TOKEN, TOKEN < OFFSET(J + 1))),
        (*pack, rise, 0 <= K, K < J, J < ROWS),
        unlike,
    )
    yield Lemma(
        "every row lies within the pack",
        z3.And(0 <= OFFSET(K), OFFSET(K + 1) <= OFFSET(ROWS)),
        (*pack, rise, 0 <= K, K < ROWS),
        unlike,
    )
    covered = z3.Or(TOKEN < OFFSET(J), z3.And(OFFSET(J) <= TOKEN, TOKEN < OFFSET(J + 1)))
    yield Lemma(
        "every token belongs to a row: those before the next offset",
        covered,
        (*pack, *inside, 0 <= TOKEN, TOKEN < OFFSET(J + 1)),
        unlike,
    )
    good = z3.And(OFFSET(0) == 0, OFFSET(J + 1) == OFFSET(J) + LENGTH(J))
    others = (TO(J) == FROM(J) + LENGTH(J), FROM(J) == COMPUTED(J))
    yield Lemma(
        "whatever lies end to end from 0 is accepted, row by row", row_fine(J), (*inside, good, *others)
    )


def tables() -> Iterable[Lemma]:
    """Block tables of any length: null past the end, a block wherever the dispatch reads or writes."""
    column, block, returned, needed, columns = (
        integer(n) for n in ("column", "block", "returned", "needed", "columns")
    )
    c, b, lo, hi = map(term, (column, block, returned, needed))
    found = run(packed_rules.column_problem, ROW, column, block, returned, needed)
    legal = z3.And(0 <= b, b <= MAX_INDEX)
    past, read = z3.Implies(c >= hi, b == NULL_BLOCK), z3.Implies(z3.And(lo <= c, c < hi), b != NULL_BLOCK)
    yield Lemma(
        "a column is fine iff it is in range, null past the end, and a block where it is read",
        is_fine(found) == z3.And(legal, past, read),
    )
    wanted = z3.If(
        b < 0,
        same(found, Problem(Code.RANGE, ROW, 0, block)),
        z3.If(
            b > MAX_INDEX,
            same(found, Problem(Code.RANGE, ROW, MAX_INDEX, block)),
            z3.If(
                z3.Not(past),
                same(found, Problem(Code.TABLE_TAIL, ROW, NULL_BLOCK, block)),
                z3.Or(
                    same(found, FINE),
                    z3.And(z3.Not(read), same(found, Problem(Code.TABLE_NULL, ROW, 1, block))),
                ),
            ),
        ),
    )
    yield Lemma("and says what is wrong with it otherwise", wanted)
    found = run(packed_rules.table_problem, ROW, columns, needed)
    short = same(found, Problem(Code.TABLE_SHORT, ROW, needed, columns))
    yield Lemma(
        "a table is fine iff it reaches the end of the chunk",
        z3.If(term(columns) < hi, short, same(found, FINE)),
    )
    size, window, at = integer("block_size"), integer("window"), integer("at")
    s, w, t = term(size), term(window), term(at)
    cols = term(run(packed_rules.columns_needed, SEQ, size))
    gone = term(run(packed_rules.columns_returned, START, window, size))
    shape = (s >= 1, w >= 1, term(START) >= 0, term(SEQ) >= 1)
    yield Lemma(
        "as many columns as tokens [0, seq_len) fill",
        z3.And(s * cols >= term(SEQ), s * (cols - 1) < term(SEQ)),
        shape,
    )
    read_from = z3.If(term(START) > w, term(START) - w, 0)
    yield Lemma(
        "a column that may be null holds no token that the chunk reads, the next one does",
        z3.And(s * gone <= read_from, read_from < s * (gone + 1)),
        shape,
    )
    yield Lemma(
        "a column that holds a token which is read or written must hold a block",
        z3.And(gone <= c, c < cols),
        (
            *shape,
            s * c <= t,
            t < s * (c + 1),
            read_from <= t,
            t < term(SEQ),
            products_ordered(c + 1, gone, s),
            products_ordered(cols, c, s),
        ),
    )

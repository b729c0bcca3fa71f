"""Lifting: all paths, exact terms, and an error wherever a symbol would be looked at as an object."""

from collections.abc import Callable
from typing import Any

import pytest
import z3

from hocket.sched import kernel
from hocket.sched.kernel import Turn
from hocket_proofs.symbolic.lifting import boolean, integer, lift, run, symbols
from hocket_proofs.symbolic.prover import PROVED, Lemma, prove
from hocket_proofs.symbolic.syntax import Inexpressible, translate
from hocket_proofs.symbolic.values import NotSymbolic, evaluate, term
from hocket_proofs.theorems import packed
from hocket_proofs.theorems.translation import (
    MODULES,
    NOT_LIFTED,
    NOT_TRANSLATED,
    bare,
    differs,
    functions,
    lifting,
)

X, Y = integer("x"), integer("y")


def test_every_branch_becomes_a_path() -> None:
    def f(x: int, y: int) -> int:
        if x > y and y >= 0:
            return 1
        return min(x, y, 7) if x else 0

    lifted = lift(f, X, Y)
    assert prove(Lemma("complete", lifted.complete)) == PROVED
    for x, y in ((3, 1), (0, 5), (1, 5), (9, 8), (-1, -2), (0, -1)):
        values = [(term(X), z3.IntVal(x)), (term(Y), z3.IntVal(y))]
        assert evaluate(lifted.terms()[0], values) == f(x, y)


def test_impossible_paths_are_left_out() -> None:
    assert len(lift(lambda x: 1 if x > 2 and x < 1 else 2, X).paths) == 2
    assert len(lift(lambda x: 1 if x > 2 else 2, X, assume=(term(X) > 5,)).paths) == 1


HAZARDS: dict[str, Callable[[Any], Any]] = {
    "index": lambda x: (1, 2)[x],
    "range": lambda x: list(range(x)),
    "hash": lambda x: {x: 1},
    "set": lambda x: x in {1, 2},
    "format": lambda x: f"{x}",
    "str": lambda x: str(x),
    "int": lambda x: int(x),
    "float": lambda x: float(x),
    "with text": lambda x: x + "a",
}


@pytest.mark.parametrize("name", HAZARDS)
def test_what_looks_at_the_object_raises(name: str) -> None:
    with pytest.raises(TypeError):
        lift(HAZARDS[name], X)


def test_truth_has_no_value_outside_a_run() -> None:
    with pytest.raises(NotSymbolic, match="outside a symbolic run"):
        bool(X > 0)


def test_division_is_pythons() -> None:
    d = integer("d")
    for a in range(-7, 8):
        for b in (1, 2, 3):
            values = [(term(X), z3.IntVal(a)), (term(d), z3.IntVal(b))]
            assert evaluate(term(run(lambda x, d: x // d, X, d)), values) == a // b
            assert evaluate(term(run(lambda x, d: x % d, X, d)), values) == a % b
            assert evaluate(term(run(lambda x, b=b: x // b, X)), values) == a // b


def test_a_wrong_claim_is_told_with_numbers() -> None:
    told = prove(Lemma("x is small", term(X) < 5, (term(X) > 3,)))
    assert told.startswith("x is small: does not hold: x = ")


def test_hypotheses_that_nothing_satisfies_prove_nothing() -> None:
    assert "hypotheses that are unsat" in prove(
        Lemma("anything", term(X) == term(Y), (term(X) > 3, term(X) < 3))
    )


def test_hypotheses_that_leave_no_room_for_a_case_are_red() -> None:
    lemma = Lemma("more", term(X) >= 3, (term(X) > 3,), room=(term(X) == 4, term(X) == 1000))
    assert prove(lemma) == PROVED
    assert prove(lemma._replace(room=(term(X) == 4, term(X) == 2))).startswith(
        "more: hypotheses that are unsat where "
    )
    assert "unsat where" in prove(Lemma("any", term(X) == term(X), room=(term(X) < term(X),)))


def test_packs_of_any_number_of_rows_may_have_unlike_rows() -> None:
    """Otherwise the induction over rows would say something of packs of equal chunks only."""
    lemmas = list(packed.any_number_of_rows())
    assert [lemma.name for lemma in lemmas if not lemma.room] == [lemmas[-1].name]


def test_no_answer_is_red() -> None:
    a, b, c, n = z3.Ints("a b c n")
    fermat = Lemma("fermat", a * a * a * n + b * b * b * n != c * c * c * n, (a > 9, b > 9, c > 9, n > 7))
    assert prove(fermat) != PROVED


def test_shapes_that_depend_on_numbers_are_not_merged() -> None:
    with pytest.raises(ValueError, match="paths one by one"):
        lift(lambda x: (x,) if x > 0 else (), X).terms()


def test_the_second_translator_refuses_what_it_cannot_say() -> None:
    shipped = {name: function for module in MODULES for name, function in functions(module)}
    for name in NOT_TRANSLATED:
        function = shipped[name]
        with pytest.raises(Inexpressible):
            translate(function, *map(bare, symbols(function, 2).values()))
    for name in NOT_LIFTED:
        function = shipped[name]
        with pytest.raises(NotSymbolic):
            lift(function, *symbols(function, 2).values())


ONE = 1


def looks_at_the_object(x: int) -> int:
    """`is` is never true of a symbol, and cannot raise: numbers find it out."""
    return 1 if x is ONE else 0


def test_numbers_find_out_what_cannot_raise() -> None:
    arguments = symbols(looks_at_the_object, 2)
    assert differs(looks_at_the_object, arguments, lift(looks_at_the_object, *arguments.values()))


def test_translators_disagree_when_one_of_them_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one reads the source, the first one runs what is there."""
    monkeypatch.setattr(kernel, "has_room", lambda in_flight, depth: in_flight <= depth)
    monkeypatch.setattr(kernel.has_room, "__module__", kernel.__name__)
    monkeypatch.setattr(kernel.has_room, "__annotations__", {"in_flight": int, "depth": int, "return": bool})
    with pytest.raises(Inexpressible):
        list(lifting())


def test_records_are_lifted_as_records() -> None:
    turn = run(kernel.turn_after, Turn(X, Y), integer("ran"), integer("p"), integer("d"))
    assert isinstance(turn, Turn)
    assert z3.is_bool(term(run(lambda a, b: a and b, boolean("a"), boolean("b"))))

"""Integers and booleans that carry Z3 terms, and fork the run at every branch.

Python asks a condition for its truth value; a symbolic condition asks the running `Explorer` instead, which
takes both sides in turn. So any Python whose branches are conditions on numbers can be executed as it stands.
What would look at the object instead of the number (hashing, indexing, formatting) raises; `is` and
`isinstance` cannot raise, and the lint of the kernel refuses them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import z3

FLOOR = z3.Function("floor", z3.IntSort(), z3.IntSort(), z3.IntSort())
"""Quotient rounded down, for a divisor that is a symbol; known by `division_facts` only, for divisors > 0."""

REST = z3.Function("rest", z3.IntSort(), z3.IntSort(), z3.IntSort())
"""Remainder of `FLOOR`."""

EFFORT = 1_000_000  # Z3's own steps for one branch; unlike time, the same on a busy machine


class NotSymbolic(TypeError):
    """Something was done to a symbol that looks at the object instead of its number."""


class Explorer:
    """One run after another over all feasible paths: replays a script of decisions, then goes on."""

    current: Explorer | None = None

    def __init__(self, assumed: tuple[Any, ...] = ()) -> None:
        self._solver = z3.Solver()
        self._solver.set("rlimit", EFFORT)
        self._solver.add(*assumed)
        self._script: list[bool] = []
        self._place = 0
        self.path: list[Any] = []
        self.open: list[list[bool]] = [[]]

    def begin(self) -> None:
        """Start the next run, along the last script that is open."""
        self._script, self._place, self.path = self.open.pop(), 0, []
        self._solver.push()

    def end(self) -> None:
        """Forget what the run assumed."""
        self._solver.pop()

    def decide(self, condition: Any) -> bool:
        """The truth of a condition in this run; the other side, if it is feasible, is left open."""
        condition = z3.simplify(condition)
        if z3.is_true(condition):
            return True
        if z3.is_false(condition):
            return False
        if self._place < len(self._script):
            side = self._script[self._place]
        else:
            # What cannot be refuted is taken: a path too many is harmless, one too few is not.
            side = self._solver.check(condition) != z3.unsat
            if side and self._solver.check(z3.Not(condition)) != z3.unsat:
                self.open.append([*self._script, False])
            self._script = [*self._script, side]
        self._place += 1
        taken = condition if side else z3.Not(condition)
        self.path.append(taken)
        self._solver.add(taken)
        return side


def _truth(condition: Any) -> bool:
    if Explorer.current is None:
        raise NotSymbolic("a symbol has no truth value outside a symbolic run")
    return Explorer.current.decide(condition)


def term(value: Any) -> Any:
    """The Z3 term of a symbol, an int or a bool."""
    if isinstance(value, (Int, Bool)):
        return value.term
    if isinstance(value, bool):
        return z3.BoolVal(value)
    if isinstance(value, int):
        return z3.IntVal(int(value))
    if isinstance(value, z3.ExprRef):
        return value
    raise NotSymbolic(f"{value!r} is neither an integer nor a boolean")


def number(value: Any) -> Any:
    """The Z3 term of an integer; a truth value counts as in Python."""
    found = term(value)
    return z3.If(found, 1, 0) if z3.is_bool(found) else found


class _Symbol:
    __slots__ = ("term",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, term: Any) -> None:
        self.term = term

    def _refuse(self, *_: object) -> NoReturn:
        raise NotSymbolic("a symbol can be neither an index, nor formatted, nor converted")

    __index__ = __int__ = __float__ = __format__ = __str__ = _refuse

    def __eq__(self, other: object) -> Any:
        return Bool(number(self) == number(other))

    def __ne__(self, other: object) -> Any:
        return Bool(number(self) != number(other))


class Bool(_Symbol):
    """A symbolic truth value."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return _truth(self.term)

    def __eq__(self, other: object) -> Any:
        return Bool(self.term == term(other)) if isinstance(other, (bool, Bool)) else super().__eq__(other)

    def __ne__(self, other: object) -> Any:
        return Bool(self.term != term(other)) if isinstance(other, (bool, Bool)) else super().__ne__(other)


class Int(_Symbol):
    """A symbolic integer of any size."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return _truth(self.term != 0)

    def __add__(self, other: Any) -> Int:
        return Int(self.term + number(other))

    def __radd__(self, other: Any) -> Int:
        return Int(number(other) + self.term)

    def __sub__(self, other: Any) -> Int:
        return Int(self.term - number(other))

    def __rsub__(self, other: Any) -> Int:
        return Int(number(other) - self.term)

    def __mul__(self, other: Any) -> Int:
        return Int(self.term * number(other))

    def __rmul__(self, other: Any) -> Int:
        return Int(number(other) * self.term)

    def __neg__(self) -> Int:
        return Int(-self.term)

    def __floordiv__(self, other: Any) -> Int:
        return Int(floor(self.term, number(other)))

    def __rfloordiv__(self, other: Any) -> Int:
        return Int(floor(number(other), self.term))

    def __mod__(self, other: Any) -> Int:
        return Int(rest(self.term, number(other)))

    def __rmod__(self, other: Any) -> Int:
        return Int(rest(number(other), self.term))

    def __lt__(self, other: Any) -> Bool:
        return Bool(self.term < number(other))

    def __le__(self, other: Any) -> Bool:
        return Bool(self.term <= number(other))

    def __gt__(self, other: Any) -> Bool:
        return Bool(self.term > number(other))

    def __ge__(self, other: Any) -> Bool:
        return Bool(self.term >= number(other))


def _plain(divisor: Any) -> bool:
    """Z3 divides by a positive number as Python does."""
    return bool(z3.is_int_value(divisor) and divisor.as_long() > 0)


def floor(dividend: Any, divisor: Any) -> Any:
    """`dividend // divisor` as a term."""
    return dividend / divisor if _plain(divisor) else FLOOR(dividend, divisor)


def rest(dividend: Any, divisor: Any) -> Any:
    """`dividend % divisor` as a term."""
    return dividend % divisor if _plain(divisor) else REST(dividend, divisor)


def quotients(*terms: Any) -> list[tuple[Any, Any]]:
    """(dividend, divisor) of every `FLOOR` and `REST` in `terms`, each once.

    Quantified variables stay out of it: quotients below a quantifier must be given as symbols.
    """
    found: dict[tuple[int, int], tuple[Any, Any]] = {}
    seen: set[int] = set()
    todo = list(terms)
    while todo:
        here = todo.pop()
        if here.get_id() in seen:
            continue
        seen.add(here.get_id())
        if z3.is_quantifier(here):
            continue
        todo += here.children()
        if z3.is_app(here) and (here.decl().eq(FLOOR) or here.decl().eq(REST)):
            a, b = here.children()
            found[a.get_id(), b.get_id()] = (a, b)
    return list(found.values())


def division_facts(terms: Iterable[Any]) -> list[Any]:
    """What defines every quotient and remainder in `terms`, where the divisor is positive."""
    return [
        z3.Implies(b > 0, z3.And(a == b * FLOOR(a, b) + REST(a, b), REST(a, b) >= 0, REST(a, b) < b))
        for a, b in quotients(*terms)
    ]


def evaluate(found: Any, values: list[tuple[Any, Any]]) -> Any:
    """The Python value of a term once its symbols are given numbers; divisors must come out positive."""
    a, b = z3.Var(0, z3.IntSort()), z3.Var(1, z3.IntSort())
    grounded = z3.substitute(found, *values)
    result = z3.simplify(z3.substitute_funs(grounded, (FLOOR, a / b), (REST, a % b)))
    if z3.is_int_value(result):
        return result.as_long()
    if z3.is_true(result) or z3.is_false(result):
        return z3.is_true(result)
    raise NotSymbolic(f"{result} is no value: a symbol was given no number")

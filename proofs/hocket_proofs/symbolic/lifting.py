"""A function's complete meaning: every path through it, with its condition and its result.

The function that ships is called, nothing is translated. What makes that trustworthy is checked, not assumed:
that the conditions of the paths cover every input, that the terms give what the function gives on numbers,
and that a second translator (`syntax.py`), which shares no code with this one, comes to the same terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import z3

from hocket_proofs.symbolic.values import Bool, Explorer, Int, term


class Path(NamedTuple):
    """One way through a function: the condition under which it is taken (a term), and the result."""

    condition: Any
    result: Any


class Lifted(NamedTuple):
    """All ways through a function."""

    paths: tuple[Path, ...]

    @property
    def complete(self) -> Any:
        """The claim that every input takes one of the paths."""
        return z3.Or([path.condition for path in self.paths])

    def terms(self) -> list[Any]:
        """The leaves of the result as terms, in order; every path must give the same number of them."""
        columns = [[term(leaf) for leaf in leaves(path.result)] for path in self.paths]
        if len({len(column) for column in columns}) != 1:
            raise ValueError("the shape of the result depends on the input: look at the paths one by one")
        merged = columns[-1]
        for path, column in zip(self.paths[-2::-1], columns[-2::-1], strict=True):
            merged = [z3.If(path.condition, own, rest) for own, rest in zip(column, merged, strict=True)]
        return merged

    def value(self) -> Any:
        """The result as one symbolic value, of the shape that the first path gives it."""
        given = iter(self.terms())

        def rebuild(like: Any) -> Any:
            if isinstance(like, tuple):
                parts = [rebuild(part) for part in like]
                return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
            return symbolic(next(given))

        return rebuild(self.paths[0].result)


def symbolic(found: Any) -> Any:
    """The symbolic value of a term."""
    return Bool(found) if z3.is_bool(found) else Int(found)


def leaves(value: Any) -> list[Any]:
    """The numbers of nested tuples, in order."""
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


def lift(function: Callable[..., Any], *arguments: Any, assume: tuple[Any, ...] = ()) -> Lifted:
    """Execute `function` along every path that `assume` leaves feasible."""
    explorer, found = Explorer(assume), []
    outer, Explorer.current = Explorer.current, explorer
    try:
        while explorer.open:
            explorer.begin()
            try:
                result = function(*arguments)
            finally:
                explorer.end()
            found.append(Path(z3.And(explorer.path), result))
    finally:
        Explorer.current = outer
    return Lifted(tuple(found))


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `function` as one symbolic value: all its paths, merged."""
    return lift(function, *arguments).value()


def symbol(hint: Any, name: str, size: int) -> Any:
    """A symbolic value of an annotated type: numbers, records, and tuples of `size` entries each."""
    if hint is bool:
        return Bool(z3.Bool(name))
    if isinstance(hint, type) and issubclass(hint, int):
        return Int(z3.Int(name))
    if get_origin(hint) is tuple:
        return tuple(symbol(get_args(hint)[0], f"{name}.{place}", size) for place in range(size))
    fields = get_type_hints(hint)
    return hint(**{field: symbol(inner, f"{name}.{field}", size) for field, inner in fields.items()})


def symbols(function: Callable[..., Any], size: int) -> dict[str, Any]:
    """A symbolic argument for every parameter of an annotated function."""
    hints = get_type_hints(function)
    return {name: symbol(hint, name, size) for name, hint in hints.items() if name != "return"}


def integer(name: str) -> Any:
    """An arbitrary integer."""
    return Int(z3.Int(name))


def boolean(name: str) -> Any:
    """An arbitrary truth value."""
    return Bool(z3.Bool(name))

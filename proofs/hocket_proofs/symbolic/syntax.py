"""The second translator: from the syntax tree of a function to terms, without running anything.

It shares no code with `lifting.py` but the encoding of division by a symbol, so that a mistake of one of them
shows as a difference. It knows the Python of the kernel and refuses the rest; it cannot express a loop whose
number of turns, or a tuple whose length, depends on a symbol.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import z3

from hocket_proofs.symbolic.values import floor, rest


class Inexpressible(Exception):
    """The function uses what terms of a fixed shape cannot say."""


Names = dict[str, Any]


def translate(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `function` as terms; arguments are terms, numbers, and tuples of them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise Inexpressible(f"{function} is no plain function")
    names: Names = dict(zip([argument.arg for argument in tree.args.args], arguments, strict=True))
    return _Body(function.__globals__).block(tree.body, names)


def as_int(value: Any) -> Any:
    """A term of sort Int."""
    if isinstance(value, bool) or (isinstance(value, z3.ExprRef) and z3.is_bool(value)):
        return z3.If(value, z3.IntVal(1), z3.IntVal(0))
    return z3.IntVal(int(value)) if isinstance(value, int) else value


def as_bool(value: Any) -> Any:
    """A term of sort Bool: numbers are true unless 0."""
    if isinstance(value, bool):
        return z3.BoolVal(value)
    if isinstance(value, int):
        return z3.BoolVal(value != 0)
    return value if z3.is_bool(value) else value != 0


def choose(condition: Any, first: Any, second: Any) -> Any:
    """`first if condition else second`, tuple by tuple."""
    if isinstance(condition, bool):
        return first if condition else second
    if isinstance(first, tuple) or isinstance(second, tuple):
        if not isinstance(first, tuple) or not isinstance(second, tuple) or len(first) != len(second):
            raise Inexpressible("a tuple whose length depends on a symbol")
        parts = [choose(condition, a, b) for a, b in zip(first, second, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if all(isinstance(x, bool) or (isinstance(x, z3.ExprRef) and z3.is_bool(x)) for x in (first, second)):
        return z3.If(condition, as_bool(first), as_bool(second))
    return z3.If(condition, as_int(first), as_int(second))


OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: floor,
    ast.Mod: rest,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def _entries(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise Inexpressible("a loop whose number of turns depends on a symbol")
    return value


def _least(*values: Any) -> Any:
    found, *others = [as_int(v) for v in (_entries(values[0]) if len(values) == 1 else values)]
    for other in others:
        found = z3.If(other < found, other, found)
    return found


def _greatest(*values: Any) -> Any:
    found, *others = [as_int(v) for v in (_entries(values[0]) if len(values) == 1 else values)]
    for other in others:
        found = z3.If(other > found, other, found)
    return found


BUILTINS: dict[str, Callable[..., Any]] = {
    "min": _least,
    "max": _greatest,
    "sum": lambda values: sum(map(as_int, _entries(values)), z3.IntVal(0)),
    "all": lambda values: z3.And([as_bool(v) for v in _entries(values)]),
    "any": lambda values: z3.Or([as_bool(v) for v in _entries(values)]),
    "tuple": _entries,
    "len": lambda values: len(_entries(values)),
    "zip": lambda *values, strict: tuple(zip(*map(_entries, values), strict=strict)),
    "enumerate": lambda values: tuple(enumerate(_entries(values))),
    "reversed": lambda values: _entries(values)[::-1],
}


class _Body:
    """Statements and expressions of one function, whose globals are given."""

    def __init__(self, outside: Names) -> None:
        self._outside = outside

    def block(self, statements: list[ast.stmt], names: Names) -> Any:
        """The value of the first `return` reached; what follows a branch is translated in both sides."""
        if not statements:
            raise Inexpressible("a function that ends without a return")
        first, others = statements[0], statements[1:]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            return self.block(others, names)
        if isinstance(first, ast.Return) and first.value is not None:
            return self.value(first.value, names)
        if isinstance(first, ast.Assign) and len(first.targets) == 1:
            bound = self._bind(first.targets[0], self.value(first.value, names))
            return self.block(others, {**names, **bound})
        if isinstance(first, ast.AnnAssign) and first.value is not None:
            return self.block(others, {**names, **self._bind(first.target, self.value(first.value, names))})
        if isinstance(first, ast.If):
            condition = as_bool(self.value(first.test, names))
            yes = self.block([*first.body, *others], dict(names))
            return choose(condition, yes, self.block([*first.orelse, *others], dict(names)))
        if isinstance(first, ast.For) and not first.orelse:
            return self._loop(first, others, names)
        raise Inexpressible(type(first).__name__)

    def _loop(self, loop: ast.For, others: list[ast.stmt], names: Names) -> Any:
        """Written out, entry by entry."""
        if any(isinstance(node, (ast.Break, ast.Continue)) for node in ast.walk(loop)):
            raise Inexpressible("a loop that is left early")
        written: list[ast.stmt] = []
        names = dict(names)
        for place, entry in enumerate(_entries(self.value(loop.iter, names))):
            hidden = f"<{loop.lineno}:{place}>"
            names[hidden] = entry
            written.append(ast.Assign([loop.target], ast.Name(hidden, ast.Load())))
            written += loop.body
        return self.block(written + others, names)

    def _bind(self, target: ast.expr, value: Any) -> Names:
        if isinstance(target, ast.Name):
            return {target.id: value}
        if isinstance(target, ast.Tuple):
            bound: Names = {}
            for part, entry in zip(target.elts, _entries(value), strict=True):
                bound |= self._bind(part, entry)
            return bound
        raise Inexpressible(f"assignment to {type(target).__name__}")

    def value(self, node: ast.expr, names: Names) -> Any:
        """The value of an expression."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names[node.id] if node.id in names else self._outside[node.id]
        if isinstance(node, ast.Attribute):
            return getattr(self.value(node.value, names), node.attr)
        if isinstance(node, ast.BinOp):
            left, right = (as_int(self.value(side, names)) for side in (node.left, node.right))
            return OPERATORS[type(node.op)](left, right)
        if isinstance(node, ast.UnaryOp):
            operand = self.value(node.operand, names)
            return z3.Not(as_bool(operand)) if isinstance(node.op, ast.Not) else -as_int(operand)
        if isinstance(node, ast.BoolOp):
            parts = [as_bool(self.value(part, names)) for part in node.values]
            return z3.And(parts) if isinstance(node.op, ast.And) else z3.Or(parts)
        if isinstance(node, ast.Compare):
            return self._comparison(node, names)
        if isinstance(node, ast.IfExp):
            condition = as_bool(self.value(node.test, names))
            return choose(condition, self.value(node.body, names), self.value(node.orelse, names))
        if isinstance(node, ast.Tuple):
            return tuple(entry for part in node.elts for entry in self._parts(part, names))
        if isinstance(node, ast.GeneratorExp):
            return tuple(self._generated(node, names))
        if isinstance(node, ast.Subscript) and isinstance(place := self.value(node.slice, names), int):
            return _entries(self.value(node.value, names))[place]
        if isinstance(node, ast.Call):
            return self._call(node, names)
        raise Inexpressible(type(node).__name__)

    def _parts(self, node: ast.expr, names: Names) -> tuple[Any, ...]:
        """What one place of a written tuple stands for: an entry, or all those of a tuple with a star."""
        if isinstance(node, ast.Starred):
            return _entries(self.value(node.value, names))
        return (self.value(node, names),)

    def _comparison(self, node: ast.Compare, names: Names) -> Any:
        values = [self.value(side, names) for side in (node.left, *node.comparators)]
        found = [
            COMPARISONS[type(op)](as_int(a), as_int(b))
            for op, a, b in zip(node.ops, values[:-1], values[1:], strict=True)
        ]
        return found[0] if len(found) == 1 else z3.And(found)

    def _generated(self, node: ast.GeneratorExp, names: Names) -> Iterator[Any]:
        (clause,) = node.generators
        if clause.ifs:
            raise Inexpressible("a tuple whose length depends on a symbol")
        for entry in _entries(self.value(clause.iter, names)):
            yield self.value(node.elt, {**names, **self._bind(clause.target, entry)})

    def _call(self, node: ast.Call, names: Names) -> Any:
        given = [self.value(argument, names) for argument in node.args]
        named = {str(keyword.arg): self.value(keyword.value, names) for keyword in node.keywords}
        if isinstance(node.func, ast.Attribute) and node.func.attr == "_replace":
            return self.value(node.func.value, names)._replace(**named)
        if not isinstance(node.func, ast.Name):
            raise Inexpressible(f"call of {ast.unparse(node.func)}")
        if node.func.id in BUILTINS:
            return BUILTINS[node.func.id](*given, **named)
        if node.func.id in dir(__builtins__) or node.func.id not in self._outside:
            raise Inexpressible(f"a loop over {node.func.id}")
        callee = self._outside[node.func.id]
        if isinstance(callee, type):
            return callee(*given, **named)
        return translate(callee, *given)

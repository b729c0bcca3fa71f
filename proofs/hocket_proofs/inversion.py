"""Are the theorems enough? Every branch of every function they speak of is inverted, one at a time: some
theorem must fail.

A fault that no theorem notices is a decision about which nothing is proved, whatever the tests say.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from hocket_proofs.symbolic.prover import PROVED, Lemma, prove
from hocket_proofs.theorems import DECISIONS, THEOREMS, Theorem
from hocket_proofs.theorems.translation import MODULES


class Branch(NamedTuple):
    """One condition of one function: the `number`-th, in the order of the syntax tree."""

    module: ModuleType
    function: str
    number: int
    condition: str

    def __str__(self) -> str:
        return f"{self.module.__name__}.{self.function}: not ({self.condition})"


def branches() -> Iterator[Branch]:
    """Every condition on which a function takes one way or the other."""
    for module in MODULES:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__:
                for number, test in enumerate(conditions(tree_of(function))):
                    yield Branch(module, name, number, ast.unparse(test))


def tree_of(function: Callable[..., Any]) -> ast.Module:
    """The syntax tree of a function."""
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def conditions(tree: ast.AST) -> list[ast.expr]:
    """Tests of `if`, of conditional expressions and of comprehensions."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp)):
            found.append(node.test)
        elif isinstance(node, ast.comprehension):
            found += node.ifs
    return found


class _Invert(ast.NodeTransformer):
    def __init__(self, test: ast.expr) -> None:
        self._test = test

    def visit(self, node: ast.AST) -> Any:
        if node is self._test:
            return ast.UnaryOp(ast.Not(), self._test)
        return self.generic_visit(node)


@contextmanager
def inverted(branch: Branch) -> Iterator[None]:
    """The function with that condition turned around, in place of the one that ships."""
    real = vars(branch.module)[branch.function]
    tree = tree_of(real)
    changed = ast.fix_missing_locations(_Invert(conditions(tree)[branch.number]).visit(tree))
    scratch: dict[str, Any] = {}
    exec(compile(changed, "<inverted>", "exec"), vars(branch.module), scratch)
    setattr(branch.module, branch.function, scratch[branch.function])
    try:
        yield
    finally:
        setattr(branch.module, branch.function, real)


def failing(theorems: Iterable[Theorem]) -> str:
    """The first lemma that does not hold, as `property: lemma`; '' if all do."""
    for theorem in theorems:
        try:
            for lemma in theorem.lemmas():
                if prove(lemma) != PROVED:
                    return f"{theorem.property}: {lemma.name}"
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            return f"{theorem.property}: {error!r}"
    return ""


def users() -> dict[str, tuple[Theorem, ...]]:
    """Which theorems call which function: `module.function` -> theorems."""
    called: dict[str, list[Theorem]] = {}
    for theorem in THEOREMS:
        for name in _called_by(theorem) if theorem.about == DECISIONS else ():
            called.setdefault(name, []).append(theorem)
    return {name: tuple(theorems) for name, theorems in called.items()}


def _called_by(theorem: Theorem) -> set[str]:
    """Functions that are called while the lemmas of a theorem are made."""
    names: set[str] = set()
    real = [(module, name, function) for module in MODULES for name, function in vars(module).items()
            if inspect.isfunction(function) and function.__module__ == module.__name__]  # fmt: skip

    def note(key: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            names.add(key)
            return function(*arguments)

        return noted

    for module, name, function in real:
        setattr(module, name, note(f"{module.__name__}.{name}", function))
    try:
        made: list[Lemma] = list(theorem.lemmas())
        assert made, theorem.property
    finally:
        for module, name, function in real:
            setattr(module, name, function)
    return names

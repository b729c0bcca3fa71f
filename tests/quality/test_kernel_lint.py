"""The modules that the proofs execute symbolically stay within the allow-list, and the allow-list refuses the
rest."""

import pytest

from tests.quality.kernel_lint import findings
from tests.quality.sources import ROOT

KERNELS = [
    "impl/hocket/sched/kernel.py",
    "impl/hocket/kv/counts.py",
    "impl/hocket/runner/packed_rules.py",
    "impl/hocket/runner/ring_rules.py",
    "impl/hocket/runner/slot_rules.py",
]

GOOD = '''
"""A kernel."""
from __future__ import annotations
from enum import IntEnum
from typing import NamedTuple

LIMIT = 2**3 - 1
Vector = tuple[int, ...]


class Code(IntEnum):
    """Codes."""
    FINE = 0
    """All is well."""


class Row(NamedTuple):
    """A row."""
    start: int
    running: bool


def total(rows: tuple[Row, ...], extra: Vector) -> int:
    """Sum."""
    result = -0
    for index, row in enumerate(rows):
        if row.running and not row.start < 0:
            result += row.start // 2 % 3
        if index >= LIMIT:
            break
    return result + sum(x for x in extra)


def moved(row: Row, by: int) -> Row:
    """Moves."""
    assert by >= 0
    return row._replace(start=row.start + by) if total((row,), ()) == Code.FINE else row
'''

# Each of these is refused; the last word is the reason that the finding gives.
BAD = {
    "is": ("    return x is None", "identity"),
    "is not": ("    return x is not None", "identity"),
    "in": ("    return x in (1, 2)", "membership"),
    "isinstance": ("    return isinstance(x, int)", "isinstance"),
    "type": ("    return type(x) == int", "type"),
    "f-string": ("    return f'{x}'", "JoinedStr"),
    "string": ("    return 'text'", "constant 'text'"),
    "float": ("    return x * 0.5", "constant 0.5"),
    "division": ("    return x / 2", "Div"),
    "power": ("    return x**2", "Pow"),
    "dict": ("    return {1: x}", "Dict"),
    "dict comprehension": ("    return {i: i for i in range(x)}", "DictComp"),
    "set": ("    return {x}", "Set"),
    "set comprehension": ("    return {i for i in range(x)}", "SetComp"),
    "list": ("    return [x]", "List"),
    "list comprehension": ("    return [i for i in range(x)]", "ListComp"),
    "global": ("    global LIMIT\n    LIMIT = x", "Global"),
    "while": ("    while x:\n        x -= 1", "While"),
    "try": ("    try:\n        return x\n    except ValueError:\n        return 0", "Try"),
    "raise": ("    raise ValueError", "Raise"),
    "with": ("    with x:\n        return 0", "With"),
    "lambda": ("    return max((x,), key=lambda y: -y)", "Lambda"),
    "walrus": ("    return (y := x)", "NamedExpr"),
    "yield": ("    yield x", "Yield"),
    "await": ("    await x", "Await"),
    "match": ("    match x:\n        case 1:\n            return 0", "Match"),
    "delete": ("    del x", "Delete"),
    "inner import": ("    from os import path", "import from os"),
    "method": ("    return x.bit_length()", "call of x.bit_length"),
    "print": ("    print(x)", "call of print"),
    "int()": ("    return int(x)", "call of int"),
    "hash": ("    return hash(x)", "call of hash"),
    "recursion": ("    return f(x - 1)", "does not stand above"),
    "attribute assignment": ("    x.a = 1", "assignment to a part"),
    "item assignment": ("    x[0] = 1", "assignment to a part"),
    "inner class": ("    class C:\n        pass", "class C"),
}

BAD_MODULES = {
    "import": ("import os", "Import"),
    "import from": ("from random import randint", "import from random"),
    "relative import": ("from .typing import x", "import from typing"),
    "float type": ("def f(x: float) -> int:\n    return 1", "type float"),
    "object type": ("def f(x: object) -> int:\n    return 1", "type object"),
    "no type": ("def f(x) -> int:\n    return 1", "not fully annotated"),
    "no result type": ("def f(x: int):\n    return 1", "not fully annotated"),
    "default": ("def f(x: int = 0) -> int:\n    return x", "optional or collected"),
    "varargs": ("def f(*x: int) -> int:\n    return 1", "optional or collected"),
    "decorator": ("@cache\ndef f(x: int) -> int:\n    return x", "decorator"),
    "async": ("async def f(x: int) -> int:\n    return x", "AsyncFunctionDef"),
    "alias of a dict": ("T = dict[int, int]", "type dict"),
    "float constant": ("X = 2.0**3", "constant 2.0"),
    "plain class": ("class C:\n    x: int", "class C"),
    "dataclass": ("@dataclass\nclass C(NamedTuple):\n    x: int", "class C"),
    "top-level if": ("if 1 < 2:\n    X = 1", "If outside a function"),
    "forward call": (
        "def f(x: int) -> int:\n    return g(x)\n\ndef g(x: int) -> int:\n    return x",
        "does not stand above",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_is_within_the_allow_list(name: str) -> None:
    assert findings((ROOT / name).read_text()) == []


def test_good_module_is_accepted() -> None:
    assert findings(GOOD) == []


@pytest.mark.parametrize("name", BAD)
def test_bad_statement_is_refused(name: str) -> None:
    body, reason = BAD[name]
    header = "async def f(x: int) -> int:\n" if name == "await" else "def f(x: int) -> int:\n"
    assert any(reason in finding for finding in findings(f"LIMIT = 7\n\n{header}{body}\n"))


@pytest.mark.parametrize("name", BAD_MODULES)
def test_bad_module_is_refused(name: str) -> None:
    source, reason = BAD_MODULES[name]
    assert any(reason in finding for finding in findings(source))

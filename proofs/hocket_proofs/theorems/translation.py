"""That a lifted function is the function: of every shipped function that the theorems speak of.

Its paths cover every input; on numbers its terms give what the function gives; and the second translator,
from the syntax tree, comes to the same terms. What one of them cannot express is named here, with the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from types import ModuleType
from typing import Any

import z3

from hocket.kv import counts
from hocket.runner import packed_rules, ring_rules, slot_rules
from hocket.sched import kernel
from hocket_proofs.symbolic.lifting import Lifted, leaves, lift, symbols
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.syntax import translate
from hocket_proofs.symbolic.values import evaluate, term

MODULES = (kernel, counts, packed_rules, ring_rules, slot_rules)
"""The modules that hold decisions and nothing else."""

NOT_LIFTED = {
    "capacity_need": "a loop over starts whose number is not known beforehand: its parts are lifted instead",
}
NOT_TRANSLATED = NOT_LIFTED | {
    "designate": "how many victims it names depends on the numbers",
    "lowest": "how many slots it names depends on the numbers",
    "others": "how many slots it names depends on the numbers",
}

SIZE = 2  # entries of tuples: pools, groups, gains
POSITIVE = ("block_size", "alignment", "period", "buffers")
SAMPLES = 24


def functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions that a module defines."""
    for name, found in vars(module).items():
        if inspect.isfunction(found) and found.__module__ == module.__name__:
            yield name, found


def numbers(arguments: dict[str, Any]) -> Iterator[dict[Any, Any]]:
    """Values for all symbols of the arguments: corners, where there are few, and others spread evenly."""
    symbolic = [term(leaf) for leaf in leaves(tuple(arguments.values()))]
    spread = 1
    for sample in range(SAMPLES):
        chosen: dict[Any, Any] = {}
        for place, one in enumerate(symbolic):
            spread = (spread * 16807 + place) % 2147483647  # any numbers will do, the same ones every time
            if z3.is_bool(one):
                chosen[one] = bool(spread // 7 % 2)
            else:
                low = 1 if any(word in str(one) for word in POSITIVE) else -1
                chosen[one] = low + spread // 11 % (4 if sample % 3 else 40)
        yield chosen


def plain(argument: Any, chosen: dict[Any, Any]) -> Any:
    """An argument with numbers for its symbols."""
    if isinstance(argument, tuple):
        parts = [plain(part, chosen) for part in argument]
        return type(argument)(*parts) if hasattr(argument, "_fields") else tuple(parts)
    return chosen[term(argument)]


def bare(argument: Any) -> Any:
    """An argument as terms."""
    if isinstance(argument, tuple):
        parts = [bare(part) for part in argument]
        return type(argument)(*parts) if hasattr(argument, "_fields") else tuple(parts)
    return term(argument)


def differs(function: Callable[..., Any], arguments: dict[str, Any], lifted: Lifted) -> str:
    """Numbers for which the lifted function gives something else than the function; '' if none are found."""
    for chosen in numbers(arguments):
        expected = leaves(function(*(plain(argument, chosen) for argument in arguments.values())))
        values = [(one, z3.BoolVal(v) if z3.is_bool(one) else z3.IntVal(v)) for one, v in chosen.items()]
        taken = [path for path in lifted.paths if evaluate(path.condition, values)]
        if len(taken) != 1:
            return f"{len(taken)} paths for {chosen}"
        found = [evaluate(term(leaf), values) for leaf in leaves(taken[0].result)]
        if found != [v if isinstance(v, bool) else int(v) for v in expected]:
            return f"{found} instead of {expected} for {chosen}"
    return ""


def of_function(name: str, function: Callable[..., Any]) -> Iterable[Lemma]:
    """The three checks of one function."""
    if name in NOT_LIFTED:
        return
    arguments = symbols(function, SIZE)
    lifted = lift(function, *arguments.values())
    yield Lemma(f"{name}: every input takes a path", lifted.complete)
    found = differs(function, arguments, lifted)
    yield Lemma(f"{name}: gives the same on numbers {found}".rstrip(), z3.BoolVal(not found))
    if name not in NOT_TRANSLATED:
        other = [term(leaf) for leaf in leaves(translate(function, *map(bare, arguments.values())))]
        equal = z3.And([a == b for a, b in zip(lifted.terms(), other, strict=True)])
        yield Lemma(f"{name}: both translators agree", equal)


def lifting() -> Iterable[Lemma]:
    """Of all functions of the linted modules."""
    for module in MODULES:
        for name, function in functions(module):
            yield from of_function(name, function)


def signs() -> Iterable[Lemma]:
    """Division of Z3 by a positive number is Python's, whatever the sign of the dividend."""
    for a, b in product(range(-5, 6), (1, 2, 3)):
        yield Lemma(f"{a} // {b}", z3.And(z3.IntVal(a) / b == a // b, z3.IntVal(a) % b == a % b))

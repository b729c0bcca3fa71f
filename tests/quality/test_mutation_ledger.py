"""The ledger of `make mutate-spec`: current, complete, with a reason each; and the comparison can be red."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation import mutate_spec as m
from tests.mutation.mutate_spec import Entry, Mutant, Outcome
from tests.quality.sources import ROOT

ENTRIES = m.ledger(m.LEDGER.read_text())
ONE = Mutant("rules.hold", "x = 1", "x = 2")
OTHER = Mutant("walk.grow", "y = 1", "y = None")


def test_entries_have_verdict_and_reason() -> None:
    assert [e for e in ENTRIES if e.verdict not in ("equivalent", "accepted") or len(e.reason) < 15] == []


def test_entries_speak_of_the_specification_as_it_is() -> None:
    """A line that was changed or removed takes its entries with it."""
    for entry in ENTRIES:
        module, _, name = entry.mutant.function.partition(".")
        assert module in m.MODULES
        bodies = m.functions(m.prepared((m.SPEC / f"{module}.py").read_text()))
        body = " ".join(line.strip() for line in bodies[name.rpartition(".")[2]])
        assert entry.mutant.removed.replace(name, name.rpartition(".")[2]) in body, entry.mutant


def test_nothing_stands_twice() -> None:
    assert [mutant for mutant, n in Counter(e.mutant for e in ENTRIES).items() if n > 2] == []


def red(survivors: Counter[Mutant], entries: list[Mutant], ran: int = 9, missed: tuple[str, ...] = ()) -> str:
    found = m.problems(
        Outcome(ran, survivors, missed), [Entry(e, "equivalent", "") for e in entries], m.MODULES
    )
    return "\n".join(found)


def test_what_is_explained_is_green() -> None:
    assert red(Counter(), []) == ""
    assert red(Counter([ONE, OTHER]), [OTHER, ONE]) == ""
    assert red(Counter([ONE, ONE]), [ONE, ONE]) == ""


def test_whatever_is_not_explained_is_red() -> None:
    assert red(Counter([ONE]), []).startswith("not in the ledger, survives:\n[[survivor]]\nfunction = ")
    assert red(Counter([ONE, ONE]), [ONE]).count("not in the ledger") == 1
    assert red(Counter(), [ONE]).startswith("in the ledger, does not survive: ")
    assert red(Counter(), [], ran=0) == "no mutant was run: mutmut found nothing to mutate"
    assert red(Counter(), [], missed=("hocket_spec.rules.x_hold__mutmut_1",)).startswith(
        "not run: hocket_spec"
    )


def test_modules_that_were_not_asked_for_are_not_missed() -> None:
    entries = [Entry(ONE, "equivalent", "")]
    assert m.problems(Outcome(1, Counter(), ()), entries, ("walk",)) == []


def test_what_is_printed_is_an_entry() -> None:
    text = m.as_entry(Mutant("rules.hold", 'return "a"', "return 'b\\n'"))
    assert m.ledger(text) == [Entry(Mutant("rules.hold", 'return "a"', "return 'b\\n'"), "", "")]


MUTATED = '''\
def x_half__mutmut_orig(n, k="a"):
    """Doc."""
    return n // 2
def x_half__mutmut_1(n, k="a"):
    """Doc."""
    return n / 2
def x_half__mutmut_2(n, k="XX"):
    """Doc."""
    return n // 2
def x_half__mutmut_3(n, k="a"):
    """Doc."""
    return n // 3
class C:
    def xǁCǁm__mutmut_orig(self):
        return 1
    def xǁCǁm__mutmut_1(self):
        return 2
'''


def test_mutants_are_known_by_what_they_change(tmp_path: Path) -> None:
    """Not by mutmut's numbers, which move with every line."""
    (tmp_path / "hocket_spec").mkdir()
    (tmp_path / "hocket_spec/rules.py").write_text(MUTATED)
    codes = {"x_half__mutmut_1": 0, "x_half__mutmut_2": 33, "x_half__mutmut_3": 1, "xǁCǁm__mutmut_1": 0}
    named = {f"hocket_spec.rules.{name}": code for name, code in codes.items()}
    meta = tmp_path / "hocket_spec/rules.py.meta"
    meta.write_text(json.dumps({"exit_code_by_key": named}))
    survivors = {
        Mutant("rules.half", "return n // 2", "return n / 2"),
        Mutant("rules.half", 'def half(n, k="a"):', 'def half(n, k="XX"):'),
        Mutant("rules.C.m", "return 1", "return 2"),
    }
    assert m.outcome(tmp_path) == Outcome(4, Counter(survivors), ())
    meta.write_text(json.dumps({"exit_code_by_key": named | {"hocket_spec.rules.x_half__mutmut_3": None}}))
    assert m.outcome(tmp_path) == Outcome(3, Counter(survivors), ("hocket_spec.rules.x_half__mutmut_3",))


@pytest.mark.parametrize("module", m.MODULES)
def test_prepared_source_can_be_mutated_whole(module: str) -> None:
    source = m.prepared((m.SPEC / f"{module}.py").read_text())
    assert "@lru_cache" not in source
    assert "@cache" not in source
    assert "strict=" not in source
    compile(source, module, "exec")


def test_fast_tests_are_there() -> None:
    assert all((ROOT / test).is_file() for test in m.TESTS)

"""The verdict on a mutation run, and that the results which are kept are not too old."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hocket_proofs import mutate
from hocket_proofs.mutate import TARGETS, Mutant, Outcome, Target, explained, judge, stale

ONE = Mutant("sched.kernel.f", "return a < b", "return a <= b")
TWO = Mutant("sched.kernel.f", "return a < b", "return a > b")
ALL = Target(("sched/kernel.py",), {}, (), 1.0)
TODAY = datetime.now(UTC).date()


def test_what_is_killed_or_explained_is_fine() -> None:
    assert judge(ALL, Outcome(9, (), 0), {}) == []
    assert judge(ALL, Outcome(9, (ONE,), 0), {ONE: "equal"}) == []


def test_a_run_without_mutants_is_red() -> None:
    assert judge(ALL, Outcome(0, (), 0), {}) == ["no mutants: nothing was checked"]


def test_an_unexplained_survivor_is_red_and_named() -> None:
    wrong = judge(ALL, Outcome(9, (ONE, TWO), 0), {ONE: "equal"})
    assert wrong == [
        "90.9% killed or explained, 100% are wanted",
        "unexplained: sched.kernel.f: return a < b  ->  return a > b",
    ]
    assert judge(ALL._replace(least=0.9), Outcome(9, (ONE, TWO), 0), {ONE: "equal"}) == []


def test_an_explanation_of_what_does_not_survive_is_red() -> None:
    assert judge(ALL, Outcome(9, (), 0), {ONE: "equal"}) == [
        "explained, but killed: sched.kernel.f: return a <= b"
    ]


def test_an_unfinished_run_is_red() -> None:
    assert judge(ALL, Outcome(9, (), 3), {}) == ["3 mutants are left: run it again, it goes on"]


def test_every_explanation_has_a_reason_and_its_target() -> None:
    for name in TARGETS:
        assert all(why.strip() for why in explained(name).values())
    assert explained("kernel")


@pytest.mark.parametrize("name", TARGETS)
def test_targets_name_files_that_are_there(name: str) -> None:
    assert len(mutate.mutated(TARGETS[name])) >= 3
    assert all((Path("tests") / folder).exists() for folder in TARGETS[name].folders)


def test_result_of_the_kernel_is_not_too_old() -> None:
    assert stale("kernel", TODAY) == ""


def test_a_result_of_other_sources_is_too_old_after_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mutate, "RESULT", tmp_path / "mutation.toml")
    assert stale("kernel", TODAY) == "kernel has no result"
    mutate.keep("kernel", TARGETS["kernel"], Outcome(5, (ONE,), 0), {ONE: "equal"})
    later = TODAY + timedelta(days=mutate.STALE_DAYS + 1)
    assert stale("kernel", later) == ""
    monkeypatch.setattr(mutate, "hashes", lambda target: {"sched/kernel.py": "0"})
    assert stale("kernel", TODAY) == ""
    assert "allowed are 30" in stale("kernel", later)
    mutate.keep("product", TARGETS["product"], Outcome(7, (), 0), {})
    assert stale("kernel", TODAY) == ""
    assert stale("product", later) == ""

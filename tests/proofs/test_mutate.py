"""The verdict on a mutation run, and that the results which are kept are not too old."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hocket_proofs import mutate
from hocket_proofs.mutate import TARGETS, Mutant, Outcome, Target, explained, judge, judges, unfit

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


def test_survivors_that_look_alike_are_red() -> None:
    assert judge(ALL, Outcome(9, (ONE, ONE), 0), {ONE: "equal"}) == [
        "survives in two places: sched.kernel.f: return a < b  ->  return a <= b"
    ]


def test_an_unfinished_run_is_red() -> None:
    assert judge(ALL, Outcome(9, (), 3), {}) == ["3 mutants are left: run it again, it goes on"]


def test_every_explanation_has_a_reason_and_its_target() -> None:
    for name in TARGETS:
        assert all(why.strip() for why in explained(name).values())
    assert explained("kernel")


@pytest.mark.parametrize("name", TARGETS)
def test_explanations_speak_of_the_sources_as_they_are(name: str) -> None:
    """A line that was changed or removed takes its entries with it."""
    texts = {
        str(path.relative_to(mutate.SOURCES)).removesuffix(".py").replace("/", "."): " ".join(
            line.strip() for line in path.read_text().splitlines()
        )
        for path in mutate.mutated(TARGETS[name])
    }
    for mutant in explained(name):
        module = next(module for module in texts if mutant.function.startswith(f"{module}."))
        assert f"def {mutant.function.rpartition('.')[2]}(" in texts[module], mutant
        assert mutant.before in texts[module], mutant


@pytest.mark.parametrize("name", TARGETS)
def test_targets_name_files_that_are_there(name: str) -> None:
    assert len(mutate.mutated(TARGETS[name])) >= 3
    assert all((Path("tests") / folder).exists() for folder in TARGETS[name].folders)


@pytest.mark.parametrize("name", TARGETS)
def test_the_last_run_of_every_target_counts(name: str) -> None:
    assert unfit(name, TODAY) == ""


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The result of a run with nine mutants killed and one explained."""
    monkeypatch.setattr(mutate, "RESULT", tmp_path / "mutation.toml")
    monkeypatch.setattr(mutate, "explained", lambda name: {ONE: "equal"})
    assert unfit("kernel", TODAY) == "kernel has no result"
    mutate.keep("kernel", TARGETS["kernel"], Outcome(9, (ONE,), 0), {ONE: "equal"})
    assert unfit("kernel", TODAY) == ""
    return tmp_path / "mutation.toml"


@pytest.mark.parametrize("what", ["hashes", "judges"])
def test_a_result_of_other_sources_or_judges_is_too_old_after_a_while(
    what: str, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = TODAY + timedelta(days=mutate.STALE_DAYS + 1)
    assert unfit("kernel", later) == ""
    monkeypatch.setattr(mutate, what, lambda target: {})
    assert unfit("kernel", TODAY) == ""
    assert "allowed are 30" in unfit("kernel", later)
    monkeypatch.undo()


def test_results_of_targets_do_not_disturb_each_other(kept: Path) -> None:
    mutate.keep("product", TARGETS["product"], Outcome(7, (ONE,), 0), {ONE: "equal"})
    assert [unfit(name, TODAY) for name in TARGETS] == ["", ""]
    assert '"sched.kernel" = 1' in kept.read_text()


@pytest.mark.parametrize(
    ("line", "other", "said"),
    [
        ("mutants = 10", "mutants = 0", "are not 0 mutants"),
        ("killed = 9", "killed = 4", "4 killed and 1 survivors, 1 explained, are not 10 mutants"),
        ("explained = 1", "explained = 0", "the ledger has 1"),
        ("explained = 1", "explained = 2", "2 explained, are not 10"),
        (f"day = {TODAY}", "day = 2099-01-01", "still to come"),
    ],
)
def test_a_result_that_no_run_can_have_does_not_count(line: str, other: str, said: str, kept: Path) -> None:
    assert line in kept.read_text()
    kept.write_text(kept.read_text().replace(line, other))
    assert said in unfit("kernel", TODAY)


def test_a_result_with_too_many_survivors_does_not_count(kept: Path) -> None:
    mutate.keep("kernel", TARGETS["kernel"], Outcome(9, (ONE, TWO), 0), {ONE: "equal"})
    assert "1 of 11 unexplained, 100% killed are wanted" in unfit("kernel", TODAY)


def test_judges_are_known_by_what_they_say(tmp_path: Path) -> None:
    target = Target((), {}, ("some",), 1.0)
    for folder in ("spec/hocket_spec", "proofs/hocket_proofs", "tests/some"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text("x = 1")
    before = judges(target, tmp_path)
    assert judges(target._replace(folders=()), tmp_path) != before
    for folder in ("spec/hocket_spec", "proofs/hocket_proofs", "tests/some"):
        (tmp_path / folder / "a.py").write_text("x = 2")
        assert judges(target, tmp_path) != before
        (tmp_path / folder / "a.py").write_text("x = 1")
    assert judges(target, tmp_path) == before

"""The tier runner: it counts what ran, says what did not, and is red when it should be."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import tiers
from tests.quality.sources import ROOT

PASSES = "def test_a(): pass\ndef test_b(): pass\n"
FAILS = "def test_a(): pass\ndef test_b(): assert False\n"
SKIPS = "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no device here')\n"
ONLY_SKIPS = "import pytest\npytest.skip('nothing to see', allow_module_level=True)\n"
XFAILS = "import pytest\n@pytest.mark.xfail(reason='known')\ndef test_a(): assert False\n"
TEARDOWN = "import pytest\n@pytest.fixture\ndef f():\n    yield\n    raise ValueError\ndef test_a(f): pass\n"
BROKEN = "import no_such_module\n"
DIES = "import os\ndef test_a(): os._exit(3)\n"

OK = "import sys; sys.exit(0)"
NO = "import sys; sys.exit(1)"


def run(tmp_path: Path, source: str, workers: int = 1) -> tuple[int, int, dict[str, int], str]:
    folder = tmp_path / "tests/unit"
    folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    (folder / "test_it.py").write_text(source)
    result = tiers.run_folder(tiers.Tier("unit", folder="unit", workers=workers), tmp_path)
    return result.passed, result.failed, dict(result.skips), result.problem


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PASSES, (2, 0, {}, "")),
        (FAILS, (1, 1, {}, "")),
        (SKIPS, (1, 0, {"no device here": 1}, "")),
        (XFAILS, (1, 0, {}, "")),
        (TEARDOWN, (0, 1, {}, "")),
    ],
    ids=["passes", "fails", "skips", "xfails", "teardown"],
)
def test_counts(tmp_path: Path, source: str, expected: tuple[int, int, dict[str, int], str]) -> None:
    assert run(tmp_path, source) == expected


def test_counts_are_the_same_in_parallel(tmp_path: Path) -> None:
    assert run(tmp_path, SKIPS, workers=2) == (1, 0, {"no device here": 1}, "")


def test_module_that_is_skipped_whole_is_a_skip(tmp_path: Path) -> None:
    passed, failed, skips, problem = run(tmp_path, ONLY_SKIPS)
    assert (passed, failed, sum(skips.values()), problem) == (0, 0, 1, "")


def test_run_without_tests_is_red(tmp_path: Path) -> None:
    passed, failed, _, problem = run(tmp_path, "x = 1\n")
    assert (passed, failed) == (0, 1)
    assert "status 5" in problem


def test_module_that_does_not_import_is_red(tmp_path: Path) -> None:
    passed, failed, _, problem = run(tmp_path, BROKEN)
    assert (passed, failed) == (0, 1)
    assert "status 2" in problem


def test_process_that_dies_is_red(tmp_path: Path) -> None:
    passed, failed, _, problem = run(tmp_path, DIES)
    assert (passed, failed) == (0, 1)
    assert "status 3" in problem


@pytest.mark.parametrize("exists", [False, True])
def test_folder_without_tests_is_a_skip_with_a_reason(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "tests/unit").mkdir(parents=True)
    result = tiers.run_folder(tiers.Tier("unit", folder="unit"), tmp_path)
    assert (result.passed, result.failed) == (0, 0)
    assert result.skips == Counter({"tests/unit holds no tests": 1})


def test_every_static_command_counts() -> None:
    python = Path(sys.executable).name
    result = tiers.run_commands(tiers.Tier("lint", commands=((python, "-c", OK), (python, "-c", NO))))
    assert (result.passed, result.failed) == (1, 1)
    assert NO in result.problem


def result_of(passed: int = 0, failed: int = 0, skipped: int = 0, problem: str = "") -> object:
    skips = Counter({"why": skipped}) if skipped else Counter()
    return tiers.Result("unit", passed, failed, skips, 1.25, problem)


@pytest.mark.parametrize(
    ("results", "green", "green_if_all_required"),
    [
        ([result_of(passed=2)], True, True),
        ([result_of(passed=2), result_of(skipped=1)], True, False),
        ([result_of(passed=2, skipped=1)], True, False),
        ([result_of(passed=2, failed=1)], False, False),
        ([result_of(passed=2, problem="died")], False, False),
        ([result_of(skipped=1)], False, False),
        ([], False, False),
    ],
    ids=["all", "skipped tier", "skipped test", "failed", "problem", "nothing ran", "nothing at all"],
)
def test_verdict(results: list[object], green: bool, green_if_all_required: bool) -> None:
    assert tiers.is_green(results, require_all=False) is green
    assert tiers.is_green(results, require_all=True) is green_if_all_required


def test_table_names_every_reason() -> None:
    text = tiers.table([result_of(passed=2, skipped=3), result_of(failed=1, problem="it died")])
    assert "skipped 3: why" in text
    assert "failed: it died" in text


def test_closing_line_is_the_plain_one() -> None:
    line = tiers.closing_line([result_of(passed=2, failed=1), result_of(passed=3, skipped=4)])
    assert line == "5 passed, 1 failed, 4 skipped"


@pytest.mark.parametrize(("required", "status"), [("", 0), ("0", 0), ("1", 1)])
def test_skipped_tier_is_red_where_all_is_required(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    required: str,
    status: int,
) -> None:
    monkeypatch.setenv("REQUIRE_ALL", required)
    python = Path(sys.executable).name
    both = (tiers.Tier("lint", commands=((python, "-c", OK),)), tiers.Tier("unit", folder="unit"))
    assert tiers.main([], both, tmp_path) == status
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed, 1 skipped"


def test_unknown_tier_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiers.main(["unti"]) == 2
    assert "unknown tier 'unti'" in capsys.readouterr().err


def test_every_folder_of_tests_is_a_tier() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").glob("*/**/test_*.py")}
    # Benchmarks give no verdict; the compilers of `make ascend-compile` are too large for every run.
    apart = [Path("bench"), Path("npu/t3")]
    tiered = [Path(tier.folder) for tier in tiers.TIERS if tier.folder] + apart
    assert [folder for folder in folders if not any(folder.is_relative_to(home) for home in tiered)] == []


def test_an_environment_that_cannot_be_made_is_red(tmp_path: Path) -> None:
    (tmp_path / "tests/npu/t2").mkdir(parents=True)
    (tmp_path / "tests/npu/t2/test_it.py").write_text(PASSES)
    (tmp_path / "Makefile").write_text("npu-env:\n\tfalse\n")
    result = tiers.run_folder(tiers.Tier("t2", folder="npu/t2", npu=True), tmp_path)
    assert (result.passed, result.failed) == (0, 1)
    assert "npu-env` failed" in result.problem

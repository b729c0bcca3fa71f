"""The tier runner behind `make test`: run every tier, then print one table and one closing line.

    python tests/tiers.py [TIER ...]

A tier is a set of checks that one command runs: a static check, or all tests of one folder. The exit status
is 0 if nothing failed. What did not run is never passed over in silence: the table names each skip and its
reason, and with REQUIRE_ALL=1 in the environment a skip is as red as a failure.
"""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
WORKERS = min(8, len(os.sched_getaffinity(0)))


class Tier(NamedTuple):
    """What a tier runs: static `commands` (one check each), or the tests of `folder` below tests/."""

    name: str
    commands: tuple[tuple[str, ...], ...] = ()
    folder: str = ""
    workers: int = WORKERS  # processes that share the tests of the folder
    npu: bool = False  # in the environment of `make npu-env`: torch_npu on the fake CANN runtime


class Result(NamedTuple):
    """What came of a tier. `skips` maps each reason to the number of tests that were skipped for it."""

    name: str
    passed: int
    failed: int
    skips: Counter[str]
    seconds: float
    problem: str = ""  # why the tier is red, where no failed test says so

    @property
    def skipped(self) -> int:
        """The number of checks that did not run."""
        return sum(self.skips.values())


CONCISE = ("--quiet", "--output-format=concise")

TIERS = (
    Tier("lint", commands=(("ruff", "check", *CONCISE, "."), ("ruff", "format", "--check", *CONCISE, "."))),
    Tier("types", commands=(("mypy",),)),
    Tier("arrows", commands=(("lint-imports", "--no-logo"),)),
    Tier("unit", folder="unit"),
    Tier("conformance", folder="conformance"),
    Tier("proofs", folder="proofs"),
    Tier("scenarios", folder="scenarios"),
    Tier("e2e", folder="e2e"),
    Tier("t0", folder="npu/t0"),
    Tier("t1", folder="npu/t1", npu=True),
    Tier("t2", folder="npu/t2", npu=True),
    Tier("quality", folder="quality"),
    Tier("packaging", folder="packaging", workers=1),
)


def run_commands(tier: Tier) -> Result:
    """Run the static checks of a tier, all of them even if one fails."""
    begin = time.perf_counter()
    failures = [
        " ".join(command)
        for command in tier.commands
        if subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, check=False).returncode != 0
    ]
    return Result(
        name=tier.name,
        passed=len(tier.commands) - len(failures),
        failed=len(failures),
        skips=Counter(),
        seconds=time.perf_counter() - begin,
        problem="; ".join(f"`{failure}` failed" for failure in failures),
    )


def read_report(path: Path) -> tuple[int, int, Counter[str]]:
    """Read a JUnit report: passed, failed, reasons of the skipped. A test that errs on teardown failed."""
    verdicts: dict[tuple[str, str], str] = {}
    skips: Counter[str] = Counter()
    for case in ET.parse(path).getroot().iter("testcase"):
        key = (case.get("classname", ""), case.get("name", ""))
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            verdicts[key] = "failed"
        elif skip is None:
            verdicts.setdefault(key, "passed")
        elif skip.get("type") == "pytest.xfail":
            verdicts.setdefault(
                key, "passed"
            )  # an expected failure that failed; xfail_strict sees to the others
        else:
            verdicts.setdefault(key, "skipped")
            skips[skip.get("message") or "no reason given"] += 1
    counts = Counter(verdicts.values())
    return counts["passed"], counts["failed"], skips


def npu_environment(root: Path) -> tuple[str, dict[str, str]]:
    """Make the environment with torch_npu if need be: its python, and the variables that it has to start
    with. Raises CalledProcessError if it cannot be made.
    """
    subprocess.run(["make", "--no-print-directory", "npu-env"], cwd=root, check=True)
    # A task queue would run torch_npu's calls in a thread of its own; the fake runtime wants them in order.
    settings = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TASK_QUEUE_ENABLE": "0"}
    libraries = str(root / ".venv-npu/fake_cann")
    return str(root / ".venv-npu/bin/python"), {"LD_LIBRARY_PATH": libraries, **settings}


def run_folder(tier: Tier, root: Path) -> Result:
    """Run the tests of a folder. A folder without tests counts as one skipped check."""
    begin = time.perf_counter()
    folder = root / "tests" / tier.folder
    if not any(folder.rglob("test_*.py")):
        return Result(tier.name, 0, 0, Counter([f"tests/{tier.folder} holds no tests"]), 0.0)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        try:
            python, variables = npu_environment(root) if tier.npu else (sys.executable, {})
        except subprocess.CalledProcessError as error:
            spent = time.perf_counter() - begin
            return Result(tier.name, 0, 1, Counter(), spent, f"`{' '.join(error.cmd)}` failed")
        command = [python, "-m", "pytest", str(folder), "--quiet", f"--junitxml={report}"]
        if tier.workers > 1:
            # One thread of torch per process: more would fight for the same cores.
            command += [f"--numprocesses={tier.workers}", "--dist=worksteal"]
        env = {**os.environ, **variables, "OMP_NUM_THREADS": str(max(1, WORKERS // tier.workers))}
        status = subprocess.run(command, cwd=root, env=env, check=False).returncode
        passed, failed, skips = read_report(report) if report.exists() else (0, 0, Counter[str]())
    problem = ""
    skipped_whole = status == 5 and skips  # "no tests": all modules skipped themselves
    if not skipped_whole and (status not in (0, 1) or (status == 1 and failed == 0)):
        problem = f"pytest ended with status {status}"
        failed = max(1, failed)
    return Result(tier.name, passed, failed, skips, time.perf_counter() - begin, problem)


def table(results: Sequence[Result]) -> str:
    """Lay out the results, one line per tier, the reasons of skips and of red tiers below their line."""
    lines = [f"{'tier':<12} {'passed':>7} {'failed':>7} {'skipped':>8} {'time':>8}"]
    for result in results:
        counts = f"{result.passed:>7} {result.failed:>7} {result.skipped:>8}"
        lines.append(f"{result.name:<12} {counts} {result.seconds:>6.1f} s")
        if result.problem:
            lines.append(f"    failed: {result.problem}")
        lines += [f"    skipped {count}: {reason}" for reason, count in sorted(result.skips.items())]
    total = sum(result.seconds for result in results)
    return "\n".join([*lines, f"{'all':<12} {'':>24} {total:>6.1f} s"])


def closing_line(results: Sequence[Result]) -> str:
    """The last line of the run, in the plain form that continuous integration reads."""
    passed = sum(result.passed for result in results)
    failed = sum(result.failed for result in results)
    skipped = sum(result.skipped for result in results)
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def is_green(results: Sequence[Result], require_all: bool) -> bool:
    """Nothing failed, something ran, and nothing was skipped where all is required."""
    if any(result.failed or result.problem for result in results):
        return False
    if require_all and any(result.skipped for result in results):
        return False
    return any(result.passed for result in results)


def main(names: Sequence[str], tiers: Sequence[Tier] = TIERS, root: Path = ROOT) -> int:
    """Run the named tiers (all of them if none is named) and return the exit status."""
    known = {tier.name: tier for tier in tiers}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown tier {unknown[0]!r}; the tiers are {' '.join(known)}", file=sys.stderr)
        return 2
    require_all = os.environ.get("REQUIRE_ALL", "") not in ("", "0")
    results = []
    for tier in [known[name] for name in names] or tiers:
        print(f"== {tier.name}", flush=True)
        results.append(run_commands(tier) if tier.commands else run_folder(tier, root))
    green = is_green(results, require_all)
    print(f"\n{table(results)}")
    if require_all and any(result.skipped for result in results):
        print("REQUIRE_ALL=1: what was skipped counts as red")
    print(closing_line(results), flush=True)
    return 0 if green else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What survives when the sources are changed in one place at a time?

    python -m hocket_proofs.mutate kernel      the decisions, judged by the theorems alone
    python -m hocket_proofs.mutate product     scheduler, pools, nouns and validator, by all checks

mutmut makes the changes and runs the checks, in a copy of the sources below `.mutants/`, so that nothing is
left behind and a run that was interrupted goes on where it stopped. `mutants.toml` explains survivors; one it
does not know, or one that it explains and that does not survive, is red, and so is a run without mutants.
`mutation.toml` holds the last whole and green run of each target, its day, and hashes of what it saw: sources
and judges.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import hocket
import hocket_kernels
import hocket_proofs
import hocket_spec

SOURCES = Path(hocket.__file__).parent
ROOTS = [
    str(Path(str(package.__file__)).parent.parent) for package in (hocket_spec, hocket_kernels, hocket_proofs)
]
REPOSITORY = Path(hocket_proofs.__file__).parents[2]
RESULT = Path(hocket_proofs.__file__).parent / "mutation.toml"
STALE_DAYS = 30  # a result that saw other sources is good for so long
KILLED = {1, 3, 36, -24, 24, 152, 255}
"""Exit codes: a check failed (1), could not go on (3), or did not come to an end within mutmut's limits."""

NOT_RUN = None

THEOREMS_ALONE = """\
import pytest

from hocket_proofs.inversion import failing
from hocket_proofs.theorems import DECISIONS, THEOREMS

ABOUT = [theorem for theorem in THEOREMS if theorem.about == DECISIONS]


@pytest.mark.parametrize("k", range(len(ABOUT)))
def test_theorem(k):
    assert failing([ABOUT[k]]) == ""
"""

LOCK_STEP = """\
import pytest

from hocket_proofs import refute
from hocket_proofs.refuted.fault import (
    ALIGNED, DRAFTING, HOLDING, MARKED, OWN_WINDOW, PLAIN, PROMISING, TALKS, TIGHT, WINDOWED, on,
)

INSTANCES = (PLAIN, on(PLAIN, depth=3), DRAFTING, WINDOWED, HOLDING, ALIGNED, TIGHT, OWN_WINDOW, TALKS,
             MARKED, PROMISING, on(PLAIN, seats=1), on(PLAIN, prefill_steps=2, decode_steps=2))


@pytest.mark.parametrize("k", range(len(INSTANCES)))
def test_lock_step(k):
    assert refute.lock_step(INSTANCES[k], 1500).difference == ""


def test_packs():
    from hocket_proofs import packs

    assert packs.first_difference()[1] == ""
"""


class Target(NamedTuple):
    """What is mutated (patterns below the package), what judges it, and the share that must be killed.

    checks: tests of our own, file by file. folders: below `tests/`, less `left_out`.
    """

    sources: tuple[str, ...]
    checks: dict[str, str]
    folders: tuple[str, ...]
    least: float
    left_out: tuple[str, ...] = ()


TARGETS = {
    "kernel": Target(
        ("sched/kernel.py", "kv/counts.py", "runner/*_rules.py"),
        {"test_theorems.py": THEOREMS_ALONE},
        (),
        1.0,
    ),
    "product": Target(
        ("core/*.py", "sched/*.py", "kv/*.py", "runner/packed*.py", "runner/slot_rules.py"),
        {"test_lock_step.py": LOCK_STEP, "test_theorems.py": THEOREMS_ALONE},
        (
            "unit/sched",
            "unit/kv",
            "unit/runner/test_packed.py",
            "unit/runner/test_steps.py",
            "unit/test_bad_input.py",
            "unit/test_speculative.py",
        ),
        0.95,
        # It reads the sources, which mutmut has rewritten.
        ("unit/runner/test_packed.py::test_the_rules_can_be_executed_symbolically",),
    ),
}


class Mutant(NamedTuple):
    """One change: the function, and the lines before and after it, without indentation."""

    function: str
    before: str
    after: str


class Outcome(NamedTuple):
    """A run, or a part of one: mutants killed, those that survived, and how many are still to be run."""

    killed: int
    survivors: tuple[Mutant, ...]
    left: int

    @property
    def total(self) -> int:
        """Mutants that were judged."""
        return self.killed + len(self.survivors)


def mutated(target: Target) -> list[Path]:
    """The files that are mutated."""
    return sorted(path for pattern in target.sources for path in SOURCES.glob(pattern))


def hashes(target: Target) -> dict[str, str]:
    """What identifies the sources that a run has seen."""
    return {
        str(path.relative_to(SOURCES)): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in mutated(target)
    }


def judges(target: Target, root: Path = REPOSITORY) -> str:
    """What identifies the checks: proofs and specification, and the tests that the target takes along."""
    chosen = [
        root / f
        for f in ("proofs/hocket_proofs", "spec/hocket_spec", *(f"tests/{f}" for f in target.folders))
    ]
    found = {file for path in chosen for file in ([path] if path.is_file() else path.rglob("*.py"))}
    texts = [f"{file.relative_to(root)}\n{file.read_text()}" for file in sorted(found)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def prepare(name: str, target: Target, root: Path) -> Path:
    """A copy of the package with its checks, in which mutmut can work; what it found before stays."""
    work = root / ".mutants" / name
    work.mkdir(parents=True, exist_ok=True)
    for part in ("hocket", "tests"):
        shutil.rmtree(work / part, ignore_errors=True)
    shutil.copytree(SOURCES, work / "hocket", ignore=shutil.ignore_patterns("__pycache__"))
    (work / "tests").mkdir()
    for file, text in target.checks.items():
        (work / "tests" / file).write_text(text)
    selection = [f"tests/{file}" for file in target.checks]
    if target.folders:
        shutil.copy(root / "tests/conftest.py", work / "tests/conftest.py")
    for folder in target.folders:
        source, copy = root / "tests" / folder, work / "tests" / folder
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
        selection.append(f"tests/{folder}")
    lines, options = "\n    ".join, ("--import-mode=importlib", "-q", "-pno:cacheprovider")
    (work / "setup.cfg").write_text(
        "[mutmut]\nsource_paths=hocket\nalso_copy=tests\n"
        f"only_mutate={lines(['', *(f'hocket/{p.relative_to(SOURCES)}' for p in mutated(target))])}\n"
        f"pytest_add_cli_args_test_selection={lines(['', *selection])}\n"
        f"pytest_add_cli_args={lines(['', *options, *(f'--deselect=tests/{t}' for t in target.left_out)])}\n"
        "[tool:pytest]\npythonpath=.\n"
    )
    return work


def read(work: Path) -> Outcome:
    """What mutmut has found so far."""
    codes = exit_codes(work)
    survivors = sorted(described(work, name) for name, code in codes.items() if survives(code))
    killed = sum(code in KILLED for code in codes.values())
    return Outcome(killed, tuple(survivors), sum(code is NOT_RUN for code in codes.values()))


def exit_codes(work: Path) -> dict[str, int | None]:
    """Of each mutant, by mutmut's name: what its checks ended with."""
    found: dict[str, int | None] = {}
    for meta in sorted(work.glob("mutants/hocket/**/*.meta")):
        found |= json.loads(meta.read_text())["exit_code_by_key"]
    return found


def survives(code: int | None) -> bool:
    """Whether the checks ran and saw nothing, or did not run because none of them calls the function."""
    return code not in KILLED and code is not NOT_RUN


def described(work: Path, mutant: str) -> Mutant:
    """A mutant as the ledger names it: numbers of mutants change with every edit."""
    shown = subprocess.run(
        mutmut("show", mutant), cwd=work, capture_output=True, text=True, check=True, env=env()
    )
    changed = [
        line for line in shown.stdout.splitlines() if line[:1] in "+-" and line[:3] not in ("---", "+++")
    ]
    before = " ".join(line[1:].strip() for line in changed if line[0] == "-")
    after = " ".join(line[1:].strip() for line in changed if line[0] == "+")
    function = mutant.rpartition("__mutmut_")[0].removeprefix("hocket.").replace(".x_", ".").replace("xǁ", "")
    return Mutant(function.replace("ǁ", "."), before, after)


def mutmut(*words: str) -> list[str]:
    """A command of mutmut."""
    return [sys.executable, "-m", "mutmut", *words]


def env() -> dict[str, str]:
    """Everything but the mutated package is found where it is."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(ROOTS), "OMP_NUM_THREADS": "1"}


def explained(name: str) -> dict[Mutant, str]:
    """The ledger: survivors of a target, with the reason why nothing can tell them from the original."""
    table = tomllib.loads(files("hocket_proofs").joinpath("mutants.toml").read_text())
    return {Mutant(e["function"], e["before"], e["after"]): e["why"] for e in table.get(name, [])}


def judge(target: Target, outcome: Outcome, ledger: dict[Mutant, str]) -> list[str]:
    """What is wrong with an outcome; nothing, if it is empty."""
    wrong = []
    if outcome.total == 0:
        wrong.append("no mutants: nothing was checked")
    if outcome.left:
        wrong.append(f"{outcome.left} mutants are left: run it again, it goes on")
    unknown = [mutant for mutant in outcome.survivors if mutant not in ledger]
    share = 1 - len(unknown) / max(1, outcome.total)
    if share < target.least:
        wrong.append(f"{share:.1%} killed or explained, {target.least:.0%} are wanted")
        wrong += [f"unexplained: {m.function}: {m.before}  ->  {m.after}" for m in unknown]
    # One reason would stand for both.
    alike = [mutant for mutant, count in Counter(outcome.survivors).items() if count > 1]
    wrong += [f"survives in two places: {m.function}: {m.before}  ->  {m.after}" for m in alike]
    survived = set(outcome.survivors)
    wrong += [f"explained, but killed: {m.function}: {m.after}" for m in ledger if m not in survived]
    return wrong


def toml(results: dict[str, dict[str, object]]) -> str:
    """The text of `mutation.toml`."""
    lines = [
        "# Made by hocket_proofs.mutate: the last whole run of each target, and the sources that it saw."
    ]
    for name, result in sorted(results.items()):
        lines += ["", f"[{name}]"]
        lines += [
            f"{key} = {json.dumps(value) if isinstance(value, str) else value}"
            for key, value in result.items()
            if not isinstance(value, dict)
        ]
        for key, table in result.items():
            if isinstance(table, dict):
                lines += [
                    "",
                    f"[{name}.{key}]",
                    *(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in table.items()),
                ]
    return "\n".join(lines) + "\n"


def keep(name: str, target: Target, outcome: Outcome, ledger: dict[Mutant, str]) -> None:
    """Write down a whole run."""
    results = tomllib.loads(RESULT.read_text()) if RESULT.exists() else {}
    modules = [file.removesuffix(".py").replace("/", ".") for file in hashes(target)]
    per_file = Counter(
        next(module for module in modules if m.function.startswith(f"{module}.")) for m in outcome.survivors
    )
    results[name] = {
        "mutants": outcome.total,
        "killed": outcome.killed,
        "explained": sum(m in ledger for m in outcome.survivors),
        "survivors": dict(sorted(per_file.items())),
        "day": datetime.now(UTC).date(),
        "judges": judges(target),
        "sources": hashes(target),
    }
    RESULT.write_text(toml(results))


def unfit(name: str, today: date) -> str:
    """Why the result of a target does not count, or no longer; '' if it does."""
    results = tomllib.loads(RESULT.read_text()) if RESULT.exists() else {}
    if name not in results:
        return f"{name} has no result"
    result, target = results[name], TARGETS[name]
    mutants, killed, told = result["mutants"], result["killed"], result["explained"]
    survivors = sum(result["survivors"].values())
    if mutants < 1 or killed < 0 or killed + survivors != mutants or told > survivors:
        return (
            f"{name}: {killed} killed and {survivors} survivors, {told} explained, are not {mutants} mutants"
        )
    if told != len(explained(name)):
        return f"{name}: {told} survivors are explained, the ledger has {len(explained(name))}"
    if 1 - (survivors - told) / mutants < target.least:
        return f"{name}: {survivors - told} of {mutants} unexplained, {target.least:.0%} killed are wanted"
    age = (today - result["day"]).days
    if age < 0:
        return f"{name}: a run on {result['day']}, which is still to come"
    seen = (result["sources"], result["judges"])
    if seen != (hashes(target), judges(target)) and age > STALE_DAYS:
        return f"{name}: sources have changed since the run of {age} days ago, allowed are {STALE_DAYS}"
    return ""


def report(name: str, outcome: Outcome, wrong: Iterable[str]) -> None:
    """For people."""
    explained_too = len(set(outcome.survivors) & set(explained(name)))
    print(f"{name}: {outcome.total} mutants, {outcome.killed} killed, {len(outcome.survivors)} survive, "
          f"{explained_too} of them explained")  # fmt: skip
    for line in wrong:
        print(f"  {line}")


def main(words: Sequence[str] | None = None) -> int:
    """1 if anything falls short."""
    parser = argparse.ArgumentParser(
        prog="python -m hocket_proofs.mutate", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="mutants judged at a time")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run found")
    args = parser.parse_args(words)
    target, root = TARGETS[args.target], Path.cwd()
    if args.fresh:
        shutil.rmtree(root / ".mutants" / args.target, ignore_errors=True)
    work = prepare(args.target, target, root)
    # Who survived an interrupted run is judged again: the checks may see more by now.
    again = [name for name, code in exit_codes(work).items() if survives(code)]
    run = mutmut("run", "--max-children", str(args.processes))
    done = subprocess.run(run, cwd=work, env=env(), check=False)
    if again and not done.returncode:
        done = subprocess.run([*run, *again], cwd=work, env=env(), check=False)
    outcome, ledger = read(work), explained(args.target)
    wrong = judge(target, outcome, ledger)
    if done.returncode:
        wrong.insert(0, f"mutmut ended with status {done.returncode}")
    if not wrong:
        keep(args.target, target, outcome, ledger)
    report(args.target, outcome, wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

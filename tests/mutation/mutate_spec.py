"""Weaken the specification in every way that mutmut knows; whatever no test sees must stand in the ledger.

    python tests/mutation/mutate_spec.py [MODULE ...]        (make mutate-spec)

mutmut mutates what it finds below its working folder, so the specification is copied into one of its own
(`build/mutation/spec`), with the fast tests of `TESTS` beside it. Two things are changed in the copy:
functions that remember their results do so under their name instead of a decorator, which mutmut would pass
over; and `strict=True` is taken out, an assertion whose removal nothing but a mistake elsewhere could show.

Survivors are compared with `tests/mutation/spec.toml`. Red are: a survivor that is not in the ledger, an
entry of the ledger that does not survive, a mutant that was not run, and a run without mutants. The ledger
itself is tested in `tests/quality/test_mutation_ledger.py`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "spec/hocket_spec"
LEDGER = ROOT / "tests/mutation/spec.toml"
WORK = ROOT / "build/mutation/spec"
# The model of the scheduler, packs and the runner's view; `told` has no function.
MODULES = ("actions", "blocks", "dispatch", "packed", "properties", "rules", "runner", "state", "walk")
TESTS = (
    "tests/conformance/test_runner_view.py",
    "tests/conformance/test_specification.py",
    "tests/quality/test_packs_by_hand.py",
    "tests/quality/test_properties_by_hand.py",
    "tests/quality/test_rules_by_hand.py",
    "tests/quality/test_runner_view_by_hand.py",
    "tests/quality/test_specification_refuses.py",
)
# Exit codes of a mutant's tests that show it: a failure, an error (of collection too), out of time, dead.
KILLED = frozenset({1, 2, 3, 24, -24, 36, 152, 255, -9, -11})  # None: not run

SETTINGS = """\
[tool.mutmut]
source_paths = ["hocket_spec"]
only_mutate = [{only}]
pytest_add_cli_args_test_selection = ["tests"]
use_git_change_detection = false
track_dependencies = false
[tool.pytest.ini_options]
addopts = ["--import-mode=importlib", "-p", "no:cacheprovider"]
pythonpath = ["."]
"""


# Tests by hand take no time and see most.
CONFTEST = """\
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: "by_hand" not in item.nodeid)
"""


class Mutant(NamedTuple):
    """A mutant by what it changes: module.function, the line as it is, the line as it became."""

    function: str
    removed: str
    added: str


class Outcome(NamedTuple):
    """What a run came to."""

    ran: int
    survivors: Counter[Mutant]
    missed: tuple[str, ...]  # not run


class Entry(NamedTuple):
    """A survivor of the ledger. verdict: "equivalent" (nothing could tell) or "accepted"."""

    mutant: Mutant
    verdict: str
    reason: str


def prepared(source: str) -> str:
    """The source as it is mutated, see above."""
    named = re.findall(r"^@((?:lru_)?cache(?:\([^)]*\))?)\ndef (\w+)", source, re.MULTILINE)
    for decorator, name in named:
        source = source.replace(f"@{decorator}\ndef {name}(", f"def {name}(")
        source += f"\n\n{name} = {decorator}({name})\n"
    return source.replace(", strict=True)", ")")


def copy(modules: Sequence[str], work: Path = WORK) -> None:
    """A fresh working folder."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(SPEC, work / "hocket_spec", ignore=shutil.ignore_patterns("__pycache__"))
    for module in modules:
        path = work / f"hocket_spec/{module}.py"
        path.write_text(prepared(path.read_text()))
    for test in TESTS:
        (work / test).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / test, work / test)
    (work / "tests/conftest.py").write_text(CONFTEST)
    only = ", ".join(f'"hocket_spec/{module}.py"' for module in modules)
    (work / "pyproject.toml").write_text(SETTINGS.format(only=only))


def functions(source: str) -> dict[str, list[str]]:
    """Lines of each function, methods included, by the name that mutmut gives to it."""
    lines = source.splitlines()
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return {node.name: lines[node.lineno - 1 : node.end_lineno] for node in found}


def identity(module: str, name: str, bodies: dict[str, list[str]]) -> Mutant:
    """The mutant of that generated name."""
    mangled = name.rpartition("__mutmut_")[0]
    plain = mangled.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
    before = [line.replace(f"{mangled}__mutmut_orig", plain) for line in bodies[f"{mangled}__mutmut_orig"]]
    after = [line.replace(name, plain) for line in bodies[name]]
    diff = [line for line in difflib.unified_diff(before, after, n=0, lineterm="") if line[:2] != "@@"][2:]
    removed = " ".join(line[1:].strip() for line in diff if line[0] == "-")
    return Mutant(f"{module}.{plain}", removed, " ".join(line[1:].strip() for line in diff if line[0] == "+"))


def outcome(mutants: Path) -> Outcome:
    """What mutmut wrote down."""
    ran, survivors, missed = 0, Counter[Mutant](), []
    for meta in sorted((mutants / "hocket_spec").glob("*.py.meta")):
        module, source = meta.name.partition(".")[0], meta.with_suffix("").read_text()
        bodies = functions(source)
        for name, code in json.loads(meta.read_text())["exit_code_by_key"].items():
            mutant = identity(module, name.rpartition(".")[2], bodies)
            ran += code is not None
            if code is None:
                missed.append(name)
            elif code not in KILLED:
                survivors[mutant] += 1
    return Outcome(ran, survivors, tuple(missed))


def ledger(text: str) -> list[Entry]:
    """Entries of a ledger. An entry of the file may have several `added` lines, for one reason."""
    entries = []
    for raw in tomllib.loads(text).get("survivor", []):
        for added in raw["added"]:
            mutant = Mutant(raw["function"], raw["removed"], added)
            entries.append(Entry(mutant, raw["verdict"], raw["reason"]))
    return entries


def problems(found: Outcome, entries: Iterable[Entry], modules: Sequence[str]) -> list[str]:
    """Everything that is red."""
    known = Counter(e.mutant for e in entries if e.mutant.function.partition(".")[0] in modules)
    red = [] if found.ran else ["no mutant was run: mutmut found nothing to mutate"]
    red += [f"not run: {name}" for name in found.missed]
    red += [f"not in the ledger, survives:\n{as_entry(m)}" for m in (found.survivors - known).elements()]
    red += [f"in the ledger, does not survive: {m}" for m in (known - found.survivors).elements()]
    return red


def as_entry(m: Mutant) -> str:
    """As it would stand in the ledger."""
    quoted = [json.dumps(text, ensure_ascii=False) for text in m]
    return (
        f"[[survivor]]\nfunction = {quoted[0]}\nremoved = {quoted[1]}\nadded = [{quoted[2]}]\n"
        'verdict = ""\nreason = ""'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}; default: all")
    modules = tuple(parser.parse_args().modules) or MODULES
    if unknown := set(modules) - set(MODULES):
        parser.error(f"MODULE must be one of {', '.join(MODULES)}, got {', '.join(sorted(unknown))}")
    copy(modules)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    mutmut = [str(Path(sys.executable).parent / "mutmut"), "run", "--max-children", "1"]
    status = subprocess.run(mutmut, cwd=WORK, env=environment, check=False).returncode
    found = outcome(WORK / "mutants")
    entries = ledger(LEDGER.read_text())
    red = problems(found, entries, modules)
    red += [f"mutmut ended with status {status}"] if status else []
    survive = found.survivors.total()
    print("\n".join(red))
    print(f"{found.ran} mutants, {found.ran - survive} killed, {survive} survive, {len(red)} problems")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())

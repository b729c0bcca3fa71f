"""constraints.txt pins exactly what is installed, and pyproject.toml carries ranges only."""

import ast
import re
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from tests.quality.sources import PACKAGES, ROOT, imports, source_files

# The tools that make an environment before anything is installed into it.
SEEDS = {"pip", "setuptools", "hocket"}

SOLD_AS = {"z3": "z3-solver", "triton": "triton-ascend"}  # packages that are imported under another name


def normal(name: str) -> str:
    """One spelling for names that are equal to package managers."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {normal(name): version for name, version in (line.split("==") for line in lines)}


def test_everything_installed_is_pinned() -> None:
    pinned = pins()
    found = {}
    for distribution in distributions(path=[p for p in sys.path if Path(p).is_relative_to(sys.prefix)]):
        name = normal(distribution.metadata["Name"])
        installed = distribution.version.partition("+")[0]  # without the build's local label, such as +cpu
        if name not in SEEDS and pinned.get(name) != installed:
            found[name] = (pinned.get(name), installed)
    assert found == {}, "name: (pinned, installed)"


def declared() -> set[str]:
    """Names of all requirements that a user can install: the base and every extra but the developers'."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [r for name, extra in project["optional-dependencies"].items() if name != "dev" for r in extra]
    return {normal(re.split(r"[<>=!~ ;\[]", r)[0]) for r in [*project["dependencies"], *extras]}


def foreign(paths: list[Path]) -> set[str]:
    roots = {module.partition(".")[0] for path in paths for module in imports(ast.parse(path.read_text()))}
    outside = roots - sys.stdlib_module_names - set(PACKAGES)
    return {normal(SOLD_AS.get(root, root)) for root in outside}


def test_everything_imported_is_declared() -> None:
    assert foreign(source_files()) <= declared()


def test_torch_is_the_tested_one() -> None:
    assert pins()["torch"] == "2.13.0"


def test_metadata_carries_ranges() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    assert not [r for r in requirements if "==" in r.partition(";")[0]]
    assert all(">=" in r for r in requirements if not r.startswith("hocket["))


def test_constraints_name_no_host() -> None:
    assert not re.search(r"https?:|--|@", (ROOT / "constraints.txt").read_text())

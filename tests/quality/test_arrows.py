"""The import contracts can fail: with one forbidden import seeded per contract, every contract is broken."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.quality.sources import PACKAGES, ROOT

# Contract -> the file that gets a forbidden import, and the import.
BREACHES = {
    "the specification imports nothing of ours": ("spec/hocket_spec/breach.py", "import hocket.core"),
    "the specification uses no arrays, concurrency, clock or randomness": (
        "spec/hocket_spec/breach.py",
        "import time",
    ),
    "kernels import nothing of ours": ("kernels/hocket_kernels/breach.py", "import hocket.core"),
    "the product imports no specification, proofs or tests": (
        "impl/hocket/runner/breach.py",
        "def later():\n    import hocket_spec",
    ),
    "proofs import no tests": ("proofs/hocket_proofs/breach.py", "import tests.conftest"),
    "core imports nothing of ours": ("impl/hocket/core/breach.py", "import hocket.kv"),
    "kv imports only core": ("impl/hocket/kv/breach.py", "import hocket.sched"),
    "sched imports only core and kv": ("impl/hocket/sched/breach.py", "import hocket.runner"),
    "the decisions use no torch, concurrency, clock or randomness": (
        "impl/hocket/sched/breach.py",
        "from random import random",
    ),
    "each layer of the product knows only those below it": (
        "impl/hocket/model/breach.py",
        "import hocket.kv",
    ),
}


def run_contracts(folder: Path) -> tuple[int, str]:
    roots = [str(folder / path.relative_to(ROOT).parent) for path in PACKAGES.values()]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "COLUMNS": "200"}
    command = [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"]
    run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return run.returncode, run.stdout + run.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The four packages and the contracts, in a folder of their own."""
    ignore = shutil.ignore_patterns("__pycache__")
    for path in PACKAGES.values():
        shutil.copytree(path, tmp_path / path.relative_to(ROOT), ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def contract_names() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [contract["name"] for contract in project["tool"]["importlinter"]["contracts"]]


def test_every_contract_has_a_breach() -> None:
    assert contract_names() == list(BREACHES)


def test_every_contract_can_be_broken(copy: Path) -> None:
    for name, _ in BREACHES.values():
        (copy / name).write_text("\n".join(line for file, line in BREACHES.values() if file == name) + "\n")
    status, output = run_contracts(copy)
    assert status == 1
    broken = [name for name in BREACHES if f"{name} BROKEN" in output]
    assert broken == list(BREACHES), output

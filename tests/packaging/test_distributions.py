"""What is published: the sdist builds the wheel, and the wheel alone schedules in an empty environment."""

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

import hocket

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"hocket", "hocket_spec", "hocket_kernels", "hocket_proofs"}


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the checkout and the wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def wheel_files(wheel: Path) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


@pytest.fixture(scope="session")
def metadata(wheel: Path, wheel_files: list[str]) -> Message:
    (name,) = [name for name in wheel_files if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(zipfile.ZipFile(wheel).read(name).decode())


@pytest.fixture(scope="session")
def report(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `empty_environment.py` says in a fresh environment that holds the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    python = folder / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    script = (ROOT / "tests/packaging/empty_environment.py").read_text()
    # -I: neither the checkout nor the caller's environment variables lead to another hocket.
    run = subprocess.run(
        [python, "-I", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    version = subprocess.run(
        [python.parent / "hocket", "--version"], capture_output=True, text=True, check=True
    )
    demo = subprocess.run([python.parent / "hocket", "demo"], capture_output=True, text=True, check=False)
    return {
        "folder": str(folder),
        "command": version.stdout,
        "demo": (demo.returncode, demo.stderr),
        **json.loads(run.stdout),
    }


def test_wheel_holds_the_four_packages_and_nothing_else(wheel_files: list[str]) -> None:
    top = {name.partition("/")[0] for name in wheel_files}
    assert top == PACKAGES | {f"hocket-{hocket.__version__}.dist-info"}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_wheel_is_typed(wheel_files: list[str], package: str) -> None:
    assert f"{package}/py.typed" in wheel_files


def test_wheel_holds_every_file_of_the_packages(wheel_files: list[str]) -> None:
    roots = [ROOT / folder for folder in ("impl", "spec", "kernels", "proofs")]
    files = {
        str(path.relative_to(root))
        for root in roots
        for path in root.glob("*/**/*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert files == {name for name in wheel_files if ".dist-info/" not in name}


def test_metadata(metadata: Message) -> None:
    assert metadata["Version"] == hocket.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    extras = set(metadata.get_all("Provides-Extra", []))
    assert extras == {"model", "server", "npu", "npu-triton", "vllm", "verify", "dev"}


def test_base_dependency_is_numpy_alone(metadata: Message) -> None:
    base = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert [re.split(r"[<>=!~ ;\[]", line)[0] for line in base] == ["numpy"]


def test_sdist_holds_sources_tests_and_licence(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "constraints.txt", "Makefile"} <= names
    assert {"impl/__init__.py", "impl/hocket/__init__.py", "tests/tiers.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "dist/")) or name.endswith(".pyc")]


def test_wheel_schedules_in_an_empty_environment(report: dict[str, Any]) -> None:
    assert report["home"].startswith(report["folder"])
    assert report["chunk_starts"] == [0, 2048, 4096, 6144]
    # The first step holds the short prompt and the first chunk of the long one; then the phases take turns.
    assert report["phases"].startswith("PDPDPDPD")


def test_wheel_runs_without_torch(report: dict[str, Any]) -> None:
    assert set(report["loaded"]).isdisjoint({"torch", "numpy", "asyncio", "hocket_spec", "hocket_proofs"})


def test_wheel_installs_no_bare_names(report: dict[str, Any]) -> None:
    assert set(report["importable"]) == {"hocket_spec", "hocket_kernels", "hocket_proofs"}


def test_wheel_brings_the_command(report: dict[str, Any]) -> None:
    assert report["command"] == f"hocket {hocket.__version__}\n"


def test_command_without_its_extra_names_the_extra(report: dict[str, Any]) -> None:
    status, message = report["demo"]
    assert status == 2
    assert "pip install 'hocket[model]'" in message
    assert len(message.splitlines()) == 1

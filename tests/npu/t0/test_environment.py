"""The NPU path leaves the default environment alone."""

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_torch_npu_is_not_here() -> None:
    assert "torch_npu" not in packages_distributions()
    assert not list(entry_points(group="torch.backends"))


def test_import_torch_touches_no_other_device() -> None:
    code = "import sys, torch; print(torch.accelerator.current_accelerator(), 'torch_npu' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "None False\n"


def test_only_extras_for_the_npu_ask_for_torch_npu() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asking = {name for name, wanted in extras.items() if any("torch-npu" in line for line in wanted)}
    assert asking == {"npu"}
    assert not [line for line in extras["dev"] if "npu" in line]


def test_importing_the_ops_loads_no_triton() -> None:
    """Only where a Triton kernel is chosen."""
    code = "import sys, hocket.model.deepseek_v4; print('triton' in sys.modules, len(sys.modules) > 100)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False True\n"

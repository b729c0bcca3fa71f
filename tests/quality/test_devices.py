"""One module knows devices: to run on another changes no scheduler, engine, model or other runner code."""

import re
from pathlib import Path

import pytest

from tests.quality.sources import ROOT, source_files

HOME = ROOT / "impl/hocket/runner/device.py"
# What only the runtime may name: streams, events, pinned memory, accelerators and the packages behind them.
NAMES = re.compile(
    r"torch[._](npu|cuda|accelerator)\b|torch\.(Stream|Event)\b|pin_memory|non_blocking|record_stream"
    r"|wait_event|PrivateUse1|\.is_(cuda|npu)\b"
)
DEVICE_TYPES = re.compile(r"""device(\.type)?\s*(==|!=|in)|["'](npu|cuda)["']""")


def named(path: Path, pattern: re.Pattern[str]) -> list[str]:
    lines = path.read_text().splitlines()
    return [f"{path.name}:{n}: {line.strip()}" for n, line in enumerate(lines, 1) if pattern.search(line)]


@pytest.mark.parametrize("pattern", [NAMES, DEVICE_TYPES], ids=["names", "types"])
def test_only_the_runtime_names_devices(pattern: re.Pattern[str]) -> None:
    elsewhere = [path for path in source_files(ROOT / "impl/hocket") if path != HOME]
    assert len(elsewhere) > 60
    assert [line for path in elsewhere for line in named(path, pattern)] == []


def test_the_runtime_does() -> None:
    """So the patterns find what they are there to find."""
    assert len(named(HOME, NAMES)) > 8
    assert len(named(HOME, DEVICE_TYPES)) >= 4


@pytest.mark.parametrize(
    "line",
    [
        "torch.npu.synchronize()",
        "import torch_npu",
        "if torch.cuda.is_available():",
        "x = x.pin_memory()",
        'if model.device.type == "npu":',
        "torch.accelerator.synchronize()",
        "if x.is_cuda:",
    ],
)
def test_a_breach_is_found(line: str, tmp_path: Path) -> None:
    path = tmp_path / "breach.py"
    path.write_text(f"import torch\n{line}\n")
    assert named(path, NAMES) + named(path, DEVICE_TYPES)


def test_an_installed_torch_npu_is_in_no_environment_of_ours_but_its_own() -> None:
    """Where it is installed without CANN, a plain `import torch` fails."""
    makefile = (ROOT / "Makefile").read_text()
    rules = [rule for rule in makefile.split("\n\n") if "[npu]" in rule or "constraints-npu" in rule]
    assert rules
    assert all("$(BIN)/" not in rule for rule in rules)
    extras = re.search(r"^dev = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.S | re.M)
    assert extras is not None
    assert "npu" not in extras[1]

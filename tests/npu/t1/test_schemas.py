"""The committed schemas are those of the torch_npu that is installed."""

import importlib.metadata
import json
from pathlib import Path

import torch

from tests.npu.checks import drift
from tests.npu.references import DATA, snapshot
from tests.npu.snapshot import registered

ROOT = Path(__file__).resolve().parents[3]


def test_the_snapshot_has_not_drifted() -> None:
    assert drift(snapshot("npu"), registered()) == []


def test_the_versions_are_the_pinned_ones() -> None:
    pins = (ROOT / "constraints-npu.txt").read_text() + (ROOT / "constraints.txt").read_text()
    version = importlib.metadata.version("torch-npu")
    assert f"torch-npu=={version}\n" in pins
    assert f"\ntorch=={torch.__version__.partition('+')[0]}\n" in pins
    assert json.loads((DATA / "npu_schemas.json").read_text())["source"] == f"torch-npu {version}"


def test_drift_is_seen() -> None:
    committed = snapshot("npu")
    name = "npu::npu_rms_norm"
    renamed = {**committed, name: committed[name].replace("epsilon", "eps")}
    fewer = {n: s for n, s in committed.items() if n != name}
    assert drift(renamed, registered())[0].startswith(f"{name}: committed npu::npu_rms_norm(Tensor input,")
    assert drift(fewer, registered()) == [f"{name}: committed None, registered {committed[name]}"]
    assert drift({**committed, "npu::npu_of_yesterday": "()"}, registered()) != []

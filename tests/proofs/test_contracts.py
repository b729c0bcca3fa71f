"""The gate of CrossHair: it reads what is printed, and whatever is not the expected verdict is red."""

import subprocess
import sys
from pathlib import Path

import pytest

from hocket_proofs import jobs
from hocket_proofs.contracts import gate
from hocket_proofs.contracts.gate import CLAIMS, CONFIRMED, EXHAUSTED, TWINS, Obligation
from hocket_proofs.jobs import Job

CLAIM = Obligation(CLAIMS, "f", "S1 homogeneity", CONFIRMED, 8)
TWIN = Obligation(TWINS, "f", "S1 homogeneity", EXHAUSTED, 8)


@pytest.mark.parametrize("obligation", gate.ledger(), ids=lambda o: f"{o.kind}: {o.name}")
def test_obligation_is_met(obligation: Obligation) -> None:
    assert gate.discharge(obligation).wrong == ""


def test_ledger_names_every_function_and_only_those(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gate.unlisted() == ""
    listed = gate.ledger()
    monkeypatch.setattr(gate, "ledger", lambda: listed[1:])
    assert listed[0].name in gate.unlisted()
    monkeypatch.setattr(gate, "ledger", lambda: (listed[0]._replace(seconds=13), *listed[1:]))
    assert "1/5 of the timeout" in gate.unlisted()
    for wrong in ("false when calling f(1, 0)", EXHAUSTED if listed[0].kind == CLAIMS else CONFIRMED):
        monkeypatch.setattr(gate, "ledger", lambda w=wrong: (listed[0]._replace(expected=w), *listed[1:]))
        assert f"[{listed[0].name!r}]" in gate.unlisted()


def checked(folder: Path, source: str, obligation: Obligation) -> str:
    """What the gate says of CrossHair's verdict on another function f."""
    (folder / "mine.py").write_text(source)
    (folder / "spec_says.py").write_text("def f(x: int) -> int:\n    return max(x, 0)\n")
    target = ["mine.f"] if obligation.kind == CLAIMS else ["spec_says.f", "mine.f"]
    words = [word for word in gate.command(obligation) if not word.startswith(gate.PACKAGE)]
    done = subprocess.run([*words, *target], capture_output=True, text=True, cwd=folder, check=False)
    return gate.judge(obligation, done.stdout, done.stderr, 1.0)


TRUE = 'def f(x: int) -> int:\n    """post: __return__ >= x"""\n    return max(x, 0)\n'


def test_a_true_claim_passes(tmp_path: Path) -> None:
    assert checked(tmp_path, TRUE, CLAIM) == ""
    assert checked(tmp_path, TRUE, TWIN) == ""


RED = {
    "false": TRUE.replace(">= x", "> x"),
    "vacuous": TRUE.replace(
        '"""post: __return__ >= x"""', '"""\n    pre: x > 0 and x < 0\n    post: True\n    """'
    ),
    "no contract": "def f(x: int) -> int:\n    return max(x, 0)\n",
    "no end": TRUE.replace("x: int", "x: list[int]")
    .replace(">= x", "== sum(reversed(x))")
    .replace("max(x, 0)", "sum(x)"),
    "no such function": "g = 1\n",
}


@pytest.mark.parametrize("name", [name for name in RED if name != "no end"])
def test_any_other_verdict_is_red_although_crosshair_may_exit_with_0(name: str, tmp_path: Path) -> None:
    assert "expected 'Confirmed over all paths.'" in checked(tmp_path, RED[name], CLAIM)


def test_not_confirmed_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "TIMEOUT_S", 3)
    assert "Not confirmed" in checked(tmp_path, RED["no end"], CLAIM)


def test_a_difference_is_red(tmp_path: Path) -> None:
    wrong = "def f(x: int) -> int:\n    return x if x != 77 else 78\n"
    assert "expected 'All paths exhausted" in checked(tmp_path, wrong, TWIN)


def test_silence_complaints_and_slowness_are_red() -> None:
    line = f"/a/b.py:12: info: {CONFIRMED}\n"
    assert gate.judge(CLAIM, line, "", 1.0) == ""
    assert "expected" in gate.judge(CLAIM, line.replace("info", "error"), "", 1.0)
    assert "says 'nothing'" in gate.judge(CLAIM, "", "", 1.0)
    assert "Traceback" in gate.judge(CLAIM, line, "Traceback", 1.0)
    assert gate.judge(CLAIM, line * 2, "", 1.0) != ""
    assert "9.0 s of CPU, the ledger allows 8" in gate.judge(CLAIM, line, "", 9.0)


def test_broken_obligation_is_told_by_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gate, "discharge", lambda o: gate.Finding(0.1, f"{o.name}: no" if o.name == "fits" else "")
    )
    done = jobs.run(Job("contract", TWINS, 0, 1, "quick"))
    assert done.broken == "fits: no"
    assert done.exhausted == done.cases - 1


def test_crosshair_is_the_one_that_is_pinned() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "crosshair", "--help"], capture_output=True, text=True, check=True
    )
    assert "diffbehavior" in told.stdout

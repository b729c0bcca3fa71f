"""Seeded faults: nothing is found where none is in; what is found is told as a run; nothing stays behind.

That each fault is refuted is one of the claims of the standard profile.
"""

import pytest

from hocket.cli.main import main
from hocket_proofs import refute
from hocket_proofs.refuted import FAULTS
from hocket_proofs.refuted.fault import EXPLORER, LOCK_STEP, MODEL, PACKS, SIMULATION, Fault, Patch, seeded

LAYERS = (LOCK_STEP, EXPLORER, PACKS, SIMULATION, MODEL)
BY_NAME = {fault.name: fault for fault in FAULTS}


def test_faults_are_many_and_each_has_its_own_name_and_story() -> None:
    assert len(FAULTS) >= 130
    assert len(BY_NAME) == len(FAULTS)
    assert {fault.layer for fault in FAULTS} == set(LAYERS)
    assert all(fault.story and fault.shows for fault in FAULTS)
    assert len({fault.apply for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("layer", LAYERS)
def test_nothing_is_found_without_a_fault(layer: str) -> None:
    for where in {fault.where for fault in FAULTS if fault.layer == layer}:
        with seeded(None):
            assert refute.finding(layer, where) == "", where


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_taken_out_again(fault: Fault) -> None:
    patch = Patch()
    fault.apply(patch)
    touched = [(owner, name, before) for owner, name, before in patch._undo]
    assert touched
    patch.undo()
    assert all(owner.__dict__[name] is before for owner, name, before in touched)


GOLDEN = {
    "re-admits before the old rows are drained": """\
re-admits before the old rows are drained: a result of the past meets the new incarnation
  by lock-step: phase: the owed phase runs if it is serviceable, else the other one, else nothing \
(prefill, due is empty)
     1  add 0 (2+2)
     2  schedule prefill 0[0+2]
     3  preempt 0
     4  schedule""",
    "a fallback uses up the turn": """\
a fallback uses up the turn: the owed phase pays for what the other one got
  by lock-step: model and implementation differ: owed 2 is 1
     1  add 0 (2+2)
     2  schedule""",
    "a superfluous victim": """\
a superfluous victim: what turned out superfluous is not dropped again
  by lock-step: victims: preempted is whom the dispatched row needs, drained and strictly junior, and nobody \
else ([1, 2], due are [(0, (1,))])
     1  add 0 (8+1)
     2  add 1 (4+2)
     3  add 2 (2+2)
     4  schedule prefill 0[0+4] 1[0+4] 2[0+2]
     5  complete 0 1 1
     6  schedule""",
    "policy: nobody may preempt": """\
policy: nobody may preempt: two half-read prompts, and nothing goes on
  by explorer: L2 work-conservation: stuck
     1  add 6+1
     2  schedule prefill 0[0+2]
     3  complete
     4  add 6+1
     5  schedule prefill 0[2+2] 1[0+2]
     6  complete""",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_story_is_a_readable_run(name: str) -> None:
    fault = BY_NAME[name]
    assert refute.story(fault, refute.refute(fault)) == GOLDEN[name]


def test_survivor_is_told_and_red(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harmless = BY_NAME["a block handed out twice"]._replace(name="harmless", apply=lambda patch: None)
    monkeypatch.setattr(refute, "FAULTS", (harmless,))
    assert main(["verify", "--refuted", "harm"]) == 1
    out = capsys.readouterr().out
    assert "NOT REFUTED" in out
    assert out.endswith("0 of 1 faults refuted\n")


def test_command_shows_the_faults_that_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--refuted", "validator: r"]) == 0
    out = capsys.readouterr().out
    assert out.count("  by packs: ") == 3
    assert out.endswith("3 of 3 faults refuted\n")

"""`hocket verify`: the standard profile holds, its page is current, and whatever falls short is red."""

import io
from contextlib import redirect_stderr, redirect_stdout

import pytest

from hocket.cli.main import main
from hocket.cli.verify import PROFILES as FLAGS
from hocket_proofs import claims, families, jobs, verify
from hocket_proofs.claims import CLAIMS, TESTED
from hocket_proofs.jobs import PROFILES, Done, Job
from hocket_proofs.theorems import EXHAUSTED, PROVED, THEOREMS
from hocket_spec.check.gates import GATES
from tests.quality.sources import ROOT

STANDARD = PROFILES["standard"]


@pytest.mark.timeout(2400)  # about three minutes on two idle cores
def test_standard_profile_holds() -> None:
    done, verdicts = verify.verify(STANDARD, 2, lambda line: print(line, flush=True))
    print(verify.table(verdicts))
    assert [f"{v.claim.property}: {v.verdict}" for v in verdicts if v.verdict != verify.HOLDS] == []
    assert [d.job for d in done] == jobs.plan(STANDARD)
    assert sum(d.steps for d in done if d.job.kind == "lock-step") >= 1_000_000


def test_page_of_claims_is_current() -> None:
    assert (ROOT / "proofs/CLAIMS.md").read_text() == claims.page(), (
        "hocket verify --claims > proofs/CLAIMS.md"
    )


def test_labels_are_exact() -> None:
    assert {c.label for c in CLAIMS} <= {PROVED, EXHAUSTED, TESTED}
    assert set(FLAGS) == set(PROFILES)
    named = {p.partition(" ")[0] for c in CLAIMS for p in c.property.split(", ")}
    assert {f"L{n}" for n in range(1, 8)} | {"S4", "R1"} <= named


def done(kind: str, family: str, **more: object) -> Done:
    everything = frozenset((depth, name) for depth in families.DEPTHS for name in GATES)
    given = {"cases": 1, "exhausted": 1, "states": 9, "steps": 2_000_000, "met": everything} | more
    return Done(Job(kind, family, 0, 1, "standard"), 1.0, **given)  # type: ignore[arg-type]


def whole(*changed: Done) -> list[Done]:
    """One finished piece of every kind, some of them changed."""
    pieces = {
        (d.job.kind, d.job.family): d
        for d in (
            done("lock-step", "memory"), done("lock-step", "wide"),
            done("explorer", "narrow", waits=reached()),
            done("packs", "packs"), done("simulation", "worlds"), done("model", "traces"),
            done("model", "faults"), done("refuted", "faults"),
            *(done("proof", f"theorem {k}") for k in range(len(THEOREMS))),
            done("contract", "claims"), done("contract", "twins"),
        )
    }  # fmt: skip
    return list((pieces | {(d.job.kind, d.job.family): d for d in changed}).values())


def reached() -> tuple[object, ...]:
    """Every measure at its bound, in every cadence and depth."""
    from hocket_proofs.exact import Wait

    return tuple(
        (Wait(name, 1, 1), depth, p, d)
        for name in ("L1 prefill", "L1 decode", "L3 prefill", "L3 decode", "L4", "L7")
        for depth in families.DEPTHS
        for p, d in families.TURNS
    )


def short(pieces: list[Done], absent: dict[str, str] | None = None) -> set[str]:
    verdicts = verify.judge(pieces, STANDARD, absent or {})
    return {f"{v.claim.tool}: {v.verdict}" for v in verdicts if v.verdict != verify.HOLDS}


def test_a_piece_that_raises_is_broken_and_the_others_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: Job) -> Done:
        raise ZeroDivisionError("no lemma can be built")

    monkeypatch.setitem(jobs.WORK, "packs", fail)
    piece = jobs.run(Job("packs", "packs", 0, 1, "quick"))
    assert piece.broken.startswith("ZeroDivisionError: no lemma can be built (test_verify.py, line ")
    (said,) = short(whole(piece))
    assert "no lemma can be built" in said


def test_what_is_whole_holds() -> None:
    assert short(whole()) == set()


@pytest.mark.parametrize("kind", ["lock-step", "explorer", "packs", "simulation", "model", "refuted"])
def test_one_broken_piece_makes_its_claims_fall_short(kind: str) -> None:
    broken = next(d for d in whole() if d.job.kind == kind)._replace(broken="S5: lost | add 0 > schedule")
    found = short(whole(broken))
    assert found
    assert all("S5: lost" in line for line in found)


def test_what_is_not_exhausted_is_not_claimed() -> None:
    found = short(whole(done("lock-step", "memory", cases=3, exhausted=2)))
    assert found == {"lock-step: 1 not exhausted"}


def test_too_few_transitions_fall_short() -> None:
    few = [done("lock-step", name, steps=400_000) for name in ("memory", "wide")]
    assert short(whole(*few)) == {"lock-step: 800,000 transitions, 1,000,000 are claimed"}


def test_a_situation_that_was_never_met_falls_short() -> None:
    met = frozenset((depth, name) for depth in families.DEPTHS for name in GATES) - {(2, "held victim")}
    pieces = [done("lock-step", name, met=met) for name in ("memory", "wide")]
    assert short(whole(*pieces)) == {"gates: never met: 'held victim' at depth 2"}


def test_a_bound_that_is_not_reached_falls_short() -> None:
    waits = tuple(w for w in reached() if (w[0].name, w[2:]) != ("L4", (2, 1)))  # type: ignore[attr-defined,index]
    assert short(whole(done("explorer", "narrow", waits=waits))) == {"explorer: not reached: L4 at 2:1"}


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "find_spec", lambda name: None)
    assert verify.missing() == {"model": "model", "proof": "verify", "contract": "verify"}
    assert short(whole(), verify.missing()) == {
        "trace replay: not run: pip install 'hocket[model]'",
        "refuted: not run: pip install 'hocket[model]'",
        "Z3: not run: pip install 'hocket[verify]'",
        "CrossHair: not run: pip install 'hocket[verify]'",
    }


def test_plans_are_the_same_every_time_and_grow() -> None:
    sizes = []
    for profile in PROFILES.values():
        assert jobs.plan(profile) == jobs.plan(profile)
        assert len(set(jobs.plan(profile))) == len(jobs.plan(profile))
        sizes.append(len(jobs.plan(profile)))
    assert sizes == sorted(sizes)
    for family in families.small():
        assert {ins.config.depth for ins in family.members} == {1, 2, 3}, family.name


def command(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(["verify", *words])
    return status, out.getvalue(), err.getvalue()


def test_command_prints_one_table_and_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "work", lambda jobs, processes, say: say("step") or whole())
    status, out, err = command("--profile", "standard")
    assert status == 0
    assert out.splitlines()[1].split()[:3] == ["property", "claim", "tool"]
    assert out.splitlines()[-1].startswith(f"standard: {len(CLAIMS)} of {len(CLAIMS)} claims hold")
    assert err == "step\n"
    monkeypatch.setattr(
        verify, "work", lambda jobs, processes, say: whole(done("packs", "packs", broken="x | y"))
    )
    status, out, _ = command()
    assert status == 1
    assert "S4 metadata-well-formed by packs: x | y" in out


def test_command_refuses_what_makes_no_sense() -> None:
    for processes in ("0", "65", "100000"):
        status, _, err = command("--processes", processes)
        assert status == 2
        assert f"--processes must be an int in [1, 64], got {processes}" in err
    assert command("--soak", "0")[0] == 2
    assert command("--refuted", "no such fault")[0] == 2


def test_command_prints_the_page_and_soaks() -> None:
    assert command("--claims")[1] == claims.page()
    status, out, _ = command("--soak", "400", "--seed", "3")
    assert status == 0
    assert "worlds from seed 3" in out
    assert command("--soak", "400", "--seed", "3")[1] == out


def test_one_process_does_the_same_work() -> None:
    few = [Job("lock-step", "memory", 0, 3, "quick"), Job("packs", "packs", 0, 1, "quick")]
    alone = verify.work(few, 1, lambda line: None)
    two = verify.work(few, 2, lambda line: None)
    assert [d._replace(seconds=0) for d in alone] == [d._replace(seconds=0) for d in two]

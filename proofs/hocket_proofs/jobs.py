"""The work behind the claims, in pieces that processes can share; every piece is deterministic."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hocket_proofs import exact, families, packs, refute, soak
from hocket_proofs.contracts import gate
from hocket_proofs.refuted import FAULTS
from hocket_proofs.refuted.fault import MODEL, Fault
from hocket_proofs.theorems import THEOREMS
from hocket_spec.check.instances import Instance

PIECE = 6  # instances of one piece
FAULTS_PIECE = 12


# Those that need a model run apart from the others: where there is no torch, only they are not run.
GLUE = tuple(f for f in FAULTS if f.layer == MODEL)
PLAIN_FAULTS = tuple(f for f in FAULTS if f.layer != MODEL)


class Profile(NamedTuple):
    """How much is run. `every`: each how-manieth member of the small families; `wide`: larger instances per
    depth, of each at most `per_instance` transitions; `simulated`: steps of simulation.
    """

    name: str
    transitions: int  # lock-step transitions at least
    minutes: int  # at most, on two cores
    every: int
    wide: int
    per_instance: int
    simulated: int


PROFILES = {
    p.name: p
    for p in (
        Profile("quick", 200_000, 3, 4, 24, 2_500, 5_000),
        Profile("standard", 1_000_000, 8, 1, 96, 3_600, 20_000),
        Profile("full", 10_000_000, 60, 1, 440, 20_000, 300_000),
    )
}


class Job(NamedTuple):
    """One piece of work: what, on which family, which members (or seeds, or depths)."""

    kind: str
    family: str
    start: int
    stop: int
    profile: str

    def __str__(self) -> str:
        return f"{self.kind} {self.family} {self.start}-{self.stop - 1}"


class Done(NamedTuple):
    """What a piece of work came to. `broken`: '' or the first thing that is wrong, with the actions to it."""

    job: Job
    seconds: float
    cases: int  # instances, packs, faults, worlds
    exhausted: int
    states: int
    steps: int  # lock-step transitions, edges, simulated steps
    met: frozenset[tuple[int, str]] = frozenset()  # (depth, situation)
    waits: tuple[tuple[exact.Wait, int, int, int], ...] = ()  # with depth and steps per turn
    broken: str = ""


def families_of(profile: Profile) -> dict[str, tuple[Instance, ...]]:
    """The members of every family in this profile."""
    return {f.name: f.members for f in (*families.small(profile.every), families.wide(profile.wide))}


def plan(profile: Profile) -> list[Job]:
    """All work of a profile, the longest pieces first."""
    jobs = []
    for name, members in families_of(profile).items():
        for kind in ("lock-step",) if name == "wide" else ("lock-step", "explorer"):
            jobs += [Job(kind, name, k, min(k + PIECE, len(members)), profile.name)
                     for k in range(0, len(members), PIECE)]  # fmt: skip
    jobs += [Job("refuted", "faults", k, min(k + FAULTS_PIECE, len(PLAIN_FAULTS)), profile.name)
             for k in range(0, len(PLAIN_FAULTS), FAULTS_PIECE)]  # fmt: skip
    jobs += [Job("model", "faults", 0, len(GLUE), profile.name)]
    share = 5_000
    jobs += [Job("simulation", "worlds", k, k + 1, profile.name) for k in range(profile.simulated // share)]
    jobs += [Job("packs", "packs", 0, 1, profile.name)]
    jobs += [Job("model", "traces", depth, depth + 1, profile.name) for depth in families.DEPTHS]
    jobs += proofs(profile)
    heavy = {"wide": 0, "traces": 1, "worlds": 2}
    return sorted(jobs, key=lambda job: heavy.get(job.family, 9))


def proofs(profile: Profile) -> list[Job]:
    """The theorems and contracts, which are the same in every profile."""
    theorems = [Job("proof", f"theorem {k}", k, k + 1, profile.name) for k in range(len(THEOREMS))]
    return [*theorems, *(Job("contract", kind, 0, 1, profile.name) for kind in (gate.CLAIMS, gate.TWINS))]


def cpu() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


def run(job: Job) -> Done:
    """Do one piece; one that raises is broken. Cyclic garbage is collected between pieces: a walk makes none,
    its states are many.
    """
    begin = cpu()
    gc.collect()
    gc.disable()
    try:
        done = WORK[job.kind](job)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is red
        # The other claims are judged all the same, and the table comes.
        where = traceback.extract_tb(error.__traceback__)[-1]
        raised = f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
        done = Done(job, 0.0, 0, 0, 0, 0, broken=raised)
    finally:
        gc.enable()
    return done._replace(seconds=cpu() - begin)


def members(job: Job) -> tuple[Instance, ...]:
    """The instances of a piece."""
    return families_of(PROFILES[job.profile])[job.family][job.start : job.stop]


def lock_step(job: Job) -> Done:
    """Scheduler and model together; members of the small families to their end."""
    limit = PROFILES[job.profile].per_instance if job.family == "wide" else 10**9
    done = Done(job, 0.0, 0, 0, 0, 0)
    for ins in members(job):
        report = refute.lock_step(ins, limit)
        done = done._replace(
            cases=done.cases + 1, exhausted=done.exhausted + report.exhausted,
            states=done.states + report.states, steps=done.steps + report.transitions,
            met=done.met | {(ins.config.depth, situation) for situation in report.met},
        )  # fmt: skip
        if report.difference:
            return done._replace(broken=f"{report.difference} | {ins}")
    return done


def explorer(job: Job) -> Done:
    """The model alone, and the exact waits on its graph."""
    done = Done(job, 0.0, 0, 0, 0, 0)
    for ins in members(job):
        found, cfg = exact.measure(ins), ins.config
        waits = tuple((w, cfg.depth, cfg.prefill_steps, cfg.decode_steps) for w in found.waits)
        done = done._replace(
            cases=done.cases + 1, exhausted=done.exhausted + found.exhausted,
            states=done.states + found.states, steps=done.steps + found.edges, waits=done.waits + waits,
        )  # fmt: skip
        if found.broken:
            return done._replace(broken=f"{found.broken} | {ins}")
    return done


def refuted(job: Job, faults: tuple[Fault, ...] = PLAIN_FAULTS) -> Done:
    """Seeded faults: a survivor, or one refuted for another reason than its own, is what is wrong here."""
    wrong = []
    for fault in faults[job.start : job.stop]:
        said = refute.refute(fault).said
        if not said or fault.shows not in said:
            wrong.append(f"{fault.name}: {said or 'survives'}, expected {fault.shows!r} by {fault.layer}")
        gc.collect()
    count = job.stop - job.start
    return Done(job, 0.0, count, count - len(wrong), 0, 0, broken="; ".join(wrong))


def simulation(job: Job) -> Done:
    """Random worlds; every share has seeds of its own."""
    soaked = soak.soak(5_000, seed=1000 * job.start)
    return Done(job, 0.0, soaked.worlds, 0, 0, soaked.steps, broken=soaked.failure)


def all_packs(job: Job) -> Done:
    """The validator beside its specification."""
    count, difference = packs.first_difference()
    return Done(job, 0.0, count, count, 0, count, broken=difference)


def model(job: Job) -> Done:
    """A real model at this depth: recorded, compared with isolated runs, and replayed through the reference
    model; or the faults that such a run refutes.
    """
    if job.family == "faults":
        return refuted(job, GLUE)
    from hocket_proofs import real_run  # torch

    recorded = real_run.check(job.start)
    return Done(job, 0.0, 1, 0, 0, recorded.dispatches, broken=recorded.failure)


def proof(job: Job) -> Done:
    """The lemmas of one theorem; the first that Z3 does not prove is what is wrong."""
    from hocket_proofs.symbolic import prover  # z3

    theorem = THEOREMS[job.start]
    answers = [prover.prove(lemma) for lemma in theorem.lemmas()]
    wrong = [answer for answer in answers if answer != prover.PROVED]
    broken = wrong[0] if wrong else "" if answers else "no lemmas"
    return Done(job, 0.0, len(answers), len(answers) - len(wrong), 0, 0, broken=broken)


def contract(job: Job) -> Done:
    """CrossHair on every obligation of one kind."""
    wrong = [text for text in (gate.unlisted(),) if text]
    mine = [obligation for obligation in gate.ledger() if obligation.kind == job.family]
    wrong += [text for obligation in mine if (text := gate.discharge(obligation).wrong)]
    return Done(job, 0.0, len(mine), len(mine) - len(wrong), 0, 0, broken="; ".join(wrong))


WORK: dict[str, Callable[[Job], Done]] = {
    "lock-step": lock_step, "explorer": explorer, "refuted": refuted, "simulation": simulation,
    "packs": all_packs, "model": model, "proof": proof,
    "contract": contract,
}  # fmt: skip

"""Seeded faults against the checks that claim to see them: each must be refuted."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from hocket_proofs import exact, packs, soak
from hocket_proofs.refinement import Adapter
from hocket_proofs.refuted import FAULTS
from hocket_proofs.refuted.fault import EXPLORER, LOCK_STEP, MODEL, PACKS, PLAIN, SIMULATION, Fault, seeded
from hocket_spec.check import lockstep
from hocket_spec.check.instances import Instance

TRANSITIONS = 6_000
NODES = 5_000
WORLDS = 8
CALLS = 120


class Refuted(NamedTuple):
    """What the check said of a fault: '' if it survived. `run`: the fewest actions that show it."""

    said: str
    run: tuple[str, ...]


def lock_step(ins: Instance, limit: int = TRANSITIONS) -> lockstep.Report:
    """Scheduler and model together, breadth first."""
    names = tuple(f"g{i}" for i in range(len(ins.config.groups)))
    return lockstep.walk(ins, Adapter(ins.config), names, limit)


def finding(layer: str, where: Instance | None) -> str:
    """What a layer finds, faults or none being seeded; '' if nothing."""
    ins = where or PLAIN
    if layer == LOCK_STEP:
        return lock_step(ins).difference
    if layer == EXPLORER:
        return exact.measure(ins._replace(aborts=False, preempts=0), NODES).broken
    if layer == PACKS:
        return packs.first_difference()[1]
    if layer == MODEL:
        return str(real_run().check(2).failure)
    assert layer == SIMULATION, layer
    for seed in range(WORLDS):
        try:
            soak.world(seed, CALLS)
        except soak.Failed as failed:
            return str(failed)
    return ""


def real_run() -> Any:
    """The check that needs torch, loaded when asked for. Its isolated runs are made while no fault is in."""
    module = import_module("hocket_proofs.real_run")
    module.alone()
    return module


def refute(fault: Fault) -> Refuted:
    """Seed the fault and run its check."""
    if fault.layer == MODEL:
        real_run()
    with seeded(fault):
        said, _, run = finding(fault.layer, fault.where).partition(" | ")
    return Refuted(said, tuple(run.split(" > ")) if run else ())


def story(fault: Fault, refuted: Refuted) -> str:
    """The fault and its counterexample, for people."""
    lines = [f"{fault.name}: {fault.story}", f"  by {fault.layer}: {refuted.said or 'NOT REFUTED'}"]
    lines += [f"  {number:>4}  {action}" for number, action in enumerate(refuted.run, start=1)]
    return "\n".join(lines)


def main(part: str) -> int:
    """Tell the story of every fault whose name contains `part`; 1 if one survives."""
    chosen = [fault for fault in FAULTS if part in fault.name]
    if not chosen:
        raise ValueError(f"--refuted must be part of a fault's name, got {part!r}")
    survivors = 0
    for fault in chosen:
        refuted = refute(fault)
        survivors += not refuted.said
        print(story(fault, refuted), end="\n\n", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} faults refuted")
    return 1 if survivors else 0

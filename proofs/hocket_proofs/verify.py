"""The runner behind `hocket verify`: does the work of a profile, then holds every claim against it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.util import find_spec
from multiprocessing import get_context
from typing import NamedTuple

from hocket_proofs.claims import CLAIMS, NEEDS, Claim, evidence
from hocket_proofs.jobs import PROFILES, Done, Job, Profile, plan, run

HOLDS = "holds"
PROOFS = ("proof", "contract")  # kinds of work on the functions that ship, one by one


class Verdict(NamedTuple):
    """A claim with what was found. `verdict` is `HOLDS` or what falls short."""

    claim: Claim
    bound: str
    seconds: float
    verdict: str


def work(jobs: Sequence[Job], processes: int, say: Callable[[str], None]) -> list[Done]:
    """Do all jobs; results in the order of `jobs`, whatever the order in which they came."""
    found: dict[Job, Done] = {}
    begin = time.perf_counter()

    def tell(done: Done) -> None:
        found[done.job] = done
        size = f"{done.steps:,} steps" if done.steps else f"{done.cases} cases"
        wrong = f"  BROKEN: {done.broken}" if done.broken else ""
        clock = f"{time.perf_counter() - begin:6.0f} s"
        say(f"{clock}  {len(found):>3}/{len(jobs)}  {done.job}: {size} in {done.seconds:.1f} s{wrong}")

    if processes == 1:
        for job in jobs:
            tell(run(job))
    else:
        # Fresh processes: a fork would inherit threads, and locks that nobody holds any more.
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            for future in as_completed([pool.submit(run, job) for job in jobs]):
                tell(future.result())
    return [found[job] for job in jobs]


def missing() -> dict[str, str]:
    """Kinds of work that cannot be done here, with the extra that brings what they need."""
    return {kind: extra for kind, (package, extra) in NEEDS.items() if find_spec(package) is None}


def judge(
    done: Sequence[Done], profile: Profile, absent: dict[str, str], kinds: Sequence[str] = ()
) -> list[Verdict]:
    """Every claim against what was found; only those that rest on `kinds` of work, if any are named."""
    verdicts = []
    for claim in CLAIMS:
        if kinds and claim.source[0] not in kinds:
            continue
        if (kind := claim.source[0]) in absent:
            verdicts.append(Verdict(claim, "", 0.0, f"not run: pip install 'hocket[{absent[kind]}]'"))
            continue
        found = evidence(claim, done, profile)
        verdicts.append(Verdict(claim, claim.bound(found), found.seconds, claim.short(found) or HOLDS))
    return verdicts


def verify(
    profile: Profile,
    processes: int,
    say: Callable[[str], None] = lambda line: None,
    kinds: Sequence[str] = (),
) -> tuple[list[Done], list[Verdict]]:
    """Run a profile and judge all claims; only `kinds` of work, if any are named."""
    absent = missing()
    jobs = [job for job in plan(profile) if job.kind not in absent and job.kind in (kinds or (job.kind,))]
    done = work(jobs, processes, say)
    return done, judge(done, profile, absent, kinds)


def table(verdicts: Sequence[Verdict]) -> str:
    """One row per claim: property, claim, tool, bound, CPU time (where work is first named), verdict."""
    rows = [("property", "claim", "tool", "how far", "CPU", "verdict")]
    seen = set()
    for v in verdicts:
        first = v.claim.source not in seen
        seen.add(v.claim.source)
        clock = f"{v.seconds:.0f} s" if first else "same run"
        far = f"{v.claim.label}: {v.bound}" if v.bound else v.claim.label
        rows.append((v.claim.property, v.claim.says, v.claim.tool, far, clock, v.verdict.partition(" | ")[0]))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "  ".join((*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[5])) for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def summary(name: str, verdicts: Sequence[Verdict], wall: float) -> str:
    """The closing lines: whatever falls short in full, then the count."""
    short = [v for v in verdicts if v.verdict != HOLDS]
    lines = [f"{v.claim.property} by {v.claim.tool}: {v.verdict}" for v in short]
    held = len(verdicts) - len(short)
    lines.append(f"{name}: {held} of {len(verdicts)} claims hold, {wall:.0f} s on the clock")
    return "\n".join(lines)


def main(name: str, processes: int, kinds: Sequence[str] = ()) -> int:
    """Run a profile, or some kinds of work of it, with progress on stderr and the table on stdout.

    1 if any claim falls short.
    """
    profile, begin = PROFILES[name], time.perf_counter()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    _, verdicts = verify(profile, processes, say, kinds)
    title = "proofs" if kinds else name
    print(f"\n{table(verdicts)}\n\n{summary(title, verdicts, time.perf_counter() - begin)}", flush=True)
    return 0 if all(v.verdict == HOLDS for v in verdicts) else 1

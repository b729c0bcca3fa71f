"""Running CrossHair. It exits with 0 whatever it found, so what it prints decides: every obligation of the
ledger must be confirmed over all paths, in its time, and nothing else may stand there.
"""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
import tomllib
from importlib.resources import files
from typing import NamedTuple

PACKAGE = "hocket_proofs.contracts"
CLAIMS, TWINS = "claims", "twins"
TIMEOUT_S = 60
MARGIN = 5  # an obligation may take this part of the timeout at most: a busy machine is slower
CONFIRMED = "Confirmed over all paths."
EXHAUSTED = "All paths exhausted, functions are likely the same!"


class Obligation(NamedTuple):
    """One function of `claims.py`, or a pair of `spec_says.py` and `kernel_says.py`.

    expected: what CrossHair must say. seconds: CPU time at most.
    """

    kind: str
    name: str
    property: str
    expected: str
    seconds: float


class Finding(NamedTuple):
    """`wrong`: '' if the obligation is met."""

    seconds: float
    wrong: str


def ledger() -> tuple[Obligation, ...]:
    """Every obligation, in order."""
    table = tomllib.loads(files(PACKAGE).joinpath("ledger.toml").read_text())
    return tuple(
        Obligation(kind, entry["name"], entry["property"], entry["expected"], entry["seconds"])
        for kind in (CLAIMS, TWINS)
        for entry in table[kind]
    )


def written(module: str) -> list[str]:
    """The functions that a module of this package defines."""
    tree = ast.parse(files(PACKAGE).joinpath(f"{module}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def unlisted() -> str:
    """What the ledger and the sources do not agree about; '' if nothing."""
    listed = {kind: sorted(o.name for o in ledger() if o.kind == kind) for kind in (CLAIMS, TWINS)}
    for kind, module in ((CLAIMS, "claims"), (TWINS, "spec_says"), (TWINS, "kernel_says")):
        if listed[kind] != sorted(written(module)):
            return f"{module}.py and ledger.toml differ: {sorted(set(listed[kind]) ^ set(written(module)))}"
    lax = [o.name for o in ledger() if o.expected != {CLAIMS: CONFIRMED, TWINS: EXHAUSTED}[o.kind]]
    if lax:
        return f"obligations that expect something else than {CONFIRMED!r} or {EXHAUSTED!r}: {lax}"
    slow = [o.name for o in ledger() if o.seconds * MARGIN > TIMEOUT_S]
    return f"more than 1/{MARGIN} of the timeout: {slow}" if slow else ""


def command(obligation: Obligation) -> list[str]:
    """The command that discharges it."""
    crosshair = [sys.executable, "-m", "crosshair"]
    # The second limit bounds Z3 too, by the clock: the default, a few seconds, is little on a busy machine.
    limit = ["--per_condition_timeout", str(TIMEOUT_S), "--per_path_timeout", str(TIMEOUT_S)]
    if obligation.kind == CLAIMS:
        check = ["check", "--analysis_kind=PEP316", "--report_all", *limit]
        return [*crosshair, *check, f"{PACKAGE}.claims.{obligation.name}"]
    twins = [f"{PACKAGE}.{side}.{obligation.name}" for side in ("spec_says", "kernel_says")]
    return [*crosshair, "diffbehavior", *limit, *twins]


def judge(obligation: Obligation, printed: str, complaints: str, seconds: float) -> str:
    """What falls short; '' if nothing. One verdict, the expected one, and no word more."""
    lines = [line for line in printed.splitlines() if line.strip()]
    if obligation.kind == CLAIMS:
        verdicts = [re.sub(r"^.*?:\d+: info: ", "", line) for line in lines]
        met = verdicts == [obligation.expected]
    else:
        met = lines[-1:] == [obligation.expected] and lines[0].startswith("No differences found.")
    if not met or complaints.strip():
        said = " / ".join([*lines, *complaints.strip().splitlines()[-1:]]) or "nothing"
        return f"{obligation.name}: CrossHair says {said!r}, expected {obligation.expected!r}"
    if seconds > obligation.seconds:
        return f"{obligation.name}: {seconds:.1f} s of CPU, the ledger allows {obligation.seconds:g}"
    return ""


def discharge(obligation: Obligation) -> Finding:
    """Run CrossHair on one obligation."""
    begin = _children()
    done = subprocess.run(command(obligation), capture_output=True, text=True, check=False)
    seconds = _children() - begin
    return Finding(seconds, judge(obligation, done.stdout, done.stderr, seconds))


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

"""`hocket trace check FILE`: walk a recorded run through the reference model."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hocket.obs.trace import iter_trace
from hocket_proofs.replay import Broken, Replay

TOLD_EVERY = 256  # lines; then the clock is looked at
TOLD_AFTER_S = 2.0  # of work without a sign of life


class Refusal(Exception):
    """A record that the model does not allow: its line, the property, why, and the actions before it."""

    def __init__(self, line: int, why: str, before: tuple[str, ...]) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line
        self.why = why
        self.before = before


class Conforms(NamedTuple):
    """Size of a trace that the model allows throughout."""

    records: int
    rows: int
    dispatches: int
    preemptions: int
    stale_rows: int
    unfinished: int
    in_flight: int


def check(path: str | Path, report: Callable[[int], None] | None = None) -> Conforms:
    """Walk a trace file through the model; `report` is told each line that is done.

    Raises `Refusal` at the first record that is not allowed, `OSError` or `ValueError` for a file that is no
    trace.
    """
    header, records = iter_trace(path)
    at = Replay(header.scheduler_config, header.kv_cache_config)
    line = 1
    for line, record in records:
        try:
            at.apply(record)
        except Broken as broken:
            raise Refusal(line, str(broken), tuple(at.shown)) from broken
        if report is not None:
            report(line)
    return Conforms(
        line - 1,
        at.rows,
        at.dispatches,
        at.preemptions,
        at.stale_rows,
        len(at.state.requests),
        len(at.state.flight),
    )


def progress() -> Callable[[int], None]:
    """Says on the error stream which line is done, now and then, once it takes long."""
    last = time.perf_counter()

    def report(line: int) -> None:
        nonlocal last
        if not line % TOLD_EVERY and (now := time.perf_counter()) - last > TOLD_AFTER_S:
            last = now
            print(f"line {line:,}", file=sys.stderr, flush=True)

    return report


def main(path: str) -> int:
    """Say whether the trace conforms; 1 and the actions before the first violation if not."""
    begin = time.process_time()
    try:
        found = check(path, progress())
    except Refusal as refusal:
        shown = "".join(f"\n    {action}" for action in refusal.before)
        print(f"{path}:{refusal.line}: {refusal.why}\nthe {len(refusal.before)} actions before it:{shown}")
        return 1
    seconds = time.process_time() - begin
    print(
        f"conforms: {found.records:,} steps ({found.dispatches:,} dispatches, {found.rows:,} rows, "
        f"{found.preemptions:,} preemptions, {found.stale_rows:,} stale rows)"
    )
    if found.unfinished or found.in_flight:
        print(f"at its end {found.unfinished:,} requests are unfinished, {found.in_flight:,} dispatches fly")
    print(f"{found.records / max(seconds, 1e-9):,.0f} events/s of CPU time", file=sys.stderr)
    return 0

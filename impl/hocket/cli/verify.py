"""`hocket verify`: run every claim about hocket. The tools are loaded by name, see `hocket.obs.checkers`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hocket.cli.knobs import or_refuse
from hocket.core.checks import require_int
from hocket.obs.checkers import checker

DEFAULT_PROCESSES = 2
MOST_PROCESSES = 64  # each holds a model of its own: more is a slip of the keyboard
PROFILES = ("quick", "standard", "full")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--profile", choices=PROFILES, help="how much is run (default: standard)")
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help=f"processes that share the work (default: {DEFAULT_PROCESSES})",
    )
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--soak", type=int, metavar="STEPS", help="instead: random large runs, simulated")
    other.add_argument("--proofs", action="store_true", help="instead: only proofs on shipped functions")
    other.add_argument("--claims", action="store_true", help="instead: print the page of claims, run nothing")
    other.add_argument(
        "--refuted", nargs="?", const="", metavar="NAME",
        help="instead: seed each fault (whose name contains NAME) and show how it is refuted",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="N", help="first seed of --soak (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 if everything holds, 1 if something falls short, 2 for bad input."""
    status = or_refuse("verify", lambda: _check(args))
    if status:
        return status
    if args.refuted is not None:
        return or_refuse("verify", lambda: int(_tool("refute").main(args.refuted)))
    if args.soak is not None:
        return or_refuse("verify", lambda: int(_tool("soak").main(args.soak, args.seed or 0)))
    # What is loaded may be refused; a `ValueError` of the claims themselves is a bug, with its traceback.
    status = or_refuse("verify", lambda: 0 if _tool("verify") else 2)
    if status:
        return status
    if args.claims:
        sys.stdout.write(_tool("claims").page())
        return 0
    tool = _tool("verify")
    processes = DEFAULT_PROCESSES if args.processes is None else args.processes
    return int(tool.main(args.profile or "standard", processes, tool.PROOFS if args.proofs else ()))


def _check(args: argparse.Namespace) -> int:
    """0; `ValueError` for a flag out of range, or one that what was asked for would not look at."""
    if args.processes is not None:
        require_int("--processes", args.processes, 1, MOST_PROCESSES)
    if args.seed is not None:
        require_int("--seed", args.seed, 0)
    if args.seed is not None and args.soak is None:
        raise ValueError("--seed must be given with --soak only: everything else is the same in every run")
    asked = {"--soak": args.soak is not None, "--claims": args.claims, "--refuted": args.refuted is not None}
    for flag in (flag for flag, given in asked.items() if given):
        for name in ("profile", "processes"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name} must not be given with {flag}, which does not look at it")
    return 0


def _tool(name: str) -> Any:
    return checker(name, "hocket verify")

"""`hocket verify`: run every claim about hocket. The tools are loaded by name, see `hocket.obs.checkers`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hocket.cli.knobs import or_refuse
from hocket.obs.checkers import checker

MOST_PROCESSES = 64  # each holds a model of its own: more is a slip of the keyboard
PROFILES = ("quick", "standard", "full")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--profile", choices=PROFILES, default="standard", help="how much is run")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="processes that share the work")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--soak", type=int, metavar="STEPS", help="instead: random large runs, simulated")
    other.add_argument("--proofs", action="store_true", help="instead: only proofs on shipped functions")
    other.add_argument("--claims", action="store_true", help="instead: print the page of claims, run nothing")
    other.add_argument(
        "--refuted", nargs="?", const="", metavar="NAME",
        help="instead: seed each fault (whose name contains NAME) and show how it is refuted",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="first seed of --soak")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 if everything holds, 1 if something falls short, 2 for bad input."""
    if args.refuted is not None:
        return or_refuse("verify", lambda: int(_tool("refute").main(args.refuted)))
    if args.soak is not None:
        return or_refuse("verify", lambda: int(_tool("soak").main(args.soak, args.seed)))
    if not 1 <= args.processes <= MOST_PROCESSES:
        allowed = f"--processes must be in [1, {MOST_PROCESSES}]"
        print(f"hocket verify: error: {allowed}, got {args.processes}", file=sys.stderr)
        return 2
    # What is loaded may be refused; a `ValueError` of the claims themselves is a bug, with its traceback.
    status = or_refuse("verify", lambda: 0 if _tool("verify") else 2)
    if status:
        return status
    if args.claims:
        sys.stdout.write(_tool("claims").page())
        return 0
    tool = _tool("verify")
    return int(tool.main(args.profile, args.processes, tool.PROOFS if args.proofs else ()))


def _tool(name: str) -> Any:
    return checker(name, "hocket verify")

"""`hocket verify`: run every claim about hocket, or hold a recorded run against the reference model.

The claims and their tools are a package of their own that the product must not depend on; they are loaded by
name when the command runs, and nowhere else.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Any

from hocket.cli.knobs import or_refuse

PROFILES = ("quick", "standard", "full")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--profile", choices=PROFILES, default="standard", help="how much is run")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="processes that share the work")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--trace", metavar="FILE", help="instead: replay a recorded run through the model")
    other.add_argument("--soak", type=int, metavar="STEPS", help="instead: random large runs, simulated")
    other.add_argument("--claims", action="store_true", help="instead: print the page of claims, run nothing")
    other.add_argument(
        "--refuted", nargs="?", const="", metavar="NAME",
        help="instead: seed each fault (whose name contains NAME) and show how it is refuted",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="first seed of --soak")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 if everything holds, 1 if something falls short, 2 for bad input."""
    if args.trace is not None:
        return or_refuse("verify", lambda: int(_tool("replay").main(args.trace)))
    if args.refuted is not None:
        return or_refuse("verify", lambda: int(_tool("refute").main(args.refuted)))
    if args.soak is not None:
        return or_refuse("verify", lambda: int(_tool("soak").main(args.soak, args.seed)))
    if args.claims:
        sys.stdout.write(_tool("claims").page())
        return 0
    if args.processes < 1:
        print(f"hocket verify: error: --processes must be at least 1, got {args.processes}", file=sys.stderr)
        return 2
    return int(_tool("verify").main(args.profile, args.processes))


def _tool(name: str) -> Any:
    return import_module(f"hocket_proofs.{name}")

"""`hocket trace check`: hold a recorded run against the specification, which is loaded by name then."""

from __future__ import annotations

import argparse

from hocket.cli.knobs import or_refuse
from hocket.obs.checkers import checker

_DESCRIPTION = """\
Hold a recorded run against the specification. `hocket generate`, `hocket demo` and `LLM` write one with
--trace FILE (trace=FILE): every action of the scheduler, one JSON object a line.

The reference model walks along: every dispatch must be one that its rules allow in that state, and progress,
epochs, block tables, emitted tokens and notices must be its own after every action. The scheduler and the
model that was served are not run again; what is judged is what happened.

It prints "conforms: N steps", or the line of the first record that is not allowed, the property that it
breaks (ARCHITECTURE.md states them) and the ten actions before it.
"""
_EPILOG = """\
Exit status: 0 it conforms, 1 it does not, 2 the file cannot be read, is no trace (the line is named), or
holds no action, so that there is nothing to check.
Progress goes to the error stream.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their flags."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="hold a recorded run against the specification, record by record",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    check.add_argument("file", metavar="FILE", help="what --trace FILE wrote")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 if it conforms, 1 if it does not, 2 for a file that is no trace or a header alone."""
    return or_refuse("trace check", lambda: int(checker("trace_check", "hocket trace check").main(args.file)))

"""The registry of subcommands. To add one: write its module, then add one line to `COMMANDS`.

A command module has two functions:

* `add_arguments(parser: argparse.ArgumentParser) -> None` declares its flags;
* `run(args: argparse.Namespace) -> int` does the work and returns the exit status.

It is imported only when its command is asked for, so it may import torch at its top; `hocket --help`
imports none.
"""

from typing import NamedTuple


class Command(NamedTuple):
    """One subcommand: what the user types, the line of `hocket --help`, and the module that does it."""

    name: str
    summary: str
    module: str


COMMANDS: tuple[Command, ...] = (
    Command("demo", "prefill a long prompt beside a live decode request, and check both", "hocket.cli.demo"),
    Command("generate", "run prompts through a checkpoint folder", "hocket.cli.generate"),
    Command("trace", "hold a recorded run against the specification", "hocket.cli.trace"),
    Command(
        "validate",
        "accept a device: the demo's requests, without and with drafts, judged",
        "hocket.cli.validate",
    ),
    Command("verify", "run every claim about the scheduler, and print one table", "hocket.cli.verify"),
)

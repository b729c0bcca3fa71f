"""Entry point of the `hocket` command: parse, import the one command asked for, run it.

Exit status: what the command returns (0 = success, 1 = it ran and its verdict is no), 2 for bad usage or a
missing optional dependency, 130 after Ctrl-C.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from hocket._version import __version__
from hocket.cli.commands import COMMANDS, Command

_DESCRIPTION = """\
hocket serves language models in homogeneous steps: each step is prefill only or decode only, as
accelerators with grouped KV caches need it, and neither phase is ever starved by the other.
"""

_OWN_PACKAGES = frozenset({"hocket", "hocket_spec", "hocket_kernels", "hocket_proofs"})

_EPILOG = """\
`hocket COMMAND --help` explains the flags of a command. Exit status: 0 success, 1 the command ran
and its verdict is no, 2 bad usage or a missing optional dependency.
"""


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of a flag where it says something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == []:
            return action.help
        return super()._get_help_string(action)


def _top_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hocket",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hocket {__version__}")
    return parser


def build_parser(chosen: str | None, commands: Sequence[Command] = COMMANDS) -> argparse.ArgumentParser:
    """Build the parser, with all commands listed and the flags of `chosen` alone declared.

    Raises ModuleNotFoundError if the module of `chosen` needs a package that is not installed.
    """
    parser = _top_parser()
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in commands:
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=command.summary,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        if command.name == chosen:
            module = import_module(command.module)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None, commands: Sequence[Command] = COMMANDS) -> int:
    """Run the command line `argv` (`sys.argv` if None) and return the exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments:
        build_parser(None, commands).print_help(sys.stderr)
        return 2
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        args = build_parser(chosen, commands).parse_args(arguments)
        status: int = args.run(args)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OWN_PACKAGES:
            raise
        print(
            f"hocket {chosen}: the package {error.name!r} is not installed; "
            "it comes with an extra: pip install 'hocket[model]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        return 130
    return status

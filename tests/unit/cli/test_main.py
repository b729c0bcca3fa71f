"""The `hocket` command: help, version, exit statuses; a command is imported only when it is asked for."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import hocket
from hocket.cli.commands import COMMANDS, Command
from hocket.cli.main import main

ECHO = """
def add_arguments(parser):
    parser.add_argument("--status", type=int, default=0, help="exit status")
    parser.add_argument("--quiet", action="store_true", help="say nothing")

def run(args):
    if args.status == 130:
        raise KeyboardInterrupt
    return args.status
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Command, ...]:
    (tmp_path / "echo_command.py").write_text(ECHO)
    (tmp_path / "absent_command.py").write_text("import no_such_package\n")
    (tmp_path / "broken_command.py").write_text("import hocket.no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    return (
        Command("echo", "return a status", "echo_command"),
        Command("absent", "need something", "absent_command"),
        Command("broken", "lack a module of ours", "broken_command"),
    )


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"hocket {hocket.__version__}\n"


def test_installed_command_and_module_are_one() -> None:
    script = Path(sys.executable).parent / "hocket"
    for command in ([script], [sys.executable, "-m", "hocket"]):
        run = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert run.stdout == f"hocket {hocket.__version__}\n"


def test_help_lists_every_command_and_imports_none(
    commands: tuple[Command, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"], commands)
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(command.name in text and command.summary in text for command in commands)
    assert not {command.module for command in commands} & set(sys.modules)


def test_no_argument_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: hocket" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["nonsense"], ["echo", "--stat", "1"], ["echo", "--nonsense"], ["--nonsense"]]
)
def test_bad_usage_is_status_2(words: list[str], commands: tuple[Command, ...]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words, commands)
    assert stop.value.code == 2


@pytest.mark.parametrize("status", [0, 1, 130])
def test_status_is_the_commands(status: int, commands: tuple[Command, ...]) -> None:
    assert main(["echo", "--status", str(status)], commands) == status


def test_defaults_are_shown_where_they_say_something(
    commands: tuple[Command, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["echo", "--help"], commands)
    text = capsys.readouterr().out
    assert "exit status (default: 0)" in text
    assert "say nothing\n" in text


def test_missing_package_names_the_extra(
    commands: tuple[Command, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["absent"], commands) == 2
    message = capsys.readouterr().err
    assert "'no_such_package'" in message
    assert "pip install 'hocket[model]'" in message


def test_missing_module_of_ours_is_no_missing_package(commands: tuple[Command, ...]) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"hocket\.no_such_module"):
        main(["broken"], commands)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help_worth_reading(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(command.module)
    assert callable(module.add_arguments)
    assert callable(module.run)
    with pytest.raises(SystemExit) as stop:
        main([command.name, "--help"])
    assert stop.value.code == 0
    assert command.summary in " ".join(capsys.readouterr().out.split())

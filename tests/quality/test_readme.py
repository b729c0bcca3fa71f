"""The README says only what runs: its example, its table of fields, its table of guarantees, its commands."""

import contextlib
import dataclasses
import io
import re
from pathlib import Path

import pytest

from hocket import SchedulerConfig
from hocket.cli.main import build_parser, main
from tests.quality.sources import ROOT

README = (ROOT / "README.md").read_text()
PROPERTIES = [*(f"S{n}" for n in range(1, 11)), *(f"L{n}" for n in range(1, 8)), "R1"]
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]

EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def rows_of(header: str) -> list[list[str]]:
    """Cells of the table whose header line begins with `header`."""
    lines = README[README.index(f"\n{header}") + 1 :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def output_of(code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    return out.getvalue()


def test_every_example_is_followed_by_its_output() -> None:
    assert len(EXAMPLE.findall(README)) == README.count("```python") > 0


@pytest.mark.parametrize(("code", "output"), EXAMPLE.findall(README))
def test_example_prints_what_the_page_says(code: str, output: str) -> None:
    assert output_of(code) == output


def test_table_of_fields_is_the_configuration() -> None:
    documented = {field.strip("`"): default for field, _, default, _ in rows_of("| field ")}
    assert documented == {field.name: str(field.default) for field in dataclasses.fields(SchedulerConfig)}


@pytest.mark.parametrize("command", ["demo", "generate"])
def test_table_of_flags_is_what_the_commands_take(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    documented = {flag for _, flags, _, _ in rows_of("| field ") for flag in re.findall(r"--[a-z-]+", flags)}
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert documented <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


@pytest.mark.parametrize("command", ["demo", "generate"])
def test_other_defaults_of_a_command_are_in_the_table(command: str) -> None:
    args = build_parser(command).parse_args([command, *(["--model", "x"] if command == "generate" else [])])
    meaning = {field.strip("`"): text for field, _, _, text in rows_of("| field ")}
    for field in dataclasses.fields(SchedulerConfig):
        own = getattr(args, field.name)
        if own not in (field.default, None):
            assert f"`hocket {command}`: {own} unless given" in meaning[field.name], field.name


def test_table_of_guarantees_names_every_property_and_its_evidence() -> None:
    rows = rows_of("| id ")
    assert [row[0] for row in rows] == PROPERTIES
    for identifier, _, _, how_far, shown_by in rows:
        assert set(re.findall(r"proved|exhausted|tested", how_far)), identifier
        paths = re.findall(r"`(tests/[^`]+)`", shown_by)
        assert paths, identifier
        assert all((ROOT / path).exists() for path in paths), (identifier, paths)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_pages_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for path in re.findall(r"`((?:impl|spec|kernels|proofs|tests)/[\w./-]*)`", text):
        assert Path(ROOT / path).exists(), path


def test_readme_opens_with_the_two_commands() -> None:
    opening = README.split("\n\n")[1]
    assert re.findall(r"^make \w+", opening, re.MULTILINE) == ["make demo", "make test"]

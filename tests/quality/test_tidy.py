"""Sizes, words and files: what keeps the sources readable in one sitting."""

import re

import pytest

from tests.quality.sources import PACKAGES, ROOT, code_lines, functions, name_of, source_files

SPEC = PACKAGES["hocket_spec"]
FUNCTION_LINES_MAX = 70
SPEC_FILE_LINES_MAX = 200
FILE_LINES_MAX = 500
SPEC_CODE_LINES_MAX = 700

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b|raise NotImplemented\b")


# Names of working papers, which readers of this repository do not have. Brackets keep it from finding itself.
OUTSIDE = re.compile(
    r"\bDESIG[N]\b|/wor[k]/|\b(?:scenarios|semantics|deepseek_v4|verification|npu|style)[.]md\b"
)


def long_functions(source: str) -> list[str]:
    return [
        f"line {node.lineno}: {node.name} has {length} lines"
        for node, length in functions(source)
        if length > FUNCTION_LINES_MAX
    ]


def unfinished_lines(source: str) -> list[str]:
    return [
        f"line {number}: {line.strip()}"
        for number, line in enumerate(source.splitlines(), start=1)
        if UNFINISHED.search(line)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed(package: str) -> None:
    assert (PACKAGES[package] / "py.typed").is_file()
    assert (PACKAGES[package] / "__init__.py").is_file()


def test_functions_fit_on_a_screen() -> None:
    found = {name_of(path): long_functions(path.read_text()) for path in source_files()}
    assert {name: long for name, long in found.items() if long} == {}


def test_files_have_one_purpose_and_its_size() -> None:
    found = {}
    for path in source_files():
        limit = SPEC_FILE_LINES_MAX if path.is_relative_to(SPEC) else FILE_LINES_MAX
        length = len(path.read_text().splitlines())
        if length > limit:
            found[name_of(path)] = f"{length} lines, limit {limit}"
    assert found == {}


def test_specification_can_be_read_in_one_sitting() -> None:
    """The model of the scheduler, and its tools; packs and the runner's view are stated apart."""
    tools = source_files(SPEC / "check")
    apart = [SPEC / "packed.py", SPEC / "runner.py"]
    model = [path for path in source_files(SPEC) if path not in tools and path not in apart]
    for sitting in (model, tools):
        assert sitting, "the specification and its tools are there"
        assert sum(code_lines(path.read_text()) for path in sitting) <= SPEC_CODE_LINES_MAX


def test_nothing_is_unfinished() -> None:
    found = {name_of(path): unfinished_lines(path.read_text()) for path in source_files()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def outside_references(text: str) -> list[str]:
    return OUTSIDE.findall(text)


def test_text_refers_to_nothing_outside_the_repository() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "Makefile", ROOT / ".ci/run"]
    files = [*pages, *source_files(), *source_files(ROOT / "tests")]
    found = {name_of(path): outside_references(path.read_text()) for path in files}
    assert {name: references for name, references in found.items() if references} == {}


def test_make_targets_of_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets = {word for line in targets for word in line.split()}
    for page in ROOT.glob("*.md"):
        asked = set(
            re.findall(r"\bmake ([a-z-]+)(?=[`\n ]+)", "\n".join(re.findall(r"`[^`]+`", page.read_text())))
        )
        assert asked <= targets, f"{page.name} names {sorted(asked - targets)}"


# The checks themselves can fail.


def test_long_function_is_seen() -> None:
    body = "    x = 1\n"
    assert long_functions("def f():\n" + body * (FUNCTION_LINES_MAX - 1)) == []
    assert long_functions("class C:\n  def f():\n" + body * FUNCTION_LINES_MAX) == ["line 2: f has 71 lines"]


def test_unfinished_line_is_seen() -> None:
    assert unfinished_lines("x = 1\n# TO" + "DO: more\n") == ["line 2: # TO" + "DO: more"]
    assert unfinished_lines("    raise NotImplemented" + "Error\n") != []


def test_outside_reference_is_seen() -> None:
    assert outside_references("see DESI" + "GN section 5, or npu.m" + "d") != []
    assert outside_references("the design, see ARCHITECTURE.md") == []


def test_code_lines_are_counted() -> None:
    constant = '"""Doc\n\nmore."""\n\n# why\nx = (\n    1,\n)  # note\n'
    function = '\n\ndef f() -> str:\n    """Doc."""\n    return """a\nb"""\n'
    assert code_lines(constant) == 3
    assert code_lines(constant + function) == 3 + 3

"""Where the sources are, and how long: shared by the tests of this folder."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Package -> its folder.
PACKAGES = {
    "hocket": ROOT / "impl/hocket",
    "hocket_spec": ROOT / "spec/hocket_spec",
    "hocket_kernels": ROOT / "kernels/hocket_kernels",
    "hocket_proofs": ROOT / "proofs/hocket_proofs",
}

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def source_files(*folders: Path) -> list[Path]:
    """All Python files below `folders` (by default: of the four packages)."""
    return sorted(path for folder in folders or PACKAGES.values() for path in folder.rglob("*.py"))


def name_of(path: Path) -> str:
    """The path as messages show it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def strings_alone(tree: ast.AST) -> set[int]:
    """Line numbers of the strings that stand as statements: docstrings, and notes below attributes."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def code_lines(source: str) -> int:
    """Lines that hold code: blank lines, comments and docstrings do not count."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - strings_alone(ast.parse(source)))


def functions(source: str) -> Iterator[tuple[FunctionNode, int]]:
    """Every function with its length in lines, from `def` to its last line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, FunctionNode):
            yield node, (node.end_lineno or node.lineno) - node.lineno + 1


def imports(tree: ast.AST, at_import_time: bool = False) -> Iterator[str]:
    """Modules that a file imports; with `at_import_time` only those that importing the file imports."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif at_import_time and (isinstance(node, FunctionNode) or _is_type_checking(node)):
            continue
        else:
            yield from imports(node, at_import_time)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"

"""The model calls one function per op, and none of it knows a device or a library of one."""

import ast
import re
from importlib import import_module

from hocket_kernels.registry import OPS
from tests.quality.sources import PACKAGES, name_of, source_files

MODEL = PACKAGES["hocket"] / "model"
# Not ops: they lay out a step, once, before the layers run.
HELPERS = {"rotary_angles", "decode_positions"}
LIBRARIES = re.compile(r"\btorch\.ops\b|\btorch_npu\b|\btriton\b|\bregistry\b")


def imported_from_kernels(source: str) -> set[tuple[str, str]]:
    """(module, name) of what a file imports from hocket_kernels."""
    return {
        (node.module or "", alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hocket_kernels")
        for alias in node.names
    }


def test_the_model_calls_ops_only() -> None:
    for path in source_files(MODEL):
        for module, name in imported_from_kernels(path.read_text()):
            import_module(module)
            assert name in OPS or name in HELPERS, f"{name_of(path)} calls {name}, which is no op"


def test_the_model_names_no_library() -> None:
    for path in source_files(MODEL):
        assert not LIBRARIES.search(path.read_text()), name_of(path)


def test_a_breach_is_seen() -> None:
    breach = "from hocket_kernels.topk import deterministic_topk\n"
    assert imported_from_kernels(breach) == {("hocket_kernels.topk", "deterministic_topk")}
    assert LIBRARIES.search("y = torch.ops.npu.npu_rms_norm(x, w)[0]")

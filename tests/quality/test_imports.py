"""What may be imported where, beyond the arrows that import-linter checks; and what `import hocket` costs."""

import ast
import json
import resource
import subprocess
import sys

import pytest

import hocket
from tests.quality.sources import PACKAGES, ROOT, imports, name_of, source_files

HOCKET = PACKAGES["hocket"]
IMPORT_MS_MAX = 150

# What the specification may use of the standard library: no clock, no randomness, no input or output.
SPEC_MAY_IMPORT = {
    "__future__", "abc", "collections", "collections.abc", "dataclasses", "enum", "functools", "heapq",
    "itertools", "math", "numbers", "operator", "types", "typing", "hocket_spec",
}  # fmt: skip

# What holds a run of the product against the specification, and all that it needs of it.
CHECKERS = ("hocket.obs.shadow", "hocket.obs.checkers", "hocket.cli.trace", "hocket.cli.verify")


def modules_after(statement: str) -> set[str]:
    """Names of all modules that a fresh interpreter has loaded after `statement`."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


def milliseconds(statement: str) -> float:
    """Processor time of a fresh interpreter that runs `statement`: the least of five, since noise only adds.

    Not the wall time, which depends on what else the machine does. Importing waits for nothing but the disk.
    """
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", statement], cwd=ROOT, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 1000 * min(times)


@pytest.mark.parametrize(
    "statement", ["import hocket", "from hocket import Scheduler, SchedulerConfig, Request"]
)
def test_import_is_light(statement: str) -> None:
    loaded = modules_after(statement)
    assert loaded.isdisjoint(
        {"torch", "numpy", "asyncio", "http.server", "socket", "transformers", "hocket_spec"}
    )
    cost = milliseconds(statement) - milliseconds("pass")
    assert cost < IMPORT_MS_MAX, f"`{statement}` takes {cost:.0f} ms"


def test_star_import_needs_no_torch() -> None:
    assert "torch" not in modules_after("from hocket import *")


def test_importing_the_parts_that_decide_needs_no_torch() -> None:
    assert modules_after("import hocket.sched.scheduler, hocket.cli.main").isdisjoint(
        {"torch", "numpy", "asyncio"}
    )


def test_public_names_exist_and_are_the_typed_ones() -> None:
    tree = ast.parse((HOCKET / "__init__.py").read_text())
    typed = {
        alias.asname: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == hocket._HOME | hocket._HOME_WITH_TORCH
    assert set(hocket.__all__) == {"__version__", *hocket._HOME}
    for name, home in typed.items():
        assert getattr(hocket, name).__module__ == home, name
        assert name in dir(hocket)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'hocket' has no attribute 'Schedular'"):
        hocket.Schedular  # noqa: B018


def test_impl_is_hocket() -> None:
    import impl

    assert impl.Scheduler is hocket.Scheduler
    assert impl.LLM is hocket.LLM
    assert all(getattr(impl, name) is getattr(hocket, name) for name in hocket.__all__)


def test_impl_cannot_load_a_second_copy() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"impl\.hocket"):
        __import__("impl.hocket.core")
    with pytest.raises(ModuleNotFoundError, match=r"impl\.core"):
        __import__("impl.core")


def test_specification_uses_plain_standard_library_only() -> None:
    found = {}
    for path in source_files(PACKAGES["hocket_spec"]):
        foreign = {
            module
            for module in imports(ast.parse(path.read_text()))
            if module not in SPEC_MAY_IMPORT and module.partition(".")[0] != "hocket_spec"
        }
        if foreign:
            found[name_of(path)] = foreign
    assert found == {}


@pytest.mark.parametrize("package", ["core", "kv", "sched"])
def test_decisions_use_plain_standard_library_only(package: str) -> None:
    for path in source_files(HOCKET / package):
        roots = {module.partition(".")[0] for module in imports(ast.parse(path.read_text()))}
        assert roots <= sys.stdlib_module_names | {"hocket"}, name_of(path)


def names_the_specification(source: str) -> bool:
    return any(module.startswith(("hocket_spec", "hocket_proofs")) for module in imports(ast.parse(source)))


def test_product_loads_the_specification_by_name_only() -> None:
    for path in source_files(HOCKET):
        assert not names_the_specification(path.read_text()), name_of(path)


def test_checkers_load_the_specification_only_when_used() -> None:
    loaded = modules_after(f"import hocket.engine.engine, {', '.join(CHECKERS)}")
    assert not [name for name in loaded if name.startswith(("hocket_spec", "hocket_proofs"))]


def test_import_is_seen_wherever_it_stands() -> None:
    assert names_the_specification(
        "try:\n    from hocket_spec.state import State\nexcept ImportError:\n    pass\n"
    )
    assert names_the_specification("def check():\n    import hocket_proofs.replay\n")

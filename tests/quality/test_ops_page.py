"""The page on ops lists what is registered, with what it calls."""

import re
from importlib import import_module

from hocket_kernels.registry import OPS
from tests.quality.sources import PACKAGES, ROOT

PAGE = (ROOT / "docs/ops.md").read_text()
KERNELS = PACKAGES["hocket_kernels"]


def documented() -> dict[str, dict[str, set[str]]]:
    """Op -> source -> what it calls."""
    table = PAGE[PAGE.index("| op | stock |") :].split("\n\n")[0].splitlines()[2:]
    found = {}
    for line in table:
        name, *cells = [re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|")[:4]]
        found[name[0]] = dict(zip(("stock", "custom", "triton"), map(set, cells), strict=True))
    return found


def registered() -> dict[str, dict[str, set[str]]]:
    for path in KERNELS.glob("*.py"):
        if path.stem not in ("__init__", "vector_kernels"):
            import_module(f"hocket_kernels.{path.stem}")
    empty: dict[str, set[str]] = {"stock": set(), "custom": set(), "triton": set()}
    return {name: empty | {i.source: set(i.needs) for i in op.implementations} for name, op in OPS.items()}


def test_the_table_of_ops_is_the_registry() -> None:
    assert documented() == registered()


def test_the_page_links_to_files_that_exist() -> None:
    for path in re.findall(r"`((?:tests|kernels)/[^` ]+)`", PAGE) + re.findall(
        r"python (tests/\S+\.py)", PAGE
    ):
        assert (ROOT / path).exists(), path

"""Checkers of the specification, loaded by name when asked for: the product does not depend on them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PACKAGES = ("hocket_proofs", "hocket_spec")


def checker(module: str, what: str) -> Any:
    """The module of that name in `hocket_proofs`.

    Raises `ValueError` that says what `what` needs, if the specification and its tools are not installed.
    """
    try:
        return import_module(f"hocket_proofs.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _PACKAGES:
            raise
        raise ValueError(
            f"{what} needs the packages {' and '.join(_PACKAGES)}, which come with hocket's own wheel; "
            f"{error.name!r} is not installed"
        ) from error

"""Errors of the operating system that say which file they are about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: str | Path | None) -> Iterator[None]:
    """An `OSError` in here names `path` (None: nothing to name). That of `open` does so by itself, those of
    writing and closing do not.
    """
    try:
        yield
    except OSError as error:
        if path is not None and error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise

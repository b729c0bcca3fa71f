"""A report that is whole or not there: written beside its place and renamed, so that a run that ends early,
or a disk that is full, does not leave half of one where an old one was.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from hocket.core.os_errors import naming


class ReportFile:
    """The place of a report; a context, at whose end nothing is left beside it.

    Entering raises the `OSError` that writing would raise, naming `path`, and leaves an old report as it is.
    What is no regular file (a pipe, a terminal) is written to, not replaced.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._beside: Path | None = None

    def __enter__(self) -> ReportFile:
        try:
            mode = self._path.stat().st_mode
        except FileNotFoundError:
            mode = None
        if mode is not None and not os.access(self._path, os.W_OK):
            raise self._error(errno.EACCES)
        if mode is not None and stat.S_ISDIR(mode):
            raise self._error(errno.EISDIR)
        if mode is None or stat.S_ISREG(mode):
            # A link stays one: what it points to is replaced.
            place = self._path.resolve()
            beside = place.with_name(f"{place.name}.{os.getpid()}.partial")
            try:
                # One that a killed run of this process id left is taken over.
                beside.open("w").close()
            except OSError as error:
                raise self._error(error.errno or errno.EIO) from error
            self._beside = beside
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._beside is not None:
            self._beside.unlink(missing_ok=True)

    def write(self, report: Mapping[str, Any]) -> None:
        """Put the report there, as JSON. Once."""
        text = json.dumps(report, indent=1) + "\n"
        with naming(self._path):
            (self._beside or self._path).write_text(text, encoding="utf-8")
        if self._beside is None:
            return
        place = self._path.resolve()
        if place.exists():
            shutil.copymode(place, self._beside)
        self._beside.replace(place)

    def _error(self, number: int) -> OSError:
        return OSError(number, os.strerror(number), str(self._path))

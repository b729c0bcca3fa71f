"""A progress bar, over requests or tokens, with the throughput of both phases."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from hocket.engine.results import EngineStats

_FORMAT = "{desc} {percentage:3.0f}%|{bar:24}| {n_fmt}/{total_fmt} {unit} [{elapsed}{postfix}]"


class Progress:
    """`total` of `unit`; does nothing if `enabled` is False. Use as a context manager."""

    def __init__(self, total: int, enabled: bool, description: str = "requests", unit: str = "req") -> None:
        self._bar: Any = None
        if not enabled:
            return
        from tqdm import tqdm  # only here: nothing else needs it

        self._bar = tqdm(total=total, desc=description, unit=unit, bar_format=_FORMAT)
        # A terminal's line is redrawn in place; in a log every drawing is more text.
        self._pause_s = 0.1 if sys.stderr.isatty() else 10.0
        self._drawn_s = time.monotonic()

    def show(self, stats: EngineStats, done: int) -> None:
        """`done` more are done; the rates are those of the engine's life so far."""
        if self._bar is None:
            return
        self._bar.n += done
        self._bar.set_postfix_str(
            f"prefill {stats.prefill_tokens_per_s:,.0f} tok/s, decode {stats.decode_tokens_per_s:,.0f} tok/s",
            refresh=False,
        )
        if time.monotonic() - self._drawn_s >= self._pause_s:
            self._bar.refresh()
            self._drawn_s = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

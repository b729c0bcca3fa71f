"""Stop strings: cut a text that grows before the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """Result of adding text: what may be handed out, and whether a stop string ended it."""

    text: str
    stopped: bool


class StopStrings:
    """Cuts a growing text before the first stop string, holding back what may turn out to be the start of
    one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def add(self, text: str, armed: bool = True) -> StopMatch:
        """Add settled text. While not `armed` (too few tokens) nothing stops, and stop strings in it are
        plain text.
        """
        text = self._held + text
        self._held = ""
        if not armed:
            return StopMatch(text, False)
        found = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=-1)
        if found >= 0:
            return StopMatch(text[:found], True)
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return StopMatch(text[: len(text) - keep], False)

    def flush(self) -> str:
        """What is held back, at the end."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that ends `text`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)

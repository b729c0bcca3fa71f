"""The two phases of a step."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """Kind of a dispatch. A dispatch is homogeneous: all its rows are of one phase (S1)."""

    PREFILL = 1
    DECODE = 2

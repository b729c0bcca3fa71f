"""Where a position lies in a paged cache: one rule, for tensors and for plain integers alike."""

from __future__ import annotations

from typing import Any


def column_of(position: Any, block_size: int) -> Any:
    """The block table column of a position."""
    return position // block_size


def physical_row(position: Any, column: Any, block: Any, block_size: int, ratio: int) -> Any:
    """The cache row of `position`, in `column` of its table, whose block id is `block`.

    A block of `block_size` source tokens has block_size / ratio rows, and `ratio` divides `block_size`: the
    row is block * (block_size / ratio) + (position mod block_size) / ratio. It is written so that tensors
    take few operations: a block lies a whole number of rows away from where its column would.
    """
    return position // ratio + (block - column) * (block_size // ratio)

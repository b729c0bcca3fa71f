"""How many blocks of a pool are free, owned and fenced, and what each transition does to the counts (S5).

Pure and total functions over ints and NamedTuples, in the Python that the decision kernel is written in: the
functions that ship are executed symbolically by the proofs. Which block goes where is the pool's business.
"""

from __future__ import annotations

from typing import NamedTuple


class PoolCounts(NamedTuple):
    """Every usable block is counted once: free, owned by a request, or fenced."""

    free: int
    owned: int
    fenced: int


def all_free(blocks: int) -> PoolCounts:
    """A new pool."""
    return PoolCounts(blocks, 0, 0)


def may_take(counts: PoolCounts, blocks: int) -> bool:
    """Whether so many are free."""
    return 0 <= blocks <= counts.free


def after_take(counts: PoolCounts, blocks: int) -> PoolCounts:
    """Free blocks get an owner."""
    return PoolCounts(counts.free - blocks, counts.owned + blocks, counts.fenced)


def may_release(counts: PoolCounts, blocks: int) -> bool:
    """Whether so many have an owner to lose."""
    return 0 <= blocks <= counts.owned


def after_return(counts: PoolCounts, blocks: int) -> PoolCounts:
    """Owned blocks that nothing in flight can write become free at once."""
    return PoolCounts(counts.free + blocks, counts.owned - blocks, counts.fenced)


def after_fence(counts: PoolCounts, blocks: int) -> PoolCounts:
    """Owned blocks that a step in flight can still write wait for it."""
    return PoolCounts(counts.free, counts.owned - blocks, counts.fenced + blocks)


def may_settle(counts: PoolCounts, blocks: int) -> bool:
    """Whether so many wait."""
    return 0 <= blocks <= counts.fenced


def after_settle(counts: PoolCounts, blocks: int) -> PoolCounts:
    """The step is processed: its fenced blocks become free."""
    return PoolCounts(counts.free + blocks, counts.owned, counts.fenced - blocks)

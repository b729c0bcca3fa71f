"""Which slots newcomers get: pure, total functions over ints and tuples, for slot table and proofs.

A slot holds one (request, epoch) at a time. Free slots are kept in ascending order, newcomers get the lowest.
"""

from __future__ import annotations


def enough(free: int, newcomers: int) -> bool:
    """Whether every newcomer finds a slot of its own."""
    return newcomers <= free


def lowest(free: tuple[int, ...], newcomers: int) -> tuple[int, ...]:
    """The slots of so many newcomers: the lowest of `free`, which is in ascending order."""
    return tuple(slot for place, slot in enumerate(free) if place < newcomers)

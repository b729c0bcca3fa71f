"""Which slots newcomers get: pure, total functions over ints and tuples, for slot table and proofs.

A slot holds one (request, epoch) at a time. Free slots are kept in ascending order, newcomers get the lowest.
"""

from __future__ import annotations

NO_SLOT = -1
"""Below every slot."""


def enough(free: int, newcomers: int) -> bool:
    """Whether every newcomer finds a slot of its own."""
    return newcomers <= free


def is_given(place: int, newcomers: int) -> bool:
    """Whether the free slot at a place goes to one of so many newcomers."""
    return place < newcomers


def lowest(free: tuple[int, ...], newcomers: int) -> tuple[int, ...]:
    """The slots of so many newcomers: the lowest of `free`, which is in ascending order."""
    return tuple(slot for place, slot in enumerate(free) if is_given(place, newcomers))


def others(free: tuple[int, ...], newcomers: int) -> tuple[int, ...]:
    """The slots that stay free when so many newcomers have got theirs."""
    return tuple(slot for place, slot in enumerate(free) if not is_given(place, newcomers))


def between(below: int, slot: int, above: int) -> int:
    """What comes between two neighbours when `slot` is put in order: itself, or the one that makes room."""
    return max(below, min(slot, above))


def with_freed(free: tuple[int, ...], slot: int) -> tuple[int, ...]:
    """The free slots, in ascending order again, when `slot` has become one of them."""
    return tuple(
        between(below, slot, above) for below, above in zip((NO_SLOT, *free), (*free, slot), strict=True)
    )

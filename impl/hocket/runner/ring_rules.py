"""Which staging buffer a step gets: pure, total functions over ints, for the device runtime and the proofs.

Steps are numbered from 0 in the order in which they are filled. The host writes a step's inputs into its
buffer while the device may still read those of the steps in flight.
"""

from __future__ import annotations


def ring_size(steps: int) -> int:
    """Buffers for so many steps in flight at a time: one for each, and one that is filled meanwhile."""
    return steps + 1


def buffer_of(step: int, buffers: int) -> int:
    """The buffer of a step, in [0, buffers): each in turn, so that a buffer rests as long as it can."""
    return step % buffers

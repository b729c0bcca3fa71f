"""Philox4x32-10: a counter-based random generator, vectorised over rows, with NumPy only.

A row's number is a pure function of (seed, position, stream), whatever was drawn before it and whoever its
neighbours are. That is what keeps sampled text independent of scheduling, preemption and batching (R1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)

Words = NDArray[np.uint64]


def philox4x32(counter: Words, key: Words) -> Words:
    """Encrypt `counter` `[N, 4]` under `key` `[N, 2]`; every word is a 32-bit value held in a uint64. Returns
    `[N, 4]`.
    """
    c0, c1, c2, c3 = (counter[:, i] for i in range(4))
    k0, k1 = key[:, 0], key[:, 1]
    for _ in range(_ROUNDS):
        product0 = _MULTIPLIERS[0] * c0
        product1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack((c0, c1, c2, c3), axis=1)


def uniform(seeds: Sequence[int], positions: Sequence[int], stream: int = 0) -> NDArray[np.float64]:
    """One number in [0, 1) per row, `[N]` float64 with 53 random bits, from (seed, position, stream).

    Seeds are 64-bit (the key), positions 64-bit and streams 32-bit (the counter); streams are independent
    sequences.
    """
    seed = np.array(seeds, dtype=np.uint64)
    position = np.array(positions, dtype=np.uint64)
    zero = np.zeros_like(position)
    counter = np.stack((position & _LOW, position >> _SHIFT, zero + np.uint64(stream), zero), axis=1)
    words = philox4x32(counter, np.stack((seed & _LOW, seed >> _SHIFT), axis=1))
    bits = (words[:, 0] << np.uint64(21)) ^ (words[:, 1] >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53


def random_bits(seed: int, position: int, stream: int = 0) -> int:
    """One 64-bit integer from (seed, position, stream)."""
    counter = np.array([[position & 0xFFFFFFFF, position >> 32, stream, 0]], dtype=np.uint64)
    words = philox4x32(counter, np.array([[seed & 0xFFFFFFFF, seed >> 32]], dtype=np.uint64))
    return int(words[0, 0]) << 32 | int(words[0, 1])

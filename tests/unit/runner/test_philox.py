"""The counter-based generator: known answers, and numbers that depend on (seed, position, stream) alone."""

import numpy as np
import pytest

from hocket.runner.philox import philox4x32, random_bits, uniform

# Published known answers of Philox4x32-10: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    words = philox4x32(np.array([counter], np.uint64), np.array([key], np.uint64))
    assert tuple(int(word) for word in words[0]) == answer


def test_rows_do_not_see_each_other():
    seeds, positions = [1, 2, 2**64 - 1, 7], [0, 5, 2**40, 5]
    together = uniform(seeds, positions)
    alone = [uniform([seed], [position])[0] for seed, position in zip(seeds, positions, strict=True)]
    assert together.tolist() == alone


@pytest.mark.parametrize("axis", ["seed", "position", "stream"])
def test_uniform_along_every_axis(axis):
    """Chi-square over 64 bins at fixed numbers: 63 degrees of freedom, 120 is beyond the 99.99 % point."""
    count = 64 * 200
    index = np.arange(count)
    if axis == "seed":
        values = uniform(index.tolist(), [3] * count)
    elif axis == "position":
        values = uniform([3] * count, index.tolist())
    else:
        values = np.array([uniform([3], [3], stream)[0] for stream in range(count)])
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.bincount((values * 64).astype(int), minlength=64)
    assert ((counts - 200) ** 2 / 200).sum() < 120
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


def test_high_words_of_seed_and_position_count():
    base = uniform([1], [1])[0]
    assert uniform([1 + 2**32], [1])[0] != base
    assert uniform([1], [1 + 2**32])[0] != base
    assert (
        len({random_bits(1, 1), random_bits(1 + 2**32, 1), random_bits(1, 1 + 2**32), random_bits(1, 1, 1)})
        == 4
    )

"""What the family of edited packs leaves out: odd values, each with what specification and validator say."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hocket_proofs.packs import Pack, lists, verdicts
from hocket_spec import runner
from hocket_spec.packed import _dimensions
from hocket_spec.state import DECODE, Group
from hocket_spec.told import Flown, Slot


def with_(**fields: Any) -> Callable[[], Pack]:
    return lambda: lists() | fields


def one_token() -> Pack:
    """The shortest pack there is: one request of one token, in blocks of one token."""
    return {
        "request_ids": ["a"],
        "chunk_starts": [0],
        "chunk_lens": [1],
        "seq_lens": [1],
        "query_start_loc": [0, 1],
        "token_ids": [3],
        "block_tables": {"near": [[1]]},
        "block_sizes": {"near": 1},
        "windows": {"near": 4},
    }


def within_its_window() -> Pack:
    """The window has returned nothing yet, so every column needs its block."""
    return one_token() | {
        "chunk_starts": [3], "seq_lens": [4], "block_tables": {"near": [[0, 2, 3, 4]]},
    }  # fmt: skip


MASKED = np.ma.masked_array([0, 6], mask=[False, False])

SAID: dict[str, tuple[Callable[[], Pack], str, int, str]] = {
    "as it is": (lists, "fine", -1, ""),
    "one token": (one_token, "fine", -1, ""),
    "tokens deep": (with_(token_ids=[[3, 4, 5, 6, 7]]), "shape", -1, "token_ids has rank 2, expected 1"),
    "lengths very deep": (with_(seq_lens=[[[[[[2]]]]]]), "shape", -1, "seq_lens has rank 4, expected 1"),
    "lengths four deep": (with_(seq_lens=[[[[2]]]]), "shape", -1, "seq_lens has rank 4, expected 1"),
    "masked": (with_(chunk_starts=MASKED), "shape", -1, "chunk_starts has rank 0, expected 1"),
    "no offsets": (with_(query_start_loc=[]), "count", 0, "query_start_loc has 0 entries, expected 3"),
    "sizes no mapping": (with_(block_sizes=[4, 2]), "groups", -1, "block_sizes is list, expected a mapping"),
    "windows no mapping": (with_(windows=[4]), "groups", -1, "windows is list, expected a mapping"),
    "time": (with_(chunk_starts=[0, np.timedelta64(6)]), "type", 1, "is not an integer in [0, 2147483647]"),
    "first offset a float": (with_(query_start_loc=[0.0, 2, 5]), "type", 0, "query_start_loc[0] 0.0 (float)"),
    "64 bits": (
        with_(embedding_rows=2**64 - 1),
        "range",
        1,
        "embedding_rows 18446744073709551615 is outside",
    ),
    "65 bits": (with_(embedding_rows=2**64), "range", 1, "embedding_rows of 65 bits is outside [0, 2147"),
    "66 bits": (with_(embedding_rows=-(2**65)), "range", 1, "embedding_rows of 66 bits is outside [0, 2147"),
    "null within the window": (within_its_window, "table_null", 0, "columns 0 to 3 need a block"),
}


@pytest.mark.parametrize("name", SAID)
def test_said(name: str) -> None:
    make, code, row, text = SAID[name]
    expected, found = verdicts(make())
    assert expected == found
    assert expected[:2] == (code, row)
    assert text in expected[2]


def test_rank() -> None:
    assert [_dimensions(value) for value in (3, "ab", [], [[]], (range(2),), np.zeros((2, 3)))] == [
        0, 0, 1, 2, 2, 2,
    ]  # fmt: skip


def test_runner_goes_on_after_a_stale_row() -> None:
    """Of the rows of a result only those of ended epochs change nothing."""
    slot = Slot(2, 5, 5, 4, ((1, 2, 3, 4, 5),), True)
    rows = (Flown("gone", 1, 1, 4, {}), Flown("old", 1, 1, 4, {}), Flown("here", 2, 1, 4, {}))
    view = runner.View(
        ("full",), (Group(1),), {"here": slot, "old": slot._replace(epoch=7)}, flight=((DECODE, rows),)
    )
    after = runner.settle(view, [1, 1, 1])
    assert after.slots["here"] == slot._replace(processed=5)
    assert after.slots["old"] == slot._replace(epoch=7)

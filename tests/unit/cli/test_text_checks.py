"""Repetition, garble and difference, on texts that show them and on texts that do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cli.text_checks import Repetition, first_difference, garbled, is_stuck, longest_repetition


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([], None),
        ([1], None),
        ([1, 2, 3], None),
        ([1, 1], Repetition(0, 1, 2)),
        ([5, 1, 2, 1, 2, 1, 2, 9], Repetition(1, 2, 3)),
        ([1, 1, 1, 1], Repetition(0, 1, 4)),
        ([7, 1, 2, 3, 1, 2, 3, 1], Repetition(1, 3, 2)),
        ([*range(40), *range(40)], None),
    ],
)
def test_longest_repetition(tokens: list[int], found: Repetition | None) -> None:
    assert longest_repetition(tokens) == found


@given(st.lists(st.integers(0, 3), max_size=30))
def test_what_is_found_is_there_and_nothing_is_longer(tokens: list[int]) -> None:
    def there(start: int, period: int, times: int) -> bool:
        unit = tokens[start : start + period]
        return len(unit) == period and tokens[start : start + period * times] == unit * times

    found = longest_repetition(tokens)
    every = [
        period * times
        for start in range(len(tokens))
        for period in range(1, len(tokens) // 2 + 1)
        for times in range(2, len(tokens) // period + 1)
        if there(start, period, times)
    ]
    assert (found is None) == (not every)
    if found is not None:
        assert there(*found)
        assert found.tokens == max(every)


@pytest.mark.parametrize(
    ("tokens", "stuck"),
    [
        ([3] * 12, True),
        ([3] * 11, False),
        ([*range(100, 110), *[1, 2, 3] * 4], True),
        ([*range(100, 150), *[1, 2, 3] * 4], False),
        ([*range(6), *range(6), *range(6)], False),
        (range(200), False),
        ([], False),
    ],
    ids=["one token", "too short", "at the end", "a small part", "three times", "never", "nothing"],
)
def test_is_stuck(tokens: list[int], stuck: bool) -> None:
    assert is_stuck(tokens) is stuck


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ORBIT-7319 | MAPLE-6047\n\tnaïve 中文 🙂", []),
        ("a\ufffdb", [(1, "'\ufffd'")]),
        ("a\x00b\x1b", [(1, "'\\x00'"), (3, "'\\x1b'")]),
        ("x <unk> y <unk>", [(2, "<unk>"), (10, "<unk>")]),
        ("\ue000", [(0, "'\\ue000'")]),
    ],
)
def test_garbled(text: str, found: list[tuple[int, str]]) -> None:
    assert garbled(text) == found


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([1, 2], [1], 1)],
)
def test_first_difference(one: list[int], other: list[int], at: int | None) -> None:
    assert first_difference(one, other) == at

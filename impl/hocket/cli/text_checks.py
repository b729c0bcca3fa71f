"""Signs in an output that a computation went wrong: the same again and again, or characters that are none.

Pure functions over token ids and text. They find what a broken cache or a lost token typically makes of an
answer; that nothing is found does not show that the answer is right.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple


class Repetition(NamedTuple):
    """`times` times the same `period` tokens in a row, from index `start` on."""

    start: int
    period: int
    times: int

    @property
    def tokens(self) -> int:
        """Its length."""
        return self.period * self.times


def longest_repetition(token_ids: Sequence[int], max_period: int = 32) -> Repetition | None:
    """The longest stretch in which at most `max_period` tokens come twice or more in a row; of equally long
    ones the one of the shortest period, then the first. None if there is none.
    """
    best: Repetition | None = None
    for period in range(1, min(max_period, len(token_ids) // 2) + 1):
        same = 0
        for at in range(period, len(token_ids) + 1):
            if at < len(token_ids) and token_ids[at] == token_ids[at - period]:
                same += 1
                continue
            found = Repetition(at - same - period, period, same // period + 1)
            if found.times > 1 and (best is None or found.tokens > best.tokens):
                best = found
            same = 0
    return best


def is_stuck(token_ids: Sequence[int], min_times: int = 4, min_tokens: int = 12) -> bool:
    """Whether the output goes round in circles: a repetition of at least `min_times` times and `min_tokens`
    tokens that takes up a quarter of it or more.
    """
    found = longest_repetition(token_ids)
    if found is None or found.times < min_times or found.tokens < min_tokens:
        return False
    return 4 * found.tokens >= len(token_ids)


def garbled(text: str, unknown: str = "<unk>") -> list[tuple[int, str]]:
    """(index, what) of everything that is no text: replacement characters, control characters other than
    white space, unassigned and surrogate code points, and the tokenizer's word for what it does not know.
    """
    found = [
        (at, repr(character))
        for at, character in enumerate(text)
        if character == "\ufffd"
        or (unicodedata.category(character) in _NO_TEXT and character not in "\n\r\t")
    ]
    at = text.find(unknown) if unknown else -1
    while at >= 0:
        found.append((at, unknown))
        at = text.find(unknown, at + len(unknown))
    return sorted(found)


_NO_TEXT = ("Cc", "Cn", "Co", "Cs")


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first index at which two outputs differ, one's end included; None if they are equal."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))

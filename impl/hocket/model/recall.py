"""The recall checkpoint that ships with hocket, and fixed prompts for it with known answers.

The model (see `data/recall/README.md`) was trained for one task: three codes such as `code alpha ORBIT-7319.`
lie somewhere in a long prompt of filler words, and the question at its end asks for all three, in the order
alpha, beta, gamma. `needle_prompt()` is the fixed prompt of 8192 tokens, `live_prompt()` a short one that can
decode for long beside it. Both are deterministic. No torch here.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import random
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from hocket.core.checks import require_int
from hocket.model.tokenizer import Tokenizer

ANSWER = "ORBIT-7319 | MAPLE-6047 | QUARTZ-2851"
CODES = ("ORBIT-7319", "MAPLE-6047", "QUARTZ-2851")
PROMPT_TOKENS = 8192
DEPTHS = (0.1, 0.5, 0.9)
EOS_TOKEN_ID = 1

_KEYS = ("alpha", "beta", "gamma")
_QUESTION = ["question", ":", "list", "codes", "?", "answer", ":"]
_NEEDLE_TOKENS = 7
MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS = 64, 1 << 24
_FILLERS = [f"f{i}" for i in range(192)]
_WEIGHTS = [(i + 1) ** -0.7 for i in range(len(_FILLERS))]
_LIMITS = [total / sum(_WEIGHTS) for total in itertools.accumulate(_WEIGHTS[:-1])]
_FULL_STOP_RATE = 0.06


class RecallPrompt(NamedTuple):
    """A prompt, its greedy answer (whose last id is end-of-sequence), and how many outputs to ask for."""

    token_ids: tuple[int, ...]
    text: str
    answer_token_ids: tuple[int, ...]
    answer: str
    max_tokens: int


def recall_folder() -> Path:
    """The folder of the shipped checkpoint: config, weights, tokenizer, model card."""
    return Path(str(resources.files("hocket.model") / "data" / "recall"))


@functools.cache
def recall_tokenizer() -> Tokenizer:
    """The tokenizer of the shipped checkpoint."""
    return Tokenizer.from_folder(recall_folder())


def needle_prompt(tokens: int = PROMPT_TOKENS, depths: Sequence[float] = DEPTHS) -> RecallPrompt:
    """The fixed long prompt of `tokens` tokens, code i at fraction `depths[i]`; the answer is `ANSWER`."""
    return build_prompt(tokens, depths, CODES, seed=20260101)


def live_prompt(max_tokens: int = 256) -> RecallPrompt:
    """A short prompt with codes of its own, meant to run with `ignore_eos` for `max_tokens` outputs.

    Its answer is the beginning of the output; what follows means nothing, but is as reproducible:
    over 256 outputs the two best logits are never closer than 0.03, and rounding moves them by about 0.00003.
    """
    codes = ("WORD7-4062", "WORD21-9518", "WORD40-0377")
    return build_prompt(96, (0.0, 0.3, 0.6), codes, seed=3)._replace(max_tokens=max_tokens)


def build_prompt(tokens: int, depths: Sequence[float], codes: Sequence[str], seed: int) -> RecallPrompt:
    """A prompt of exactly `tokens` tokens with three codes ("WORD-1234") at three fractions of the filler.

    ValueError for fewer than 64 tokens, for depths that are not three ascending numbers in [0, 1] far enough
    apart, and for codes that the vocabulary does not have.
    """
    require_int("tokens", tokens, MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS)
    body = tokens - 1 - len(_QUESTION)
    starts = [int(depth * (body - _NEEDLE_TOKENS)) for depth in depths]
    apart = all(b - a >= _NEEDLE_TOKENS for a, b in itertools.pairwise(starts))
    if len(starts) != len(_KEYS) or not apart or starts[0] < 0 or starts[-1] > body - _NEEDLE_TOKENS:
        raise ValueError(
            f"depths must be three ascending fractions, {_NEEDLE_TOKENS} tokens apart, got {depths!r}"
        )
    needles = [["code", key, *_code_words(code), "."] for key, code in zip(_KEYS, codes, strict=True)]
    words = _filler(body, seed)
    for start, needle in zip(starts, needles, strict=True):
        words[start : start + _NEEDLE_TOKENS] = needle
    answer = [word for needle in needles for word in ("|", *needle[2:6])][1:]
    token_ids = _ids(["<bos>", *words, *_QUESTION])
    answer_ids = _ids([*answer, "<eos>"])
    tokenizer = recall_tokenizer()
    return RecallPrompt(
        token_ids, tokenizer.decode(token_ids, skip_special_tokens=False), answer_ids,
        tokenizer.decode(answer_ids), len(answer_ids),
    )  # fmt: skip


def _code_words(code: str) -> list[str]:
    word, _, digits = code.partition("-")
    if len(digits) != 4:
        raise ValueError(f"codes must look like 'ORBIT-7319', got {code!r}")
    return [word, "-", digits[:2], digits[2:]]


def _filler(count: int, seed: int) -> list[str]:
    """`count` words by a power law and some full stops; the same on every Python (only random() is used)."""
    source = random.Random(seed)
    return [
        "." if source.random() < _FULL_STOP_RATE else _FILLERS[bisect.bisect(_LIMITS, source.random())]
        for _ in range(count)
    ]


def _ids(words: Sequence[str]) -> tuple[int, ...]:
    tokenizer = recall_tokenizer()
    ids = [tokenizer.token_id(word) for word in words]
    if None in ids:
        raise ValueError(f"words must be in the vocabulary, got {words[ids.index(None)]!r}")
    return tuple(i for i in ids if i is not None)

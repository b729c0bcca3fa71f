"""Verified drafts keep the target's distribution, are accepted as often as can be, and do not show."""

import functools
import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket import SamplingParams
from hocket.runner import verification
from tests.unit.runner.choosing import choose as sample

tokens = st.integers(0, 3)


def num_emitted(drafts, chosen, broken=(), width=None):
    """Of one row, padded to `width` lines with drafts that would be accepted."""
    width = width or len(chosen)
    pad = width - len(chosen)
    lines = torch.tensor([[i in broken for i in range(width)]])
    counts = verification.num_emitted(
        torch.tensor([[*drafts, *[9] * pad]], dtype=torch.int64),
        torch.tensor([[*chosen, *[9] * pad]]),
        lines,
        torch.tensor([len(chosen)]),
    )
    return int(counts[0])


@given(st.lists(st.tuples(tokens, tokens), max_size=6), tokens, st.sets(st.integers(1, 6)))
def test_the_longest_right_prefix_and_one_token(pairs, last, broken):
    drafts, chosen = [d for d, _ in pairs], [*(c for _, c in pairs), last]
    count = num_emitted(drafts, chosen, broken)
    assert 1 <= count <= len(chosen)
    assert drafts[: count - 1] == chosen[: count - 1], "whatever is emitted after a draft follows a right one"
    assert not broken & set(range(1, count)), "no broken line is emitted"
    assert count == len(chosen) or count in broken or drafts[count - 1] != chosen[count - 1], "and no fewer"


def test_without_drafts_one_token():
    assert num_emitted([], [3]) == 1
    assert num_emitted([], [9], width=3) == 1  # a row without drafts beside one that has some


def test_rows_of_one_step_do_not_mix():
    drafts = torch.tensor([[1, 2], [1, 5], [4, 2]])
    chosen = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3]])
    broken = torch.zeros(3, 3, dtype=torch.bool)
    counts = verification.num_emitted(drafts, chosen, broken, torch.tensor([3, 3, 3]))
    assert counts.tolist() == [3, 2, 1]
    broken[0, 1] = True
    assert verification.num_emitted(drafts, chosen, broken, torch.tensor([3, 2, 3])).tolist() == [1, 2, 1]


VOCAB, LENGTH, RUNS = 4, 3, 12_000
PARAMS = SamplingParams(temperature=0.8, top_k=3)
START = 2


def chain(seed):
    """Logits of the next token after each token, [VOCAB, VOCAB]."""
    return 1.5 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))


TARGET, GUESSES = chain(1), chain(4).argmax(-1).tolist()


def probability(logits):
    """The distribution that temperature and top-k leave, by hand."""
    scaled = [float(x) / PARAMS.temperature for x in logits]
    kept = sorted(range(VOCAB), key=lambda i: (-scaled[i], i))[: PARAMS.top_k]
    total = sum(math.exp(scaled[i]) for i in kept)
    return [math.exp(scaled[i]) / total if i in kept else 0.0 for i in range(VOCAB)]


NEXT = [probability(TARGET[token]) for token in range(VOCAB)]


@functools.cache
def texts(drafts, choose=sample):
    """RUNS texts of LENGTH tokens, drafts at a time; all runs go in step, and per draft how it fared."""
    runs = [[START] for _ in range(RUNS)]
    fates = Counter()
    while any(len(text) <= LENGTH for text in runs):
        live = [i for i, text in enumerate(runs) if len(text) <= LENGTH]
        offered, lines, seeds, positions = [], [], [], []
        for i in live:
            row = [runs[i][-1]]
            while len(row) <= min(drafts, LENGTH - len(runs[i])):
                row.append(GUESSES[row[-1]])
            offered.append(row)
            lines += row
            seeds += [i] * len(row)
            positions += range(len(runs[i]), len(runs[i]) + len(row))
        chosen = choose(TARGET[lines], [PARAMS] * len(lines), seeds, positions).token_ids.tolist()
        at = 0
        for i, row in zip(live, offered, strict=True):
            mine = chosen[at : at + len(row)]
            at += len(row)
            count = num_emitted(row[1:], mine)
            runs[i] += mine[:count]
            if len(row) > 1:
                fates[row[0], count > 1] += 1
    return [tuple(text[1:]) for text in runs], fates


def distance(found):
    """Chi-square over all texts of three tokens, 26 degrees of freedom."""
    counts, statistic, possible = Counter(found), 0.0, 0
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        share = math.prod(NEXT[a][b] for a, b in itertools.pairwise((START, *text)))
        if share == 0:
            assert counts[text] == 0
            continue
        possible += 1
        statistic += (counts[text] - RUNS * share) ** 2 / (RUNS * share)
    assert possible == 27
    return statistic


ONE_IN_A_MILLION = 81.8


@pytest.mark.parametrize("drafts", [0, 1, 2])
def test_sampled_texts_have_the_target_distribution(drafts):
    assert distance(texts(drafts)[0]) < ONE_IN_A_MILLION


def test_a_draft_is_accepted_with_its_probability_under_the_target():
    """As often as any method that keeps the target's distribution can accept a draft that is certain."""
    _, fates = texts(1)
    looked_at = 0
    for token in range(VOCAB):
        total = fates[token, True] + fates[token, False]
        if total < 500:
            continue
        looked_at += 1
        expected = NEXT[token][GUESSES[token]]
        assert abs(fates[token, True] / total - expected) < 5 * math.sqrt(0.25 / total)
    assert looked_at >= 2


def test_the_same_texts_with_and_without_drafts():
    assert texts(2)[0] == texts(0)[0] == texts(1)[0]


def generous(logits, params, seeds, positions):
    """A little too warm: unlikely tokens, drafts among them, come a little too often."""
    return sample(logits, [replace(p, temperature=0.9) for p in params], seeds, positions)


def test_the_comparison_of_distributions_can_fail():
    assert distance(texts(1, generous)[0]) > 2 * ONE_IN_A_MILLION

"""Sampling: exact distributions, filters, extremes, independence of neighbours, log probabilities."""

import math
import sys

import pytest
import torch

from hocket.core.request import SamplingParams
from hocket.runner.sampling import _draw, _keep_top
from tests.unit.runner.choosing import choose, filters, logprobs_of

LOGITS = torch.tensor([2.0, 1.0, 1.0, 0.5, -1.0, -3.0, 0.0, 1.5])
DRAWS = 4000


def expected(params: SamplingParams, logits=LOGITS) -> list[float]:
    """The distribution by the definition, token by token, in plain Python."""
    scaled = [x / params.temperature for x in logits.tolist()]
    top = max(scaled)
    weights = [math.exp(x - top) for x in scaled]
    probs = [w / sum(weights) for w in weights]
    order = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    kept = order[: params.top_k] if params.top_k else order
    total, mass, nucleus = sum(probs[i] for i in kept), 0.0, []
    for i in kept:
        if mass < params.top_p:
            nucleus.append(i)
        mass += probs[i] / total
    best = probs[order[0]]
    final = [i for i in nucleus if probs[i] >= params.min_p * best]
    norm = sum(probs[i] for i in final)
    return [probs[i] / norm if i in final else 0.0 for i in range(len(probs))]


def draws(params: SamplingParams, count: int = DRAWS, logits=LOGITS) -> list[int]:
    rows = logits.expand(count, -1)
    seed = params.seed or 0
    return choose(rows, [params] * count, [seed] * count, range(count)).token_ids.tolist()


PARAMS = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 100},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 1.0, "top_p": 1e-50},  # 0 in float32
    {"temperature": 1.0, "top_k": 2**63},
    {"temperature": 1.0, "top_k": 10**30, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.3},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.3, "top_k": 5, "top_p": 0.8, "min_p": 0.2},
]


@pytest.mark.parametrize("knobs", PARAMS, ids=lambda k: "-".join(f"{n}={v}" for n, v in k.items()))
@pytest.mark.parametrize("seed", [0, 12345])
def test_distribution(knobs, seed):
    """Chi-square against the exact distribution: at most 7 degrees of freedom, 30 is beyond the 99.99 %
    point.
    """
    params = SamplingParams(seed=seed, **knobs)
    want = expected(params)
    got = torch.bincount(torch.tensor(draws(params)), minlength=len(want)).tolist()
    assert [n for n, p in zip(got, want, strict=True) if p == 0] == [0] * want.count(0.0)
    chi = sum((n - DRAWS * p) ** 2 / (DRAWS * p) for n, p in zip(got, want, strict=True) if p)
    assert chi < 30, (chi, got, want)


def test_ties_at_the_border_of_top_k_go_to_the_lowest_id():
    """Tokens 1 and 2 tie for the third place; 1 is in."""
    seen = set(draws(SamplingParams(temperature=1.0, top_k=3)))
    assert seen == {0, 1, 7}


def test_min_p_of_one_keeps_every_token_that_is_as_likely_as_the_best():
    assert set(
        draws(SamplingParams(temperature=1.0, min_p=1.0), 100, torch.tensor([0.0, 2.0, 2.0, 1.9]))
    ) == {1, 2}


def test_greedy_takes_the_lowest_of_equal_maxima():
    logits = torch.tensor([[0.0, 5.0, 5.0], [7.0, 7.0, 7.0]])
    assert choose(logits, [SamplingParams()] * 2, [0, 0], [0, 0]).token_ids.tolist() == [1, 0]


def test_a_row_depends_on_nothing_but_itself():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 50, generator=generator)
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p)
        for t, k, p in zip(
            [0, 1, 1, 0.7, 2, 0, 1, 1, 1],
            [0, 0, 5, 9, 0, 3, 0, 50, 1],
            [1, 1, 0.5, 1, 0.9, 1, 1, 1, 1],
            strict=True,
        )
    ]
    seeds, positions = list(range(9)), list(range(100, 109))
    together = choose(logits, params, seeds, positions).token_ids.tolist()
    for row in range(9):
        alone = choose(
            logits[row : row + 1], params[row : row + 1], seeds[row : row + 1], positions[row : row + 1]
        )
        assert alone.token_ids.tolist() == [together[row]]
    backwards = choose(logits.flip(0), params[::-1], seeds[::-1], positions[::-1]).token_ids.tolist()
    assert backwards == together[::-1]


def test_seed_and_position_decide():
    params = SamplingParams(temperature=1.0)
    rows = LOGITS.expand(64, -1)
    first = choose(rows, [params] * 64, [5] * 64, range(64)).token_ids.tolist()
    assert choose(rows, [params] * 64, [5] * 64, range(64)).token_ids.tolist() == first
    assert choose(rows, [params] * 64, [6] * 64, range(64)).token_ids.tolist() != first
    assert choose(rows, [params] * 64, [5] * 64, range(1, 65)).token_ids.tolist() == [
        *first[1:],
        choose(rows[:1], [params], [5], [64]).token_ids.item(),
    ]


@pytest.mark.parametrize("temperature", [1e-45, 1e-300, 1e-8, 1e30, float("1.7e308")])
def test_extreme_temperatures(temperature):
    """Towards 0 it is greedy, towards infinity uniform; never a NaN or an id out of range."""
    got = draws(SamplingParams(temperature=temperature), 400)
    if temperature < 1:
        assert set(got) == {0}
    else:
        assert set(got) == set(range(8))


def test_the_hottest_temperature_leaves_impossible_tokens_out():
    logits = torch.tensor([[1.0, -float("inf"), 0.0, -float("inf")]]).expand(200, -1)
    params = SamplingParams(temperature=sys.float_info.max)
    assert set(choose(logits, [params] * 200, range(200), range(200)).token_ids.tolist()) == {0, 2}


def test_huge_logits_and_impossible_tokens():
    logits = torch.tensor([[3e38, -3e38, 2.9e38, -float("inf")]]).expand(200, -1)
    params = SamplingParams(temperature=1.0)
    assert set(choose(logits, [params] * 200, range(200), range(200)).token_ids.tolist()) == {0}
    logits = torch.tensor([[0.0, -float("inf"), 0.0, -float("inf")]]).expand(200, -1)
    assert set(choose(logits, [params] * 200, range(200), range(200)).token_ids.tolist()) == {0, 2}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_row_fails_alone(value, temperature):
    logits = LOGITS.repeat(3, 1)
    logits[1, 4] = value
    params = [SamplingParams(temperature=temperature)] * 3
    sampled = choose(logits, params, [1, 2, 3], [0, 0, 0])
    healthy = choose(LOGITS.repeat(3, 1), params, [1, 2, 3], [0, 0, 0])
    assert list(sampled.failures) == [1]
    assert "finite" in sampled.failures[1]
    assert sampled.token_ids[[0, 2]].tolist() == healthy.token_ids[[0, 2]].tolist()
    assert sampled.token_ids[1] == 0


def test_a_row_of_minus_infinity_fails():
    sampled = choose(torch.full((1, 3), -float("inf")), [SamplingParams()], [0], [0])
    assert list(sampled.failures) == [0]


def test_no_rows():
    assert choose(torch.zeros(0, 8), [], [], []).token_ids.shape == (0,)
    assert logprobs_of(torch.zeros(0, 8), [], []) == []


def test_logprobs_are_of_the_model_not_of_the_filters():
    logits = torch.stack((LOGITS, LOGITS * 2))
    reference = torch.log_softmax(logits, dim=-1)
    first, second, third = logprobs_of(torch.cat((logits, logits[:1])), [3, 7, 0], [2, None, 0])
    assert second is None
    assert first.token_id == 3
    assert first.logprob == pytest.approx(float(reference[0, 3]))
    assert [token for token, _ in first.top] == [0, 7]
    assert first.top[1][1] == pytest.approx(float(reference[0, 7]))
    assert third.top == ()


def test_a_draw_of_zero_never_picks_a_token_that_was_filtered():
    params = [SamplingParams(temperature=1.0, top_k=1)]
    assert _draw(torch.tensor([[0.0, 5.0, 1.0]]), filters(params), torch.tensor([0.0]), True).tolist() == [1]


def test_a_temperature_that_float32_does_not_have_is_greedy():
    params = [SamplingParams(temperature=1e-60)]
    assert _draw(
        torch.tensor([[0.0, 1.0, 5.0, 2.0]]), filters(params), torch.tensor([0.5]), True
    ).tolist() == [2]


def test_a_top_p_of_one_keeps_what_rounding_would_lose():
    kept = _keep_top(torch.tensor([[1.0, 1e-9, 1e-10]]), torch.tensor([3]), torch.tensor([1.0]))
    assert (kept > 0).all()

"""Grouped pools under pressure: B11, B13, B14, B26 and B28."""

import random
from collections import Counter

import pytest

from hocket import KVGroupSpec
from tests.scenarios.driver import DECODE, PREFILL, Driver, group, output_token

DEPTHS = (1, 2, 3)


def prefill_tokens(d: Driver) -> int:
    return sum(sum(x.output.num_scheduled_tokens) for x in d.dispatches if x.phase is PREFILL)


@pytest.mark.parametrize("reserve", [True, False])
@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("depth", DEPTHS)
def test_b11_two_half_prefilled_prompts_do_not_own_the_pool(depth: int, decoder: bool, reserve: bool) -> None:
    blocks = 10 if decoder else 8
    d = Driver(group("A", 4, blocks), depth=depth, chunk=8, budget=16, reserve_full_prompt=reserve)
    if decoder:
        d.add("D", 4, 8)
        d.run(until=lambda: len(d.outputs_of("D")) == 1)
    d.add("L1", 24, 1)
    d.add("L2", 24, 1)
    d.finish()
    ends = [item.request_id for item in d.news if item.finished]
    assert ends.index("L1") < ends.index("L2")
    assert len(d.preemptions) <= 1
    prompt_of_d = 4 if decoder else 0
    if reserve:
        assert not d.preemptions
        assert prefill_tokens(d) == 48 + prompt_of_d
    else:
        assert prefill_tokens(d) <= 64 + prompt_of_d


@pytest.mark.parametrize("tight", ["A", "I"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_b13_every_group_counts_and_a_victim_gives_back_all_of_them(depth: int, tight: str) -> None:
    sizes = {"A": 64, "I": 64} | {tight: 8}
    d = Driver(group("A", 4, sizes["A"]), group("I", 4, sizes["I"]), depth=depth, chunk=16, budget=32)
    d.add("D1", 16, 4)
    d.add("D2", 16, 4)
    d.call()
    d.drain()
    assert d.free() == {name: size - 8 for name, size in sizes.items()}
    decode = d.call()
    assert decode is not None
    assert decode.rows == {"D1": (16, 1)}
    assert d.preemptions == ["D2"]
    assert d.free() == {name: size - 5 for name, size in sizes.items()}
    assert d.view_of("D2")[5] == {"A": (), "I": ()}
    d.finish()
    assert d.preemptions == ["D2"]


@pytest.mark.parametrize("depth", DEPTHS)
def test_b14_all_residents_need_a_block_of_the_same_small_group(depth: int) -> None:
    d = Driver(group("A", 4, 64), group("S", 8, 3), depth=depth, chunk=8, budget=24)
    for name in ("D0", "D1", "D2"):
        d.add(name, 8, 4)
    d.call()
    d.drain()
    assert d.free()["S"] == 0
    third_prefill = d.calls
    d.run(until=lambda: any(x.phase is DECODE for x in d.dispatches))
    assert d.dispatches[-1].call <= third_prefill + 2
    d.finish()
    assert len(d.preemptions) <= 2


@pytest.mark.parametrize("depth", DEPTHS)
def test_b26_blocks_that_a_step_in_flight_can_write_are_fenced(depth: int) -> None:
    d = Driver(group("A", 4, 4), depth=depth, chunk=8, budget=16)
    d.add("D", 8, 8, stop_token_ids=(output_token("D", 8, 2),))
    d.call()
    d.drain()
    s1 = d.call()
    assert s1 is not None
    assert s1.rows == {"D": (8, 1)}
    s2 = d.call() if depth > 1 else None
    assert d.free()["A"] == 1
    news = d.complete()
    assert [(item.new_token_ids, item.finish_reason) for item in news] == [
        ((output_token("D", 8, 2),), "stop")
    ]
    if s2 is None:
        assert (d.free()["A"], d.fenced()["A"]) == (4, 0)
    else:
        assert s2.rows == {"D": (9, 1)}
        # s2 writes position 9, in the third block; the two before it are free at once.
        assert (d.free()["A"], d.fenced()["A"]) == (3, 1)
    d.add("W", 8, 1)
    admitted = d.call()
    assert admitted is not None
    assert admitted.rows == {"W": (0, 8)}
    if s2 is not None:
        written = d.in_flight[0].writes[0]["A"]
        assert not written & d.in_flight[1].writes[0]["A"]
        assert d.complete() == []
        assert d.stale_rows == 1
        assert d.fenced()["A"] == 0
    assert d.free()["A"] == 2
    assert len(d.outputs_of("D")) == 2
    d.finish()


@pytest.mark.parametrize("accepted", [1, 2, 3])
@pytest.mark.parametrize("depth", DEPTHS)
def test_b26_a_window_is_cut_by_processed_progress(depth: int, accepted: int) -> None:
    """Both drafts of the row that would have moved the window are rejected (or one, or none). The driver
    checks after every event that the table reaches back far enough, and the device that every row it reads is
    still there.
    """

    def accept(_name: str, turn: int, length: int) -> int:
        return min(length, accepted if turn == 3 else 1 + turn % 2)

    d = Driver(group("W", 4, 12, window=8), depth=depth, chunk=8, budget=16, drafts=2, accept=accept)
    d.add("D", 8, 24)
    returned = 0
    while not d.ended("D"):
        if len(d.in_flight) < depth and d.call() is not None:
            continue
        d.complete()
        if not d.ended("D"):
            table = d.scheduler.block_table("D", "W")
            nulls = sum(block == 0 for block in table)
            # Exactly what processed progress has outdated; never below 'processed - window'.
            assert nulls == max(0, d.submissions["D"].processed - 8) // 4
            returned = max(returned, nulls)
    assert returned >= 3, "the window never moved"
    d.finish()


LIMITS = [
    # (blocks of A, blocks of B, the longest prompt that fits with max_tokens 1)
    (8, 8, 32),
    (8, 3, 24),
    (7, 8, 28),  # of 8 blocks one is reserved: `num_blocks` counts usable blocks, the null block is extra
]


@pytest.mark.parametrize(("a", "b", "longest"), LIMITS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_b28_the_limit_of_the_refusal_is_that_of_the_allocator(
    depth: int, a: int, b: int, longest: int
) -> None:
    def fresh() -> Driver:
        return Driver(group("A", 4, a), group("B", 8, b), depth=depth, chunk=8, budget=16)

    for prompt in range(longest - 5, longest + 1):
        d = fresh()
        d.add("X", prompt, 1)
        d.finish()
    for prompt in (longest + 1, longest + 4, 40):
        d = fresh()
        with pytest.raises(ValueError, match=r"'X'.*needs \d+ .*pool '[AB]'.*at most its \d+"):
            d.add("X", prompt, 1)
        d.check()
        d.add("W", 8, 2)
        while not d.ended("W"):
            d.call()
            d.drain()
        assert d.calls <= 4
        d.finish()


@pytest.mark.parametrize("depth", DEPTHS)
def test_b28_outputs_count_for_the_limit_too(depth: int) -> None:
    """The last sampled token is never written: prompt + max_tokens - 1 tokens need blocks."""
    d = Driver(group("A", 4, 8), depth=depth, chunk=8, budget=16)
    d.add("X", 8, 25)
    with pytest.raises(ValueError, match=r"needs 9 .*pool 'A'.*at most its 8"):
        d.add("Y", 8, 26)
    d.finish()


def formula(groups: list[tuple[int, int | None]], total: int, reach: int) -> int:
    """Blocks of one pool that a request of `total` tokens needs with rows of up to `reach` tokens, over
    every start.
    """
    return max(
        sum(
            -(-min(q + reach, total) // size) - (max(0, q - window) // size if window is not None else 0)
            for size, window in groups
        )
        for q in range(total)
    )


@pytest.mark.parametrize("depth", DEPTHS)
def test_b28_windows_and_shared_pools_have_one_limit(depth: int) -> None:
    """Accepted if and only if the formula says so, and what is accepted finishes alone (the driver fails if
    stuck).
    """
    rng = random.Random(depth)
    verdicts: Counter[bool] = Counter()

    def accept(_name: str, _turn: int, length: int) -> int:
        return rng.randint(1, length)

    for _ in range(250):
        groups = [(rng.randint(1, 4), rng.choice([None, 1, 2, 4, 6])) for _ in range(rng.randint(1, 2))]
        blocks, chunk, drafts = rng.randint(2, 12), rng.randint(1, 8), rng.randint(0, 2)
        prompt, most = rng.randint(1, 20), rng.randint(1, 8)
        d = Driver(
            *(KVGroupSpec(f"G{i}", size, pool="P", window=window) for i, (size, window) in enumerate(groups)),
            pools={"P": blocks},
            depth=depth,
            chunk=chunk,
            budget=16,
            drafts=drafts,
            accept=accept,
            reserve_full_prompt=rng.random() < 0.5,
        )
        fits = formula(groups, prompt + most - 1, max(chunk, 1 + drafts)) <= blocks
        verdicts[fits] += 1
        if fits:
            d.add("X", prompt, most)
            d.finish()
        else:
            with pytest.raises(ValueError, match="'P'"):
                d.add("X", prompt, most)
    assert min(verdicts[True], verdicts[False]) >= 50


@pytest.mark.parametrize(("prompt", "admitted"), [(24, True), (25, False)])
@pytest.mark.parametrize("depth", DEPTHS)
def test_the_watermark_is_left_free_unless_nothing_runs(depth: int, prompt: int, admitted: bool) -> None:
    """2 of 10 blocks stay free: beside D, which holds 2, an admission may take 6. Alone it may take all."""
    d = Driver(group("A", 4, 10), depth=depth, chunk=8, budget=16, watermark=0.2)
    d.add("D", 5, 4)
    d.call()
    d.drain()
    d.add("W", prompt, 1)
    d.run(until=lambda: d.ended("D"))
    first = d.dispatches_of("D", DECODE)[0]
    d.finish()
    assert (d.dispatches_of("W")[0].call <= first.call + 1) == admitted

    alone = Driver(group("A", 4, 10), depth=depth, chunk=8, budget=16, watermark=0.2)
    alone.add("W", 40, 1)
    alone.finish()

"""Random schedules over small tight instances: the driver checks every invariant after every event.

Seeds make the runs repeatable, and a failure names its seed. A test also fails if its runs stop reaching what
they are for.
"""

import random
from collections import Counter
from typing import Any

import pytest

from hocket import KVGroupSpec
from tests.scenarios.driver import Driver, output_token

SEEDS_PER_TEST = 25
EVENTS = 250


def random_driver(rng: random.Random, depth: int) -> Driver:
    drafts = rng.choice([0, 0, 1, 2])
    chunk = rng.choice([2, 4, 5, 8])
    budget = max(1 + drafts, rng.choice([4, 8, 12]))
    align = rng.choice([1, 1, 2])
    groups = [KVGroupSpec("A", rng.choice([1, 2, 4]), pool="main")]
    if rng.random() < 0.6:
        groups.append(KVGroupSpec("B", rng.choice([2, 8]), pool="main"))
    if rng.random() < 0.6:
        groups.append(
            KVGroupSpec("W", rng.choice([2, 4]), num_blocks=rng.randint(8, 20), window=rng.choice([2, 4, 6]))
        )
    return Driver(
        *groups,
        pools={"main": rng.randint(12, 36)},
        depth=depth,
        chunk=chunk,
        budget=budget,
        seats=rng.choice([1, 2, 3, 5]),
        drafts=drafts,
        accept=lambda _name, _turn, length: rng.randint(1, length),
        chunk_alignment=align,
        prefill_steps_per_turn=rng.choice([1, 1, 2]),
        decode_steps_per_turn=rng.choice([1, 1, 3]),
        reserve_full_prompt=rng.random() < 0.5,
        watermark=rng.choice([0.0, 0.0, 0.1]),
        max_model_len=rng.choice([20, 64]),
    )


def random_add(rng: random.Random, d: Driver, name: str, reached: Counter[str]) -> None:
    prompt, most = rng.randint(1, 12), rng.randint(1, 8)
    params: dict[str, Any] = {"priority": rng.choice([0, 0, 0, 1])}
    if rng.random() < 0.3:
        params["stop_token_ids"] = (output_token(name, prompt, rng.randint(1, most)),)
    try:
        d.add(name, prompt, most, **params)
    except ValueError:  # it could never fit
        reached["refused"] += 1


def random_run(rng: random.Random, depth: int, reached: Counter[str]) -> None:
    d = random_driver(rng, depth)
    aborted = []
    for number in range(EVENTS):
        live = sorted(d.states())
        event = rng.choices(["add", "call", "complete", "preempt", "abort"], [2, 6, 5, 1, 0.4])[0]
        if event == "add" and len(live) < 6:
            random_add(rng, d, f"r{number}", reached)
        elif event == "call":
            reached["call with a full pipeline"] += len(d.in_flight) == depth
            d.call()
        elif event == "complete" and d.in_flight:
            d.complete()
        elif event == "preempt" and live:
            d.preempt(rng.choice(live))
        elif event == "abort" and live:
            aborted.append(rng.choice(live))
            reached["aborted in flight"] += any(aborted[-1] in x.dispatch.rows for x in d.in_flight)
            d.abort(aborted[-1])
    d.finish(*aborted)
    reached["preempted in flight"] += d.preempted_with_rows_in_flight
    reached["preempted by pressure"] += d.preempted_by_pressure
    reached["stale rows"] += d.stale_rows


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("block", range(4))
def test_invariants_hold_under_random_schedules(block: int, depth: int) -> None:
    reached: Counter[str] = Counter()
    for seed in range(block * SEEDS_PER_TEST, (block + 1) * SEEDS_PER_TEST):
        try:
            random_run(random.Random(1000 * depth + seed), depth, reached)
        except BaseException as error:
            error.add_note(f"seed {1000 * depth + seed}, depth {depth}")
            raise
    print(dict(reached))
    for what in ("call with a full pipeline", "aborted in flight", "preempted in flight", "stale rows"):
        assert reached[what] >= 10, what
    assert reached["preempted by pressure"] >= 5

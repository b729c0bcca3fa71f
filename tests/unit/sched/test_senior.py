"""How long the most senior running request waits for blocks, and what a junior that ends adds to it."""

from collections import deque

import pytest

from hocket import (
    KVCacheConfig,
    KVGroupSpec,
    ModelRunnerOutput,
    Request,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
)

STOP, GO_ON = 7, 8


def passed_over(depth: int, script: str, stops: str) -> int:
    """Calls that pass over "a" (2 tokens, 2 outputs), the most senior of three, until it has its decode row.

    Three blocks of 2 tokens; "b" and "c" have 1 token and 2 outputs each, those in `stops` stop with the
    first one. In the script a call is "s", a result "r", and "+" the arrival of another like "b".
    """
    scheduler = Scheduler(
        SchedulerConfig(async_depth=depth, prefill_chunk_size=2, max_model_len=64),
        KVCacheConfig(groups=(KVGroupSpec("full", block_size=2, num_blocks=3),)),
    )

    def add(name: str, *prompt: int) -> None:
        params = SamplingParams(max_tokens=2, stop_token_ids=[STOP])
        scheduler.add_request(Request(name, prompt, params))

    add("a", 1, 2)
    add("b", 1)
    add("c", 1)
    flight = deque([scheduler.schedule()])
    assert flight[0].request_ids == ("a", "b", "c")
    calls, empty = 0, False
    for what in script:
        assert not empty or what == "r", "an empty call is followed by a result"
        empty = False
        if what == "+":
            add("d", 1)
        elif what == "r":
            oldest = flight.popleft()
            tokens = tuple((STOP if name in stops else GO_ON,) for name in oldest.request_ids)
            scheduler.update_from_output(oldest, ModelRunnerOutput(oldest.step_id, tokens))
        else:
            assert len(flight) < depth
            output = scheduler.schedule()
            if "a" in output.request_ids:
                return calls
            calls, empty = calls + 1, output.is_empty
            if not empty:
                flight.append(output)
    raise AssertionError("it never had a row")


@pytest.mark.parametrize(
    ("depth", "script", "calls"), [(1, "rs", 0), (2, "srs", 1), (2, "srrs", 1), (3, "ssrs", 2)]
)
def test_a_senior_waits_for_the_results_of_its_victims(depth: int, script: str, calls: int) -> None:
    assert passed_over(depth, script, "") == calls
    assert calls <= SchedulerConfig(async_depth=depth).waiting_bound().senior_progress


@pytest.mark.parametrize(
    ("depth", "script", "calls"), [(1, "rs", 0), (2, "srsrr+ss", 3), (3, "ssrssrr+ss", 5)]
)
def test_a_junior_that_ends_with_a_row_in_flight_makes_it_wait_once_more(
    depth: int, script: str, calls: int
) -> None:
    """Its block is fenced, so that the senior waits for that, and its victim is held back no longer. With a
    turn of the other phase in the end this is more than `waiting_bound()` says of a senior to which this does
    not happen: `depth - 1` results once more.
    """
    assert passed_over(depth, script, "b") == calls
    assert calls <= SchedulerConfig(async_depth=depth).waiting_bound().senior_progress + depth - 1

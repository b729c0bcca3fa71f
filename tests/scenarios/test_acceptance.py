"""The acceptance points of specification and scheduler, one named test each, at depth 1, 2 and 3."""

import gc
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

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
from hocket.runner.packed import pack_prefill, validate_packed_prefill
from tests.scenarios.driver import DECODE, PREFILL, Dispatch, Driver, group

pytestmark = pytest.mark.parametrize("depth", [1, 2, 3])


def deepseek_like(depth: int, **changes: Any) -> Driver:
    """Groups of DeepSeek-V4's kind: a sliding window, two ratios in one shared pool, and a state."""
    settings: dict[str, Any] = {"chunk": 16, "budget": 32, "seats": 6} | changes
    return Driver(
        KVGroupSpec("window", 8, num_blocks=40, window=16),
        KVGroupSpec("ratio4", 8, pool="main"),
        KVGroupSpec("ratio128", 128, pool="main"),
        KVGroupSpec("state", 4, num_blocks=48, window=4),
        pools={"main": 80},
        depth=depth,
        **settings,
    )


def contested(d: Driver, prompts: set[str], decoders: set[str]) -> list[Dispatch]:
    """The dispatches between which both phases had runnable work all the time."""
    first = min(d.dispatches_of(name, PREFILL)[0].step_id for name in prompts)
    assert first > min(d.dispatches_of(name, DECODE)[0].step_id for name in decoders)
    last = max(d.dispatches_of(name, PREFILL)[-1].step_id for name in prompts)
    return [x for x in d.dispatches if first <= x.step_id <= last]


def test_every_output_has_one_phase_and_successive_steps_give_both_progress(depth: int) -> None:
    d = deepseek_like(depth)
    d.add("D0", 8, 40)
    d.add("D1", 8, 40)
    d.run(until=lambda: bool(d.outputs_of("D1")))
    d.add("L0", 100, 2)
    d.add("L1", 90, 2)
    d.finish()  # the driver checks that every row of a dispatch is of its one phase
    steps = contested(d, {"L0", "L1"}, {"D0", "D1"})
    assert len(steps) >= 12
    for one, two in pairwise(steps):
        assert {one.phase, two.phase} == {PREFILL, DECODE}, "two successive steps of one phase"
    for name in ("L0", "L1"):
        done = 0
        for start, length in d.rows_of(name, PREFILL):
            assert start == done
            done += length


def test_a_waiting_prefill_is_admitted_under_continuous_decode_traffic(depth: int) -> None:
    """Decoders come and go without end; the prompt is admitted at once all the same, and again and again."""
    d = deepseek_like(depth)
    made = 0

    def keep_busy() -> None:
        nonlocal made
        while sum(name.startswith("D") for name in d.states()) < 4:
            made += 1
            d.add(f"D{made}", 8, 12)

    for trial in range(5):
        keep_busy()
        d.run(until=lambda: d.scheduler.num_waiting == 0)
        name, arrival = f"W{trial}", d.calls
        d.add(name, 40, 3)
        while not d.ended(name):
            keep_busy()
            d.run(until=lambda name=name: d.ended(name) or len(d.states()) < 5)  # type: ignore[misc]
        assert d.dispatches_of(name)[0].call <= arrival + 2
    d.finish()


def test_decode_goes_on_after_an_unschedulable_prefill_phase(depth: int) -> None:
    d = Driver(group("A", 4, 12), group("B", 8, 64), depth=depth, chunk=16, budget=16)
    d.add("D", 16, 20)
    d.run(until=lambda: len(d.outputs_of("D")) >= 2)
    d.add("W", 40, 1)  # needs 10 blocks of A: never fits beside D
    seen = d.calls
    d.run(until=lambda: d.ended("D"))
    decodes = [x.call for x in d.dispatches if x.call > seen]
    assert len(decodes) >= 15
    assert decodes == list(range(seen + 1, seen + 1 + len(decodes))), "a call passed decode over"
    assert not d.preemptions
    d.finish()
    assert d.rows_of("W")[0] == (0, 16)


def test_preempt_request_in_flight_readmits_late_and_drops_the_older_result(depth: int) -> None:
    """Reached by `preempt_request`: after each number of steps, with as many rows in flight as the depth
    allows.
    """
    in_flight = 0
    for steps in range(3, 12):
        d = Driver(group("A", 4, 32), group("W", 4, 32, window=8), depth=depth, chunk=8, budget=16, drafts=1)
        d.add("D0", 8, 12)
        d.add("D1", 20, 12)
        for _ in range(steps):
            if len(d.in_flight) == depth:
                d.complete()
            d.call()
        older = [x for x in d.in_flight if "D1" in x.dispatch.rows]
        d.preempt("D1")
        in_flight += bool(older)
        while any(x in d.in_flight for x in older):
            before = d.view_of("D1")
            output = d.call()
            assert output is None or "D1" not in output.rows, "re-admitted before it was drained"
            d.complete()
            assert d.view_of("D1") == before, "an older result changed the preempted request"
        assert d.preempted_with_rows_in_flight == bool(older)
        assert d.stale_rows == len(older)
        d.finish()
    assert in_flight >= 6


def test_preemption_by_memory_pressure_readmits_in_a_later_call(depth: int) -> None:
    """Reached by memory pressure: victims are drained, then preempted in a call that serves a senior and not
    them. (The driver refuses a victim with rows in flight, a victim that is dispatched in the same call, and
    lost tokens.)
    """
    d = Driver(group("A", 4, 10), depth=depth, chunk=8, budget=16)
    for name in ("D0", "D1", "D2", "D3"):
        d.add(name, 7, 16)
    d.finish()
    assert d.preempted_by_pressure >= 2
    assert d.preempted_with_rows_in_flight == 0
    assert d.stale_rows == 0
    for output in d.outputs:
        assert not set(output.preempted_request_ids) & set(output.request_ids)
    resumed = [name for output in d.outputs for name in output.resumed_request_ids]
    assert sorted(resumed) == sorted(d.preemptions)


def test_invalid_packed_metadata_fails_early_and_valid_packs_are_accepted(depth: int) -> None:
    """The metadata of real dispatches of several requests is accepted; with any one field changed it is
    refused with request and field, and nothing has happened.
    """
    d = Driver(group("A", 4, 64), group("B", 8, 64), depth=depth, chunk=8, budget=20)
    for name in ("r0", "r1", "r2"):
        d.add(name, 10, 4)
    dispatch = d.call()
    assert dispatch is not None
    output = dispatch.output
    arguments: dict[str, Any] = {
        "request_ids": output.request_ids,
        "chunk_starts": output.num_computed_tokens,
        "chunk_lens": output.num_scheduled_tokens,
        "histories": [d.scheduler.token_ids(name) for name in output.request_ids],
        "block_tables": {
            g: [d.scheduler.block_table(name, g) for name in output.request_ids] for g in ("A", "B")
        },
        "block_sizes": {"A": 4, "B": 8},
        "computed": [0, 0, 0],
    }
    pack = pack_prefill(**arguments)
    good: dict[str, Any] = {
        "request_ids": pack.request_ids,
        "chunk_starts": pack.chunk_starts,
        "chunk_lens": pack.chunk_lens,
        "seq_lens": pack.seq_lens,
        "query_start_loc": pack.query_start_loc,
        "token_ids": pack.token_ids,
        "block_tables": pack.block_tables,
        "block_sizes": {"A": 4, "B": 8},
        "computed": [0, 0, 0],
    }
    validate_packed_prefill(**good)
    before = {name: d.view_of(name) for name in output.request_ids}
    for field, bad, text in [
        ("seq_lens", [8, 10, 4], r"request 1 \('r1'\): seq_len 10 != chunk_start 0 \+ chunk_len 8"),
        ("chunk_lens", [8, 0, 4], r"request 1 \('r1'\): chunk_lens\[1\] 0"),
        ("query_start_loc", [0, 8, 17, 21], r"request 1 \('r1'\): query_start_loc\[2\] 17"),
        ("computed", [0, 8, 0], r"request 1 \('r1'\): chunk_start 0 != computed 8"),
        ("request_ids", ["r0", "r0", "r2"], r"request 1 \('r0'\): request_ids\[1\] repeats request 0"),
        ("chunk_starts", [0, 0], r"request 2 \('r2'\): chunk_starts has 2 entries"),
        ("token_ids", pack.token_ids[:19], r"request 2 \('r2'\): token_ids has 19 entries"),
    ]:
        with pytest.raises(ValueError, match=text):
            validate_packed_prefill(**good | {field: bad})
    with pytest.raises(ValueError, match=r"request 1 \('r1'\): block_tables\['A'\]\[1\] has 1 columns"):
        pack_prefill(**arguments | {"block_tables": {"A": [(1, 2), (3,), (4,)], "B": [(1,), (2,), (3,)]}})
    assert before == {name: d.view_of(name) for name in output.request_ids}
    d.check()
    d.finish()


def test_an_8192_token_prompt_is_dispatched_in_four_chunks_with_decodes_between(depth: int) -> None:
    d = Driver(group("A", 16, 1024), group("B", 128, 128), depth=depth, chunk=2048, budget=2048)
    d.add("D", 16, 32)
    d.run(until=lambda: len(d.outputs_of("D")) >= 1)
    d.add("L", 8192, 4)
    d.run(until=lambda: bool(d.rows_of("L", DECODE)))
    assert not d.ended("D")
    chunks = d.dispatches_of("L", PREFILL)
    assert [x.rows["L"][0] for x in chunks] == [0, 2048, 4096, 6144]
    for one, two in pairwise(chunks):
        assert any(one.step_id < x.step_id < two.step_id for x in d.dispatches_of("D", DECODE))
    d.finish()


# --- cost ---


def calls_of(action: Callable[[], object]) -> int:
    """Python calls made by `action`: a measure of work that no busy machine disturbs."""
    count = 0

    def profile(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    gc.disable()  # its callbacks would count
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@cache
def queue(waiting: int) -> list[Request]:
    params = SamplingParams(max_tokens=4)
    return [Request(f"w{i}", (1, 2, 3, 4), params) for i in range(waiting)]


def loaded(depth: int, waiting: int) -> Scheduler:
    """8 decoders own all 8 blocks of the pool and need no more; `waiting` requests need a block each."""
    config = SchedulerConfig(
        max_num_seqs=12, max_num_batched_tokens=64, prefill_chunk_size=32, async_depth=depth
    )
    scheduler = Scheduler(config, KVCacheConfig(groups=(KVGroupSpec("A", 512, num_blocks=8),)))
    for i in range(8):
        scheduler.add_request(Request(f"d{i}", (1, 2, 3), SamplingParams(max_tokens=200)))
    while scheduler.num_waiting:
        Steps(scheduler, depth).run(1)
    for request in queue(waiting):
        scheduler.add_request(request)
    return scheduler


class Steps:
    """A bare engine loop: keeps the pipeline full and returns made-up tokens."""

    def __init__(self, scheduler: Scheduler, depth: int) -> None:
        self.scheduler, self.depth = scheduler, depth
        self.in_flight: list[Any] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            output = self.scheduler.schedule()
            if output.step_id is not None:
                self.in_flight.append(output)
            if len(self.in_flight) == self.depth or (output.step_id is None and self.in_flight):
                self.process()
        while self.in_flight:
            self.process()

    def process(self) -> None:
        done = self.in_flight.pop(0)
        tokens = tuple((7,) if samples else () for samples in done.samples)
        self.scheduler.update_from_output(done, ModelRunnerOutput(done.step_id, tokens))


def test_a_step_costs_the_same_with_0_and_100000_waiting_requests(depth: int) -> None:
    """First with a head that does not fit, so that every step looks at it in vain; then, after the decoders'
    end, with a queue that moves, compared with one just long enough for that.
    """
    blocked: dict[int, int] = {}
    moving: dict[int, int] = {}
    for waiting in (0, 500, 100_000):
        scheduler = loaded(depth, waiting)
        steps = Steps(scheduler, depth)
        blocked[waiting] = calls_of(lambda steps=steps: steps.run(100))  # type: ignore[misc]
        assert scheduler.num_waiting == waiting
        if waiting:
            steps.run(110)
            assert 0 < scheduler.num_waiting < waiting
            moving[waiting] = calls_of(lambda steps=steps: steps.run(100))  # type: ignore[misc]
            assert scheduler.num_waiting > 0
    print(f"depth {depth}: Python calls in 100 steps, blocked {blocked}, moving {moving}")
    assert abs(blocked[100_000] - blocked[0]) <= 0.05 * blocked[0]
    assert blocked[100_000] == blocked[500]
    assert moving[100_000] == moving[500]

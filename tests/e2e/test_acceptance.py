"""The acceptance points of scheduler and packed metadata, through the engine with a real model, at depth 1, 2
and 3.
"""

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hocket.core.phase import Phase
from hocket.engine.engine import run_all
from hocket.engine.errors import EngineDeadError
from tests.e2e.world import (
    assert_as_alone,
    drain,
    engine,
    prompt,
    request,
    step_into,
    wait_for_runner,
)

pytestmark = pytest.mark.parametrize("depth", [1, 2, 3])


class Watched:
    """An engine whose every output is kept, empty ones too."""

    def __init__(self, depth, **knobs):
        self.built = engine(depth, **knobs)
        self.outputs, self.found = [], {}
        schedule = self.built.scheduler.schedule

        def kept():
            self.outputs.append(schedule())
            return self.outputs[-1]

        self.built.scheduler.schedule = kept

    def add(self, *requests):
        for item in requests:
            self.built.add_request(item)

    def step(self):
        return step_into(self.built, self.found)

    def drain(self):
        return drain(self.built, self.found)

    @property
    def dispatches(self):
        return [output for output in self.outputs if not output.is_empty]

    def rows(self, name, phase):
        return [
            (output.num_computed_tokens[row], output.num_scheduled_tokens[row])
            for output in self.dispatches
            if output.phase == phase
            for row, request_id in enumerate(output.request_ids)
            if request_id == name
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.built.shutdown()


def test_one_phase_per_output_and_progress_of_both_phases(depth):
    live, long = request("live", prompt(12, 1), max_tokens=60), request("long", prompt(300, 2), max_tokens=4)
    with Watched(depth, prefill_chunk_size=30) as watched:
        watched.add(live)
        while not watched.step():
            pass
        watched.add(long)
        watched.drain()
        mine = [
            i
            for i, o in enumerate(watched.dispatches)
            if o.phase == Phase.PREFILL and "long" in o.request_ids
        ]
        span = watched.dispatches[mine[0] : mine[-1] + 1]
        assert len(mine) == 10
        for one, other in pairwise(span):
            assert {one.phase, other.phase} == {Phase.PREFILL, Phase.DECODE}
        assert watched.rows("long", Phase.PREFILL) == [(30 * i, 30) for i in range(10)]
        for output in watched.dispatches:
            replaying = {r for r in output.request_ids if r == "long"} and output.phase == Phase.DECODE
            assert not replaying or output.num_computed_tokens[output.request_ids.index("long")] >= 300
        assert_as_alone(watched.found, [live, long])


def test_a_waiting_prefill_is_admitted_under_continuous_decode_traffic(depth):
    """Four decoders, each replaced when it ends; the arrival is in a prefill dispatch within two calls."""
    fresh = (request(f"d{i}", prompt(6, i % 4), max_tokens=18) for i in range(100))
    wanted = [next(fresh) for _ in range(4)]
    with Watched(depth) as watched:
        watched.add(*wanted)
        for i in range(40):
            for update in watched.step():
                if update.finished and i < 30:
                    wanted.append(next(fresh))
                    watched.add(wanted[-1])
            if i == 20:
                arrived = len(watched.outputs)
                wanted.append(request("late", prompt(70, 9), max_tokens=3))
                watched.add(wanted[-1])
        watched.drain()
        first = next(i for i, o in enumerate(watched.outputs) if "late" in o.request_ids)
        calls = [o for o in watched.outputs[arrived : first + 1] if not o.is_empty]
        assert len(calls) <= 2
        assert_as_alone(watched.found, wanted)


def test_decode_goes_on_after_an_unschedulable_prefill_phase(depth):
    """The waiting prompt does not fit beside the decoder: every step is a decode, none is empty with nothing
    in flight.
    """
    live, big = request("live", prompt(20, 1), max_tokens=40), request("big", prompt(200, 2), max_tokens=2)
    with Watched(depth, blocks={"c4": 14, "c4_indexer": 14}) as watched:
        watched.add(live)
        while not watched.step():
            pass
        watched.add(big)
        begin = len(watched.dispatches)
        while "live" not in watched.found:
            watched.step()
        mine = [o for o in watched.dispatches[begin:] if "big" not in o.request_ids]
        assert len(mine) >= 30
        assert {o.phase for o in mine} == {Phase.DECODE}
        watched.drain()
        assert watched.built.stats.preemptions == 0
        assert_as_alone(watched.found, [live, big])


def owned_blocks(built, names):
    """Request -> group -> block ids, of requests that run."""
    states = {name: built.scheduler.request_state(name) for name in names}
    return {name: dict(state.block_ids) for name, state in states.items() if state is not None}


def live_bytes(built, owned):
    """Digest of everything of the requests in `owned`: their KV and state blocks, slots, tokens."""
    runner, digest = built.runner, hashlib.sha256()
    for name, blocks in owned.items():
        slot = runner.slots.slot_of(name)
        digest.update(repr((name, slot, runner.slots.records[name].tokens)).encode())
        digest.update(runner.slots.epochs[slot].tobytes() + runner.slots.computed[slot].tobytes())
        digest.update(runner.last_tokens[slot].numpy().tobytes())
        if runner.drafter is not None:
            digest.update(runner.drafter.epochs[slot].tobytes())
            digest.update(runner.drafter.first_drafts[slot].numpy().tobytes())
            digest.update(runner.drafter.tails[slot].numpy().tobytes())
        for group, ids in blocks.items():
            digest.update(runner.slots.tables[group][slot].tobytes())
            per_block = runner.cache.rows_per_block(group)
            rows = (np.array(ids, int)[:, None] * per_block + np.arange(per_block)).ravel()
            digest.update(runner.cache.tensors[group][:, rows].numpy().tobytes())
    return digest.hexdigest()


def state_of(built, name):
    """What the scheduler knows of a request, and the free and fenced blocks."""
    scheduler = built.scheduler
    groups = [group.name for group in scheduler.kv_cache_config.groups]
    return scheduler.request_state(name), [
        (scheduler.free_blocks(g), scheduler.fenced_blocks(g)) for g in groups
    ]


def test_a_stale_result_changes_no_byte_of_anybody(depth):
    """`preempt_request` with rows in flight: their results change no token, placeholder, computed count or
    block.

    At depth 1 nothing is ever in flight between two calls of `step`, so the result is held back by hand.
    """
    victim, other = (
        request("victim", prompt(40, 1), max_tokens=20),
        request("other", prompt(25, 2), max_tokens=30),
    )
    with Watched(depth) as watched:
        built = watched.built
        watched.add(victim, other)
        while sum(len(watched.rows(name, Phase.DECODE)) for name in ("victim", "other")) < 8:
            watched.step()
        built._fill()
        wait_for_runner(built)
        stale = [o for o in built._in_flight if "victim" in o.request_ids]
        assert stale
        built.preempt_request("victim")
        before = state_of(built, "victim")[0]
        assert (before.status, before.num_computed_tokens, before.num_output_placeholders) == (
            "preempted",
            0,
            0,
        )
        processed = 0
        while built._in_flight:
            oldest = built._in_flight[0]
            owned = owned_blocks(built, ("other",))
            digest = live_bytes(built, owned)
            updates_before = state_of(built, "victim")[0]
            built._process_oldest()
            assert live_bytes(built, owned) == digest
            assert state_of(built, "victim")[0] == updates_before
            processed += "victim" in oldest.request_ids
            assert not [u for u in built._updates if u.request_id == "victim"]
        assert processed == len(stale)
        watched.drain()
        assert_as_alone(watched.found, [victim, other])


def test_preempted_in_flight_it_is_not_readmitted_before_its_rows_are_processed(depth):
    victim, other = (
        request("victim", prompt(40, 1), max_tokens=20),
        request("other", prompt(25, 2), max_tokens=30),
    )
    with Watched(depth) as watched:
        built = watched.built
        watched.add(victim, other)
        for _ in range(5):
            watched.step()
        built._fill()
        last = max(o.step_id for o in built._in_flight if "victim" in o.request_ids)
        begin = len(watched.outputs)
        built.preempt_request("victim")
        processed = []
        built.observers.append(lambda step: processed.append((step.output.step_id, len(watched.outputs))))
        watched.drain()
        again = next(i for i, o in enumerate(watched.outputs[begin:], begin) if "victim" in o.request_ids)
        drained = next(count for step_id, count in processed if step_id == last)
        assert again >= drained
        assert watched.outputs[again].resumed_request_ids == ("victim",)
        assert (
            watched.outputs[again].num_computed_tokens[watched.outputs[again].request_ids.index("victim")]
            == 0
        )
        assert_as_alone(watched.found, [victim, other])


def test_preempted_under_memory_pressure_it_is_not_in_the_same_call(depth):
    wanted = [request(f"r{i}", prompt(8 + i, i), max_tokens=45) for i in range(4)]
    with Watched(depth, blocks={"swa": 14, "c4": 8, "c4_indexer": 8}, prefill_chunk_size=16) as watched:
        watched.add(*wanted)
        watched.drain()
        met = [o for o in watched.outputs if o.preempted_request_ids]
        assert met, "memory pressure was met"
        for output in met:
            assert not set(output.preempted_request_ids) & set(output.request_ids)
            assert not output.is_empty, "a victim is taken for a row that is dispatched in the same call"
        assert watched.built.stats.preemptions == sum(len(o.preempted_request_ids) for o in met)
        assert_as_alone(watched.found, wanted)


FAULTS = {
    "start": (
        lambda o: replace(o, num_computed_tokens=tuple(n + 4 for n in o.num_computed_tokens)),
        "chunk_start",
    ),
    "length": (lambda o: replace(o, num_scheduled_tokens=tuple(0 for _ in o.request_ids)), "chunk_len"),
    "float": (
        lambda o: replace(o, num_computed_tokens=tuple(map(float, o.num_computed_tokens))),
        "chunk_starts",
    ),
    "tables": (
        lambda o: replace(o, new_block_ids=tuple(dict.fromkeys(row, ()) for row in o.new_block_ids)),
        "columns",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_malformed_packed_metadata_fails_early_and_says_what_is_wrong(depth, fault):
    spoil, word = FAULTS[fault]
    with Watched(depth, prefill_chunk_size=32) as watched:
        built = watched.built
        watched.add(request("a", prompt(200, 1), max_tokens=4))
        watched.step()
        wait_for_runner(built)
        schedule, digests = built.scheduler.schedule, []

        def spoilt():
            output = schedule()
            if output.phase != Phase.PREFILL:
                return output
            wait_for_runner(built)
            digests.append(whole_runner(built.runner))
            return spoil(output)

        built.scheduler.schedule = spoilt
        with pytest.raises(EngineDeadError, match=r"packed prefill: request 0 \('a'\): ") as caught:
            watched.drain()
        assert word in str(caught.value)
        assert isinstance(caught.value.__cause__, ValueError)
    assert whole_runner(built.runner) == digests[0]


def whole_runner(runner):
    """Digest of every byte that the runner has."""
    digest = hashlib.sha256(repr({n: r.tokens for n, r in runner.slots.records.items()}).encode())
    for array in (
        runner.slots.epochs,
        runner.slots.computed,
        *runner.slots.tables.values(),
        *runner.slots.columns.values(),
    ):
        digest.update(array.tobytes())
    digest.update(runner.last_tokens.numpy().tobytes())
    if runner.drafter is not None:
        digest.update(runner.drafter.epochs.tobytes())
        digest.update(runner.drafter.first_drafts.numpy().tobytes())
        digest.update(runner.drafter.tails.numpy().tobytes())
    for tensor in runner.cache.tensors.values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def test_valid_packs_of_several_requests_are_accepted(depth):
    wanted = [request(f"r{i}", prompt(10 + 7 * i, i), max_tokens=3) for i in range(5)]
    with Watched(depth, max_num_batched_tokens=400, prefill_chunk_size=100) as watched:
        watched.add(*wanted)
        watched.drain()
        assert watched.dispatches[0].request_ids == tuple(item.request_id for item in wanted)
        assert_as_alone(watched.found, wanted)


def test_8192_tokens_in_chunks_of_2048_with_decode_between(depth):
    from hocket.engine.build import ModelOptions, load_model
    from hocket.model.recall import ANSWER, live_prompt, needle_prompt, recall_folder

    shipped = load_model(recall_folder(), ModelOptions(kv_cache_memory=1 << 28))
    knobs = {"max_model_len": 9000, "max_num_batched_tokens": 2048, "prefill_chunk_size": 2048}
    needle = request("needle", needle_prompt().token_ids, max_tokens=20, eos=1)
    live = request("live", live_prompt().token_ids, max_tokens=30)
    solo = {}
    for item in (needle, live):
        with engine(1, loaded=shipped, **knobs) as built:
            solo |= run_all(built, [item])
    with Watched(depth, loaded=shipped, **knobs) as watched:
        watched.add(live)
        while not watched.step():
            pass
        watched.add(needle)
        watched.drain()
        assert watched.rows("needle", Phase.PREFILL) == [(0, 2048), (2048, 2048), (4096, 2048), (6144, 2048)]
        mine = [
            i
            for i, o in enumerate(watched.dispatches)
            if o.phase == Phase.PREFILL and "needle" in o.request_ids
        ]
        for one, other in pairwise(mine):
            between = watched.dispatches[one + 1 : other]
            assert [o.phase for o in between] == [Phase.DECODE]
            assert between[0].request_ids == ("live",)
    assert watched.found["needle"].text == ANSWER
    assert watched.found["needle"].finish_reason == "stop"
    for name in ("needle", "live"):
        assert watched.found[name].token_ids == solo[name].result.token_ids

"""Random limits, pools, drafts, arrivals, preemptions and aborts: every text is what its content alone says.

The simulated cache finds any block with two owners and any row that a window lost, whatever the drafts did.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket import KVCacheConfig, KVGroupSpec
from hocket.core.config import SchedulerConfig
from hocket.runner.simulated import SimulatedRunner
from tests.unit.engine.world import VOCAB, drain, make_engine, request, results, step_into, tokens_of

MET: Counter[str] = Counter()


@st.composite
def worlds(draw):
    """Pools that hold one request of full length, and little more."""
    length, drafts = 30, draw(st.integers(0, 3))
    chunk = draw(st.integers(1, 9))
    config = SchedulerConfig(
        max_num_seqs=draw(st.integers(1, 4)),
        max_num_batched_tokens=draw(st.integers(max(chunk, 1 + drafts), 20)),
        prefill_chunk_size=chunk,
        max_model_len=length,
        async_depth=draw(st.integers(1, 4)),
        num_speculative_tokens=drafts,
        prefill_steps_per_turn=draw(st.integers(1, 2)),
        decode_steps_per_turn=draw(st.integers(1, 3)),
        chunk_alignment=draw(st.integers(1, chunk)),
        reserve_full_prompt=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.1])),
    )
    groups, spare = [], draw(st.integers(0, 6))
    shared = draw(st.booleans())
    for name, window in (("full", None), ("near", draw(st.integers(1, 6)))):
        size = draw(st.integers(1, 5))
        if shared:
            groups.append(KVGroupSpec(name, size, window=window, pool="main"))
        else:
            groups.append(KVGroupSpec(name, size, num_blocks=-(-length // size) + spare, window=window))
    blocks = sum(-(-length // g.block_size) for g in groups) + spare
    return config, KVCacheConfig(tuple(groups), {"main": blocks} if shared else {})


@st.composite
def lives(draw):
    """When requests arrive and what happens to them, as (step, action)."""
    count = draw(st.integers(1, 6))
    prompts = [
        tuple(draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20))) for _ in range(count)
    ]
    outputs = [draw(st.integers(1, 10)) for _ in range(count)]
    arrivals = [draw(st.integers(0, 12)) for _ in range(count)]
    events = draw(
        st.lists(
            st.tuples(
                st.integers(1, 25),
                st.sampled_from(["preempt", "preempt", "abort"]),
                st.integers(0, count - 1),
            ),
            max_size=5,
        )
    )
    priorities = [draw(st.integers(0, 1)) for _ in range(count)]
    return prompts, outputs, arrivals, events, priorities


def check(world, life, acceptance):
    (config, kv), (prompts, outputs, arrivals, events, priorities) = world, life
    runner = SimulatedRunner(
        kv,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        vocab_size=VOCAB,
        acceptance=acceptance,
    )
    updates, aborted = {}, set()
    with make_engine(config.async_depth, kv=kv, runner=runner, config=config) as engine:
        for step in range(200):
            for i, arrival in enumerate(arrivals):
                if arrival == step:
                    engine.add_request(
                        request(f"r{i}", prompts[i], max_tokens=outputs[i], priority=priorities[i])
                    )
            for when, action, i in events:
                state = engine.scheduler.request_state(f"r{i}")
                if when == step and state is not None:
                    engine._fill()
                    if action == "abort":
                        updates.setdefault(f"r{i}", []).append(engine.abort_request(f"r{i}"))
                        aborted.add(f"r{i}")
                    else:
                        engine.preempt_request(f"r{i}")
            step_into(engine, updates)
        found = results(drain(engine, updates))
        free = {g.name: engine.scheduler.free_blocks(g.name) for g in kv.groups}
    sizes = list(kv.pool_blocks.values())
    assert free == {g.name: sizes[pool] for g, pool in zip(kv.groups, kv.pool_of_group, strict=True)}
    assert runner.slots.request_ids == ()
    for i, prompt in enumerate(prompts):
        result = found[f"r{i}"]
        limit = min(outputs[i], config.max_model_len - len(prompt))
        if f"r{i}" in aborted:
            assert result.token_ids == tokens_of(prompt, limit)[: len(result.token_ids)]
        else:
            assert result.token_ids == tokens_of(prompt, limit)
            assert result.finish_reason == "length"
    MET["requests"] += len(prompts)
    MET["preemptions"] += engine.stats.preemptions
    MET["aborts"] += len(aborted)


@settings(max_examples=150)
@given(world=worlds(), life=lives(), acceptance=st.sampled_from([0.0, 0.5, 1.0]))
def any_schedule(world, life, acceptance):
    check(world, life, acceptance)


def test_any_schedule():
    MET.clear()
    any_schedule()
    print(dict(MET))
    assert MET["preemptions"] > 20
    assert MET["aborts"] > 10


@pytest.mark.parametrize("group", ["full", "near"])
def test_the_check_sees_a_block_with_two_owners(group):
    """The checker checks: another's hash in a block that a row will read."""
    with make_engine(1) as engine:
        engine.add_request(request("a", range(6), max_tokens=9))
        for _ in range(3):
            engine.step()
        block = engine.scheduler.block_table("a", group)[-1]
        engine.runner.memory[group][block] += 1
        with pytest.raises(RuntimeError, match="holds another row"):
            drain(engine)

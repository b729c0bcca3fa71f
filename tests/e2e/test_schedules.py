"""Whatever the schedule (depth, chunks, neighbours, preemption, memory), a request says what it says alone
(R1).
"""

import itertools
from dataclasses import replace

import pytest

from hocket.engine.engine import run_all
from tests.e2e.world import (
    alone,
    assert_as_alone,
    assert_rows_as_alone,
    drain,
    engine,
    prompt,
    request,
    step_into,
    wait_for_runner,
)

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
LENGTHS = (1, 5, 16, 48, 130, 200)
SAMPLED = {"temperature": 0.9, "top_k": 12, "top_p": 0.95, "min_p": 0.01, "seed": 5}


def crowd(max_tokens=10, **params):
    return [request(f"r{n}", prompt(n, n), max_tokens=max_tokens, **params) for n in LENGTHS]


@DEPTHS
@pytest.mark.parametrize("chunk", [7, 48, 129])
def test_chunk_sizes_with_several_prompts_at_once(depth, chunk):
    wanted = crowd()
    with engine(depth, prefill_chunk_size=chunk, max_num_batched_tokens=max(chunk, 60)) as built:
        for item in wanted:
            built.add_request(item)
        found = {}
        checked = set()
        while built.has_unfinished_requests():
            for update in step_into(built, found):
                if (
                    update.request_id in ("r130", "r200")
                    and not update.finished
                    and update.request_id not in checked
                ):
                    checked.add(update.request_id)
                    assert_rows_as_alone(built, next(w for w in wanted if w.request_id == update.request_id))
    assert checked == {"r130", "r200"}
    assert_as_alone(found, wanted)


@DEPTHS
def test_sampled_text_is_as_independent_of_the_schedule_as_greedy_text(depth):
    wanted = crowd(**SAMPLED)
    assert (
        alone(wanted[3]).token_ids
        != alone(replace(wanted[3], sampling_params=crowd()[3].sampling_params)).token_ids
    )
    with engine(depth, prefill_chunk_size=17) as built:
        for item in wanted:
            built.add_request(item)
        found = {}
        for i in itertools.count():
            if not built.has_unfinished_requests():
                break
            if i in (4, 9):
                for name in ("r48", "r200"):
                    if name not in found:
                        built.preempt_request(name)
            step_into(built, found)
    assert built.stats.preemptions >= 2
    assert_as_alone(found, wanted)


@DEPTHS
@pytest.mark.parametrize("when", ["prompt", "decode"])
def test_external_preemption_with_rows_in_flight(depth, when):
    """In the middle of the prompt, and in the middle of the outputs; the cache is rebuilt to the last row."""
    victim, other = (
        request("victim", prompt(150, 1), max_tokens=14),
        request("other", prompt(20, 2), max_tokens=30),
    )
    with engine(depth, prefill_chunk_size=32) as built:
        built.add_request(other)
        built.add_request(victim)
        found, said = {}, 0
        while True:
            said += sum(len(u.new_token_ids) for u in step_into(built, found) if u.request_id == "victim")
            computed = built.scheduler.request_state("victim").num_computed_tokens
            if (when == "prompt" and 64 <= computed < 150) or (when == "decode" and said >= 4):
                break
        built._fill()
        in_flight = [o for o in built._in_flight if "victim" in o.request_ids]
        assert in_flight or depth == 1
        built.preempt_request("victim")
        again = False
        while built.has_unfinished_requests():
            for update in step_into(built, found):
                if update.request_id == "victim" and not update.finished and not again:
                    again = True
                    assert_rows_as_alone(built, victim)
    assert again
    assert_as_alone(found, [victim, other])
    assert found["victim"].metrics.num_preemptions == 1


@DEPTHS
def test_memory_pressure_in_tiny_pools(depth):
    """The pools hold two of five long answers: victims are drained, preempted and replayed, and nobody
    notices.
    """
    wanted = [request(f"r{i}", prompt(8 + i, i), max_tokens=50) for i in range(5)]
    with engine(depth, blocks={"swa": 14, "c4": 9, "c4_indexer": 12}, prefill_chunk_size=16) as built:
        found = {k: u.result for k, u in run_all(built, wanted).items()}
        preemptions = built.stats.preemptions
        free = {g.name: built.scheduler.free_blocks(g.name) for g in built.scheduler.kv_cache_config.groups}
    assert preemptions >= 2
    assert free == {g.name: g.num_blocks for g in built.scheduler.kv_cache_config.groups}
    assert_as_alone(found, wanted)


@DEPTHS
def test_abort_in_the_middle_of_a_prompt(depth):
    """Its blocks go to the next prompt, which reads none of its rows."""
    gone, stays = (
        request("gone", prompt(180, 3), max_tokens=8),
        request("stays", prompt(30, 4), max_tokens=25),
    )
    later = request("later", prompt(190, 5), max_tokens=8)
    with engine(depth, prefill_chunk_size=20, blocks={"c4": 16, "c4_indexer": 16}) as built:
        built.add_request(stays)
        built.add_request(gone)
        found = {}
        while built.scheduler.request_state("gone").num_computed_tokens < 80:
            step_into(built, found)
        built._fill()
        found["gone"] = built.abort_request("gone").result
        built.add_request(later)
        drain(built, found)
    assert found["gone"].finish_reason == "abort"
    assert found["gone"].token_ids == ()
    assert_as_alone(found, [stays, later])


@DEPTHS
def test_an_id_used_again_while_rows_of_the_old_request_are_in_flight(depth):
    first, second = (
        request("same", prompt(60, 6), max_tokens=20),
        request("same", prompt(33, 7), max_tokens=12),
    )
    with engine(depth, prefill_chunk_size=16) as built:
        built.add_request(first)
        for _ in range(7):
            built.step()
        built._fill()
        built.abort_request("same")
        built.add_request(second)
        found = drain(built)
    assert_as_alone(found, [second])


@DEPTHS
def test_stop_conditions(depth):
    plain = alone(request("r", prompt(40, 8), max_tokens=24)).token_ids
    stop = plain[9]
    first = plain.index(stop)
    later = next((i for i in range(first + 1, 24) if plain[i] == stop), None)
    cases = {
        "max_tokens": ({"max_tokens": 7}, {}, plain[:7], "length"),
        "one": ({"max_tokens": 1}, {}, plain[:1], "length"),
        "eos": ({"max_tokens": 24}, {"eos": stop}, plain[: first + 1], "stop"),
        "stop_token_ids": ({"max_tokens": 24, "stop_token_ids": (63, stop)}, {}, None, "stop"),
        "ignore_eos": ({"max_tokens": 24, "ignore_eos": True}, {"eos": stop}, plain, "length"),
        "min_tokens": (
            {"max_tokens": 24, "min_tokens": first + 2},
            {"eos": stop},
            plain if later is None else plain[: later + 1],
            "length" if later is None else "stop",
        ),
    }
    stop_set = {63, stop}
    ends = next(i for i, token in enumerate(plain) if token in stop_set)
    cases["stop_token_ids"] = (*cases["stop_token_ids"][:2], plain[: ends + 1], "stop")
    wanted = [request(name, prompt(40, 8), **params, **more) for name, (params, more, _, _) in cases.items()]
    with engine(depth, prefill_chunk_size=25) as built:
        found = {k: u.result for k, u in run_all(built, wanted).items()}
    for name, (_, _, tokens, reason) in cases.items():
        assert found[name].token_ids == tokens, name
        assert found[name].finish_reason == reason, name


@DEPTHS
def test_max_model_len(depth):
    plain = alone(request("r", prompt(90, 9), max_tokens=24)).token_ids
    with engine(depth, max_model_len=100) as built:
        found = drain_one(built, request("r", prompt(90, 9), max_tokens=24))
    assert found.token_ids == plain[:10]
    assert found.finish_reason == "length"


def drain_one(built, wanted):
    built.add_request(wanted)
    return drain(built)[wanted.request_id]


@pytest.mark.parametrize("depth", [2])
def test_logprobs_do_not_depend_on_the_schedule(depth):
    wanted = [request(f"r{n}", prompt(n, n), max_tokens=6, logprobs=3) for n in (5, 130)]
    with engine(depth, prefill_chunk_size=31) as built:
        found = {k: u.result for k, u in run_all(built, wanted).items()}
    for item in wanted:
        mine, reference = found[item.request_id], alone(item)
        assert [entry.token_id for entry in mine.logprobs] == list(mine.token_ids)
        for one, other in zip(mine.logprobs, reference.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=2e-4)
            assert one.top[0] == (one.token_id, one.logprob), "greedy: the token is its own best alternative"
            assert [t for t, _ in one.top] == [t for t, _ in other.top]


@DEPTHS
def test_one_pool_for_all_groups(depth):
    from hocket.engine.build import ModelOptions, load_model
    from tests.e2e.world import BLOCK_SIZES, tiny_folder

    options = ModelOptions(kv_cache_memory=1 << 22, block_sizes=BLOCK_SIZES, shared_pool=True)
    wanted = [request(f"r{i}", prompt(30 + 40 * i, i), max_tokens=12) for i in range(4)]
    with engine(depth, loaded=load_model(tiny_folder(), options)) as built:
        found = {k: u.result for k, u in run_all(built, wanted).items()}
    assert_as_alone(found, wanted)


def test_a_row_whose_logits_are_broken_fails_alone():
    """A NaN is put into one request's cache: its row has no finite logits, the neighbour's are untouched."""
    bad, good = request("bad", prompt(30, 1), max_tokens=20), request("good", prompt(31, 2), max_tokens=20)
    with engine(1) as built:
        built.add_request(bad)
        built.add_request(good)
        found = {}
        for _ in range(4):
            step_into(built, found)
        wait_for_runner(built)
        block = built.scheduler.block_table("bad", "swa")[-1]
        built.runner.cache.tensors["swa"][:, block * 8 : block * 8 + 8] = float("nan")
        drain(built, found)
    assert found["bad"].finish_reason == "error"
    assert "finite" in found["bad"].error
    assert_as_alone(found, [good])


def test_rows_that_sample(monkeypatch):
    """Only they run the head; they are sampled at their place in the sequence, with their request's seed."""
    from hocket.runner import model_runner

    heads, sampled = [], []
    real_prepare = model_runner.prepare

    def noted(lines):
        assert lines.spread == 0
        sampled.extend(zip(lines.seeds, lines.positions, strict=True))
        return real_prepare(lines)

    monkeypatch.setattr(model_runner, "prepare", noted)
    with engine(1, prefill_chunk_size=32) as built:
        real_head = built.runner.model.logits
        monkeypatch.setattr(built.runner.model, "logits", lambda x: heads.append(len(x)) or real_head(x))
        run_all(built, [request(f"r{n}", prompt(n), max_tokens=2, seed=n) for n in (100, 5)])
        chunks = built.stats.prefill_steps
    assert sum(heads) == 2 * 2, "two final chunks and two decode rows; the chunks before them none"
    assert len(heads) > chunks >= 4
    assert sorted(sampled) == [(5, 5), (5, 6), (100, 100), (100, 101)]

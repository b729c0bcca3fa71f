"""`LLM`: results in order, bad calls refused before anything starts, progress, interruption."""

import copy
import gc
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from hocket import LLM, SamplingParams
from hocket.engine.build import ModelOptions, build_engine, load_model
from hocket.engine.errors import EngineDeadError
from hocket.model.recall import ANSWER, needle_prompt, recall_folder
from hocket.obs.trace import read_trace
from tests.e2e.world import CONFIG, alone, prompt, request, tiny, tiny_folder

KNOBS = {"max_num_seqs": 3, "max_model_len": 400, "max_num_batched_tokens": 64, "prefill_chunk_size": 32}
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)


@pytest.fixture
def llm():
    with LLM(tiny(), **KNOBS) as made:
        yield made


def expected(tokens, count=6):
    return alone(request("x", tuple(tokens), max_tokens=count)).token_ids


def test_results_come_in_the_order_of_the_prompts(llm):
    prompts = [prompt(n, n) for n in (120, 3, 50, 7, 1, 90, 2)]
    counts = [3, 9, 1, 7, 5, 2, 8]
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in counts]
    results = llm.generate(prompts, params, use_tqdm=False)
    assert [r.prompt_token_ids for r in results] == prompts
    assert [r.token_ids for r in results] == [expected(p, n) for p, n in zip(prompts, counts, strict=True)]
    assert all(r.metrics.ttft_s > 0 for r in results)
    again = llm.generate(prompts[:2], params[:2], use_tqdm=False)
    assert [r.token_ids for r in again] == [r.token_ids for r in results[:2]]


@pytest.mark.parametrize(
    "prompts",
    [
        prompt(9),
        list(prompt(9)),
        np.array(prompt(9)),
        [prompt(9)],
        [np.array(prompt(9))],
        torch.tensor(prompt(9)),
        torch.tensor([prompt(9)]),
        [torch.tensor(prompt(9))],
    ],
    ids=repr,
)
def test_one_prompt_in_all_its_spellings(llm, prompts):
    (result,) = llm.generate(prompts, PARAMS, use_tqdm=False)
    assert result.token_ids == expected(prompt(9))


def test_no_prompts(llm):
    assert llm.generate([], PARAMS, use_tqdm=False) == []


def test_the_default_is_greedy(llm):
    (result,) = llm.generate(prompt(9), use_tqdm=False)
    assert result.token_ids == expected(prompt(9), 16)[: len(result.token_ids)]


GOOD = prompt(5)
BAD_CALLS = {
    "text without tokenizer": (["hello"], PARAMS, {}, "prompt must be token ids"),
    "empty prompt": ([GOOD, ()], PARAMS, {}, "prompt_token_ids must hold at least 1 token"),
    "unknown token": (
        [GOOD, (64,)],
        PARAMS,
        {},
        r"prompt_token_ids\[0\] must be an int in \[0, 63\], got 64",
    ),
    "float token": ([GOOD, (1.0,)], PARAMS, {}, r"prompt_token_ids\[0\]"),
    "flat float": ([1.0, 2.0], PARAMS, {}, r"prompt_token_ids\[0\]"),
    "bool token": ([GOOD, (True,)], PARAMS, {}, r"prompt_token_ids\[0\]"),
    "bytes": (b"abc", PARAMS, {}, "prompts must be"),
    "number": (5, PARAMS, {}, "prompts must be"),
    "nested number": ([GOOD, 5], PARAMS, {}, r"prompts\[1\] must be"),
    "tensor without dimensions": (torch.tensor(3), PARAMS, {}, "prompts must be"),
    "such a tensor in a list": ([GOOD, torch.tensor(3)], PARAMS, {}, r"prompts\[1\] must be"),
    "tensor of floats": (torch.tensor([1.0, 2.0]), PARAMS, {}, r"prompt_token_ids\[0\]"),
    "mapping": ({"a": 1}, PARAMS, {}, "prompts must be"),
    "too long": ([GOOD, prompt(400)], PARAMS, {}, "at most max_model_len"),
    "too few params": (
        [GOOD, GOOD],
        [PARAMS],
        {},
        "sampling_params must be one for all or one for each of the 2",
    ),
    "no params": ([GOOD, GOOD], [], {}, "sampling_params must be one for all"),
    "params of another kind": ([GOOD], {"max_tokens": 3}, {}, "sampling_params"),
    "params with another kind": ([GOOD, GOOD], [PARAMS, 3], {}, "sampling_params must be SamplingParams"),
    "stop without tokenizer": ([GOOD], SamplingParams(stop=("x",)), {}, "stop must be"),
    "priorities": ([GOOD, GOOD], PARAMS, {"priority": [1]}, "priority must be one for all"),
    "priority": ([GOOD], PARAMS, {"priority": "high"}, "priority"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_is_refused_before_anything_starts(llm, case):
    prompts, params, more, message = BAD_CALLS[case]
    with pytest.raises(ValueError, match=message):
        llm.generate(prompts, params, use_tqdm=False, **more)
    assert not llm.engine.has_unfinished_requests()
    assert llm.engine.scheduler.num_waiting == 0
    assert llm.generate([GOOD], PARAMS, use_tqdm=False)[0].token_ids == expected(GOOD)


def test_a_cache_that_holds_no_prompt_of_full_length_is_refused():
    options = ModelOptions(kv_cache_memory=1 << 16)
    with pytest.raises(ValueError, match="kv_cache_memory must be at least"):
        LLM(load_model(tiny_folder(), options), **KNOBS)


def test_more_prompts_than_the_queue_takes():
    with LLM(tiny(), max_num_queued_reqs=2, **KNOBS) as llm:
        prompts = [prompt(4, salt) for salt in range(12)]
        results = llm.generate(prompts, PARAMS, use_tqdm=False)
    assert [r.token_ids for r in results] == [expected(p) for p in prompts]
    with pytest.raises(ValueError, match="max_num_queued_reqs"):
        LLM(tiny(), max_num_queued_reqs=0, **KNOBS)


def test_priorities_decide_who_goes_first():
    with LLM(tiny(), max_num_seqs=1, max_model_len=400) as llm:
        results = llm.generate([GOOD, prompt(6)], PARAMS, priority=[1, 0], use_tqdm=False)
    assert results[0].metrics.first_token_s > results[1].metrics.finished_s


def test_the_bar_shows_both_rates(llm, capsys):
    llm.generate([GOOD] * 3, PARAMS)
    shown = capsys.readouterr().err
    assert "3/3 req" in shown
    assert re.search(r"prefill [\d,]+ tok/s, decode [\d,]+ tok/s", shown)
    llm.generate([GOOD], PARAMS, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_an_interrupted_call_leaves_nothing_behind(llm, monkeypatch):
    steps = 0
    real = llm.engine.step

    def interrupted(*args):
        nonlocal steps
        steps += 1
        if steps == 4:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(llm.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([prompt(100), GOOD], PARAMS, use_tqdm=False)
    monkeypatch.undo()
    assert not llm.engine.has_unfinished_requests()
    assert llm.generate([GOOD], PARAMS, use_tqdm=False)[0].token_ids == expected(GOOD)


def test_a_dead_engine_says_so(monkeypatch):
    with LLM(tiny(), **KNOBS) as llm:

        def broken(*_):
            raise OSError("device lost")

        monkeypatch.setattr(llm.engine.runner, "execute", broken)
        for _ in range(2):
            with pytest.raises(EngineDeadError, match="device lost"):
                llm.generate([GOOD], PARAMS, use_tqdm=False)


def test_text_stop_strings_and_a_trace_on_the_shipped_checkpoint(tmp_path):
    needle = needle_prompt(512)
    path = tmp_path / "trace.ndjson"
    with LLM(recall_folder(), kv_cache_memory=1 << 26, max_num_seqs=4, max_model_len=1024, trace=path) as llm:
        whole, cut, direct = llm.generate(
            [needle.text, needle.text, needle.token_ids],
            [
                SamplingParams(max_tokens=20),
                SamplingParams(max_tokens=20, stop=(" | MAPLE", "never")),
                SamplingParams(max_tokens=4, min_tokens=4),
            ],
            use_tqdm=False,
        )
    assert whole.prompt_token_ids == needle.token_ids
    assert (whole.text, whole.finish_reason) == (ANSWER, "stop")
    assert whole.token_ids == needle.answer_token_ids
    assert (cut.text, cut.finish_reason) == ("ORBIT-7319", "stop")
    assert (direct.text, direct.finish_reason) == ("ORBIT-7319", "length")
    trace = read_trace(path)
    assert trace.header.runner["runner"] == "deepseek_v4"
    assert [r.reason for r in trace.records if hasattr(r, "reason")] == ["stop"]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"device": "tpu"}, "device must be one of cpu, npu, cuda, got 'tpu'"),
        (
            {"device": "cuda"},
            "device 'cuda' cannot be used: .* finds no accelerator; it needs a build of torch",
        ),
        ({"device": "npu"}, "device 'npu' cannot be used: .*torch_npu.*; it needs the extra 'npu'"),
        ({"dtype": "float16"}, "dtype must be one of float32, bfloat16"),
        ({"kv_cache_memory": 0}, "kv_cache_memory must be"),
        ({"block_size": 7}, "block_size must be"),
        ({"async_depth": 0}, "async_depth must be"),
        ({"seed": -1}, "seed must be"),
        ({"num_speculative_tokens": 1}, "num_speculative_tokens must be 0"),
        ({"max_model_len": 1 << 21}, "max_model_len must be at most the model's max_position_embeddings"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        LLM(tiny_folder(), **knobs)
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such_knob': neither"):
        LLM(tiny(), no_such_knob=1)


@pytest.mark.parametrize("model", [None, 3, b"folder", ["folder"]], ids=str)
def test_what_is_no_model_is_refused(model):
    with pytest.raises(ValueError, match="model must be the path of a checkpoint folder, got"):
        LLM(model)


def test_a_prompt_that_no_encoding_can_say_is_refused_before_anything_starts():
    with LLM(recall_folder(), max_model_len=400, max_num_seqs=2) as made:
        with pytest.raises(ValueError, match=r"request '0-1': prompt: text must .*, got the lone surrogate"):
            made.generate(["fine", "\ud800"])
        assert not made.engine.has_unfinished_requests()


def test_engines_and_streams_from_a_folder():
    import asyncio
    from dataclasses import replace

    from hocket import AsyncEngine, Engine
    from tests.e2e.world import BLOCK_SIZES, drain

    config, options = replace(CONFIG, async_depth=2), ModelOptions(block_sizes=BLOCK_SIZES)
    with Engine.from_model(tiny_folder(), config, options) as engine:
        engine.add_request(request("a", GOOD, max_tokens=6))
        assert drain(engine)["a"].token_ids == expected(GOOD)

    async def main():
        async with AsyncEngine.from_model(tiny_folder(), config, options) as engine:
            return await engine.generate(request("a", GOOD, max_tokens=6))

    assert asyncio.run(main()).token_ids == expected(GOOD)


def test_all_ends_of_text_of_a_model_end_it():
    """A model may have several end tokens; the first is the request's own, the others stop it as well."""
    from dataclasses import replace

    loaded = tiny()
    said = expected(GOOD, 12)
    model = type(loaded.model).__new__(type(loaded.model))
    model.__dict__.update(loaded.model.__dict__)
    model.config = replace(loaded.config, eos_token_ids=(1, said[3]))
    several = type(loaded)(model, None, loaded.options)
    with build_engine(several, CONFIG) as engine:
        engine.add_request(several.request("a", GOOD, SamplingParams(max_tokens=12)))
        engine.add_request(several.request("b", GOOD, PARAMS))
        found = {}
        while engine.has_unfinished_requests():
            found.update({u.request_id: u.result for u in engine.step() if u.finished})
    assert found["a"].token_ids == said[: said.index(said[3]) + 1]
    assert found["a"].finish_reason == "stop"
    assert found["b"].token_ids == said[:6]


@pytest.mark.parametrize(
    "option",
    [{"device": "nonsense"}, {"dtype": "bfloat16"}, {"shared_pool": False}, {"kv_cache_memory": 1 << 20}],
    ids=str,
)
def test_options_for_a_model_that_is_loaded_already_are_refused(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} must not be given with a model"):
        LLM(tiny(), **option, **KNOBS)


def test_without_a_length_the_models_own_is_the_limit():
    loaded = tiny()
    limit = loaded.config.max_position_embeddings
    few = {name: value for name, value in KNOBS.items() if name != "max_model_len"}
    with LLM(loaded, **few) as llm:
        assert llm.engine.scheduler.config.max_model_len == min(limit, 16384)
    short = replace(loaded.model.config, max_position_embeddings=300)
    model = copy.copy(loaded.model)
    model.config = short
    with LLM(replace(loaded, model=model), **few) as llm:
        assert llm.engine.scheduler.config.max_model_len == 300
    with pytest.raises(ValueError, match="max_position_embeddings = 300, got 301"):
        LLM(replace(loaded, model=model), max_model_len=301, **few)


def test_a_bad_knob_leaves_an_old_trace_alone_and_closes_it(tmp_path, recwarn):
    path = tmp_path / "trace.ndjson"
    path.write_text("old\n")
    for bad in ({"max_model_len": 1 << 30}, {"num_speculative_tokens": 1}):
        with pytest.raises(ValueError, match="must be"):
            LLM(tiny(), trace=path, **(KNOBS | bad))
    with LLM(tiny(), trace=path, **KNOBS) as llm, pytest.raises(ValueError, match="at most max_model_len"):
        llm.generate([prompt(401)], PARAMS, use_tqdm=False)
    assert path.read_text() == "old\n"
    gc.collect()
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]

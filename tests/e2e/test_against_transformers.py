"""Greedy output of the engine against `generate` of transformers, on the files that both read."""

import pytest
import torch
from transformers import DeepseekV4ForCausalLM

from hocket import SamplingParams
from hocket.engine.build import ModelOptions, load_model
from hocket.engine.llm import LLM
from hocket.model.recall import live_prompt, needle_prompt, recall_folder
from tests.e2e.world import BLOCK_SIZES, prompt, tiny, tiny_folder


def transformers_greedy(folder, token_ids, count, chunk=None):
    """`count` new tokens; the end of the text does not end them."""
    model = DeepseekV4ForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    knobs = {"prefill_chunk_size": chunk} if chunk else {}
    out = model.generate(
        torch.tensor([token_ids]),
        attention_mask=torch.ones(1, len(token_ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=None,
        pad_token_id=0,
        **knobs,
    )
    return tuple(out[0, len(token_ids) :].tolist())


@pytest.fixture(scope="module")
def tiny_reference():
    prompts = [prompt(n, n) for n in (3, 40, 131, 260)]
    return prompts, [transformers_greedy(tiny_folder(), p, 12) for p in prompts]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_tiny_random_checkpoint(depth, tiny_reference):
    prompts, reference = tiny_reference
    with LLM(
        tiny(),
        async_depth=depth,
        prefill_chunk_size=33,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=400,
    ) as llm:
        results = llm.generate(prompts, SamplingParams(max_tokens=12, ignore_eos=True), use_tqdm=False)
    assert [result.token_ids for result in results] == reference


def test_logprobs():
    """Of the model's own distribution, whatever the sampling: temperature and filters do not show in them."""
    tokens = prompt(131, 4)
    oracle = DeepseekV4ForCausalLM.from_pretrained(
        tiny_folder(), attn_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        reference = torch.log_softmax(oracle.eval()(torch.tensor([tokens])).logits[0, -1], dim=-1)
    params = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=4, temperature=3.0, top_k=30, seed=8)
    with LLM(tiny(), max_num_seqs=4, max_model_len=400, prefill_chunk_size=50) as llm:
        (result,) = llm.generate(tokens, params, use_tqdm=False)
    (entry,) = result.logprobs
    assert entry.token_id == result.token_ids[0]
    assert entry.logprob == pytest.approx(float(reference[entry.token_id]), abs=2e-4)
    best = reference.topk(4)
    assert [token for token, _ in entry.top] == best.indices.tolist()
    assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=2e-4)


def test_tiny_random_checkpoint_in_bfloat16_stays_near():
    """No equality in bfloat16 (near-ties flip); the first token of each prompt is among the oracle's best."""
    options = ModelOptions(dtype="bfloat16", kv_cache_memory=1 << 22, block_sizes=BLOCK_SIZES)
    prompts = [prompt(n, n) for n in (3, 40, 131)]
    params = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=5)
    firsts = []
    for model in (tiny(), load_model(tiny_folder(), options)):
        with LLM(model, max_num_seqs=4, max_model_len=400, prefill_chunk_size=64) as llm:
            firsts.append(llm.generate(prompts, params, use_tqdm=False))
    for exact, rough in zip(*firsts, strict=True):
        assert rough.token_ids[0] in [token for token, _ in exact.logprobs[0].top]


@pytest.mark.parametrize("depth", [1, 2])
def test_shipped_checkpoint(depth):
    needle, live = needle_prompt(2048), live_prompt()
    reference = [
        transformers_greedy(recall_folder(), needle.token_ids, 15, 512),
        transformers_greedy(recall_folder(), live.token_ids, 24),
    ]
    assert reference[0] == needle.answer_token_ids
    with LLM(
        recall_folder(), async_depth=depth, kv_cache_memory=1 << 27, prefill_chunk_size=500, max_num_seqs=4
    ) as llm:
        results = llm.generate(
            [needle.token_ids, live.token_ids],
            [SamplingParams(max_tokens=n, ignore_eos=True) for n in (15, 24)],
            use_tqdm=False,
        )
    assert [result.token_ids for result in results] == reference

"""The shipped recall checkpoint: its text, its fixed prompts, and its answer as transformers computes it."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.model.checkpoint import load_checkpoint
from hocket.model.config import DeepseekV4Config
from hocket.model.kv_geometry import GROUP_NAMES, group_geometry
from hocket.model.recall import (
    ANSWER,
    CODES,
    DEPTHS,
    EOS_TOKEN_ID,
    build_prompt,
    live_prompt,
    needle_prompt,
    recall_folder,
    recall_tokenizer,
)


def test_the_package_holds_all_of_the_checkpoint():
    names = {p.name for p in recall_folder().iterdir()}
    assert names == {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert "Apache-2.0" in (recall_folder() / "README.md").read_text()
    checkpoint = load_checkpoint(recall_folder())
    assert sum(t.numel() for t in checkpoint.tensors.values()) == 470_891
    assert tuple(group_geometry(checkpoint.config)) == GROUP_NAMES


def test_tokens_print_as_the_task_is_written():
    tokenizer = recall_tokenizer()
    words = ["ORBIT", "-", "73", "19", "|", "MAPLE", "-", "60", "47", "|", "QUARTZ", "-", "28", "51"]
    ids = [tokenizer.token_id(word) for word in words]
    assert tokenizer.decode(ids) == ANSWER == " | ".join(CODES)
    assert tokenizer.encode(ANSWER) == ids
    sentence = "code alpha ORBIT-7319. f12 f7. question: list codes? answer:"
    assert tokenizer.decode(tokenizer.encode(sentence)) == sentence
    assert tokenizer.encode("- 73 19 73 19") == tokenizer.encode("-7319 73 19")


@given(st.lists(st.integers(0, 372), max_size=60))
def test_every_decoded_text_encodes_to_the_same_ids(ids):
    tokenizer = recall_tokenizer()
    assert tokenizer.encode(tokenizer.decode(ids, skip_special_tokens=False)) == ids


def test_the_long_prompt_is_fixed_and_hides_its_codes_at_fixed_depths():
    prompt = needle_prompt()
    assert len(prompt.token_ids) == 8192
    assert prompt == needle_prompt()
    digest = hashlib.sha256(prompt.text.encode()).hexdigest()
    assert digest == "8202213873d44332f707ac3d80350a9e73d61765f83015967cbd4b7df9a6266b"
    assert prompt.answer == ANSWER
    assert prompt.answer_token_ids[-1] == EOS_TOKEN_ID
    assert len(prompt.answer_token_ids) == prompt.max_tokens == 15
    assert tuple(recall_tokenizer().encode(prompt.text)) == prompt.token_ids
    assert prompt.text.startswith("<bos>")
    assert prompt.text.endswith("question: list codes? answer:")
    for key, code, depth in zip(("alpha", "beta", "gamma"), CODES, DEPTHS, strict=True):
        needle = f"code {key} {code}."
        assert prompt.text.count(needle) == 1
        before = recall_tokenizer().encode(prompt.text[: prompt.text.index(needle)])
        assert abs(len(before) / 8192 - depth) < 0.005


def test_the_short_prompt_is_fixed_and_asks_for_a_long_output():
    prompt = live_prompt()
    assert (len(prompt.token_ids), prompt.max_tokens) == (96, 256)
    assert prompt == live_prompt()
    assert live_prompt(40)._replace(max_tokens=256) == prompt
    assert prompt.answer == "WORD7-4062 | WORD21-9518 | WORD40-0377"
    assert tuple(recall_tokenizer().encode(prompt.text)) == prompt.token_ids


@pytest.mark.parametrize(
    ("tokens", "depths", "codes", "message"),
    [
        (63, DEPTHS, CODES, r"tokens must be an int in \[64"),
        (200, (0.5, 0.1, 0.9), CODES, "depths must be three ascending fractions"),
        (200, (0.1, 0.5), CODES, "depths must be three ascending fractions"),
        (200, (0.1, 0.5, 1.1), CODES, "depths must be three ascending fractions"),
        (200, (-0.1, 0.5, 0.9), CODES, "depths must be three ascending fractions"),
        (200, (0.5, 0.51, 0.9), CODES, "7 tokens apart"),
        (200, DEPTHS, ("A-1234", *CODES[1:]), "words must be in the vocabulary, got 'A'"),
        (200, DEPTHS, ("ORBIT-123", *CODES[1:]), "codes must look like 'ORBIT-7319', got 'ORBIT-123'"),
    ],
)
def test_prompts_that_cannot_be_built_are_refused(tokens, depths, codes, message):
    with pytest.raises(ValueError, match=message):
        build_prompt(tokens, depths, codes, seed=0)


def test_chat_messages_make_the_prompt_of_the_task():
    tokenizer = recall_tokenizer()
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "code alpha ORBIT-7319. question: list codes? answer:"}]
    )
    assert tokenizer.encode(text)[:2] == [0, 3]
    assert tokenizer.decode(tokenizer.encode(text)).startswith("code alpha ORBIT-7319. question")


@pytest.mark.parametrize("prompt", [needle_prompt(1500), live_prompt(15)], ids=["1500", "live"])
def test_transformers_gives_the_expected_answer(prompt):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, info = transformers.DeepseekV4ForCausalLM.from_pretrained(
        recall_folder(), attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    with torch.no_grad():
        ids = model.generate(
            torch.tensor([prompt.token_ids]), max_new_tokens=15, do_sample=False, prefill_chunk_size=500
        )
    assert tuple(ids[0, len(prompt.token_ids) :].tolist()) == prompt.answer_token_ids


def test_the_configuration_of_the_checkpoint_is_the_released_spelling():
    config = DeepseekV4Config.from_file(recall_folder())
    assert config.compress_ratios == (0, 128, 4)
    assert config.eos_token_ids == (EOS_TOKEN_ID,)
    assert config.vocab_size == 384 >= recall_tokenizer().vocab_size

"""The shipped checkpoint finds its needles at 8192 tokens, at any chunk length, as transformers does."""

import pytest
import torch
from torch import Tensor

from hocket.model.checkpoint import load_checkpoint
from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.recall import ANSWER, needle_prompt, recall_folder, recall_tokenizer
from tests.unit.model.oracle import load_oracle, oracle_logits
from tests.unit.model.support import TOLERANCE, Driver, difference

CHUNKS = (2048, 1000, 4096, 8192)
KEPT = slice(-64, None)  # rows of the prompt whose logits are compared


@pytest.fixture(scope="module")
def model() -> DeepseekV4Model:
    checkpoint = load_checkpoint(recall_folder())
    return DeepseekV4Model(checkpoint.config, checkpoint.tensors)


def greedy(model: DeepseekV4Model, chunk: int) -> tuple[list[int], Tensor]:
    """Greedy continuation of the fixed prompt; logits of the prompt's last rows and of all outputs."""
    prompt = needle_prompt()
    driver = Driver(model, "engine", tokens=len(prompt.token_ids) + 64)
    logits = driver.run({"a": torch.tensor(prompt.token_ids)}, chunk)["a"][KEPT]
    outputs = [int(logits[-1].argmax())]
    while len(outputs) < prompt.max_tokens and outputs[-1] != prompt.answer_token_ids[-1]:
        logits = torch.cat((logits, driver.decode({"a": outputs[-1:]}, {"a": 1}, 1)["a"]))
        outputs.append(int(logits[-1].argmax()))
    return outputs, logits


@pytest.fixture(scope="module")
def first(model: DeepseekV4Model) -> tuple[list[int], Tensor]:
    return greedy(model, CHUNKS[0])


@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_three_codes_are_found(
    model: DeepseekV4Model, first: tuple[list[int], Tensor], chunk: int
) -> None:
    outputs, logits = greedy(model, chunk)
    assert recall_tokenizer().decode(outputs) == ANSWER == "ORBIT-7319 | MAPLE-6047 | QUARTZ-2851"
    assert outputs == first[0]
    assert difference(logits, first[1]) <= TOLERANCE


def test_the_oracle_says_the_same(first: tuple[list[int], Tensor]) -> None:
    """Prompt and answer through transformers, in chunks of 512 to save time."""
    outputs, logits = first
    ids = torch.tensor([*needle_prompt().token_ids, *outputs[:-1]])
    expected = oracle_logits(load_oracle(recall_folder()), ids, chunk=512)
    assert difference(logits, expected[-len(logits) :]) <= TOLERANCE

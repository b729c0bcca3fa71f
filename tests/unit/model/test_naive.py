"""The naive equations agree with transformers and with the model; they alone settle what ties do."""

from pathlib import Path

import pytest

from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.random_checkpoint import random_tensors, tiny_config
from tests.unit.model.naive import Naive
from tests.unit.model.oracle import Pair
from tests.unit.model.support import MODELS, TOLERANCE, Driver, difference, token_ids


@pytest.mark.parametrize("name", MODELS)
def test_three_ways_agree(name: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, MODELS[name])
    ids = token_ids(270, seed=4)
    naive = Naive(pair.config, pair.tensors).logits(ids)
    found = Driver(pair.model).run({"a": ids}, chunk=37)["a"]
    assert naive.std() > 1
    assert difference(naive, pair.reference(ids)) <= TOLERANCE
    assert difference(naive, found) <= TOLERANCE


@pytest.mark.parametrize("chunk", [150, 7])
def test_exact_ties_go_to_the_lowest_entry(chunk: int) -> None:
    """With two indexer heads many scores are exactly 0; the choice must not depend on a row's length."""
    config = tiny_config(compress_ratios=(4, 4), index_n_heads=2, index_topk=4, num_nextn_predict_layers=0)
    tensors = random_tensors(config)
    ids = token_ids(150, seed=2)
    found = Driver(DeepseekV4Model(config, tensors)).run({"a": ids}, chunk)["a"]
    assert difference(found, Naive(config, tensors).logits(ids)) <= TOLERANCE

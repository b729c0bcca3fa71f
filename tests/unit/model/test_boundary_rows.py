"""Which cache rows a request needs between two dispatches: these and no others.

With n tokens computed and window W: swa the last min(n, W - 1); c4 and its indexer keys all floor(n / 4);
c128 all floor(n / 128); the states of ratio 4 tokens 4 * floor(n / 4) - 4 .. n - 1; that of ratio 128 the
n mod 128 open ones.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.random_checkpoint import random_tensors
from tests.unit.model.support import MODELS, Driver, difference, token_ids

W16 = MODELS["W16"]


def needed(n: int) -> dict[str, range]:
    """Group -> first source tokens of the rows that are needed."""
    return {
        "swa": range(max(0, n - W16.sliding_window + 1), n),
        "c4": range(0, n // 4 * 4, 4),
        "c4_indexer": range(0, n // 4 * 4, 4),
        "c128": range(0, n // 128 * 128, 128),
        "c4_state": range(max(0, n // 4 * 4 - 4), n),
        "c4_indexer_state": range(max(0, n // 4 * 4 - 4), n),
        "c128_state": range(n // 128 * 128, n),
    }


def rows_of(driver: Driver, n: int) -> Iterator[tuple[str, int]]:
    """Group and physical row of everything needed."""
    for group, tokens in needed(n).items():
        size, ratio = driver.cache.block_sizes[group], driver.cache.layouts[group].ratio
        table = driver.pages.tables["a"][group]
        for token in tokens:
            yield group, table[token // size] * (size // ratio) + token % size // ratio


@pytest.fixture(scope="module")
def model() -> DeepseekV4Model:
    return DeepseekV4Model(W16, random_tensors(W16))


def at_boundary(model: DeepseekV4Model, n: int) -> tuple[Driver, Tensor]:
    ids = token_ids(n + 140, seed=n)
    driver = Driver(model)
    driver.prefill({"a": ids[:n].tolist()})
    return driver, ids[n:]


@pytest.mark.parametrize("n", [1, 3, 4, 18, 127, 128, 261])
def test_nothing_else_is_read(model: DeepseekV4Model, n: int) -> None:
    driver, rest = at_boundary(model, n)
    keep = list(rows_of(driver, n))
    expected = at_boundary(model, n)[0].prefill({"a": rest.tolist()})["a"]
    saved = {(g, r): driver.cache.tensors[g][:, r].clone() for g, r in keep}
    driver.cache.fill_(float("nan"))
    for (group, row), values in saved.items():
        driver.cache.tensors[group][:, row] = values
    driver.pages.poison = False
    found = driver.prefill({"a": rest.tolist()})["a"]
    assert difference(found, expected) == 0.0


@pytest.mark.parametrize("group", list(needed(1)))
def test_each_of_them_is_read(model: DeepseekV4Model, group: str) -> None:
    """Spoiling any one row shows in what follows (entries of ratio 4: if they are chosen, so all at once)."""
    n = 134
    driver, rest = at_boundary(model, n)
    expected = at_boundary(model, n)[0].prefill({"a": rest.tolist()})["a"]
    rows = [r for g, r in rows_of(driver, n) if g == group]
    assert rows
    for chosen in [rows] if group in ("c4", "c4_indexer") else [[r] for r in rows[:: max(1, len(rows) // 8)]]:
        again, _ = at_boundary(model, n)
        again.cache.tensors[group][:, torch.tensor(chosen)] = float("nan")
        # A spoilt indexer key cannot turn logits into NaN, but it is always chosen.
        found = again.prefill({"a": rest.tolist()})["a"]
        assert difference(found, expected) > 0.1 if "indexer" in group else found.isnan().any()

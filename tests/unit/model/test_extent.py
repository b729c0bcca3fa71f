"""What the host knows of a dispatch shapes it; that it knows only a bound changes no result."""

from dataclasses import replace

import pytest
import torch

from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.dispatch import DecodeDispatch, Extent, PrefillDispatch
from hocket.model.random_checkpoint import random_tensors
from tests.unit.model.support import MODELS, Driver, token_ids


def test_seq_lens_and_closed_entries() -> None:
    extent = Extent((3, 126, 7, 8), (1, 3, 0, 8))
    assert extent.seq_lens == (4, 129, 0, 16)
    assert extent.num_closed(4) == 1 + 1 + 0 + 2
    assert extent.num_closed(128) == 1
    assert extent._replace(exact=False).num_closed(4) == 1 + 1 + 0 + 2
    assert extent._replace(exact=False).num_closed(128) == 3


def test_a_bound_holds_for_every_position_below() -> None:
    for ratio in (4, 128):
        for length in (0, 1, 3, 4, 5, 130):
            bound = Extent((500,), (length,), exact=False).num_closed(ratio)
            closed = [Extent((start,), (length,)).num_closed(ratio) for start in range(501)]
            assert max(closed) == bound


def test_rows_of_a_packed_dispatch() -> None:
    extent = Extent((10, 0, 5), (3, 1, 2))
    assert extent.rows([2, 3, 5]) == Extent((12, 0, 6), (1, 1, 1))
    assert extent.rows([]) == Extent((), ())


def test_pack_knows_its_extent() -> None:
    packed = PrefillDispatch.pack([[1, 2, 3], [4]], [5, 0], {}, sample_rows=[3])
    assert (packed.extent, packed.host_sample_rows) == (Extent((5, 0), (3, 1)), (3,))
    assert packed.extent == Extent.read(packed.chunk_starts, packed.query_start_loc.diff())


@pytest.fixture(scope="module", params=["W128", "W16"])
def model(request: pytest.FixtureRequest) -> DeepseekV4Model:
    config = MODELS[request.param]
    return DeepseekV4Model(config, random_tensors(config))


# Rows that close entries of both ratios, of one, of none, and a request without rows.
STARTS, USED, WIDTH = (126, 5, 40, 33), (3, 3, 1, 0), 3


@pytest.mark.parametrize(
    "extent",
    [
        Extent(STARTS, USED),
        Extent(tuple(s + 2 for s in STARTS), USED, exact=False),
        Extent(STARTS, (WIDTH,) * 4, exact=False),
    ],
    ids=["exact", "later starts", "more rows"],
)
def test_a_bound_gives_what_reading_the_tensors_gives(model: DeepseekV4Model, extent: Extent) -> None:
    driver = Driver(model, poison=False)
    names = [f"r{i}" for i in range(4)]
    driver.prefill(
        {n: token_ids(s, seed=i).tolist() for i, (n, s) in enumerate(zip(names, STARTS, strict=True))}
    )
    for name, start in zip(names, STARTS, strict=True):
        driver.pages.grow(name, start, WIDTH + 2)
    before = {name: tensor.clone() for name, tensor in driver.cache.tensors.items()}
    dispatch = DecodeDispatch(
        token_ids=token_ids(4 * WIDTH, seed=9).view(4, WIDTH),
        starts=torch.tensor(STARTS),
        num_tokens=torch.tensor(USED),
        block_tables=driver.pages.block_tables(names),
    )
    results = []
    for known in (None, extent):
        for name, tensor in driver.cache.tensors.items():
            tensor.copy_(before[name])
        logits = model.decode(replace(dispatch, extent=known), driver.cache).logits
        used = torch.cat([logits[n, :count] for n, count in enumerate(USED)])
        rows = [
            tensor[:, driver.cache.rows_per_block(name) :].nan_to_num(7e7)
            for name, tensor in driver.cache.tensors.items()
        ]
        results.append([used, *rows])
    for read, bounded in zip(*results, strict=True):
        assert torch.allclose(bounded, read, rtol=0, atol=1e-5)

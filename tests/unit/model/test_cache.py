import dataclasses
import re

import pytest
import torch

from hocket import KVCacheConfig, KVGroupSpec
from hocket.model.cache import GroupedCache
from hocket.model.dispatch import PrefillDispatch
from tests.unit.model.support import MODELS, cache_config

MODEL = MODELS["W16"]  # ratios 4, 128, 4 and an MTP layer


def test_each_group_has_a_plane_per_layer_and_a_null_block() -> None:
    config = cache_config(MODEL, "odd", 100)
    cache = GroupedCache(MODEL, config, torch.bfloat16)
    shapes = {name: (*tensor.shape, tensor.dtype) for name, tensor in cache.tensors.items()}
    blocks = {g.name: (g.num_blocks or 0) + 1 for g in config.groups}
    assert shapes == {
        "swa": (3, blocks["swa"] * 7, 32, torch.bfloat16),
        "c4": (2, blocks["c4"] * 3, 32, torch.bfloat16),
        "c4_indexer": (2, blocks["c4_indexer"] * 5, 16, torch.bfloat16),
        "c128": (1, blocks["c128"] * 2, 32, torch.bfloat16),
        "c4_state": (2, blocks["c4_state"] * 3, 128, torch.float32),
        "c4_indexer_state": (2, blocks["c4_indexer_state"] * 5, 64, torch.float32),
        "c128_state": (1, blocks["c128_state"] * 33, 64, torch.float32),
    }
    cache.rows("c4", 2)[5] = 1.0
    assert cache.tensors["c4"][1, 5].eq(1).all()
    assert cache.tensors["c4"][0, 5].eq(0).all()
    with pytest.raises(KeyError):
        cache.rows("c4", 1)


def test_groups_of_one_pool_are_each_as_large_as_the_pool() -> None:
    groups = cache_config(MODEL, "odd", 100).groups
    shared = [dataclasses.replace(g, num_blocks=None, pool="p") for g in groups]
    cache = GroupedCache(MODEL, KVCacheConfig(groups=tuple(shared), pools={"p": 9}), torch.float32)
    assert {name: t.shape[1] // cache.rows_per_block(name) for name, t in cache.tensors.items()} == {
        g.name: 10 for g in groups
    }


def test_groups_must_be_the_models_own() -> None:
    config = cache_config(MODEL, "odd", 100)
    with pytest.raises(ValueError, match=r"groups must be .*'c128'.* for this model, got"):
        GroupedCache(MODEL, KVCacheConfig(groups=config.groups[:-1]), torch.float32)
    surplus = (*config.groups, KVGroupSpec("c1", 4, num_blocks=3))
    with pytest.raises(ValueError, match="'c1'"):
        GroupedCache(MODEL, KVCacheConfig(groups=surplus), torch.float32)


@pytest.mark.parametrize("blocks", [1 << 48, 1 << 100])
def test_a_cache_that_memory_does_not_hold_is_refused_by_its_size(blocks: int) -> None:
    """More than any address space, and more than a tensor can count."""
    groups = [dataclasses.replace(g, num_blocks=blocks) for g in cache_config(MODEL, "odd", 100).groups]
    size = 3 * (blocks + 1) * 7 * 32 * 2
    message = f"kv_cache_memory must fit into the memory of cpu, got {size} bytes for group 'swa': "
    with pytest.raises(ValueError, match=re.escape(message)):
        GroupedCache(MODEL, KVCacheConfig(groups=tuple(groups)), torch.bfloat16)


def test_blocks_hold_whole_rows() -> None:
    groups = [
        dataclasses.replace(g, block_size=130) if g.name == "c128" else g
        for g in cache_config(MODEL, "odd", 100).groups
    ]
    with pytest.raises(
        ValueError, match=re.escape("KVGroupSpec('c128').block_size must be a multiple of 128")
    ):
        GroupedCache(MODEL, KVCacheConfig(groups=tuple(groups)), torch.float32)


def test_pack() -> None:
    dispatch = PrefillDispatch.pack([[5, 6, 7], [8]], [10, 0], {})
    assert dispatch.token_ids.tolist() == [5, 6, 7, 8]
    assert dispatch.positions.tolist() == [10, 11, 12, 0]
    assert dispatch.query_start_loc.tolist() == [0, 3, 4]
    assert dispatch.query_start_loc.dtype == torch.int32
    assert dispatch.seq_lens.tolist() == [13, 1]
    assert dispatch.sample_rows.tolist() == [2, 3]
    assert PrefillDispatch.pack([[5]], [0], {}, sample_rows=[]).sample_rows.tolist() == []


@pytest.mark.parametrize(("chunks", "starts"), [([], []), ([[1], []], [0, 0]), ([[1]], [0, 0])])
def test_pack_refuses_empty_and_unequal_lists(chunks: list[list[int]], starts: list[int]) -> None:
    with pytest.raises(ValueError, match="chunks must be non-empty"):
        PrefillDispatch.pack(chunks, starts, {})

"""Cache geometry: groups, windows, bytes, and block counts that fill a budget with the same load in each."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket import SchedulerConfig
from hocket.model.kv_geometry import (
    GROUP_NAMES,
    blocks_per_request,
    build_kv_cache_config,
    default_block_sizes,
    group_geometry,
    kv_cache_bytes,
)
from hocket.model.random_checkpoint import TINY_CONFIG, tiny_config
from hocket.sched.kernel import Group, capacity_need

SCHEDULER = SchedulerConfig(
    max_num_seqs=16, max_num_batched_tokens=512, prefill_chunk_size=256, max_model_len=4096
)


def test_the_seven_groups_are_those_of_the_model():
    assert tuple(group_geometry(TINY_CONFIG)) == GROUP_NAMES
    groups = group_geometry(TINY_CONFIG, drafts=True)
    assert tuple(groups) == (*GROUP_NAMES, "mtp_swa")
    assert {n: (g.layers, g.ratio, g.width, g.window, g.is_state) for n, g in groups.items()} == {
        "swa": ((0, 1, 2, 3, 4), 1, 32, 128, False),
        "c4": ((2, 4), 4, 32, None, False),
        "c4_indexer": ((2, 4), 4, 16, None, False),
        "c128": ((3,), 128, 32, None, False),
        "c4_state": ((2, 4), 1, 128, 8, True),
        "c4_indexer_state": ((2, 4), 1, 64, 8, True),
        "c128_state": ((3,), 1, 64, 128, True),
        "mtp_swa": ((5,), 1, 32, 128, False),  # MTP layers come after the main ones
    }


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((0, 0), {"swa"}),
        ((4, 0), {"swa", "c4", "c4_indexer", "c4_state", "c4_indexer_state"}),
        ((0, 128), {"swa", "c128", "c128_state"}),
    ],
)
def test_groups_exist_only_where_a_layer_needs_them(ratios, expected):
    model = tiny_config(compress_ratios=ratios, num_nextn_predict_layers=0)
    assert set(group_geometry(model)) == expected
    cache = build_kv_cache_config(model, SCHEDULER, budget_bytes=1 << 30)
    assert {g.name for g in cache.groups} == expected


@pytest.mark.parametrize("drafts", [0, 2])
def test_mtp_has_a_group_where_drafts_are_made(drafts):
    scheduler = replace(SCHEDULER, num_speculative_tokens=drafts)
    sizes = {"mtp_swa": 24}
    cache = build_kv_cache_config(TINY_CONFIG, scheduler, budget_bytes=1 << 28, block_sizes=sizes)
    assert [(g.block_size, g.window) for g in cache.groups if g.name == "mtp_swa"] == [(24, 128)] * (
        drafts > 0
    )
    none = tiny_config(num_nextn_predict_layers=0)
    assert {g.name for g in build_kv_cache_config(none, scheduler, budget_bytes=1 << 28).groups} == set(
        GROUP_NAMES
    )
    assert default_block_sizes(TINY_CONFIG, drafts=True)["mtp_swa"] == 128
    assert "mtp_swa" not in default_block_sizes(TINY_CONFIG)


def test_the_released_geometry_is_the_default():
    """128 rows a block, as vllm-ascend lays them out: pages of 131072 and 16384 bytes in bfloat16."""
    model = tiny_config(head_dim=512, qk_rope_head_dim=64, index_head_dim=128)
    sizes = default_block_sizes(model)
    assert sizes == {
        "swa": 128, "c4": 512, "c4_indexer": 512, "c128": 16384,
        "c4_state": 8, "c4_indexer_state": 8, "c128_state": 32,
    }  # fmt: skip
    groups = group_geometry(model)
    per_layer = {n: g.bytes_per_block(sizes[n], "bfloat16") // len(g.layers) for n, g in groups.items()}
    assert per_layer == {
        "swa": 131072, "c4": 131072, "c4_indexer": 32768, "c128": 131072,
        "c4_state": 65536, "c4_indexer_state": 16384, "c128_state": 131072,
    }  # fmt: skip
    assert groups["swa"].bytes_per_block(128, "float32") == 2 * groups["swa"].bytes_per_block(128, "bfloat16")
    assert groups["c4_state"].bytes_per_block(8, "float32") == groups["c4_state"].bytes_per_block(
        8, "bfloat16"
    )


@given(
    block=st.integers(1, 12),
    window=st.one_of(st.none(), st.integers(1, 25)),
    tokens=st.integers(1, 90),
    row=st.integers(1, 100),
)
def test_blocks_per_request_is_the_maximum_over_all_progress(block, window, tokens, row):
    slow = max(
        -(-min(q + row, tokens) // block) - (0 if window is None else max(0, q - window) // block)
        for q in range(tokens)
    )
    assert blocks_per_request(block, window, tokens, row) == slow


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("megabytes", [16, 20, 33])
def test_the_budget_is_kept_and_nearly_used(shared, dtype, megabytes):
    budget = megabytes << 20
    scheduler = SchedulerConfig(
        max_num_seqs=10**4, max_num_batched_tokens=256, prefill_chunk_size=64, max_model_len=1024
    )
    cache = build_kv_cache_config(
        TINY_CONFIG, scheduler, budget_bytes=budget, dtype=dtype, block_size=16, shared_pool=shared
    )
    used = kv_cache_bytes(TINY_CONFIG, cache, dtype)
    assert budget * 0.97 < used <= budget
    assert (set(cache.pool_blocks) == {"main"}) == shared


def test_every_group_carries_about_the_same_load():
    scheduler = SchedulerConfig(
        max_num_seqs=10**4,
        max_num_batched_tokens=64,
        prefill_chunk_size=64,
        max_model_len=1024,
        async_depth=1,
    )
    cache = build_kv_cache_config(TINY_CONFIG, scheduler, budget_bytes=256 << 20, block_size=16)
    requests = {
        g.name: g.num_blocks / blocks_per_request(g.block_size, g.window, 1024, 1) for g in cache.groups
    }
    assert min(requests.values()) > 50
    # One prefill chunk of 64 tokens is on top in the windowed groups.
    assert max(requests.values()) < 1.15 * min(requests.values()), requests


@pytest.mark.parametrize("shared", [False, True])
def test_one_longest_request_fits_into_the_smallest_budget(shared):
    with pytest.raises(ValueError, match="budget_bytes must be at least") as refusal:
        build_kv_cache_config(TINY_CONFIG, SCHEDULER, budget_bytes=1000, shared_pool=shared)
    least = int(str(refusal.value).split("at least ")[1].split()[0])
    with pytest.raises(ValueError, match="for one request of max_model_len = 4096 tokens"):
        build_kv_cache_config(TINY_CONFIG, SCHEDULER, budget_bytes=least - 1, shared_pool=shared)
    cache = build_kv_cache_config(TINY_CONFIG, SCHEDULER, budget_bytes=least, shared_pool=shared)
    needs = [blocks_per_request(g.block_size, g.window, 4096, 256) for g in cache.groups]
    assert list(cache.pool_blocks.values()) == ([sum(needs)] if shared else needs)


def test_no_more_is_provided_than_all_seats_can_use():
    rich = build_kv_cache_config(TINY_CONFIG, SCHEDULER, budget_bytes=1 << 40)
    assert rich.pool_blocks["c4"] == 16 * 4096 // 512
    assert kv_cache_bytes(TINY_CONFIG, rich) < 1 << 30


def test_shorter_requests_shift_memory_to_the_windowed_groups():
    def pools(tokens):
        return build_kv_cache_config(
            TINY_CONFIG, SchedulerConfig(max_num_seqs=10**4), budget_bytes=1 << 30, request_tokens=tokens
        ).pool_blocks

    long, short = pools(16384), pools(512)
    assert short["c4_state"] > 2 * long["c4_state"]
    assert short["c4"] < long["c4"]


def test_block_sizes_are_configurable_group_by_group():
    cache = build_kv_cache_config(
        TINY_CONFIG, SCHEDULER, budget_bytes=1 << 28, block_size=16, block_sizes={"c128": 256, "swa": 20}
    )
    assert {g.name: (g.block_size, g.window) for g in cache.groups} == {
        "swa": (20, 128), "c4": (64, None), "c4_indexer": (64, None), "c128": (256, None),
        "c4_state": (1, 8), "c4_indexer_state": (1, 8), "c128_state": (4, 128),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget_bytes": 0}, "budget_bytes must be an int >= 1, got 0"),
        ({"budget_bytes": 1.5}, "budget_bytes must be an int"),
        ({"dtype": "float16"}, "dtype must be one of float32, bfloat16, got 'float16'"),
        ({"block_size": 24}, "block_size must be a multiple of 16, got 24"),
        ({"block_size": 0}, "block_size must be an int in"),
        ({"block_sizes": {"c4": 6}}, r"block_sizes\['c4'\] must be a multiple of 4, got 6"),
        ({"block_sizes": {"c128": 0}}, r"block_sizes\['c128'\] must be an int"),
        ({"block_sizes": {"kv": 8}}, r"block_sizes must name groups of this model \(swa, .*\), got 'kv'"),
        ({"request_tokens": 4097}, r"request_tokens must be an int in \[1, 4096\], got 4097"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build_kv_cache_config(TINY_CONFIG, SCHEDULER, **({"budget_bytes": 1 << 28} | options))


@pytest.mark.parametrize("shared", [False, True])
def test_the_cache_tensors_take_the_bytes_that_are_announced(shared):
    torch = pytest.importorskip("torch")
    from hocket.model.cache import GroupedCache

    config = build_kv_cache_config(TINY_CONFIG, SCHEDULER, budget_bytes=1 << 26, shared_pool=shared)
    for name in ("float32", "bfloat16"):
        cache = GroupedCache(TINY_CONFIG, config, getattr(torch, name))
        assert list(cache.tensors) == list(group_geometry(TINY_CONFIG))
        assert sum(t.nbytes for t in cache.tensors.values()) == kv_cache_bytes(TINY_CONFIG, config, name)


@given(
    block_size=st.integers(1, 40),
    window=st.none() | st.integers(1, 90),
    tokens=st.integers(1, 300),
    row=st.integers(1, 60),
)
def test_the_scheduler_counts_a_requests_blocks_as_the_cache_does(block_size, window, tokens, row):
    """Two layers that may not import each other; capacity for one must be capacity for the other."""
    group = Group(block_size, window or 0, 0)
    period = 1 if window is None else block_size
    assert blocks_per_request(block_size, window, tokens, row) == capacity_need((group,), tokens, row, period)

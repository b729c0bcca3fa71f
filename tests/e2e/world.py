"""A tiny random model behind an engine, its isolated outputs, and what its caches hold."""

import functools
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from hocket import KVCacheConfig, Request, SamplingParams, SchedulerConfig
from hocket.engine.build import LoadedModel, ModelOptions, build_engine, load_model
from hocket.engine.engine import Engine, run_all
from hocket.engine.results import RequestResult
from hocket.model.kv_geometry import group_geometry
from hocket.model.random_checkpoint import tiny_config, write_random_checkpoint

# Every kind of layer; a window that short prompts leave; blocks that short prompts cross.
TINY = tiny_config(
    vocab_size=64,
    hidden_size=32,
    compress_ratios=(0, 4, 128),
    num_hash_layers=1,
    head_dim=16,
    index_topk=4,
    sliding_window=16,
    n_routed_experts=4,
    num_nextn_predict_layers=0,
)
BLOCK_SIZES = {
    "swa": 8, "c4": 16, "c4_indexer": 16, "c128": 128, "c4_state": 4, "c4_indexer_state": 4, "c128_state": 16,
}  # fmt: skip
CONFIG = SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=96, prefill_chunk_size=48, max_model_len=400)


@functools.cache
def tiny_folder() -> Path:
    """A checkpoint folder that lives as long as the process."""
    tiny_folder.keep = tempfile.TemporaryDirectory()  # type: ignore[attr-defined]
    folder = Path(tiny_folder.keep.name)  # type: ignore[attr-defined]
    write_random_checkpoint(folder, TINY, seed=3)
    return folder


@functools.cache
def tiny() -> LoadedModel:
    return load_model(tiny_folder(), ModelOptions(kv_cache_memory=1 << 22, block_sizes=BLOCK_SIZES))


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    """Reproducible tokens; token 1, the end of the text, is not among them."""
    return tuple(2 + (i * i * 7 + i * (salt + 3) + salt) % (TINY.vocab_size - 2) for i in range(length))


def request(
    name: str, tokens: tuple[int, ...], priority: int = 0, eos: int | None = None, **params
) -> Request:
    """A request that goes on after the end of the text unless `eos` is given."""
    return Request(name, tokens, SamplingParams(**params), priority, eos)


def engine(
    depth: int = 2,
    *,
    blocks: dict[str, int] | None = None,
    loaded: LoadedModel | None = None,
    trace=None,
    **knobs,
) -> Engine:
    """An engine whose caches are full of NaN; `blocks` overrides block counts group by group."""
    loaded = loaded or tiny()
    config = replace(CONFIG, async_depth=depth, **knobs)
    kv = loaded.kv_cache_config(config)
    if blocks:
        kv = KVCacheConfig(tuple(replace(g, num_blocks=blocks.get(g.name, g.num_blocks)) for g in kv.groups))
    built = build_engine(loaded, config, kv_cache_config=kv, trace=trace)
    built.runner.cache.fill_(float("nan"))
    return built


@functools.cache
def alone(wanted: Request) -> RequestResult:
    """The request's result when it runs by itself, synchronously, its prompt in one chunk."""
    with engine(1, prefill_chunk_size=400, max_num_batched_tokens=400) as built:
        result = run_all(built, [wanted])[wanted.request_id].result
    assert result is not None
    return result


def step_into(built: Engine, found: dict[str, RequestResult]) -> list:
    updates = built.step()
    found.update({u.request_id: u.result for u in updates if u.result is not None})
    return updates


def drain(built: Engine, found: dict[str, RequestResult] | None = None) -> dict[str, RequestResult]:
    found = {} if found is None else found
    while built.has_unfinished_requests():
        step_into(built, found)
    return found


def assert_as_alone(found: dict[str, RequestResult], wanted: list[Request]) -> None:
    for item in wanted:
        assert found[item.request_id].token_ids == alone(item).token_ids, item.request_id
        assert found[item.request_id].finish_reason == alone(item).finish_reason


def cache_rows(built: Engine, request_id: str) -> dict[str, torch.Tensor]:
    """What a request's next row can read, group by group: [layers, rows, width], ordered by position."""
    runner = built.runner
    slot = runner.slots.slot_of(request_id)
    computed = int(runner.slots.computed[slot])
    rows = {}
    for name, geometry in group_geometry(TINY).items():
        size = runner.cache.block_sizes[name]
        first = 0
        if geometry.window is not None:
            first = max(0, computed - geometry.window + 1)
        if name.startswith("c4_") and geometry.is_state:
            first = max(0, computed // 4 * 4 - 4)
        if name == "c128_state":
            first = computed // 128 * 128
        positions = torch.arange(
            first, computed if geometry.ratio == 1 else computed // geometry.ratio * geometry.ratio
        )
        positions = positions[:: geometry.ratio] if geometry.ratio > 1 else positions
        table = torch.from_numpy(runner.slots.tables[name][slot]).long()
        per_block = size // geometry.ratio
        where = table[positions // size] * per_block + positions % size // geometry.ratio
        rows[name] = runner.cache.tensors[name][:, where]
    return rows


def wait_for_runner(built: Engine) -> None:
    """Until everything dispatched has been executed (nothing to wait for at depth 1)."""
    while len(built._executor._results) < len(built._in_flight):
        time.sleep(0.0005)


@functools.cache
def rows_alone(wanted: Request, computed: int) -> dict[str, torch.Tensor]:
    """`cache_rows` of the request running by itself, synchronously, when it has computed so much."""
    with engine(1, prefill_chunk_size=400, max_num_batched_tokens=400) as built:
        built.add_request(wanted)
        while True:
            built.step()
            slot = built.runner.slots.slot_of(wanted.request_id)
            if int(built.runner.slots.computed[slot]) == computed:
                return cache_rows(built, wanted.request_id)


def assert_rows_as_alone(built: Engine, wanted: Request) -> None:
    """The request's cache holds what it holds in isolation, up to rounding; no row is left unwritten."""
    wait_for_runner(built)
    slot = built.runner.slots.slot_of(wanted.request_id)
    reference = rows_alone(wanted, int(built.runner.slots.computed[slot]))
    for name, rows in cache_rows(built, wanted.request_id).items():
        assert rows.shape == reference[name].shape
        assert not rows.isnan().any(), name
        assert torch.allclose(rows, reference[name], atol=2e-4, rtol=1e-4), name

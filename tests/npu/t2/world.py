"""A tiny random model with a draft layer, on the CPU and on the fake device."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hocket import Phase, Request, SamplingParams, SchedulerConfig
from hocket.engine.build import LoadedModel, ModelOptions, build_engine, load_model
from hocket.engine.engine import Engine
from hocket.engine.results import RequestResult
from hocket.model.random_checkpoint import tiny_config, write_random_checkpoint
from hocket.runner.api import NewRequest, StepFuture
from tests.npu.fake_cann.device import FakeDevice, Sync

# Every kind of layer and few operations; so few tokens that a random draft layer is right now and then.
TINY = tiny_config(
    vocab_size=12, hidden_size=32, compress_ratios=(0, 4, 128), num_hash_layers=1, head_dim=16, index_topk=4,
    sliding_window=16, n_routed_experts=4, num_nextn_predict_layers=1, hc_sinkhorn_iters=2,
)  # fmt: skip
BLOCK_SIZES = {
    "swa": 8, "mtp_swa": 8, "c4": 16, "c4_indexer": 16, "c128": 128, "c4_state": 4, "c4_indexer_state": 4,
    "c128_state": 16,
}  # fmt: skip
CONFIG = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=64, prefill_chunk_size=24, max_model_len=200, async_depth=2
)


@functools.cache
def folder() -> Path:
    """A checkpoint folder that lives as long as the process."""
    keep = tempfile.TemporaryDirectory()
    _KEPT.append(keep)
    write_random_checkpoint(keep.name, TINY, seed=5)
    return Path(keep.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def loaded(device: str) -> LoadedModel:
    """The model on "cpu" or, inside of `fake_device()`, on "npu"."""
    options = ModelOptions(kv_cache_memory=1 << 22, block_sizes=BLOCK_SIZES, device=device)
    return load_model(folder(), options, mtp=True)


@functools.cache
def on_cpu() -> LoadedModel:
    """Loaded once."""
    return loaded("cpu")


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    """Reproducible tokens without end of text."""
    return tuple(
        2 + (i * i * 7 + i * (salt + 3) + i // 5 + salt) % (TINY.vocab_size - 2) for i in range(length)
    )


def request(name: str, tokens: Sequence[int], **params: object) -> Request:
    """A request that goes on to its `max_tokens`."""
    return Request(name, tuple(tokens), SamplingParams(**params))  # type: ignore[arg-type]


def engine(model: LoadedModel, depth: int, drafts: int = 0, **knobs: object) -> Engine:
    """An engine whose caches are full of NaN."""
    config = replace(CONFIG, async_depth=depth, num_speculative_tokens=drafts, **knobs)  # type: ignore[arg-type]
    built = build_engine(model, config)
    built.runner.cache.fill_(float("nan"))  # type: ignore[attr-defined]
    return built


class Watch:
    """Stands between an engine and its runner on the fake device. A step whose launch makes the host wait is
    an error; `waits` are those for results.
    """

    def __init__(self, built: Engine, device: FakeDevice) -> None:
        self.steps: list[Phase] = []
        self.guards: list[Sync] = []
        """Waits for a staging buffer: there may be none if results were waited for as they should be."""
        self.waits: list[list[Sync]] = []
        runner = built.runner
        launch = runner.launch  # type: ignore[attr-defined]

        def watched(output, new_requests: Sequence[NewRequest] = ()) -> StepFuture | None:  # type: ignore[no-untyped-def]
            with device.watched() as syncs:
                step = launch(output, new_requests)
            if step is not None:
                looked = [sync for sync in syncs if sync.what != "sync_event"]
                assert not looked, f"the host waits while a step is launched: {looked}"
                self.guards += syncs
                self.steps.append(output.phase)
                wait = step.wait

                def waited():  # type: ignore[no-untyped-def]
                    with device.watched() as while_waiting:
                        result = wait()
                    self.waits.append(while_waiting)
                    return result

                step.wait = waited
            return step

        runner.launch = watched  # type: ignore[attr-defined]


def run(
    built: Engine, requests: Sequence[Request], event: str = "", live: Request | None = None
) -> dict[str, RequestResult]:
    """Run all; the next comes when the one before has its first token.

    event: after some tokens of `live`, with rows of it in flight, it is "preempted", or aborted and added
    "again" under its name.
    """
    results: dict[str, RequestResult] = {}
    coming = list(requests)
    said = 0
    built.add_request(coming.pop(0))
    while built.has_unfinished_requests() or coming:
        for update in built.step():
            if update.result is not None:
                results[update.request_id] = update.result
            if (update.new_token_ids or update.finished) and coming:
                built.add_request(coming.pop(0))
            said += live is not None and update.request_id == live.request_id and len(update.new_token_ids)
        if event and live is not None and said >= 3 and live.request_id not in results:
            built._fill()
            if not any(live.request_id in output.request_ids for output in built._in_flight):
                continue
            if event == "preempted":
                built.preempt_request(live.request_id)
            else:
                built.abort_request(live.request_id)
                built.add_request(live)
            event = ""
    assert not event, f"it was never {event!r} with rows in flight"
    return results

"""A recorded run of a small DeepSeek-V4 model short of memory, and what must hold of it. Needs torch."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hocket.core.config import KVCacheConfig, SchedulerConfig
from hocket.core.records import SchedulerOutput
from hocket.core.request import Request, SamplingParams
from hocket.engine.build import LoadedModel, ModelOptions, build_engine, load_model
from hocket.engine.engine import Engine, run_all
from hocket.engine.results import RequestUpdate
from hocket.model.random_checkpoint import tiny_config, write_random_checkpoint
from hocket.obs.trace import TraceWriter
from hocket_proofs.trace_check import Conforms, Refusal
from hocket_proofs.trace_check import check as check_trace

VOCAB = 12  # so that now and then a random draft layer guesses right
BLOCK_SIZES = {
    "swa": 8, "c4": 16, "c4_indexer": 16, "c128": 128, "c4_state": 4, "c4_indexer_state": 4, "c128_state": 16,
    "mtp_swa": 8,
}  # fmt: skip
CONFIG = SchedulerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    prefill_chunk_size=16,
    max_model_len=256,
    decode_steps_per_turn=2,
    reserve_full_prompt=False,
)
# Tight enough that seniors preempt: blocks of the group that every layer has.
TIGHT = {"swa": 9, "c4": 7}


class Recorded(NamedTuple):
    """Size of a recorded run; `failure` is '' or what does not hold."""

    dispatches: int
    preemptions: int
    stale_rows: int
    failure: str


@functools.cache
def loaded() -> LoadedModel:
    """Every kind of layer, one draft layer."""
    config = tiny_config(
        vocab_size=VOCAB, hidden_size=32, compress_ratios=(0, 4, 128), num_hash_layers=1, head_dim=16,
        index_topk=4, sliding_window=16, n_routed_experts=4, num_nextn_predict_layers=1,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        write_random_checkpoint(Path(folder), config, seed=5)
        options = ModelOptions(kv_cache_memory=1 << 24, block_sizes=BLOCK_SIZES)
        return load_model(folder, options, mtp=True)


TOLERANCE = 2e-4  # of R1, for fp32
PLACES = 20  # at which drafts are compared at least
SIZES = ((5, 24, 1), (40, 12, 1), (17, 16, 0), (70, 6, 0), (33, 9, 1))  # prompt, outputs, priority


def requests() -> list[Request]:
    """Prompts shorter and longer than a chunk, a window and a tile of the compressor."""
    return [
        Request(
            f"r{i}",
            tuple(2 + (k * k * 7 + k * (i + 3) + i) % (VOCAB - 2) for k in range(length)),
            SamplingParams(max_tokens=most, logprobs=VOCAB),
            priority,
            None,
        )
        for i, (length, most, priority) in enumerate(SIZES)
    ]


def engine(depth: int, drafts: int, trace: TraceWriter | None = None, tight: bool = True) -> Engine:
    """An engine whose caches are full of NaN, so that a row which nobody wrote is seen."""
    config = replace(CONFIG, async_depth=depth, num_speculative_tokens=drafts)
    cache = loaded().kv_cache_config(config)
    if tight:
        cache = KVCacheConfig(
            tuple(replace(g, num_blocks=TIGHT.get(g.name, g.num_blocks)) for g in cache.groups)
        )
    built = build_engine(loaded(), config, kv_cache_config=cache, trace=trace)
    built.runner.cache.fill_(float("nan"))  # type: ignore[attr-defined]
    return built


class Heard(NamedTuple):
    """What runs have shown. said: the tokens of each request. logprobs: of each token, over the vocabulary.
    drafts: the first draft of a request's row, by the position at which the row starts.
    """

    said: dict[str, tuple[int, ...]]
    logprobs: dict[str, list[dict[int, float]]]
    drafts: dict[tuple[str, int], int]


def note(heard: Heard, update: RequestUpdate) -> None:
    """Keep what a request that has ended has said."""
    if update.result is not None:
        heard.said[update.request_id] = tuple(update.result.token_ids)
        heard.logprobs[update.request_id] = [dict(entry.top) for entry in update.result.logprobs or ()]


def listen(built: Engine, drafts: dict[tuple[str, int], int]) -> None:
    """Note what every decode row with drafts is offered."""
    runner: Any = built.runner
    execute, propose = runner.execute, runner.drafter.propose
    names: list[tuple[str, ...]] = [()]

    def executed(output: SchedulerOutput, *given: Any) -> Any:
        names[0] = output.request_ids
        return execute(output, *given)

    def proposed(rows: Any, dispatch: Any) -> Any:
        made = propose(rows, dispatch)
        for name, start, length, own in zip(names[0], dispatch.starts, rows.lengths, made, strict=True):
            if length > 1:
                drafts[name, int(start)] = int(own[0])
        return made

    runner.execute, runner.drafter.propose = executed, proposed


@functools.cache
def alone() -> Heard:
    """What each request says by itself, synchronously and without drafts; and what it is offered with one."""
    heard = Heard({}, {}, {})
    for request in requests():
        with engine(1, 0, tight=False) as built:
            note(heard, run_all(built, [request])[request.request_id])
        with engine(1, 1, tight=False) as built:
            listen(built, heard.drafts)
            run_all(built, [request])
    return heard


def record(depth: int, path: Path, drafts: int = 1) -> Heard:
    """Run all requests together, with a preemption and an abort from outside."""
    heard = Heard({}, {}, {})
    with TraceWriter(path) as trace, engine(depth, drafts, trace) as built:
        if drafts:
            listen(built, heard.drafts)
        coming = requests()
        steps = 0
        while coming or built.has_unfinished_requests():
            if coming and steps % 3 == 0:
                built.add_request(coming.pop(0))
            if steps == 9:
                built.add_request(replace(requests()[0], request_id="leaves"))
            state = built.scheduler.request_state("r1")
            if steps == 11 and state is not None:
                built.preempt_request("r1")
            if steps == 13:
                built.abort_request("leaves")
            for update in built.step():
                note(heard, update)
            steps += 1
    return heard


def check(depth: int) -> Recorded:
    """Record at this depth, compare with the isolated runs, replay through the model."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.ndjson"
        wrong = differing(record(depth, path))
        try:
            conforms: Conforms = check_trace(path)
        except Refusal as refusal:
            return Recorded(0, 0, 0, str(refusal))
    missing = "" if conforms.preemptions else "nobody was preempted: the run shows little"
    return Recorded(conforms.dispatches, conforms.preemptions, conforms.stale_rows, wrong or missing)


def differing(heard: Heard) -> str:
    """The first request that does not say what it says alone, or is offered another draft at some place."""
    apart = alone()
    for name, tokens in apart.said.items():
        if heard.said.get(name) != tokens:
            return f"R1 schedule-invariance: {name} says {heard.said.get(name)}, alone {tokens}"
        pairs = zip(heard.logprobs[name], apart.logprobs[name], strict=True)
        apart_by = max(abs(one[token] - own[token]) for one, own in pairs for token in own)
        if not apart_by <= TOLERANCE:
            return f"R1 schedule-invariance: logits of {name} differ by {apart_by:.2g}, at most {TOLERANCE}"
    places = heard.drafts.keys() & apart.drafts.keys()
    for name, start in sorted(places):
        mine, own = heard.drafts[name, start], apart.drafts[name, start]
        if mine != own:
            return f"R1 schedule-invariance: drafts of {name} at {start} begin with {mine}, alone {own}"
    return "" if len(places) > PLACES else f"{len(places)} drafts were compared: the run shows little"

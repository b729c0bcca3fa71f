"""The main job of `hocket demo` and `hocket validate`: a long prompt with three hidden codes beside a live
decode request, on the checkpoint that ships.

Each request runs alone first, then both run together. The long prompt is prefilled in chunks; between two
chunks the live request goes on decoding. The answer must be right, and both requests must say exactly what
they said alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from hocket.cli.guided_drafts import guide
from hocket.core.config import SchedulerConfig
from hocket.core.phase import Phase
from hocket.core.records import SchedulerOutput
from hocket.core.request import Request, SamplingParams
from hocket.engine.build import LoadedModel, ModelOptions, build_engine, load_model
from hocket.engine.engine import Engine, StepReport, run_all
from hocket.engine.progress import Progress
from hocket.engine.results import EngineStats, RequestResult
from hocket.model.recall import ANSWER, PROMPT_TOKENS, live_prompt, needle_prompt, recall_folder
from hocket.obs.trace import TraceWriter

NEEDLE, LIVE = "needle", "live"
_LIVE_TOKENS = 64
_MTP_SEED = 0


@dataclass(slots=True)
class Observed:
    """What a run showed."""

    results: dict[str, RequestResult] = field(default_factory=dict)
    outputs: list[SchedulerOutput] = field(default_factory=list)
    stats: EngineStats = field(default_factory=EngineStats)

    def chunk_starts(self, request_id: str) -> list[int]:
        """Where the request's chunks began, in order."""
        return [
            output.num_computed_tokens[output.request_ids.index(request_id)]
            for output in self.outputs
            if output.phase == Phase.PREFILL and request_id in output.request_ids
        ]

    def were_together(self) -> bool:
        """Whether the live request had a decode row after the first chunk of the long prompt."""
        first = next(i for i, output in enumerate(self.outputs) if NEEDLE in output.request_ids)
        later = self.outputs[first:]
        return any(o.phase == Phase.DECODE and LIVE in o.request_ids for o in later)

    def longest_silence(self) -> int:
        """Most prefill dispatches in a row, from the first to the last chunk of the long prompt."""
        rows = [i for i, o in enumerate(self.outputs) if o.phase == Phase.PREFILL and NEEDLE in o.request_ids]
        span = self.outputs[rows[0] : rows[-1] + 1]
        runs = itertools.groupby(span, key=lambda output: output.phase == Phase.PREFILL)
        return max(len(list(group)) for prefill, group in runs if prefill)


def chunk_size(config: SchedulerConfig) -> int:
    """Tokens of a chunk that is not the last, in a step that it has to itself."""
    largest = min(config.prefill_chunk_size, config.max_num_batched_tokens)
    return largest - largest % config.chunk_alignment


class Job(NamedTuple):
    """What is run, and how. seed, shadow_check: of the engines. progress: show bars. texts: prompt and
    outputs of each request, from which drafts are taken then; None: the MTP layers make them.
    """

    loaded: LoadedModel
    config: SchedulerConfig
    needle: Request
    live: Request
    seed: int
    progress: bool
    shadow_check: bool = False
    texts: Mapping[str, Sequence[int]] | None = None

    def engine(self, trace: TraceWriter | None = None) -> Engine:
        """A fresh one."""
        engine = build_engine(
            self.loaded, self.config, seed=self.seed, trace=trace, shadow_check=self.shadow_check
        )
        if self.texts is not None:
            guide(engine, self.texts)
        return engine


def load(options: ModelOptions, drafts: int) -> tuple[LoadedModel, str]:
    """The shipped checkpoint, and what is to be said of its draft layers."""
    loaded = load_model(recall_folder(), options, mtp=drafts > 0)
    if not drafts:
        return loaded, ""
    said = f"  speculative tokens: {drafts}"
    if loaded.mtp is not None:
        return loaded, f"{said}, by the checkpoint's MTP layers\n"
    loaded = load_model(recall_folder(), options, mtp=True, random_mtp_seed=_MTP_SEED)
    return loaded, f"{said}, by a random MTP layer (the checkpoint has none): few will be right\n"


def requests_of(
    loaded: LoadedModel, config: SchedulerConfig, prompt_tokens: int = PROMPT_TOKENS
) -> tuple[Request, Request]:
    """The long prompt, and a live request that outlasts its prefill whatever the chunk size."""
    prompt = needle_prompt(prompt_tokens)
    steps = -(-len(prompt.token_ids) // chunk_size(config))
    at_once = 1 + config.num_speculative_tokens
    # A turn of decode between any two chunks, and what is in flight when the long prompt arrives.
    turns = (steps + 2) * config.decode_steps_per_turn + config.async_depth
    beside = live_prompt(_LIVE_TOKENS + turns * at_once)
    params = SamplingParams(max_tokens=prompt.max_tokens)
    free = SamplingParams(max_tokens=beside.max_tokens, ignore_eos=True)
    return loaded.request(NEEDLE, prompt.token_ids, params), loaded.request(LIVE, beside.token_ids, free)


def check(job: Job) -> None:
    """Raise what an engine would refuse; nothing has run then."""
    if job.config.max_num_seqs < 2:
        raise ValueError("max_num_seqs must be at least 2, got 1: two requests run at a time")
    with job.engine() as engine:
        for request in (job.needle, job.live):
            engine.check_request(request)


def warm_up(job: Job) -> None:
    """One chunk and one decode row, so that what only a first dispatch pays for is in nobody's times."""
    prompt = job.needle.prompt_token_ids
    tokens = prompt[: min(job.config.aligned_chunk_size, len(prompt) - 1)]
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    with job.engine() as engine:
        run_all(engine, [job.loaded.request("warm-up", tokens, params)])


def run_job(job: Job, trace: TraceWriter | None = None) -> tuple[Mapping[str, RequestResult], Observed]:
    """Each request alone, by name, and both together. `ValueError` if they cannot be together."""
    alone = {
        request.request_id: observe(job, [request], f"{request.request_id}, alone").results[
            request.request_id
        ]
        for request in (job.needle, job.live)
    }
    together = observe(job, [job.live, job.needle], "both together", trace)
    if not together.were_together():
        raise ValueError(
            "the long prompt was not admitted before the live request had ended: "
            "kv_cache_memory or watermark leaves no room for both"
        )
    return alone, together


def observe(job: Job, requests: Sequence[Request], title: str, trace: TraceWriter | None = None) -> Observed:
    """Run `requests` in a fresh engine; the next one arrives once the one before has its first token."""
    observed = Observed()
    total = sum(len(r.prompt_token_ids) + r.sampling_params.max_tokens for r in requests)
    with ExitStack() as stack:
        engine = stack.enter_context(job.engine(trace))
        progress = stack.enter_context(Progress(total, job.progress, f"{title:<14}", "tokens"))

        def observe(step: StepReport) -> None:
            observed.outputs.append(step.output)
            prompt = sum(step.output.num_scheduled_tokens) if step.output.phase == Phase.PREFILL else 0
            progress.show(engine.stats, prompt + sum(map(len, step.result.sampled_token_ids)))

        observed.stats = engine.stats
        engine.observers.append(observe)
        for request in requests:
            engine.add_request(request)
            coming = request is not requests[-1]
            decoding = False
            while engine.has_unfinished_requests() and not (coming and decoding):
                for update in engine.step():
                    decoding |= update.request_id == request.request_id and bool(update.new_token_ids)
                    if update.result is not None:
                        observed.results[update.request_id] = update.result
    return observed


def is_right(result: RequestResult) -> bool:
    """Whether the long prompt's three codes were found."""
    return result.text.strip() == ANSWER


def interleaving(config: SchedulerConfig, together: Observed) -> tuple[bool, str]:
    """Whether the live request was passed over as rarely as the configuration promises, and what to print."""
    silence, bound = together.longest_silence(), config.prefill_steps_per_turn
    if silence > bound:
        hint = " (with preemptions: more kv_cache_memory avoids them)" if together.stats.preemptions else ""
        return False, f"SILENT for {silence} prefill steps{hint}"
    if silence <= 1:
        return True, "between all chunks"
    return True, f"after {silence} prefill steps at most (prefill_steps_per_turn = {bound})"


def shortened(values: Sequence[int], limit: int = 16) -> str:
    """The values in one line, those in the middle left out if they are many."""
    shown = [str(value) for value in values]
    if len(shown) > limit:
        shown = [*shown[: limit // 2], f"... ({len(shown)} chunks) ...", *shown[-limit // 4 :]]
    return " ".join(shown)


def step_string(outputs: Sequence[SchedulerOutput], limit: int = 40) -> str:
    """`D P D P ...`: a run of more than four equal steps as `D x17`, what is in excess of `limit` words left
    out.
    """
    words: list[str] = []
    for phase, run in itertools.groupby(output.phase for output in outputs):
        letter, count = "P" if phase == Phase.PREFILL else "D", len(list(run))
        words += [letter] * count if count <= 4 else [f"{letter} x{count}"]
    if len(words) > limit:
        words = [*words[: limit - 8], "...", *words[-7:]]
    return " ".join(words)

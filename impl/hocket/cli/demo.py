"""`hocket demo`: a long prompt with three hidden codes beside a live decode request, on the checkpoint that
ships.

Each request runs alone first, then both run together. The long prompt is prefilled in chunks; between two
chunks the live request goes on decoding. The answer must be right, and both requests must say exactly what
they said alone.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

from hocket.cli.knobs import (
    add_model_arguments,
    add_run_arguments,
    add_scheduler_arguments,
    draft_counts,
    model_options,
    or_refuse,
    scheduler_config,
)
from hocket.core.checks import require_int
from hocket.core.config import SchedulerConfig
from hocket.core.phase import Phase
from hocket.core.records import SchedulerOutput
from hocket.core.request import Request, SamplingParams
from hocket.engine.build import LoadedModel, ModelOptions, build_engine, load_model
from hocket.engine.engine import Engine, StepReport, run_all
from hocket.engine.progress import Progress
from hocket.engine.results import EngineStats, RequestResult
from hocket.model.recall import ANSWER, live_prompt, needle_prompt, recall_folder
from hocket.obs.trace import TraceWriter

NEEDLE, LIVE = "needle", "live"
_LIVE_TOKENS = 64
_MTP_SEED = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of the model (default: as torch chooses)"
    )
    add_scheduler_arguments(parser, max_num_seqs=8)
    add_model_arguments(parser, kv_cache_memory="256MiB")
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Do the work; exit status 0, 1 for a wrong answer or a mismatch, 2 for bad input."""
    return or_refuse("demo", lambda: _run(args))


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


def _run(args: argparse.Namespace) -> int:
    config = scheduler_config(args)
    if config.max_num_seqs < 2:
        raise ValueError("max_num_seqs must be at least 2, got 1: the demo runs two requests at a time")
    options = ModelOptions(**model_options(args))
    if args.threads is not None:
        torch.set_num_threads(require_int("threads", args.threads, 1))
    loaded, kind = _load(options, config.num_speculative_tokens)
    needle, live = _requests(loaded, config)
    with ExitStack() as stack:
        with build_engine(loaded, config, seed=args.seed, shadow_check=args.shadow_check) as engine:
            for request in (needle, live):
                engine.check_request(request)
            # Only now: bad input leaves an old trace alone, and a bad path is noticed before the long run.
            trace = stack.enter_context(TraceWriter(args.trace)) if args.trace is not None else None
            threads = torch.get_num_threads()
            print(
                f"hocket demo: a prompt of {len(needle.prompt_token_ids)} tokens with three hidden codes, "
                "beside a live decode request\n"
                f"  chunk size {config.prefill_chunk_size}, async depth {config.async_depth}, "
                f"{threads} thread{'' if threads == 1 else 's'}, {options.dtype} on {options.device}\n{kind}",
                flush=True,
            )
            _warm_up(engine, loaded, config, needle)
        alone = {
            request.request_id: _observe(loaded, config, args, [request], f"{request.request_id}, alone")
            for request in (needle, live)
        }
        together = _observe(loaded, config, args, [live, needle], "both together", trace)
    if not together.were_together():
        raise ValueError(
            "the long prompt was not admitted before the live request had ended: "
            "kv_cache_memory or watermark leaves no room for both"
        )
    return _report(config, {name: run.results[name] for name, run in alone.items()}, together)


def _load(options: ModelOptions, drafts: int) -> tuple[LoadedModel, str]:
    """The shipped checkpoint, and what is to be said of its draft layers."""
    loaded = load_model(recall_folder(), options, mtp=drafts > 0)
    if not drafts:
        return loaded, ""
    said = f"  speculative tokens: {drafts}"
    if loaded.mtp is not None:
        return loaded, f"{said}, by the checkpoint's MTP layers\n"
    loaded = load_model(recall_folder(), options, mtp=True, random_mtp_seed=_MTP_SEED)
    return loaded, f"{said}, by a random MTP layer (the checkpoint has none): few will be right\n"


def _requests(loaded: LoadedModel, config: SchedulerConfig) -> tuple[Request, Request]:
    """The long prompt, and a live request that outlasts its prefill whatever the chunk size."""
    prompt = needle_prompt()
    largest = min(config.prefill_chunk_size, config.max_num_batched_tokens)
    steps = -(-len(prompt.token_ids) // (largest - largest % config.chunk_alignment))
    at_once = 1 + config.num_speculative_tokens
    # A turn of decode between any two chunks, and what is in flight when the long prompt arrives.
    turns = (steps + 2) * config.decode_steps_per_turn + config.async_depth
    beside = live_prompt(_LIVE_TOKENS + turns * at_once)
    params = SamplingParams(max_tokens=prompt.max_tokens)
    free = SamplingParams(max_tokens=beside.max_tokens, ignore_eos=True)
    return loaded.request(NEEDLE, prompt.token_ids, params), loaded.request(LIVE, beside.token_ids, free)


def _warm_up(engine: Engine, loaded: LoadedModel, config: SchedulerConfig, needle: Request) -> None:
    """One chunk and one decode row, so that what only a first dispatch pays for is in nobody's times."""
    tokens = needle.prompt_token_ids[: min(config.aligned_chunk_size, len(needle.prompt_token_ids) - 1)]
    run_all(engine, [loaded.request("warm-up", tokens, SamplingParams(max_tokens=2, ignore_eos=True))])


def _observe(
    loaded: LoadedModel,
    config: SchedulerConfig,
    args: argparse.Namespace,
    requests: Sequence[Request],
    title: str,
    trace: TraceWriter | None = None,
) -> Observed:
    """Run `requests` in a fresh engine; the next one arrives once the one before has its first token."""
    observed = Observed()
    total = sum(len(r.prompt_token_ids) + r.sampling_params.max_tokens for r in requests)
    with ExitStack() as stack:
        engine: Engine = stack.enter_context(
            build_engine(loaded, config, seed=args.seed, trace=trace, shadow_check=args.shadow_check)
        )
        progress = stack.enter_context(Progress(total, args.progress, f"{title:<14}", "tokens"))

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


def _report(config: SchedulerConfig, alone: dict[str, RequestResult], together: Observed) -> int:
    """Print what came out; 0 if everything is as it must be."""
    both = together.results
    right = all(results[NEEDLE].text.strip() == ANSWER for results in (alone, both))
    interleaved, live_line = _interleaving(config, together)
    same = {name: alone[name].token_ids == both[name].token_ids for name in (NEEDLE, LIVE)}
    starts = together.chunk_starts(NEEDLE)
    print(
        f"\nanswer          {both[NEEDLE].text}   ({'right' if right else f'WRONG, expected {ANSWER}'})\n"
        f"chunk offsets   {_shortened(starts)}\n"
        f"steps           {_step_string(together.outputs)}\n"
        f"live decode     {live_line}\n"
    )
    print(f"{'request':<10}{'run':<12}{'TTFT':>10}{'worst decode gap':>20}{'prompt':>9}{'outputs':>9}")
    for name in (NEEDLE, LIVE):
        for title, result in (("alone", alone[name]), ("together", both[name])):
            metrics = result.metrics
            ttft = f"{(metrics.ttft_s or 0) * 1e3:,.0f} ms"
            gap = f"{metrics.worst_gap_s * 1e3:,.0f} ms"
            sizes = f"{len(result.prompt_token_ids):>9}{len(result.token_ids):>9}"
            print(f"{name:<10}{title:<12}{ttft:>10}{gap:>20}{sizes}")
    if config.num_speculative_tokens:
        shares = [f"{name} {draft_counts(both[name].metrics)}" for name in (NEEDLE, LIVE)]
        print(f"\nacceptance rate: {', '.join(shares)}, all {draft_counts(together.stats)}")
    print(f"\nidentical to isolated run: {'yes' if all(same.values()) else 'no'}")
    for name in (name for name, equal in same.items() if not equal):
        print(f"  {name} alone:    {alone[name].text}\n  {name} together: {both[name].text}")
    return 0 if right and interleaved and all(same.values()) else 1


def _interleaving(config: SchedulerConfig, together: Observed) -> tuple[bool, str]:
    """Whether the live request was passed over as rarely as the configuration promises, and what to print."""
    silence, bound = together.longest_silence(), config.prefill_steps_per_turn
    if silence > bound:
        hint = " (with preemptions: more kv_cache_memory avoids them)" if together.stats.preemptions else ""
        return False, f"SILENT for {silence} prefill steps{hint}"
    if silence <= 1:
        return True, "between all chunks"
    return True, f"after {silence} prefill steps at most (prefill_steps_per_turn = {bound})"


def _shortened(values: Sequence[int], limit: int = 16) -> str:
    shown = [str(value) for value in values]
    if len(shown) > limit:
        shown = [*shown[: limit // 2], f"... ({len(shown)} chunks) ...", *shown[-limit // 4 :]]
    return " ".join(shown)


def _step_string(outputs: Sequence[SchedulerOutput], limit: int = 40) -> str:
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

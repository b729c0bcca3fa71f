"""`hocket demo`: a long prompt with three hidden codes beside a live decode request, on the checkpoint that
ships.

Each request runs alone first, then both run together. The long prompt is prefilled in chunks; between two
chunks the live request goes on decoding. The answer must be right, and both requests must say exactly what
they said alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack

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
from hocket.cli.main_job import (
    LIVE,
    NEEDLE,
    Job,
    Observed,
    check,
    interleaving,
    is_right,
    load,
    requests_of,
    run_job,
    shortened,
    step_string,
    warm_up,
)
from hocket.core.checks import require_int
from hocket.core.config import SchedulerConfig
from hocket.engine.build import ModelOptions
from hocket.engine.results import RequestResult
from hocket.model.recall import ANSWER
from hocket.obs.trace import TraceWriter

MOST_THREADS = 512  # beyond the cores of any machine; thousands of them end the process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help=f"threads of the model, {MOST_THREADS} at most (default: as torch chooses)",
    )
    add_scheduler_arguments(parser, max_num_seqs=8)
    add_model_arguments(parser, kv_cache_memory="256MiB")
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Do the work; exit status 0, 1 for a wrong answer or a mismatch, 2 for bad input."""
    return or_refuse("demo", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    config = scheduler_config(args)
    options = ModelOptions(**model_options(args))
    if args.threads is not None:
        torch.set_num_threads(require_int("threads", args.threads, 1, MOST_THREADS))
    loaded, kind = load(options, config.num_speculative_tokens)
    needle, live = requests_of(loaded, config)
    job = Job(loaded, config, needle, live, args.seed, args.progress, args.shadow_check)
    check(job)
    with ExitStack() as stack:
        # Only now: bad input leaves an old trace alone, and a bad path is noticed before the long run.
        trace = stack.enter_context(TraceWriter(args.trace)) if args.trace is not None else None
        threads = torch.get_num_threads()
        print(
            f"hocket demo: a prompt of {len(job.needle.prompt_token_ids)} tokens with three hidden codes, "
            "beside a live decode request\n"
            f"  chunk size {config.prefill_chunk_size}, async depth {config.async_depth}, "
            f"{threads} thread{'' if threads == 1 else 's'}, {options.dtype} on {options.device}\n{kind}",
            flush=True,
        )
        warm_up(job)
        alone, together = run_job(job, trace)
    return _report(config, alone, together)


def _report(config: SchedulerConfig, alone: Mapping[str, RequestResult], together: Observed) -> int:
    """Print what came out; 0 if everything is as it must be."""
    both = together.results
    right = all(is_right(results[NEEDLE]) for results in (alone, both))
    interleaved, live_line = interleaving(config, together)
    same = {name: alone[name].token_ids == both[name].token_ids for name in (NEEDLE, LIVE)}
    starts = together.chunk_starts(NEEDLE)
    print(
        f"\nanswer          {both[NEEDLE].text}   ({'right' if right else f'WRONG, expected {ANSWER}'})\n"
        f"chunk offsets   {shortened(starts)}\n"
        f"steps           {step_string(together.outputs)}\n"
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

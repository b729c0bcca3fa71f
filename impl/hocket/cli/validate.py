"""`hocket validate`: the acceptance run on a device, as one command.

A long prompt is prefilled in several chunks beside a live decode request, on the checkpoint that ships: once
without drafts (AR), once with them (MTP), and once with drafts of which most are right, made from what the
first round said (guided). Each round is judged by `judge`; the exit status is the verdict.
With `--report FILE` all of it is written as JSON, see `docs/devices.md`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from hocket._version import __version__
from hocket.cli.knobs import (
    add_model_arguments,
    add_run_arguments,
    add_scheduler_arguments,
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
    chunk_size,
    load,
    requests_of,
    run_job,
    step_string,
    warm_up,
)
from hocket.cli.report_file import ReportFile
from hocket.cli.verdicts import judge
from hocket.core.checks import require_int
from hocket.core.config import SchedulerConfig
from hocket.engine.build import LoadedModel, ModelOptions
from hocket.engine.results import RequestResult
from hocket.model.recall import MAX_PROMPT_TOKENS, MIN_PROMPT_TOKENS, PROMPT_TOKENS
from hocket_kernels.registry import overview

REPORT_VERSION = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--report", metavar="FILE", help="write what was run and found to FILE, as JSON")
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        default=PROMPT_TOKENS,
        metavar="N",
        help="length of the long prompt, more than a chunk",
    )
    add_scheduler_arguments(parser, max_num_seqs=8, num_speculative_tokens=1)
    add_model_arguments(parser, kv_cache_memory="256MiB")
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Do the work; exit status 0, 1 if a check failed, 2 for bad input or a device that is not there."""
    return or_refuse("validate", lambda: _place_and_run(args))


def _place_and_run(args: argparse.Namespace) -> int:
    if args.report is None:
        return _run(args, None)
    # Entered first: a bad path is noticed before the long run.
    with ReportFile(args.report) as report:
        return _run(args, report)


def _run(args: argparse.Namespace, report: ReportFile | None) -> int:
    config = scheduler_config(args)
    require_int("num_speculative_tokens", config.num_speculative_tokens, 1)
    least = max(MIN_PROMPT_TOKENS, chunk_size(config) + 1)
    field = f"prompt_tokens (more than a chunk of {chunk_size(config)})"
    require_int(field, args.prompt_tokens, least, MAX_PROMPT_TOKENS)
    options = ModelOptions(**model_options(args))
    if args.trace is not None:
        raise ValueError("trace must not be given: the report holds the steps of all rounds")
    loaded, _ = load(options, config.num_speculative_tokens)
    jobs = []
    for drafts in (0, config.num_speculative_tokens):
        own = replace(config, num_speculative_tokens=drafts)
        # The same requests in all rounds: the live one is long enough for the one with drafts.
        needle, live = requests_of(loaded, config, args.prompt_tokens)
        jobs.append(Job(loaded, own, needle, live, args.seed, args.progress, args.shadow_check))
        check(jobs[-1])
    print(
        f"hocket validate: {options.device}, {options.dtype}, a prompt of {args.prompt_tokens} tokens in "
        f"chunks of {chunk_size(config)} beside a live request, async depth {config.async_depth}",
        flush=True,
    )
    rounds: list[dict[str, Any]] = []
    try:
        for job in jobs:
            rounds.append(_round(job, rounds[0] if rounds else None))
        rounds.append(_round(_guided(jobs[-1], rounds[0]), rounds[0]))
    except BaseException as error:
        _write(report, config, loaded, rounds, f"{type(error).__name__}: {error}")
        raise
    passed = _write(report, config, loaded, rounds, None)
    print(f"\n{options.device}: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


def _told(plain: Mapping[str, Any]) -> dict[str, list[int]]:
    """What both requests said together in that round, token by token."""
    return {name: plain["requests"][name]["together"]["token_ids"] for name in (NEEDLE, LIVE)}


def _guided(job: Job, plain: Mapping[str, Any]) -> Job:
    """The job with drafts from what was said in the round without any."""
    told = _told(plain)
    texts = {r.request_id: (*r.prompt_token_ids, *told[r.request_id]) for r in (job.needle, job.live)}
    return job._replace(texts=texts)


def _round(job: Job, plain: Mapping[str, Any] | None) -> dict[str, Any]:
    """Run and judge one round, say how each check went, and return its part of the report."""
    drafts = job.config.num_speculative_tokens
    name = f"MTP, {drafts} draft{'s' if drafts > 1 else ''}" if drafts else "AR"
    name += ", guided" if job.texts is not None else ""
    begin = time.perf_counter()
    warm_up(job)
    alone, together = run_job(job)
    verdicts = judge(job, alone, together, None if plain is None else _told(plain))
    print(f"\n{name}: {step_string(together.outputs)}")
    for verdict in verdicts:
        print(
            f"  {'ok    ' if verdict.passed else 'FAILED'}  {verdict.check:<12} {verdict.detail}", flush=True
        )
    return {
        "name": name,
        "num_speculative_tokens": drafts,
        "passed": all(verdict.passed for verdict in verdicts),
        "seconds": round(time.perf_counter() - begin, 3),
        "checks": [verdict._asdict() for verdict in verdicts],
        "requests": {
            n: {"alone": _facts(alone[n]), "together": _facts(together.results[n])} for n in (NEEDLE, LIVE)
        },
        "steps": _steps(together),
    }


def _facts(result: RequestResult) -> dict[str, Any]:
    """What a request said, and its times."""
    metrics = result.metrics
    return {
        "prompt_tokens": len(result.prompt_token_ids),
        "token_ids": list(result.token_ids),
        "text": result.text,
        "finish_reason": result.finish_reason,
        "error": result.error,
        "ttft_s": metrics.ttft_s,
        "worst_gap_s": metrics.worst_gap_s,
        "latency_s": metrics.latency_s,
        "preemptions": metrics.num_preemptions,
        "drafts": metrics.num_draft_tokens,
        "accepted_drafts": metrics.num_accepted_tokens,
    }


def _steps(together: Observed) -> list[dict[str, Any]]:
    """The step trace: every dispatch of the run with both requests, row by row."""
    return [
        {
            "step": output.step_id,
            "phase": output.phase.name.lower() if output.phase is not None else None,
            "rows": [
                {"request": request, "start": start, "tokens": tokens}
                for request, start, tokens in zip(
                    output.request_ids, output.num_computed_tokens, output.num_scheduled_tokens, strict=True
                )
            ],
        }
        for output in together.outputs
    ]


def _write(
    report: ReportFile | None,
    config: SchedulerConfig,
    loaded: LoadedModel,
    rounds: list[dict[str, Any]],
    error: str | None,
) -> bool:
    """Write the report, if one is wanted. error: what ended the run early, after the `rounds`, or None.

    Returns the verdict.
    """
    passed = error is None and all(item["passed"] for item in rounds)
    if report is None:
        return passed
    device = loaded.model.device
    report.write(
        {
            "report": REPORT_VERSION,
            "hocket": __version__,
            "torch": torch.__version__,
            "device": str(device),
            "passed": passed,
            "error": error,
            "model_options": asdict(loaded.options),
            "scheduler": asdict(config),
            "operations": [
                {"op": op, "uses": uses, "reason": reason} for op, uses, reason in overview(device.type)
            ],
            "rounds": rounds,
        }
    )
    return passed

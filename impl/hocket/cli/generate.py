"""`hocket generate`: run prompts through a checkpoint folder and print what it says."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hocket.cli.knobs import (
    add_model_arguments,
    add_run_arguments,
    add_scheduler_arguments,
    draft_counts,
    model_options,
    or_refuse,
    scheduler_knobs,
)
from hocket.core.request import SamplingParams
from hocket.engine.llm import LLM
from hocket.engine.results import RequestResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--model", required=True, metavar="DIR", help="checkpoint folder")
    parser.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT", help="a prompt; may be given several times"
    )
    parser.add_argument(
        "--prompt-file", metavar="FILE", help="a file with one prompt a line, - for standard input"
    )
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=int, default=64, metavar="N", help="outputs at most")
    sampling.add_argument(
        "--min-tokens", type=int, default=0, metavar="N", help="nothing stops before so many"
    )
    sampling.add_argument("--temperature", type=float, default=0.0, metavar="F", help="0 is greedy")
    sampling.add_argument(
        "--top-k", type=int, default=0, metavar="N", help="keep the N likeliest tokens, 0: all"
    )
    sampling.add_argument("--top-p", type=float, default=1.0, metavar="F", help="keep the likeliest mass F")
    sampling.add_argument(
        "--min-p", type=float, default=0.0, metavar="F", help="drop what is below F times the best"
    )
    sampling.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text")
    sampling.add_argument("--ignore-eos", action="store_true", help="go on after the end of the text")
    add_scheduler_arguments(parser, max_model_len=None)
    add_model_arguments(parser)
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Do the work; exit status 0, 1 if a request failed, 2 for bad input."""
    return or_refuse("generate", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    prompts = _prompts(args)
    params = SamplingParams(
        max_tokens=args.max_tokens,
        min_tokens=args.min_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        stop=tuple(args.stop),
        ignore_eos=args.ignore_eos,
    )
    knobs = scheduler_knobs(args)
    run = {"seed": args.seed, "trace": args.trace, "shadow_check": args.shadow_check}
    with LLM(args.model, **run, **model_options(args), **knobs) as llm:
        results = llm.generate(prompts, params, use_tqdm=args.progress)
    for result in results:
        print(_line(result))
    return 1 if any(result.finish_reason == "error" for result in results) else 0


def _prompts(args: argparse.Namespace) -> list[str]:
    prompts = list(args.prompt)
    if args.prompt_file is not None:
        prompts += _read(args.prompt_file).splitlines()
    if not prompts:
        raise ValueError("give at least one --prompt, or a --prompt-file that is not empty")
    return prompts


def _read(name: str) -> str:
    """The file's text; - is standard input. `OSError` or `ValueError`, which names the file."""
    try:
        # Bytes: in some locales the text of standard input hides what is not UTF-8.
        return (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()).decode()
    except UnicodeDecodeError as error:
        source = "standard input" if name == "-" else name
        raise ValueError(f"prompt_file {source}: not UTF-8: {error}") from error


def _line(result: RequestResult) -> str:
    metrics = result.metrics
    ttft = "-" if metrics.ttft_s is None else f"{metrics.ttft_s:.2f} s"
    note = f" ({result.error})" if result.error else ""
    drafts = f", accepted {draft_counts(metrics)}" if metrics.num_draft_tokens else ""
    return (
        f"{result.text}\n  [{len(result.prompt_token_ids)} + {len(result.token_ids)} tokens, "
        f"{result.finish_reason}{note}, first token after {ttft}{drafts}]"
    )

"""Flags that commands share: one for every field of `SchedulerConfig`; model, cache, trace."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from hocket.core.checks import require_int
from hocket.core.config import SchedulerConfig
from hocket.core.errors import SchedulerError
from hocket.core.speculative import agreed_tokens
from hocket.engine.errors import EngineDeadError
from hocket.engine.results import EngineStats, RequestMetrics

MOST_IN_FLIGHT = 64
"""Greatest `async_depth` of the commands: deeper pipelines gain nothing, and their steps cost memory."""
_HELP = {
    "max_num_seqs": "running requests at most, both phases together",
    "max_num_batched_tokens": "tokens of one dispatch at most",
    "prefill_chunk_size": "tokens of one prefill row at most",
    "max_model_len": "prompt plus outputs of one request at most",
    "async_depth": f"dispatches in flight at most; 1 is synchronous, {MOST_IN_FLIGHT} the most",
    "num_speculative_tokens": "drafts of a decode row, made by the checkpoint's MTP layers",
    "prefill_steps_per_turn": "prefill dispatches before decode is owed",
    "decode_steps_per_turn": "decode dispatches before prefill is owed",
    "chunk_alignment": "ends of non-final chunks are multiples of it",
    "reserve_full_prompt": "admit a request only if its whole prompt fits, and promise it those blocks",
    "watermark": "fraction of each block pool that an admission must leave free",
    "enable_prefix_caching": "reuse the blocks of equal prompt beginnings; not available yet, and refused",
    "max_num_queued_reqs": "refuse requests when so many wait",
}
_ALIASES = {"prefill_chunk_size": ("--long-prefill-token-threshold",)}
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def add_scheduler_arguments(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """One flag for each knob of the scheduler; `defaults` replace those of `SchedulerConfig`."""
    group = parser.add_argument_group("scheduler")
    for field in fields(SchedulerConfig):
        default = defaults.get(field.name, field.default)
        names = ("--" + field.name.replace("_", "-"), *_ALIASES.get(field.name, ()))
        if isinstance(field.default, bool):
            kind: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        else:
            kind = {
                "type": float if isinstance(field.default, float) else int,
                "metavar": "F" if isinstance(field.default, float) else "N",
            }
        text = _HELP[field.name]
        if default is None and field.default is not None:
            text += f" (default: {field.default}, or what the model can take if that is less)"
        group.add_argument(*names, dest=field.name, default=default, help=text, **kind)
    group.add_argument(
        "--speculative-config",
        metavar="JSON",
        help='as vLLM takes it: \'{"method": "mtp", "num_speculative_tokens": 1}\', '
        "the same as --num-speculative-tokens 1",
    )


def scheduler_knobs(args: argparse.Namespace) -> dict[str, Any]:
    """The knobs that the flags say, without those that are left to the model (None). `ValueError` for an
    `async_depth` above `MOST_IN_FLIGHT`.
    """
    named = {field.name: getattr(args, field.name) for field in fields(SchedulerConfig)}
    knobs = {name: value for name, value in named.items() if value is not None}
    require_int("async_depth", knobs["async_depth"], 1, MOST_IN_FLIGHT)
    if args.speculative_config is not None:
        plain = knobs["num_speculative_tokens"] or None
        knobs["num_speculative_tokens"] = agreed_tokens(plain, args.speculative_config)
    return knobs


def scheduler_config(args: argparse.Namespace) -> SchedulerConfig:
    """The configuration that the flags say; `ValueError` names the knob that is wrong."""
    return SchedulerConfig(**scheduler_knobs(args))


def add_model_arguments(parser: argparse.ArgumentParser, kv_cache_memory: str = "1GiB") -> None:
    """Flags of device, dtype and KV cache."""
    group = parser.add_argument_group("model and KV cache")
    group.add_argument(
        "--device",
        default="cpu",
        help="where the model runs: cpu, npu or cuda; one that is not there is an error, no other is taken",
    )
    group.add_argument("--dtype", default="float32", help="float32 or bfloat16, of weights and cache")
    group.add_argument(
        "--kv-cache-memory",
        type=_size,
        default=kv_cache_memory,
        metavar="SIZE",
        help="bytes of the KV cache at most, with KiB, MiB or GiB if you like",
    )
    group.add_argument(
        "--block-size",
        type=int,
        default=128,
        metavar="N",
        help="rows of a KV block; groups that compress hold more tokens in them, states fewer",
    )
    group.add_argument(
        "--block-sizes",
        type=_by_group,
        metavar="GROUP=N,...",
        help="tokens of a block by group, instead of what follows from --block-size",
    )
    group.add_argument(
        "--shared-pool", action="store_true", help="all groups draw on one pool of blocks, not on one each"
    )


def model_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `ModelOptions`, and of `LLM`."""
    return {
        "dtype": args.dtype,
        "device": args.device,
        "kv_cache_memory": args.kv_cache_memory,
        "block_size": args.block_size,
        "block_sizes": args.block_sizes,
        "shared_pool": args.shared_pool,
    }


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of any command that runs an engine."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="for requests without a seed of their own"
    )
    group.add_argument(
        "--trace", metavar="FILE", help="write every action of the scheduler to FILE as NDJSON"
    )
    group.add_argument(
        "--shadow-check",
        action="store_true",
        help="hold every action of the scheduler against the specification while it runs, "
        "and stop at the first that is not allowed, naming the property; slow",
    )
    group.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, default=True, help="show progress bars"
    )


def _size(text: str) -> int:
    """'256MiB' -> 268435456."""
    number, unit = text, ""
    for suffix in ("ib", "b", ""):
        if text.lower().endswith(suffix):
            number = text[: len(text) - len(suffix)]
            break
    if number and number[-1].lower() in "kmgt":
        number, unit = number[:-1], number[-1].lower()
    try:
        return int(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 268435456, 256MiB or 1GiB") from None


def _by_group(text: str) -> dict[str, int]:
    """'swa=32,c4=64' -> {'swa': 32, 'c4': 64}."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, tokens = part.partition("=")
        if not name or not tokens.isdecimal():
            raise argparse.ArgumentTypeError(f"{part!r} is no block size such as swa=128")
        sizes[name] = int(tokens)
    return sizes


def draft_counts(counts: RequestMetrics | EngineStats) -> str:
    """'3 of 12 drafts (25%)', the accepted ones."""
    rate = f" ({counts.acceptance_rate:.0%})" if counts.acceptance_rate is not None else ""
    return f"{counts.num_accepted_tokens} of {counts.num_draft_tokens} drafts{rate}"


def or_refuse(command: str, action: Callable[[], int]) -> int:
    """Run `action`; bad input, a refusal, a dead engine: one line on the error stream and status 2."""
    try:
        return action()
    except (ValueError, OSError, SchedulerError, EngineDeadError) as error:
        print(f"hocket {command}: error: {error}", file=sys.stderr)
        return 2

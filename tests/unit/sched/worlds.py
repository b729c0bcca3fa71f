"""Small schedulers, requests and results for tests of single behaviours. Token ids are arbitrary."""

from __future__ import annotations

from hocket.core.config import KVCacheConfig, KVGroupSpec, SchedulerConfig
from hocket.core.records import ModelRunnerOutput, RequestOutput, SchedulerOutput
from hocket.core.request import Request, SamplingParams
from hocket.sched.scheduler import Scheduler


def make(blocks: int = 64, block_size: int = 4, **knobs: object) -> Scheduler:
    """One group with full history."""
    return make_of(KVGroupSpec("a", block_size, blocks), **knobs)


def make_of(*groups: KVGroupSpec, **knobs: object) -> Scheduler:
    config = {"prefill_chunk_size": 8, "max_num_batched_tokens": 16, "async_depth": 1} | knobs
    return Scheduler(SchedulerConfig(**config), KVCacheConfig(groups=groups))  # type: ignore[arg-type]


def add(scheduler: Scheduler, name: str, prompt: int, max_tokens: int, **fields: object) -> None:
    params = SamplingParams(max_tokens=max_tokens)
    request = Request(name, tuple(range(1, prompt + 1)), params, **fields)  # type: ignore[arg-type]
    scheduler.add_request(request)


def complete(
    scheduler: Scheduler, output: SchedulerOutput, tokens: dict[str, tuple[int, ...]] | None = None
) -> list[RequestOutput]:
    """Process a result: of each row that samples the tokens given for its request, else one."""
    assert output.step_id is not None
    given = tokens or {}
    rows = tuple(
        given.get(name, (99,)) if samples else ()
        for name, samples in zip(output.request_ids, output.samples, strict=True)
    )
    return scheduler.update_from_output(output, ModelRunnerOutput(output.step_id, rows))


def rows(output: SchedulerOutput) -> list[tuple[str, int, int]]:
    """(request, tokens before the row, its length), row by row."""
    return list(zip(output.request_ids, output.num_computed_tokens, output.num_scheduled_tokens, strict=True))

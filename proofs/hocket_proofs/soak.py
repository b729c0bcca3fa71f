"""Simulation: scheduler and simulated runner far beyond the explored sizes, random, replayable from a seed.

The simulated runner's cache checks itself row by row, every text must be what the request says when it is
alone, and at the end of a world no block is missing. Results are late, arrivals bunch, requests are aborted
and preempted from outside.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from hocket.core.config import KVCacheConfig, KVGroupSpec, SchedulerConfig
from hocket.core.records import SchedulerOutput
from hocket.core.request import Request, SamplingParams
from hocket.runner.api import NewRequest, RunnerOutput
from hocket.runner.simulated import SimulatedRunner, simulated_tokens
from hocket.sched.scheduler import Scheduler

VOCAB = 31
MODEL_LEN = 128
IDLE_CALLS = 200  # without any progress: far beyond every bound


class Soaked(NamedTuple):
    """What a soak went through; `failure` is '' or what went wrong in the world of `seed`."""

    steps: int
    worlds: int
    requests: int
    preemptions: int
    failure: str


class Failed(Exception):
    """What went wrong in a world."""


class World:
    """One random configuration and its traffic."""

    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        drafts, alignment = draw.choice((0, 0, 1, 3)), draw.choice((1, 1, 2))
        chunk = alignment * draw.randint(1, 8)
        self.config = SchedulerConfig(
            max_num_seqs=draw.randint(1, 12),
            max_num_batched_tokens=max(chunk, 1 + drafts) + draw.randint(0, 40),
            prefill_chunk_size=chunk, max_model_len=MODEL_LEN, async_depth=draw.randint(1, 4),
            num_speculative_tokens=drafts, prefill_steps_per_turn=draw.randint(1, 3),
            decode_steps_per_turn=draw.randint(1, 3), chunk_alignment=alignment,
            reserve_full_prompt=draw.random() < 0.6,
        )  # fmt: skip
        blocks = draw.randint(110, 240)
        self.cache = KVCacheConfig(
            (
                KVGroupSpec("full", draw.choice((2, 4, 8)), pool="shared"),
                KVGroupSpec("near", draw.choice((1, 4)), window=draw.choice((1, 5, 16)), pool="shared"),
                KVGroupSpec("own", 4, num_blocks=draw.randint(40, 60)),
            ),
            {"shared": blocks},
        )
        self.scheduler = Scheduler(self.config, self.cache)
        self.runner = SimulatedRunner(
            self.cache, max_num_seqs=self.config.max_num_seqs, max_model_len=MODEL_LEN, vocab_size=VOCAB,
            acceptance=draw.choice((0.0, 0.5, 0.9)),
        )  # fmt: skip
        self.unsent: dict[str, NewRequest] = {}
        self.live: dict[str, Request] = {}
        self.said: dict[str, tuple[int, ...]] = {}
        self.flying: deque[tuple[SchedulerOutput, RunnerOutput]] = deque()
        self.accepted = self.preemptions = self.steps = 0

    def act(self) -> None:
        """One thing that happens from outside."""
        draw, what = self.random, self.random.random()
        if what < 0.25 and len(self.live) < 24:
            name = f"r{draw.randint(0, 40)}"
            if name not in self.live:
                prompt = tuple(draw.randrange(VOCAB) for _ in range(draw.choice((1, 7, 20, 60))))
                eos = draw.choice((None, 0))
                params = SamplingParams(max_tokens=draw.randint(1, 30))
                request = Request(name, prompt, params, draw.randint(0, 2), eos)
                self.scheduler.add_request(request)
                self.unsent[name] = NewRequest(request, 0)
                self.live[name], self.said[name] = request, ()
                self.accepted += 1
        elif what < 0.28 and self.live:
            self.scheduler.preempt_request(draw.choice(sorted(self.live)))
        elif what < 0.30 and self.live:
            name = draw.choice(sorted(self.live))
            self.scheduler.abort_request(name)
            self.unsent.pop(name, None)
            del self.live[name]

    def step(self) -> bool:
        """One call, and results when they are due; whether anything moved."""
        output = self.scheduler.schedule()
        self.steps += 1
        self.preemptions += len(output.preempted_request_ids)
        if output.phase is not None or output.has_notices:
            arrivals = [self.unsent.pop(r) for r in output.request_ids if r in self.unsent]
            result = self.runner.execute(output, arrivals)
            if result is not None:
                self.flying.append((output, result))
        full = len(self.flying) == self.config.async_depth
        if self.flying and (output.phase is None or full or self.random.random() < 0.3):
            self._process()
            return True
        return output.phase is not None

    def _process(self) -> None:
        output, result = self.flying.popleft()
        for news in self.scheduler.update_from_output(output, result):
            name = news.request_id
            request = self.live[name]
            self.said[name] += news.new_token_ids
            expected = tuple(simulated_tokens(list(request.prompt_token_ids), len(self.said[name]), VOCAB))
            if self.said[name] != expected:
                raise Failed(f"R1 schedule-invariance: {name} says {self.said[name]}, alone {expected}")
            if news.finished:
                del self.live[name]

    def drain(self) -> None:
        """No more arrivals: everybody finishes, and every block comes back."""
        idle = 0
        while self.live or self.flying:
            idle = 0 if self.step() else idle + 1
            if idle > IDLE_CALLS:
                raise Failed(f"L5 completion: {sorted(self.live)} make no progress")
        for group in self.cache.groups:
            free = self.scheduler.free_blocks(group.name)
            usable = self.cache.pool_blocks[group.pool or group.name]
            if free != usable:
                raise Failed(f"S5 block-conservation: {usable - free} blocks of {group.name} are lost")


def world(seed: int, calls: int = 400) -> World:
    """Run one world. Raises what goes wrong in it, with the step."""
    w = World(seed)
    try:
        for _ in range(calls):
            w.act()
            w.step()
        w.drain()
    except (Failed, AssertionError, ValueError, RuntimeError, LookupError) as error:
        kind = "" if isinstance(error, Failed) else f"{type(error).__name__}: "
        raise Failed(f"{kind}{error} | seed {seed}, step {w.steps}, depth {w.config.async_depth}") from error
    return w


def soak(steps: int, seed: int, report: Callable[[int], None] | None = None) -> Soaked:
    """Worlds of the seeds `seed`, `seed` + 1, ... until so many steps are done or one fails."""
    done = worlds = requests = preemptions = 0
    while done < steps:
        try:
            w = world(seed + worlds)
        except Failed as failed:
            return Soaked(done, worlds + 1, requests, preemptions, str(failed))
        done, worlds = done + w.steps, worlds + 1
        requests, preemptions = requests + w.accepted, preemptions + w.preemptions
        if report is not None:
            report(done)
    return Soaked(done, worlds, requests, preemptions, "")


def main(steps: int, seed: int) -> int:
    """Soak with progress on stderr; 1 and the world's seed if one fails."""
    if steps < 1:
        raise ValueError(f"--soak must be at least 1 step, got {steps}")
    found = soak(steps, seed, lambda done: print(f"{done:,} of {steps:,} steps", file=sys.stderr, flush=True))
    print(
        f"{found.steps:,} steps in {found.worlds} worlds from seed {seed}: {found.requests:,} requests, "
        f"{found.preemptions:,} preemptions, {found.failure or 'no block lost, every text as in isolation'}"
    )
    return 1 if found.failure else 0

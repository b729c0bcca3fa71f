"""Simulation: scheduler and simulated runner far beyond the explored sizes, random, replayable from a seed.

The simulated runner's cache checks itself row by row, every text must be what the request says when it is
alone, and at the end of a world no block is missing. Arrivals bunch, requests are aborted and preempted from
outside. Results are slow, rows fail, and results are submitted wrongly: before their turn, twice, or torn;
such a submission must be refused, and nothing may have changed.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from hocket.core.config import KVCacheConfig, KVGroupSpec, SchedulerConfig
from hocket.core.errors import SchedulerError
from hocket.core.records import SchedulerOutput
from hocket.core.request import Request, SamplingParams
from hocket.runner.api import NewRequest, RunnerOutput
from hocket.runner.simulated import SimulatedRunner, simulated_tokens
from hocket.sched.scheduler import Scheduler
from hocket_proofs.refinement import abstract

VOCAB = 31
MODEL_LEN = 128
IDLE_CALLS = 200  # without any progress: far beyond every bound

# Probabilities of what goes wrong with a result that is due.
FAILS, MISPLACED = 0.01, 0.05
SPEEDS = (0.05, 0.5, 0.95)  # how likely it is that the next result is there already
PREEMPTED, ABORTED, FAILED = "preempted", "aborted", "failed rows"
SLOWED, REORDERED, TWICE, TORN = "slow results", "reordered", "submitted twice", "torn"
FAULTS = (PREEMPTED, ABORTED, FAILED, SLOWED, REORDERED, TWICE, TORN)


class Soaked(NamedTuple):
    """What a soak went through; `failure` is '' or what went wrong in the world of `seed`."""

    steps: int
    worlds: int
    requests: int
    met: Counter[str]
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
        self.processed: tuple[SchedulerOutput, RunnerOutput] | None = None
        self.speed = draw.choice(SPEEDS)
        self.accepted = self.steps = 0
        self.met: Counter[str] = Counter()

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
            self._end(draw.choice(sorted(self.live)))
            self.met[ABORTED] += 1

    def step(self) -> bool:
        """One call, and results when they are due; whether anything moved."""
        output = self.scheduler.schedule()
        self.steps += 1
        self.met[PREEMPTED] += len(output.preempted_request_ids)
        if output.phase is not None or output.has_notices:
            arrivals = [self.unsent.pop(r) for r in output.request_ids if r in self.unsent]
            result = self.runner.execute(output, arrivals)
            if result is not None:
                self.flying.append((output, result))
        if self.random.random() < 0.1:
            self.speed = self.random.choice(SPEEDS)
        moved = output.phase is not None
        while self.flying and (not moved or self.random.random() < self.speed):
            self._process()
            moved = True
        self.met[SLOWED] += bool(self.flying)
        return moved

    def _process(self) -> None:
        if self.random.random() < MISPLACED:
            self._misplace()
        self._fail()
        output, result = self.processed = self.flying.popleft()
        for news in self.scheduler.update_from_output(output, result):
            name = news.request_id
            request = self.live[name]
            self.said[name] += news.new_token_ids
            expected = tuple(simulated_tokens(list(request.prompt_token_ids), len(self.said[name]), VOCAB))
            if self.said[name] != expected:
                raise Failed(f"R1 schedule-invariance: {name} says {self.said[name]}, alone {expected}")
            if news.finished:
                del self.live[name]

    def _end(self, name: str) -> None:
        """A request ends from outside, once."""
        if self.scheduler.abort_request(name) is None or self.scheduler.abort_request(name) is not None:
            raise Failed(f"S10 one-terminal-event: {name} has not ended exactly once")
        self.unsent.pop(name, None)
        del self.live[name]

    def _fail(self) -> None:
        """Rows of the oldest dispatch fail: as the engine does, end their requests, then take the rest."""
        output, result = self.flying[0]
        for row, name in enumerate(output.request_ids):
            state = self.scheduler.request_state(name)
            current = state is not None and state.status == "running" and state.epoch == output.epochs[row]
            if current and self.random.random() < FAILS:
                self._end(name)
                sampled = [*result.sampled_token_ids]
                sampled[row] = ()
                result = replace(result, sampled_token_ids=tuple(sampled))
                self.met[FAILED] += 1
        self.flying[0] = output, result

    def _misplace(self) -> None:
        """Submit what must be refused: a result before its turn, one that was processed, a torn one."""
        output, result = self.flying[0]
        torn = replace(result, sampled_token_ids=result.sampled_token_ids[1:])
        wrong = [(TORN, output, torn)]
        if len(self.flying) > 1:
            wrong.append((REORDERED, *self.flying[-1]))
        if self.processed is not None:
            wrong.append((TWICE, *self.processed))
        kind, output, result = self.random.choice(wrong)
        before = self._stands_for()
        try:
            news = self.scheduler.update_from_output(output, result)
        except (SchedulerError, ValueError):
            if self._stands_for() != before:
                raise Failed(f"S2 no-stale-mutation: a refused result ({kind}) changed the state") from None
            self.met[kind] += 1
            return
        raise Failed(f"S2 no-stale-mutation: a result was accepted that is {kind}: {news}")

    def _stands_for(self) -> object:
        """The scheduler's state, block by block."""
        s = self.scheduler
        tables = [(name, r.output_token_ids[:], [t.whole() for t in r.tables]) for name, r in s._live.items()]
        pools = [(tuple(p._free), {k: tuple(v) for k, v in p._fenced.items()}) for p in s._cache._pools]
        return abstract(s, len(pools)), tables, pools

    def drain(self) -> None:
        """No more arrivals: everybody finishes, and every block comes back."""
        idle = 0
        while self.live or self.flying:
            idle = 0 if self.step() else idle + 1
            if idle > IDLE_CALLS:
                raise Failed(f"L5 completion: {sorted(self.live)} make no progress")
        for name, pool in zip(self.cache.pool_blocks, self.scheduler._cache._pools, strict=True):
            if sorted(pool._free) != list(range(1, pool.num_blocks + 1)) or pool.num_free != pool.num_blocks:
                lost = pool.num_blocks - len(set(pool._free))
                raise Failed(
                    f"S5 block-conservation: {lost} blocks of {name} are lost, {pool.num_free} counted"
                )


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


def soak(steps: int, seed: int, report: Callable[[int, int], None] | None = None) -> Soaked:
    """Worlds of the seeds `seed`, `seed` + 1, ... until so many steps are done or one fails."""
    done = worlds = requests = 0
    met: Counter[str] = Counter()
    while done < steps:
        try:
            w = world(seed + worlds)
        except Failed as failed:
            return Soaked(done, worlds + 1, requests, met, str(failed))
        done, worlds, requests = done + w.steps, worlds + 1, requests + w.accepted
        met += w.met
        if report is not None:
            report(done, worlds)
    return Soaked(done, worlds, requests, met, "")


def main(steps: int, seed: int) -> int:
    """Soak with progress on stderr; 1 and the world's seed if one fails."""
    if steps < 1:
        raise ValueError(f"--soak must be at least 1 step, got {steps}")
    told = 0

    def report(done: int, worlds: int) -> None:
        nonlocal told
        if done - told >= max(1, steps // 100):
            told = done
            print(f"{done:,} of {steps:,} steps, {worlds:,} worlds", file=sys.stderr, flush=True)

    begin = time.process_time()
    found = soak(steps, seed, report)
    print(
        f"{found.steps:,} steps in {found.worlds:,} worlds from seed {seed}: {found.requests:,} requests; "
        f"{', '.join(f'{found.met[kind]:,} {kind}' for kind in FAULTS)}"
    )
    print(f"{time.process_time() - begin:.1f} s of CPU time", file=sys.stderr)
    if found.failure:
        again = seed + found.worlds - 1
        print(f"FAILED: {found.failure}\nagain: hocket verify --soak 1 --seed {again}")
        return 1
    print("no block lost, every text as in isolation")
    return 0

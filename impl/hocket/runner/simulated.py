"""A runner without a model: tokens are a function of a request's content, steps cost what a table says.

It keeps the same slots, plans and packs as the model runner. Its KV cache is simulated too: every row holds a
hash of the tokens up to it, so that a block that was handed to two owners, or a row that a window lost, is
found when it is read. No torch, no clock (a step's cost is only added up, unless a `sleep` is given).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.core.config import KVCacheConfig
from hocket.core.phase import Phase
from hocket.core.records import SchedulerOutput
from hocket.runner.api import NewRequest, RunnerError, RunnerOutput
from hocket.runner.inputs import StepPlan, advance, commit, plan_step
from hocket.runner.slots import SlotTable

Hashes = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that a step takes: a fixed part per step and a part per token of a prefill or per row of a
    decode.
    """

    prefill_step_s: float = 0.0
    prefill_token_s: float = 0.0
    decode_step_s: float = 0.0
    decode_row_s: float = 0.0

    def of(self, output: SchedulerOutput) -> float:
        """Seconds for this step."""
        if output.phase == Phase.PREFILL:
            return self.prefill_step_s + self.prefill_token_s * sum(output.num_scheduled_tokens)
        return self.decode_step_s + self.decode_row_s * sum(output.num_scheduled_tokens)


def _mix(values: Hashes) -> Hashes:
    """The splitmix64 finaliser: every input bit changes half of the output bits."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def content_hashes(tokens: Sequence[int]) -> Hashes:
    """`[len(tokens)]`: entry p depends on tokens 0..p and on their order."""
    ids = np.array(tokens, dtype=np.uint64)
    with np.errstate(over="ignore"):
        positions = np.arange(1, len(ids) + 1, dtype=np.uint64) * _GOLDEN
        return np.cumsum(_mix(_mix(ids + _GOLDEN) ^ positions), dtype=np.uint64)


def simulated_tokens(prompt: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """The `count` tokens that the simulated model says after `prompt`, whoever schedules it."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(_token_after(content_hashes(tokens)[-1], vocab_size))
    return tokens[len(prompt) :]


def _token_after(content: np.uint64, vocab_size: int) -> int:
    return int(_mix(np.array([content ^ _GOLDEN]))[0] % np.uint64(vocab_size))


class SimulatedRunner:
    """See the module. `acceptance` is the probability that a draft is right (drafts of decode rows with K >
    0).
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        *,
        max_num_seqs: int,
        max_model_len: int,
        vocab_size: int = 32000,
        acceptance: float = 0.7,
        cost: StepCost | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._acceptance = acceptance
        self._cost = cost or StepCost()
        self._sleep = sleep
        self.slots = SlotTable(max_num_seqs, kv_cache_config, max_model_len)
        blocks = list(kv_cache_config.pool_blocks.values())
        self.memory: dict[str, Hashes] = {
            g.name: np.zeros((blocks[pool] + 1, g.block_size), dtype=np.uint64)
            for g, pool in zip(kv_cache_config.groups, kv_cache_config.pool_of_group, strict=True)
        }
        self.busy_s = 0.0
        """What all steps so far have cost."""

    @property
    def vocab_size(self) -> int:
        """Token ids are in [0, vocab_size)."""
        return self._vocab_size

    def describe(self) -> Mapping[str, Any]:
        """Facts for the header of a trace."""
        return {
            "runner": "simulated",
            "vocab_size": self._vocab_size,
            "acceptance": self._acceptance,
            "cost": asdict(self._cost),
        }

    def execute(
        self, output: SchedulerOutput, new_requests: Sequence[NewRequest] = ()
    ) -> RunnerOutput | None:
        """As `Runner.execute`; additionally `RunnerError` if a row that the step reads is not what was
        written.
        """
        plan = plan_step(self.slots, output, new_requests, self._vocab_size)
        commit(self.slots, plan)
        if output.step_id is None:
            return None
        emitted = [self._run_row(plan, row) for row in range(len(output.request_ids))]
        advance(self.slots, plan, emitted)
        seconds = self._cost.of(output)
        self.busy_s += seconds
        if self._sleep is not None and seconds:
            self._sleep(seconds)
        return RunnerOutput(output.step_id, tuple(map(tuple, emitted)), (None,) * len(emitted))

    def _run_row(self, plan: StepPlan, row: int) -> list[int]:
        """Read the row's past, write its tokens' hashes, return what it samples."""
        output, start, length = plan.output, int(plan.starts[row]), plan.output.num_scheduled_tokens[row]
        tokens = plan.records[row].tokens
        if output.phase == Phase.PREFILL:
            content = content_hashes(tokens[: start + length])
            self._access(plan, row, start, content)
            return [_token_after(content[-1], self._vocab_size)] if output.samples[row] else []
        tokens = list(tokens)
        emitted = []
        for draft in range(length):
            content = content_hashes(tokens)
            emitted.append(_token_after(content[-1], self._vocab_size))
            tokens.append(emitted[-1])
            if draft + 1 < length and not self._accepts(content[-1]):
                break
        # Rejected drafts were written too; the row that comes next overwrites them.
        accepted = content_hashes(tokens[:-1])
        rejected = np.full(length - len(emitted), ~accepted[-1], dtype=np.uint64)
        self._access(plan, row, start, np.concatenate((accepted, rejected)))
        return emitted

    def _accepts(self, content: np.uint64) -> bool:
        unit = int(_mix(np.array([content + np.uint64(1)]))[0] >> np.uint64(11)) * 2.0**-53
        return unit < self._acceptance

    def _access(self, plan: StepPlan, row: int, start: int, content: Hashes) -> None:
        """Check rows [start - window, start) of every group, then write rows [start, len(content))."""
        for group in self.slots.groups:
            memory, table = self.memory[group.name], plan.tables[group.name][row]
            first = 0 if group.window is None else max(0, start - group.window)
            past = np.arange(first, start)
            seen = memory[table[past // group.block_size], past % group.block_size]
            if not np.array_equal(seen, content[first:start]):
                position = first + int(np.flatnonzero(seen != content[first:start])[0])
                who = plan.output.request_ids[row]
                raise RunnerError(f"request {who!r}: group {group.name!r} holds another row at {position}")
            own = np.arange(start, len(content))
            memory[table[own // group.block_size], own % group.block_size] = content[start:]

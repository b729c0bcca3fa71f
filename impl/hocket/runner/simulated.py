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

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


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


def _mix_one(value: int) -> int:
    """`_mix` of one value: for single tokens plain ints are much the faster."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def content_hashes(tokens: Sequence[int], start: int = 0, before: int = 0) -> Hashes:
    """`[len(tokens)]`: the entry of position p depends on all tokens up to it and on their order.

    `tokens` stand at `start` and after; `before` is the entry of position start - 1.
    """
    ids = np.array(tokens, dtype=np.uint64)
    with np.errstate(over="ignore"):
        positions = np.arange(start + 1, start + 1 + len(ids), dtype=np.uint64) * np.uint64(_GOLDEN)
        own = _mix(_mix(ids + np.uint64(_GOLDEN)) ^ positions)
        return np.cumsum(own, dtype=np.uint64) + np.uint64(before)


def next_hash(token: int, position: int, before: int) -> int:
    """`content_hashes` of the one token at `position`."""
    own = _mix_one(_mix_one((token + _GOLDEN) & _MASK) ^ ((position + 1) * _GOLDEN & _MASK))
    return (before + own) & _MASK


def token_after(content: int, vocab_size: int) -> int:
    """What the simulated model says after a text of this hash."""
    return _mix_one(content ^ _GOLDEN) % vocab_size


def simulated_tokens(prompt: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """The `count` tokens that the simulated model says after `prompt`, whoever schedules it."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(token_after(int(content_hashes(tokens)[-1]), vocab_size))
    return tokens[len(prompt) :]


class SimulatedRunner:
    """See the module.

    acceptance: the probability that a draft is right (drafts of decode rows with K > 0).
    check_cache: simulate the cache too; without it a step costs the same however long the requests are.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        *,
        max_num_seqs: int,
        max_model_len: int,
        vocab_size: int = 32000,
        acceptance: float = 0.7,
        check_cache: bool = True,
        cost: StepCost | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._acceptance = acceptance
        self._check_cache = check_cache
        self._cost = cost or StepCost()
        self._sleep = sleep
        self.slots = SlotTable(max_num_seqs, kv_cache_config, max_model_len)
        blocks = list(kv_cache_config.pool_blocks.values())
        self.memory: dict[str, Hashes] = {
            g.name: np.zeros((blocks[pool] + 1, g.block_size), dtype=np.uint64)
            for g, pool in zip(kv_cache_config.groups, kv_cache_config.pool_of_group, strict=True)
        }
        # By slot: the hash of all that is computed.
        self._content = np.zeros(max_num_seqs, dtype=np.uint64)
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
        slot, past = int(plan.slots[row]), plan.records[row].tokens
        before = int(self._content[slot]) if start else 0
        if output.phase == Phase.PREFILL:
            own = content_hashes(past[start : start + length], start, before)
            emitted = [token_after(int(own[-1]), self._vocab_size)] if output.samples[row] else []
            self._content[slot] = own[-1]
        else:
            own, emitted = self._decode(past[start], start, before, length)
            self._content[slot] = own[len(emitted) - 1]
        if self._check_cache:
            self._access(plan, row, content_hashes(past[:start]), own)
        return emitted

    def _decode(self, token: int, start: int, before: int, length: int) -> tuple[Hashes, list[int]]:
        """Hashes of a decode row of `length` tokens, and the tokens that it emits."""
        own, emitted = list[int](), list[int]()
        while True:
            before = next_hash(token, start + len(own), before)
            own.append(before)
            token = token_after(before, self._vocab_size)
            emitted.append(token)
            if len(emitted) == length or not self._accepts(before):
                break
        # Rejected drafts were written too; the row that comes next overwrites them.
        own += [before ^ _MASK] * (length - len(emitted))
        return np.array(own, dtype=np.uint64), emitted

    def _accepts(self, content: int) -> bool:
        return (_mix_one((content + 1) & _MASK) >> 11) * 2.0**-53 < self._acceptance

    def _access(self, plan: StepPlan, row: int, past: Hashes, own: Hashes) -> None:
        """Check what the row can read of its past in every group, then write its own rows after it."""
        start = len(past)
        for group in self.slots.groups:
            memory, table = self.memory[group.name], plan.tables[group.name][row]
            first = 0 if group.window is None else max(0, start - group.window)
            there = np.arange(first, start)
            seen = memory[table[there // group.block_size], there % group.block_size]
            if not np.array_equal(seen, past[first:]):
                position = first + int(np.flatnonzero(seen != past[first:])[0])
                who = plan.output.request_ids[row]
                raise RunnerError(f"request {who!r}: group {group.name!r} holds another row at {position}")
            here = np.arange(start, start + len(own))
            memory[table[here // group.block_size], here % group.block_size] = own

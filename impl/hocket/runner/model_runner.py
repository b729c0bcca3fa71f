"""The model runner: executes dispatches on a DeepSeek-V4 model over grouped, paged caches.

Decode inputs come from the runner's own memory: the last token of a slot stays on the device, its position is
what the slot has computed. Nothing of a decode row travels through the host or the scheduler, so a dispatch
may be planned before the previous one has run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hocket.core.config import KVCacheConfig
from hocket.core.phase import Phase
from hocket.core.records import SchedulerOutput
from hocket.model.cache import GroupedCache
from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.dispatch import DecodeDispatch, PrefillDispatch
from hocket.runner.api import NewRequest, RunnerError, RunnerOutput, TokenLogprobs
from hocket.runner.inputs import StepPlan, advance, commit, plan_step
from hocket.runner.sampling import sample, token_logprobs
from hocket.runner.slots import SlotTable


class ModelRunner:
    """See `Runner`. `cache` must have been built for `kv_cache_config`; both belong to this runner alone."""

    def __init__(
        self,
        model: DeepseekV4Model,
        cache: GroupedCache,
        kv_cache_config: KVCacheConfig,
        *,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self.model = model
        self.cache = cache
        self.slots = SlotTable(max_num_seqs, kv_cache_config, max_model_len)
        self.last_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=model.device)
        """`[slots]`: what each slot sampled last, the input of its next decode row. Stays on the device."""

    @property
    def vocab_size(self) -> int:
        """Token ids are in [0, vocab_size)."""
        return self.model.config.vocab_size

    def describe(self) -> Mapping[str, Any]:
        """Facts for the header of a trace."""
        return {
            "runner": "deepseek_v4",
            "vocab_size": self.vocab_size,
            "num_hidden_layers": self.model.config.num_hidden_layers,
            "device": str(self.model.device),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "torch": torch.__version__,
        }

    def execute(
        self, output: SchedulerOutput, new_requests: Sequence[NewRequest] = ()
    ) -> RunnerOutput | None:
        """As `Runner.execute`."""
        if output.phase == Phase.DECODE and max(output.num_scheduled_tokens) > 1:
            raise RunnerError("a decode row has drafts, but this model runner has no draft layers to verify")
        plan = plan_step(self.slots, output, new_requests, self.vocab_size)
        commit(self.slots, plan)
        if output.step_id is None:
            return None
        rows = [row for row, samples in enumerate(output.samples) if samples]
        with torch.no_grad():
            logits = self._prefill(plan, rows) if output.phase == Phase.PREFILL else self._decode(plan)
            return self._sample(plan, rows, logits)

    def _prefill(self, plan: StepPlan, rows: Sequence[int]) -> Tensor:
        """Logits `[len(rows), V]`: the language model head runs for the sampling rows only."""
        packed = plan.prefill
        assert packed is not None
        dispatch = PrefillDispatch(
            token_ids=self._tensor(packed.token_ids),
            positions=self._tensor(packed.positions),
            query_start_loc=self._tensor(packed.query_start_loc),
            chunk_starts=self._tensor(packed.chunk_starts.astype(np.int64)),
            seq_lens=self._tensor(packed.seq_lens.astype(np.int64)),
            sample_rows=self._tensor(
                packed.query_start_loc[1:][np.array(rows, np.int64)].astype(np.int64) - 1
            ),
            block_tables={name: self._tensor(table) for name, table in packed.block_tables.items()},
        )
        return self.model.prefill(dispatch, self.cache).logits

    def _decode(self, plan: StepPlan) -> Tensor:
        """Logits `[rows, V]`."""
        slots = self._tensor(plan.slots)
        dispatch = DecodeDispatch(
            token_ids=self.last_tokens[slots].unsqueeze(1),
            starts=self._tensor(plan.starts),
            num_tokens=torch.ones_like(slots),
            block_tables={name: self._tensor(table) for name, table in plan.tables.items()},
        )
        return self.model.decode(dispatch, self.cache).logits[:, 0]

    def _sample(self, plan: StepPlan, rows: Sequence[int], logits: Tensor) -> RunnerOutput:
        """Sample `rows` from their `logits`, keep the tokens on the device and in the records."""
        output = plan.output
        assert output.step_id is not None
        params = [plan.records[row].new.request.sampling_params for row in rows]
        ends = [int(plan.starts[row]) + output.num_scheduled_tokens[row] for row in rows]
        sampled = sample(logits, params, [plan.records[row].new.seed for row in rows], ends)
        self.last_tokens[self._tensor(plan.slots[np.array(rows, np.int64)])] = sampled.token_ids
        tokens = sampled.token_ids.tolist()
        emitted: list[tuple[int, ...]] = [()] * len(output.request_ids)
        logprobs: list[tuple[TokenLogprobs, ...] | None] = [None] * len(emitted)
        found = token_logprobs(logits, tokens, [p.logprobs for p in params])
        for row, token, entry in zip(rows, tokens, found, strict=True):
            emitted[row] = (token,)
            logprobs[row] = None if entry is None else (entry,)
        advance(self.slots, plan, emitted)
        failures = {rows[line]: reason for line, reason in sampled.failures.items()}
        for row in failures:
            emitted[row], logprobs[row] = (), None
        return RunnerOutput(output.step_id, tuple(emitted), tuple(logprobs), failures)

    def _tensor(self, values: np.ndarray[Any, Any]) -> Tensor:
        """A copy on the model's device."""
        return torch.tensor(values, device=self.model.device)

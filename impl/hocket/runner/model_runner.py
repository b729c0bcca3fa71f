"""The model runner: executes dispatches on a DeepSeek-V4 model over grouped, paged caches.

Decode inputs come from the runner's own memory: the last token of a slot stays on the device, its position is
what the slot has computed, its drafts are made from what the slot keeps. Nothing of a decode row travels
through the scheduler, so a dispatch may be planned before the previous one has run. Rows with and without
drafts take one path: a row without is one of length 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hocket.core.config import KVCacheConfig
from hocket.core.phase import Phase
from hocket.core.records import SchedulerOutput
from hocket.model.cache import GroupedCache
from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.dispatch import DecodeDispatch, PrefillDispatch
from hocket.model.mtp import MtpLayers
from hocket.runner.api import NewRequest, RunnerError, RunnerOutput, TokenLogprobs
from hocket.runner.drafts import Drafter
from hocket.runner.inputs import StepPlan, advance, commit, plan_step
from hocket.runner.sampling import sample, token_logprobs
from hocket.runner.slots import SlotTable
from hocket.runner.verification import num_emitted


class _Lines(NamedTuple):
    """What the target says in a step: one line per row that samples, or per token of a row with drafts.

    logits: [L, V]. rows: the step's row of each line, ascending. positions: where the tokens will stand.
    drafts: per row of the step. A row's lines stand after none, one, two ... of them.
    """

    logits: Tensor
    rows: Sequence[int]
    positions: Sequence[int]
    drafts: Sequence[Sequence[int]]


class ModelRunner:
    """See `Runner`. `cache` must have been built for `kv_cache_config`; both belong to this runner alone.

    mtp: the layers that make drafts, for a `num_speculative_tokens` above 0. Without them a decode row with
    drafts is refused.
    """

    def __init__(
        self,
        model: DeepseekV4Model,
        cache: GroupedCache,
        kv_cache_config: KVCacheConfig,
        *,
        max_num_seqs: int,
        max_model_len: int,
        mtp: MtpLayers | None = None,
        num_speculative_tokens: int = 0,
    ) -> None:
        self.model = model
        self.cache = cache
        self.slots = SlotTable(max_num_seqs, kv_cache_config, max_model_len)
        self.last_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=model.device)
        """`[slots]`: what each slot sampled last, the input of its next decode row. Stays on the device."""
        self.drafter = None
        if mtp is not None and num_speculative_tokens:
            self.drafter = Drafter(mtp, cache, max_num_seqs, num_speculative_tokens)

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
        if output.phase == Phase.DECODE and max(output.num_scheduled_tokens) > 1 and self.drafter is None:
            raise RunnerError(
                "a decode row has drafts, but this model runner has no draft layers to make them"
            )
        plan = plan_step(self.slots, output, new_requests, self.vocab_size)
        commit(self.slots, plan)
        if output.step_id is None:
            return None
        with torch.no_grad():
            return self._prefill(plan) if output.phase == Phase.PREFILL else self._decode(plan)

    def _prefill(self, plan: StepPlan) -> RunnerOutput:
        """The language model head runs for the sampling rows only; the MTP layers for all rows."""
        packed, output = plan.prefill, plan.output
        assert packed is not None
        rows = [row for row, samples in enumerate(output.samples) if samples]
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
        logits, streams = self.model.prefill(dispatch, self.cache, streams=self.drafter is not None)
        positions = [int(packed.seq_lens[row]) for row in rows]
        result, tokens = self._choose(plan, _Lines(logits, rows, positions, [()] * len(output.request_ids)))
        if self.drafter is not None and streams is not None:
            # The token after a chunk is the replay's next one, or the one that was sampled just now.
            ids, lasts = np.roll(packed.token_ids, -1), packed.query_start_loc[1:] - 1
            ahead = zip(output.lookahead_token_ids, tokens, strict=True)
            ids[lasts] = [own[-1] if next_id is None else next_id for next_id, own in ahead]
            self.drafter.follow_prefill(plan.slots, output.epochs, dispatch, streams, self._tensor(ids))
        return result

    def _decode(self, plan: StepPlan) -> RunnerOutput:
        """Make drafts, verify them in one dispatch, and tell the MTP layers what was confirmed."""
        output, lengths = plan.output, plan.output.num_scheduled_tokens
        slots, width = self._tensor(plan.slots), max(lengths)
        dispatch = DecodeDispatch(
            token_ids=self.last_tokens[slots].unsqueeze(1),
            starts=self._tensor(plan.starts),
            num_tokens=torch.tensor(lengths, device=self.model.device),
            block_tables={name: self._tensor(table) for name, table in plan.tables.items()},
        )
        drafts: list[list[int]] = [[] for _ in lengths]
        if width > 1 and self.drafter is not None:
            proposed = self.drafter.propose(plan.slots, output.epochs, dispatch)
            dispatch = replace(dispatch, token_ids=torch.cat((dispatch.token_ids, proposed), dim=1))
            drafts = proposed.tolist()
        logits, streams = self.model.decode(dispatch, self.cache, streams=self.drafter is not None)
        used = torch.arange(width, device=slots.device) < dispatch.num_tokens.unsqueeze(1)
        lines = [(row, int(plan.starts[row]) + 1 + i) for row, n in enumerate(lengths) for i in range(n)]
        rows, positions = zip(*lines, strict=True)
        result, tokens = self._choose(plan, _Lines(logits[used], rows, positions, drafts))
        if self.drafter is not None and streams is not None:
            counts = [len(own) for own in tokens]
            most = max(counts)
            confirmed = replace(
                dispatch,
                token_ids=self._tensor(np.array([[*own, *[0] * (most - len(own))] for own in tokens])),
                num_tokens=torch.tensor(counts, device=self.model.device),
            )
            self.drafter.follow_decode(plan.slots, output.epochs, confirmed, streams[:, :most])
        return result

    def _choose(self, plan: StepPlan, lines: _Lines) -> tuple[RunnerOutput, list[tuple[int, ...]]]:
        """Choose tokens, keep them on the device and in the records: the step's result, and the tokens of
        every row (of one that failed too: it has to go on somehow until its request is ended).
        """
        output = plan.output
        assert output.step_id is not None
        params = [plan.records[row].new.request.sampling_params for row in lines.rows]
        seeds = [plan.records[row].new.seed for row in lines.rows]
        sampled = sample(lines.logits, params, seeds, lines.positions)
        chosen = sampled.token_ids.tolist()
        found = token_logprobs(lines.logits, chosen, [p.logprobs for p in params])
        tokens: list[tuple[int, ...]] = [()] * len(output.request_ids)
        logprobs: list[tuple[TokenLogprobs, ...] | None] = [None] * len(tokens)
        failures: dict[int, str] = {}
        for row, group in groupby(range(len(lines.rows)), key=lines.rows.__getitem__):
            mine = list(group)
            broken = [line - mine[0] for line in mine if line in sampled.failures]
            count = num_emitted(lines.drafts[row], [chosen[line] for line in mine], broken)
            tokens[row] = tuple(chosen[line] for line in mine[:count])
            entries = tuple(entry for line in mine[:count] if (entry := found[line]) is not None)
            logprobs[row] = entries or None
            if 0 in broken:
                failures[row], logprobs[row] = sampled.failures[mine[0]], None
        advance(self.slots, plan, tokens)
        rows = [row for row, own in enumerate(tokens) if own]
        lasts = torch.tensor([tokens[row][-1] for row in rows], dtype=torch.int64, device=self.model.device)
        self.last_tokens[self._tensor(plan.slots[np.array(rows, np.int64)])] = lasts
        emitted = tuple(() if row in failures else own for row, own in enumerate(tokens))
        return RunnerOutput(output.step_id, emitted, tuple(logprobs), failures), tokens

    def _tensor(self, values: np.ndarray[Any, Any]) -> Tensor:
        """A copy on the model's device."""
        return torch.tensor(values, device=self.model.device)

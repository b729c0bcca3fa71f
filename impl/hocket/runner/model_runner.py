"""The model runner: executes dispatches on a DeepSeek-V4 model over grouped, paged caches.

Decode inputs come from the runner's own memory: the last token of a slot and its progress stay on the device,
its drafts are made from what the slot keeps. Nothing of a decode row travels through the scheduler or the
host, so a dispatch may be launched before the previous one has run. Rows with and without drafts take one
path: a row without is one of length 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hocket.core.config import KVCacheConfig
from hocket.core.phase import Phase
from hocket.core.records import SchedulerOutput
from hocket.model.cache import GroupedCache
from hocket.model.deepseek_v4 import DeepseekV4Model
from hocket.model.dispatch import DecodeDispatch, Extent, PrefillDispatch
from hocket.model.mtp import MtpLayers
from hocket.runner.api import NewRequest, RunnerError, RunnerOutput
from hocket.runner.device import Array, DeviceRuntime
from hocket.runner.drafts import Drafter, SlotRows
from hocket.runner.inputs import StepPlan, commit, launched, plan_step
from hocket.runner.sampling import Lines, Sampled, asked_lines, has_filters, prepare, rank, sample
from hocket.runner.slots import SlotTable
from hocket.runner.step_result import LaunchedStep, Said
from hocket.runner.verification import num_emitted
from hocket_kernels.token_gather import token_gather

_PREFILL = ("token_ids", "positions", "query_start_loc", "chunk_starts", "seq_lens", "sample_rows")


class ModelRunner:
    """See `AsyncRunner`. `cache` must be built for `kv_cache_config`; both belong to this runner alone.

    mtp: the layers that make drafts, for a `num_speculative_tokens` above 0. Without them a decode row with
    drafts is refused. runtime: of the model's device; on the CPU there is nothing to choose.
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
        runtime: DeviceRuntime | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.runtime = runtime or DeviceRuntime(model.device)
        self.slots = SlotTable(max_num_seqs, kv_cache_config, max_model_len)
        self.last_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=model.device)
        """`[slots]`: what each slot sampled last, the input of its next decode row. Stays on the device."""
        self.computed = torch.zeros(max_num_seqs, dtype=torch.int64, device=model.device)
        """`[slots]`: the exact progress, where a slot's next decode row starts. Stays on the device."""
        self.drafter = None
        if mtp is not None and num_speculative_tokens:
            self.drafter = Drafter(mtp, cache, max_num_seqs, num_speculative_tokens)

    @property
    def asynchronous(self) -> bool:
        """Whether `launch` returns before the step has run."""
        return self.runtime.asynchronous

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
        step = self.launch(output, new_requests)
        if step is None:
            return None
        result = step.wait()
        step.settle()
        return result

    def launch(self, output: SchedulerOutput, new_requests: Sequence[NewRequest] = ()) -> LaunchedStep | None:
        """As `AsyncRunner.launch`."""
        if output.phase == Phase.DECODE and max(output.num_scheduled_tokens) > 1 and self.drafter is None:
            raise RunnerError(
                "a decode row has drafts, but this model runner has no draft layers to make them"
            )
        plan = plan_step(self.slots, output, new_requests, self.vocab_size)
        commit(self.slots, plan)
        if output.step_id is None:
            return None
        with torch.no_grad():
            said = self._prefill(plan) if output.phase == Phase.PREFILL else self._decode(plan)
        launched(self.slots, plan)
        return LaunchedStep(self.slots, plan, said)

    def _prefill(self, plan: StepPlan) -> Said:
        """The language model head runs for the sampling rows only; the MTP layers for all rows."""
        packed, output = plan.prefill, plan.output
        assert packed is not None
        rows = [row for row, samples in enumerate(output.samples) if samples]
        lines = _lines(plan, rows, [int(packed.seq_lens[row]) for row in rows])
        inputs: dict[str, Array] = {
            "token_ids": packed.token_ids,
            "positions": packed.positions,
            "query_start_loc": packed.query_start_loc,
            "chunk_starts": packed.chunk_starts.astype(np.int64),
            "seq_lens": packed.seq_lens.astype(np.int64),
            "sample_rows": packed.query_start_loc[1:][np.array(rows, np.int64)].astype(np.int64) - 1,
            "sample_slots": plan.slots[np.array(rows, np.int64)],
        }
        if self.drafter is not None:
            inputs["next_ids"] = _next_ids(plan)
        there, tables = self._put(plan, inputs, lines)
        dispatch = PrefillDispatch(
            **{name: there[name] for name in _PREFILL},
            block_tables=tables,
            extent=Extent(tuple(packed.chunk_starts.tolist()), tuple(output.num_scheduled_tokens)),
            host_sample_rows=tuple(inputs["sample_rows"].tolist()),
        )
        logits, streams = self.model.prefill(dispatch, self.cache, streams=self.drafter is not None)
        sampled = sample(logits, there, has_filters(lines.params))
        self.computed[there["slots"]] = dispatch.seq_lens
        self.last_tokens[there["sample_slots"]] = sampled.token_ids
        if self.drafter is not None and streams is not None:
            ids = there["next_ids"]
            ids[dispatch.sample_rows] = sampled.token_ids
            self.drafter.follow_prefill(_slot_rows(plan, there), dispatch, streams, ids)
        return self._said(lines, logits, sampled, there, rows, None)

    def _decode(self, plan: StepPlan) -> Said:
        """Make drafts, verify them in one dispatch, and tell the MTP layers what was confirmed."""
        lengths = plan.output.num_scheduled_tokens
        width = max(lengths)
        rows = [row for row, n in enumerate(lengths) for _ in range(n)]
        ordinals = [i for n in lengths for i in range(n)]
        positions = [int(plan.starts[row]) + 1 + i for row, i in zip(rows, ordinals, strict=True)]
        spread = int((self.slots.at_most - self.slots.computed)[plan.slots].max())
        lines = _lines(plan, rows, positions)._replace(spread=spread)
        inputs = {"num_tokens": np.array(lengths, dtype=np.int64)}
        ragged = len(rows) < width * len(lengths)
        if ragged:  # lines among the padded ones
            inputs["lines"] = np.array(rows) * width + np.array(ordinals)
        if lines.spread:
            inputs["rows"], inputs["earliest"] = np.array(rows), plan.starts
        there, tables = self._put(plan, inputs, lines)
        slots = there["slots"]
        starts = self.computed[slots]
        latest = tuple(self.slots.at_most[plan.slots].tolist())
        dispatch = DecodeDispatch(
            # The host knows none of the tokens: what stands first is never taken.
            token_ids=token_gather(slots, slots, self.last_tokens).unsqueeze(1),
            starts=starts,
            num_tokens=there["num_tokens"],
            block_tables=tables,
            extent=Extent(latest, tuple(lengths), exact=not spread),
        )
        drafts = None
        if width > 1 and self.drafter is not None:
            drafts = self.drafter.propose(_slot_rows(plan, there), dispatch)
            dispatch = replace(dispatch, token_ids=torch.cat((dispatch.token_ids, drafts), dim=1))
        logits, streams = self.model.decode(dispatch, self.cache, streams=self.drafter is not None)
        logits = logits.flatten(0, 1)
        if ragged:
            logits = logits[there["lines"]]
        later = (starts - there["earliest"])[there["rows"]] if lines.spread else None
        sampled = sample(logits, there, has_filters(lines.params), later)
        counts = self._confirm(plan, dispatch, there, sampled, drafts, streams)
        return self._said(lines, logits, sampled, there, rows, counts)

    def _confirm(
        self,
        plan: StepPlan,
        dispatch: DecodeDispatch,
        there: Mapping[str, Tensor],
        sampled: Sampled,
        drafts: Tensor | None,
        streams: Tensor | None,
    ) -> Tensor | None:
        """Keep what was sampled, on the device: last tokens, progress, what the MTP layers make of it.

        Returns how many tokens each row emits, int64 [N], or None if it is one for each.
        """
        slots, shape = there["slots"], dispatch.token_ids.shape
        chosen, broken, counts = sampled.token_ids.view(-1, 1), sampled.broken, None
        if drafts is not None:
            chosen, broken = _padded(chosen, there, shape), _padded(broken, there, shape)
            counts = num_emitted(drafts, chosen, broken, dispatch.num_tokens)
        ones = torch.ones_like(dispatch.num_tokens)
        emitted = ones if counts is None else counts
        self.last_tokens[slots] = chosen.gather(1, emitted.unsqueeze(1) - 1).squeeze(1)
        self.computed[slots] = dispatch.starts + emitted
        if self.drafter is not None and streams is not None:
            most = 1 if counts is None else self.runtime.largest(counts, shape[1])
            assert dispatch.extent is not None
            rows = Extent(dispatch.extent.starts, (most,) * shape[0], exact=False)
            confirmed = replace(dispatch, token_ids=chosen[:, :most], num_tokens=emitted, extent=rows)
            self.drafter.follow_decode(_slot_rows(plan, there), confirmed, streams[:, :most])
        return counts

    def _put(
        self, plan: StepPlan, inputs: Mapping[str, Array], lines: Lines
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """All host inputs of a step on the device, and the block tables by group."""
        packed = plan.prefill
        tables = plan.tables if packed is None else packed.block_tables
        asked = asked_lines([p.logprobs for p in lines.params])
        there = self.runtime.put(
            {
                "slots": plan.slots,
                **inputs,
                **({"asked": asked} if asked.size else {}),
                **prepare(lines),
                **{f"table {name}": table for name, table in tables.items()},
            }
        )
        return there, {name: there[f"table {name}"] for name in tables}

    def _said(
        self,
        lines: Lines,
        logits: Tensor,
        sampled: Sampled,
        there: Mapping[str, Tensor],
        rows: Sequence[int],
        counts: Tensor | None,
    ) -> Said:
        """Start bringing to the host what the step said."""
        asked = [p.logprobs for p in lines.params]
        ranked: tuple[Tensor, ...] = ()
        if "asked" in there:
            most = max(count for count in asked if count is not None)
            ranked = rank(logits, there["asked"], sampled.token_ids, most)
        fetched = self.runtime.fetch([*sampled, *(() if counts is None else (counts,)), *ranked])
        return Said(rows, asked, counts is not None, fetched)


def _lines(plan: StepPlan, rows: Sequence[int], positions: Sequence[int]) -> Lines:
    """The lines of a step, one for each of `rows` (a row may have several), with their parameters."""
    params = [plan.records[row].new.request.sampling_params for row in rows]
    return Lines(params, [plan.records[row].new.seed for row in rows], positions)


def _next_ids(plan: StepPlan) -> Array:
    """int64 [T]: the token after each packed row. After a chunk it is the replay's next one, or the one that
    is sampled in this step: any valid id here.
    """
    packed = plan.prefill
    assert packed is not None
    ids, lasts = np.roll(packed.token_ids, -1), packed.query_start_loc[1:] - 1
    ids[lasts] = [0 if next_id is None else next_id for next_id in plan.output.lookahead_token_ids]
    return ids


def _slot_rows(plan: StepPlan, there: Mapping[str, Tensor]) -> SlotRows:
    return SlotRows(plan.slots, there["slots"], plan.output.epochs, plan.output.num_scheduled_tokens)


def _padded(values: Tensor, there: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
    """One value of each line, [L] or [L, 1], as [N, Q] with zeros where a row has no line."""
    flat = values.flatten()
    if "lines" in there:
        flat = flat.new_zeros(shape.numel()).index_copy(0, there["lines"], flat)
    return flat.view(shape)

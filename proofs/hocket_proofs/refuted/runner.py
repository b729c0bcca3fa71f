"""Faults of the runner: slots, tables, records, inputs. The cache that checks itself finds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.core.phase import Phase
from hocket.runner import packed, simulated
from hocket.runner.slot_rules import with_freed
from hocket.runner.slots import SlotTable
from hocket_proofs.refuted.fault import SIMULATION, Fault, Patch


def stale_table_tail(patch: Patch) -> None:
    """A slot's new tenant begins with the old one's columns."""

    def drop(self: SlotTable, request_id: str) -> None:
        slot = self._slot_of.pop(request_id)
        self.epochs[slot] = -1
        self._free = with_freed(self._free, slot)

    patch.set(SlotTable, "drop", drop)
    patch.wrap(SlotTable, "grown_tables", lambda real: lambda self, slots, fresh, added: real(
        self, slots, np.zeros_like(fresh), added))  # fmt: skip


def rejected_stay_computed(patch: Patch) -> None:
    """The runner counts drafts as computed, whatever was accepted."""

    def make(real: Any) -> Any:
        def advance(table: Any, plan: Any, emitted: Any) -> None:
            real(table, plan, emitted)
            if plan.output.phase == Phase.DECODE:
                table.computed[plan.slots] = plan.starts + np.array(plan.output.num_scheduled_tokens)

        return advance

    patch.wrap(simulated, "advance", make)


def replay_keeps_dropped_tokens(patch: Patch) -> None:
    """What a stale row sampled stays in the record, and the replay samples after it."""

    def make(real: Any) -> Any:
        def advance(table: Any, plan: Any, emitted: Any) -> None:
            kept = [list(record.tokens) for record in plan.records]
            real(table, plan, emitted)
            for record, tokens, new in zip(plan.records, kept, emitted, strict=True):
                record.tokens[:] = [*tokens, *new]

        return advance

    patch.wrap(simulated, "advance", make)


def notices_after_rows(patch: Patch) -> None:
    """Preemption notices of an output are not looked at."""

    def make(real: Any) -> Any:
        def plan_step(table: Any, output: Any, *given: Any) -> Any:
            object.__setattr__(output, "preempted_request_ids", ())
            return real(table, output, *given)

        return plan_step

    patch.wrap(simulated, "plan_step", make)


def one_slot_for_two(patch: Patch) -> None:
    """Two newcomers of one step are given the same slot."""
    patch.wrap(SlotTable, "reserve", lambda real: lambda self, dropped, count: real(
        self, dropped, count)[:1] * count)  # fmt: skip


def columns_overwritten(patch: Patch) -> None:
    """New blocks are written over the last column instead of after it."""

    def make(real: Any) -> Any:
        def store(self: SlotTable, slots: Any, tables: Any, columns: Any) -> None:
            real(self, slots, tables, {name: np.maximum(0, used - 1) for name, used in columns.items()})

        return store

    patch.wrap(SlotTable, "store", make)


def window_left_early(patch: Patch) -> None:
    """One column more than the window has left is nulled."""

    def make(real: Any) -> Any:
        def grown(self: SlotTable, slots: Any, fresh: Any, added: Any) -> Any:
            tables, columns = real(self, slots, fresh, added)
            for group in self.groups:
                if group.window is not None:
                    at = np.where(fresh, 0, self.computed[slots])
                    left = np.maximum(at - group.window, -1) // group.block_size + 1
                    tables[group.name][np.arange(tables[group.name].shape[1]) < left[:, None]] = 0
            return tables, columns

        return grown

    patch.wrap(SlotTable, "grown_tables", make)


def prefix_instead_of_chunk(patch: Patch) -> None:
    """The tokens of a chunk are the first of the prompt, as many as the chunk has."""

    def cut(ids: Any, starts: Any, seq_lens: Any, histories: Any) -> list[int]:
        tokens: list[int] = []
        for start, end, history in zip(starts, seq_lens, histories, strict=True):
            tokens += history[: end - start]
        return tokens

    patch.set(packed, "_cut_tokens", cut)
    patch.wrap(simulated, "content_hashes", lambda real: lambda tokens, start=0, before=0: real(
        list(tokens)[::-1] if start else tokens, start, before))  # fmt: skip


def forgets_the_preempted(patch: Patch) -> None:
    """A preempted request's content is thrown away like a finished one's."""

    def make(real: Any) -> Any:
        def plan_step(table: Any, output: Any, *given: Any) -> Any:
            plan = real(table, output, *given)
            gone = tuple(r for r in output.preempted_request_ids if r in table.records)
            return plan._replace(forgotten=tuple(dict.fromkeys((*plan.forgotten, *gone))))

        return plan_step

    patch.wrap(simulated, "plan_step", make)


def table_rows_exchanged(patch: Patch) -> None:
    """Rows get each other's tables when two are in a step."""

    def make(real: Any) -> Any:
        def plan_step(*given: Any) -> Any:
            plan = real(*given)
            for name in plan.tables:
                plan.tables[name] = plan.tables[name][::-1]
            return plan

        return plan_step

    patch.wrap(simulated, "plan_step", make)


FAULTS = (
    Fault("runner: stale table tail", "a slot's new tenant reads the old one's blocks", SIMULATION,
          "packed prefill", stale_table_tail),
    Fault("runner: rejected drafts stay computed", "the next row starts too far on", SIMULATION, "request",
          rejected_stay_computed),
    Fault("runner: a replay keeps dropped tokens", "what a stale row sampled is read again", SIMULATION,
          "request", replay_keeps_dropped_tokens),
    Fault("runner: notices after rows", "an old incarnation keeps its slot", SIMULATION, "request",
          notices_after_rows),
    Fault("runner: one slot for two", "newcomers of one step share a slot", SIMULATION, "slot",
          one_slot_for_two),
    Fault("runner: columns overwritten", "a table that never grows", SIMULATION, "packed prefill",
          columns_overwritten),
    Fault("runner: window left early", "history is nulled that is still read", SIMULATION, "packed prefill",
          window_left_early),
    Fault("runner: prefix instead of chunk", "each chunk holds the beginning of the prompt", SIMULATION,
          "request", prefix_instead_of_chunk),
    Fault("runner: forgets the preempted", "a replay without its tokens", SIMULATION, "request",
          forgets_the_preempted),
    Fault("runner: tables exchanged", "two rows read each other's past", SIMULATION, "request",
          table_rows_exchanged),
)  # fmt: skip

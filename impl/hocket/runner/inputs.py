"""From a scheduler's output to a validated step: planned without side effects, then committed to the slots.

`plan_step` reads the slots and changes nothing, so that a refused pack leaves the runner as it was, notices
included. `commit` and `advance` apply what was planned, before and after the model ran. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hocket.core.phase import Phase
from hocket.core.records import SchedulerOutput
from hocket.runner.api import NewRequest, RunnerError
from hocket.runner.packed import PackedPrefill, pack_prefill
from hocket.runner.slots import RequestRecord, RowTables, SlotTable

Int64Array = NDArray[np.int64]


class StepPlan(NamedTuple):
    """One step, ready to be committed: who leaves, who arrives, and the rows."""

    output: SchedulerOutput
    dropped: tuple[str, ...]
    """Requests whose slot is freed first."""
    forgotten: tuple[str, ...]
    """Requests whose tokens are forgotten too (they have finished)."""
    arrivals: dict[str, RequestRecord]
    """Records of requests that have their first row here."""
    slots: Int64Array
    """`[rows]`; rows of a new incarnation get a free slot."""
    fresh: NDArray[np.bool_]
    """`[rows]`; True for the first row of an incarnation."""
    records: tuple[RequestRecord, ...]
    starts: Int64Array
    """`[rows]`; position of each row's first token, the earliest one if earlier rows are not settled."""
    tables: RowTables
    columns: dict[str, Int64Array]
    prefill: PackedPrefill | None
    """The packed metadata of a prefill step."""


def plan_step(
    table: SlotTable, output: SchedulerOutput, new_requests: Sequence[NewRequest], vocab_size: int
) -> StepPlan:
    """Work out a step; raises `ValueError` (malformed pack) or `RunnerError` (contradicts the slots), changes
    nothing.
    """
    notices = dict.fromkeys((*output.preempted_request_ids, *output.finished_request_ids))
    dropped = tuple(r for r in notices if table.slot_of(r) is not None)
    forgotten = tuple(r for r in output.finished_request_ids if r in table.records)
    arrivals = {
        n.request.request_id: RequestRecord(n, list(n.request.prompt_token_ids)) for n in new_requests
    }
    for n, new in enumerate(new_requests):
        request_id = new.request.request_id
        if request_id not in output.request_ids:
            raise RunnerError(f"new request {request_id!r} has no row in this step")
        if request_id in table.records and request_id not in forgotten:
            raise RunnerError(f"new request {request_id!r} names one that lives")
        if any(request_id == other.request.request_id for other in new_requests[:n]):
            raise RunnerError(f"new request {request_id!r} comes twice")
    known = {r: record for r, record in table.records.items() if r not in forgotten} | arrivals
    records, fresh, slots = [], [], []
    for request_id, epoch in zip(output.request_ids, output.epochs, strict=True):
        if request_id not in known:
            raise RunnerError(f"request {request_id!r} has a row, but the runner was never told of it")
        slot = None if request_id in notices else table.slot_of(request_id)
        if slot is not None and table.epochs[slot] != epoch:
            raise RunnerError(
                f"request {request_id!r}: row of epoch {epoch}, its slot is of epoch {table.epochs[slot]}"
            )
        records.append(known[request_id])
        fresh.append(slot is None)
        slots.append(-1 if slot is None else slot)
    for row, slot in zip(np.flatnonzero(fresh), table.reserve(dropped, sum(fresh)), strict=False):
        slots[row] = slot
    rows = np.array(slots, dtype=np.int64)
    is_fresh = np.array(fresh, dtype=np.bool_)
    starts = np.where(is_fresh, 0, table.computed[rows]) if slots else rows
    plan = StepPlan(
        output, dropped, forgotten, arrivals, rows, is_fresh, tuple(records), starts, RowTables(), {}, None
    )
    if output.is_empty:
        return plan
    tables, columns = table.grown_tables(rows, is_fresh, output.new_block_ids)
    plan = plan._replace(tables=tables, columns=columns)
    if output.phase == Phase.PREFILL:
        return plan._replace(prefill=_packed(table, plan, vocab_size))
    _check_decode(table, plan)
    return plan


def _packed(table: SlotTable, plan: StepPlan, vocab_size: int) -> PackedPrefill:
    """Validated metadata of a prefill step; `ValueError` if it is malformed."""
    output = plan.output
    packed = pack_prefill(
        request_ids=output.request_ids,
        chunk_starts=output.num_computed_tokens,
        chunk_lens=output.num_scheduled_tokens,
        histories=[record.tokens for record in plan.records],
        block_tables={
            name: [line[:used] for line, used in zip(lines, plan.columns[name], strict=True)]
            for name, lines in plan.tables.items()
        },
        block_sizes={g.name: g.block_size for g in table.groups},
        windows={g.name: g.window for g in table.groups},
        vocab_size=vocab_size,
        computed=plan.starts,
    )
    for row, (record, lookahead) in enumerate(zip(plan.records, output.lookahead_token_ids, strict=True)):
        end = int(packed.seq_lens[row])
        follows = [] if output.samples[row] else record.tokens[end : end + 1]
        if follows != ([] if lookahead is None else [lookahead]):
            raise RunnerError(
                f"request {output.request_ids[row]!r}: lookahead token {lookahead}, "
                f"the runner's token at {end} is {record.tokens[end : end + 1]}"
            )
    return packed


def _check_decode(table: SlotTable, plan: StepPlan) -> None:
    """A decode row continues where its slot stands, not past the scheduler's bound, and has blocks to write
    to.
    """
    output = plan.output
    if len(set(output.request_ids)) != len(output.request_ids):
        raise RunnerError(f"a request has two rows in one decode step: {list(output.request_ids)}")
    for row, request_id in enumerate(output.request_ids):
        start = int(plan.starts[row])
        if plan.fresh[row]:
            raise RunnerError(f"request {request_id!r}: a decode row, but nothing of it is computed")
        if start > output.num_computed_tokens[row]:
            bound = output.num_computed_tokens[row]
            raise RunnerError(
                f"request {request_id!r}: decode row at {bound}, the runner has computed {start}"
            )
        tokens = len(plan.records[row].tokens) + int(table.unsettled[plan.slots[row]])
        if tokens != start + 1:
            raise RunnerError(
                f"request {request_id!r}: {tokens} tokens, a decode row at {start} needs {start + 1}"
            )
    ends = table.at_most[plan.slots] + np.array(output.num_scheduled_tokens, dtype=np.int64)
    for group in table.groups:
        columns = plan.columns[group.name]
        for row in np.flatnonzero(columns * group.block_size < ends).tolist():
            request_id, blocks, end = output.request_ids[row], columns[row], ends[row]
            raise RunnerError(f"request {request_id!r}: {blocks} blocks of {group.name!r} for {end} tokens")


def commit(table: SlotTable, plan: StepPlan) -> None:
    """Apply notices, arrivals and tables; the model may run then."""
    for request_id in plan.dropped:
        table.drop(request_id)
    for request_id in plan.forgotten:
        del table.records[request_id]
    table.records.update(plan.arrivals)
    for row in np.flatnonzero(plan.fresh):
        table.occupy(plan.output.request_ids[row], plan.output.epochs[row], int(plan.slots[row]))
    table.store(plan.slots, plan.tables, plan.columns)


def launched(table: SlotTable, plan: StepPlan) -> None:
    """Book what is certain of a step that the model works on."""
    output = plan.output
    prefill = output.phase == Phase.PREFILL
    for row, record in enumerate(plan.records):
        start, length, samples = int(plan.starts[row]), output.num_scheduled_tokens[row], output.samples[row]
        if prefill and samples:
            # The replay ends here; what follows was sampled by an ended epoch and never emitted.
            del record.tokens[start + length :]
        table.launched(int(plan.slots[row]), start, length, length if prefill else 1, samples)


def settle(table: SlotTable, plan: StepPlan, emitted: Sequence[Sequence[int]]) -> None:
    """Book what a step's rows sampled: `emitted[row]`, nothing for a non-final chunk. Steps are settled in
    the order in which they were launched; rows whose epoch has ended meanwhile change nothing.
    """
    output = plan.output
    for row, record in enumerate(plan.records):
        if not output.samples[row]:
            continue
        count, length = len(emitted[row]), output.num_scheduled_tokens[row]
        more, fewer = (0, 0) if output.phase == Phase.PREFILL else (count - 1, length - count)
        if table.settled(output.request_ids[row], output.epochs[row], more, fewer):
            record.tokens.extend(emitted[row])


def advance(table: SlotTable, plan: StepPlan, emitted: Sequence[Sequence[int]]) -> None:
    """Book a step whose tokens are known as soon as it has run."""
    launched(table, plan)
    settle(table, plan, emitted)

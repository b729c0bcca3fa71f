"""The runner's side as a view fed only by scheduler outputs: slots, epochs, computed rows, block tables by
id.

It knows nothing of the scheduler's state. Whatever it can see going wrong raises Mismatch: a chunk that
does not
start where the last one ended, a block with two owners, a block handed out that a dispatch in flight may
still
write (S6), history that a window needs and nobody maps (S7), a notice for nobody.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hocket_spec.blocks import ceil_div
from hocket_spec.state import DECODE, PREFILL, Group
from hocket_spec.told import NULL, Block, Flown, Slot, Told


class Mismatch(Exception):
    """What the runner was told contradicts what it was told before."""


class View(NamedTuple):
    """Slots by request id, ids that wait for resumption, dispatches in flight, the greatest epoch seen."""

    names: tuple[str, ...]
    groups: tuple[Group, ...]
    slots: Mapping[str, Slot] = {}  # never changed in place
    preempted: frozenset[str] = frozenset()
    flight: tuple[tuple[int, tuple[Flown, ...]], ...] = ()
    newest: int = -1


def drop(v: View, out: Told) -> View:
    """Notices come before rows: blocks of dropped slots may be in the rows of the same output."""
    slots, preempted = dict(v.slots), set(v.preempted)
    named = [*out.preempted_request_ids, *out.finished_request_ids]
    if len(set(named)) != len(named):
        raise Mismatch(f"S10 one-terminal-event: a notice is delivered twice: {named}")
    for name in out.preempted_request_ids:
        if name not in slots:
            raise Mismatch(f"S10 one-terminal-event: preempted {name}, which has no slot")
        del slots[name]
        preempted.add(name)
    for name in out.finished_request_ids:
        slots.pop(name, None)
        preempted.discard(name)
    return v._replace(slots=slots, preempted=frozenset(preempted))


def seat(v: View, out: Told, i: int) -> Slot:
    """The slot of row i before its blocks: the one there is, or a fresh one for a new or resumed request."""
    name, epoch = out.request_ids[i], out.epochs[i]
    slot, resumed = v.slots.get(name), name in out.resumed_request_ids
    if slot is not None and not resumed:
        if slot.epoch != epoch:
            raise Mismatch(f"S2 no-stale-mutation: {name} runs in epoch {slot.epoch}, row says {epoch}")
        return slot
    if slot is not None or resumed != (name in v.preempted):
        raise Mismatch(f"S3 drained-readmission: {name} resumed {resumed}, preempted {name in v.preempted}")
    if any(x.name == name and resumed for _, rows in v.flight for x in rows):
        raise Mismatch(f"S3 drained-readmission: {name} resumes with older rows in flight")
    taken = {s.epoch for s in v.slots.values()} | {x.epoch for _, rows in v.flight for x in rows}
    if epoch in taken or (resumed and epoch <= v.newest):
        raise Mismatch(f"S2 no-stale-mutation: epoch {epoch} of {name} is not fresh, newest {v.newest}")
    return Slot(epoch, 0, 0, 0, ((),) * len(v.groups), False)


def place(v: View, out: Told, i: int, slot: Slot) -> tuple[Slot, Flown]:
    """Row i on its slot: table extended, progress advanced, reads and writes checked against the table."""
    name, start, length, phase = (
        out.request_ids[i],
        out.num_computed_tokens[i],
        out.num_scheduled_tokens[i],
        out.phase,
    )
    if start != slot.computed or length < 1:
        raise Mismatch(
            f"S4 metadata-well-formed: {name} starts at {start} + {length}, computed {slot.computed}"
        )
    if phase == DECODE and not slot.last:
        raise Mismatch(f"S8 token-accounting: {name} decodes without a last token")
    first, end = min(start, slot.certain), start + length
    writes: dict[Block, int] = {}
    tables = []
    for group, key, table in zip(v.groups, v.names, slot.tables, strict=True):
        new = tuple(out.new_block_ids[i].get(key, ()))
        if NULL in new:
            raise Mismatch(f"S5 block-conservation: the null block is handed out to {name} in {key}")
        table = table + new
        if len(table) != max(ceil_div(end, group.block), len(table) - len(new)):
            raise Mismatch(
                f"S5 block-conservation: {name} has {len(table)} columns of {key} for {end} tokens"
            )
        oldest = max(0, first - group.window) if group.window else 0
        if NULL in table[oldest // group.block :]:
            raise Mismatch(f"S7 window-history: {name} reads {key} from {oldest}, table {table}")
        for column in range(first // group.block, ceil_div(end, group.block)):
            writes[group.pool, table[column]] = (column + 1) * group.block
        tables.append(table)
    certain = end if phase == PREFILL else first + 1
    slot = slot._replace(
        computed=end, certain=certain, tables=tuple(tables), last=slot.last or out.samples[i]
    )
    return slot, Flown(name, slot.epoch, length, first, writes)


def owners(v: View, slots: Mapping[str, Slot]) -> dict[Block, str]:
    """Who owns which block; one owner each."""
    owner: dict[Block, str] = {}
    for name, slot in slots.items():
        for group, table in zip(v.groups, slot.tables, strict=True):
            for b in table:
                if b != NULL and owner.setdefault((group.pool, b), name) != name:
                    raise Mismatch(
                        f"S5 block-conservation: block {b} is owned by {owner[group.pool, b]} and {name}"
                    )
        mine = [
            (g.pool, b) for g, table in zip(v.groups, slot.tables, strict=True) for b in table if b != NULL
        ]
        if len(set(mine)) != len(mine):
            raise Mismatch(f"S5 block-conservation: {name} maps a block twice: {slot.tables}")
    return owner


def receive(v: View, out: Told) -> View:
    """The view after an output, empty or not."""
    v = drop(v, out)
    if out.phase is None:
        if out.request_ids or out.resumed_request_ids:
            raise Mismatch("S1 homogeneity: an output without a phase has rows")
        return v
    if not set(out.resumed_request_ids) <= set(out.request_ids):
        raise Mismatch(f"S4 metadata-well-formed: of {out.resumed_request_ids} not all have a row")
    slots, rows = dict(v.slots), []
    for i, name in enumerate(out.request_ids):
        if name in out.request_ids[:i]:
            raise Mismatch(f"S4 metadata-well-formed: {name} has two rows in one dispatch")
        slots[name], row = place(v, out, i, seat(v, out, i))
        rows.append(row)
    owner = owners(v, slots)
    for _, flown in v.flight:
        for x in flown:
            current = x.name in slots and slots[x.name].epoch == x.epoch
            for b, past in x.writes.items():
                if past > x.first and b in owner and not (current and owner[b] == x.name):
                    raise Mismatch(
                        f"S6 no-write-after-free: {b} is written for {x.name}, owned by {owner[b]}"
                    )
    newest = max([v.newest, *out.epochs])
    preempted = v.preempted - set(out.request_ids)
    return v._replace(
        slots=slots, preempted=preempted, flight=(*v.flight, (int(out.phase), tuple(rows))), newest=newest
    )


def settle(v: View, accepted: Sequence[int]) -> View:
    """The view after the results of the oldest dispatch were handed to the scheduler: tokens accepted per
    row.
    """
    (phase, rows), *flight = v.flight
    slots = dict(v.slots)
    for x, n in zip(rows, accepted, strict=True):
        slot = slots.get(x.name)
        if slot is None or slot.epoch != x.epoch:
            continue
        unused, more = (x.length - n, n - 1) if phase == DECODE else (0, 0)
        done = slot.processed + x.length - unused
        tables = tuple(
            nulled(t, max(0, done - g.window) // g.block if g.window else 0)
            for g, t in zip(v.groups, slot.tables, strict=True)
        )
        slots[x.name] = slot._replace(
            processed=done, computed=slot.computed - unused, certain=slot.certain + more, tables=tables
        )
        flight = [
            (
                p,
                tuple(
                    y._replace(first=y.first + more) if y.epoch == x.epoch and p == DECODE else y for y in ys
                ),
            )
            for p, ys in flight
        ]
    return v._replace(slots=slots, flight=tuple(flight))


def nulled(table: tuple[int, ...], columns: int) -> tuple[int, ...]:
    """The table once a window has returned that many leading columns."""
    return (NULL,) * min(len(table), columns) + table[columns:]

"""The runner's own memory of its requests: tokens, and per incarnation a slot with progress and block tables.

A slot belongs to one (request, epoch) from its first row until the notice that ends it. Everything in a slot
is the runner's own. Of rows that were launched and are not settled yet the host knows bounds only: `computed`
counts one token of each decode row, `at_most` all of them; where every row is settled both are exact. NumPy
arrays, one line per slot, so that a batch's tables are one gather.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hocket.core.checks import require_int
from hocket.core.config import KVCacheConfig
from hocket.runner.api import NewRequest, RunnerError
from hocket.runner.slot_rules import enough, lowest, others, with_freed

IntArray = NDArray[np.int32]

MAX_SLOTS = 1 << 16
"""Of a runner: greatest `max_num_seqs`. Its tables have a line for each."""


@dataclass(slots=True)
class RequestRecord:
    """What outlives an incarnation: the content that a replay needs.

    `tokens` is prompt and sampled tokens. After a preemption it may end in tokens whose result was dropped;
    the row that completes the replay cuts them off and samples them again.
    """

    new: NewRequest
    tokens: list[int]


class RowTables(dict[str, IntArray]):
    """Group name -> `[rows, columns]` block ids of one step's rows, null past each row's own columns."""


class SlotTable:
    """All slots of a runner. `reserve` and the getters are pure; only `drop`, `occupy`, `store`, `launched`
    and `settled` change anything.
    """

    def __init__(self, max_slots: int, kv_cache_config: KVCacheConfig, max_model_len: int) -> None:
        """`ValueError` for more than `MAX_SLOTS` slots, or for tables that memory does not hold."""
        require_int("max_num_seqs", max_slots, 1, MAX_SLOTS)
        self.groups = kv_cache_config.groups
        blocks = list(kv_cache_config.pool_blocks.values())
        self._last_block = {
            g.name: blocks[pool] for g, pool in zip(self.groups, kv_cache_config.pool_of_group, strict=True)
        }
        self.records: dict[str, RequestRecord] = {}
        self.epochs = np.full(max_slots, -1, dtype=np.int64)
        self.computed = np.zeros(max_slots, dtype=np.int64)
        self.at_most = np.zeros(max_slots, dtype=np.int64)
        self.unsettled = np.zeros(max_slots, dtype=np.int64)
        """`[slots]`: rows that sample, were launched and are not settled yet."""
        widths = {g.name: -(-max_model_len // g.block_size) for g in self.groups}
        try:
            self.tables = {name: np.zeros((max_slots, width), np.int32) for name, width in widths.items()}
        except (MemoryError, ValueError, OverflowError) as error:  # NumPy's for what no address can reach
            size = 4 * max_slots * sum(widths.values())
            raise ValueError(
                f"max_num_seqs = {max_slots} and max_model_len = {max_model_len} need block tables of {size} "
                "bytes, which memory does not hold"
            ) from error
        self.columns = {g.name: np.zeros(max_slots, dtype=np.int64) for g in self.groups}
        self._slot_of: dict[str, int] = {}
        self._free = tuple(range(max_slots))  # in ascending order

    @property
    def num_free(self) -> int:
        """Slots that no request holds."""
        return len(self._free)

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Requests that hold a slot."""
        return tuple(self._slot_of)

    def slot_of(self, request_id: str) -> int | None:
        """The slot of a request's current incarnation, or None."""
        return self._slot_of.get(request_id)

    def reserve(self, dropped: Sequence[str], count: int) -> list[int]:
        """The slots that the next `count` newcomers would get after `dropped` have left; `RunnerError` if too
        few.
        """
        free = self._free
        for request_id in dropped:
            free = with_freed(free, self._slot_of[request_id])
        if not enough(len(free), count):
            raise RunnerError(f"{count} new rows need a slot, {len(free)} of {len(self.epochs)} are free")
        return list(lowest(free, count))

    def drop(self, request_id: str) -> None:
        """End the incarnation: the slot is free. Its epoch, progress and columns are written before they are
        read again; what is added to, or read beyond what was written, is cleared.
        """
        slot = self._slot_of.pop(request_id)
        self.at_most[slot] = self.unsettled[slot] = 0
        for table in self.tables.values():
            table[slot] = 0
        self._free = with_freed(self._free, slot)

    def occupy(self, request_id: str, epoch: int, slot: int) -> None:
        """Give the lowest free slot, which is `slot`, to a new incarnation."""
        given = lowest(self._free, 1)
        assert given == (slot,), f"slot {slot} was reserved, of {self._free} the lowest is given"
        self._free = others(self._free, 1)
        self._slot_of[request_id] = slot
        self.epochs[slot] = epoch

    def grown_tables(
        self,
        slots: NDArray[np.int64],
        fresh: NDArray[np.bool_],
        added: Sequence[Mapping[str, tuple[int, ...]]],
    ) -> tuple[RowTables, dict[str, NDArray[np.int64]]]:
        """The rows' tables after adding their new blocks and nulling what the windows have left, as copies.

        Rows of `fresh` start from an empty table at position 0. Returns tables and, per group, columns in
        use.
        """
        tables, columns = RowTables(), {}
        for group in self.groups:
            name, size = group.name, group.block_size
            before = np.where(fresh, 0, self.columns[name][slots])
            after = before + np.array([len(ids[name]) for ids in added], dtype=np.int64)
            limit = self.tables[name].shape[1]
            if after.max() > limit:
                row = int(after.argmax())
                raise RunnerError(
                    f"row {row}: {after[row]} blocks of group {name!r}, its table has {limit} columns"
                )
            table = np.where(fresh[:, None], 0, self.tables[name][slots][:, : int(after.max())]).astype(
                np.int32
            )
            for row in np.flatnonzero(after > before).tolist():
                ids, last = added[row][name], self._last_block[name]
                if min(ids) < 1 or max(ids) > last:
                    raise RunnerError(
                        f"row {row}: new blocks {ids} of group {name!r} are not all in [1, {last}]"
                    )
                table[row, before[row] : after[row]] = ids
            if group.window is not None:
                computed = np.where(fresh, 0, self.computed[slots])
                left = np.maximum(computed - group.window, 0) // size
                table[np.arange(table.shape[1]) < left[:, None]] = 0
            tables[name], columns[name] = table, after
        return tables, columns

    def store(
        self, slots: NDArray[np.int64], tables: RowTables, columns: Mapping[str, NDArray[np.int64]]
    ) -> None:
        """Keep what `grown_tables` returned."""
        for name, table in tables.items():
            self.tables[name][slots, : table.shape[1]] = table
            self.columns[name][slots] = columns[name]

    def launched(self, slot: int, start: int, length: int, certain: int, samples: bool) -> None:
        """A row of `length` tokens from `start` on runs now; it will have computed at least `certain` of
        them.
        """
        self.computed[slot] = start + certain
        self.at_most[slot] += length
        self.unsettled[slot] += samples

    def settled(self, request_id: str, epoch: int, more: int, fewer: int) -> bool:
        """A sampling row is settled: it computed `more` tokens than was certain, `fewer` than it might have.
        False, and nothing changes, if its epoch has ended (S2).
        """
        slot = self._slot_of.get(request_id)
        if slot is None or self.epochs[slot] != epoch:
            return False
        self.computed[slot] += more
        self.at_most[slot] -= fewer
        self.unsettled[slot] -= 1
        return True

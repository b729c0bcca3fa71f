"""The grouped KV cache.

Block pools shared by groups, and tables that grow and shrink in all groups together.
"""

from __future__ import annotations

from collections.abc import Callable

from hocket.core.config import KVCacheConfig
from hocket.core.records import BlockIdsByGroup
from hocket.kv.pool import BlockPool
from hocket.kv.tables import BlockTable

FencingStep = Callable[[int, int], int | None]
"""(group index, column) -> the step that must be processed before the column's block may change hands, or
None.
"""


class GroupedKVCache:
    """Moves block ids between pools and block tables. How many, and when, is decided by the scheduler.

    Vectors have one count per pool, in the order of `KVCacheConfig.pool_blocks`.
    """

    def __init__(self, config: KVCacheConfig) -> None:
        self._pool_of_group = config.pool_of_group
        self._pools = [BlockPool(blocks) for blocks in config.pool_blocks.values()]
        self.group_names = tuple(group.name for group in config.groups)
        self.no_new_blocks = BlockIdsByGroup(self.group_names, ((),) * len(self.group_names))

    def new_tables(self) -> tuple[BlockTable, ...]:
        """Empty tables for one request, one per group."""
        return tuple(BlockTable() for _ in self.group_names)

    def free(self) -> tuple[int, ...]:
        """Free blocks per pool."""
        return tuple(pool.num_free for pool in self._pools)

    def fenced(self) -> tuple[int, ...]:
        """Fenced blocks per pool."""
        return tuple(pool.num_fenced for pool in self._pools)

    def pool_of(self, group_name: str) -> BlockPool:
        """The pool that a group draws on."""
        return self._pools[self._pool_of_group[self.group_names.index(group_name)]]

    def held(self, tables: tuple[BlockTable, ...]) -> tuple[int, ...]:
        """Blocks owned through `tables`, per pool."""
        counts = [0] * len(self._pools)
        for pool, table in zip(self._pool_of_group, tables, strict=True):
            counts[pool] += len(table.block_ids)
        return tuple(counts)

    def grow(self, tables: tuple[BlockTable, ...], columns: tuple[int, ...]) -> BlockIdsByGroup:
        """Add `columns[g]` columns to the table of each group g; returns the new ids.

        All or nothing: the planner has seen to it that every pool has enough, which the pools assert.
        """
        if not any(columns):
            return self.no_new_blocks
        taken = []
        for pool, table, count in zip(self._pool_of_group, tables, columns, strict=True):
            blocks = self._pools[pool].take(count)
            table.block_ids += blocks
            taken.append(tuple(blocks))
        return BlockIdsByGroup(self.group_names, tuple(taken))

    def return_outdated(self, tables: tuple[BlockTable, ...], columns: tuple[int, ...]) -> None:
        """Free what stands before column `columns[g]` in each windowed group g.

        At once, since nothing writes it.
        """
        for pool, table, end in zip(self._pool_of_group, tables, columns, strict=True):
            if end > table.num_leading_nulls:
                self._pools[pool].give_back(table.drop_leading(end))

    def release(self, tables: tuple[BlockTable, ...], fencing_step: FencingStep) -> None:
        """Take every block from `tables`.

        A block that an in-flight step can still write is fenced until that step.
        """
        for group, (pool_index, table) in enumerate(zip(self._pool_of_group, tables, strict=True)):
            pool = self._pools[pool_index]
            for column, block in enumerate(table.block_ids, start=table.num_leading_nulls):
                step_id = fencing_step(group, column)
                if step_id is None:
                    pool.give_back((block,))
                else:
                    pool.fence(step_id, block)
            table.block_ids.clear()
            table.num_leading_nulls = 0

    def settle(self, step_id: int) -> None:
        """A step has been processed: free what was fenced for it."""
        for pool in self._pools:
            pool.settle(step_id)

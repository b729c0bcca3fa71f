"""Block arithmetic for requests: the kernel's formulas summed over the groups of each pool."""

from __future__ import annotations

from math import lcm

from hocket.core.config import KVCacheConfig, SchedulerConfig
from hocket.kv.tables import BlockTable
from hocket.sched import kernel
from hocket.sched.in_flight import InFlightLedger
from hocket.sched.kernel import Group, Vector
from hocket.sched.live import LiveRequest


class Memory:
    """Geometry of the cache groups, and what requests need, hold and will return, as one count per pool."""

    def __init__(self, config: SchedulerConfig, kv_config: KVCacheConfig) -> None:
        self.groups = tuple(
            Group(spec.block_size, spec.window or 0, pool)
            for spec, pool in zip(kv_config.groups, kv_config.pool_of_group, strict=True)
        )
        self.pool_names = tuple(kv_config.pool_blocks)
        self.usable: Vector = tuple(kv_config.pool_blocks.values())
        self.nothing: Vector = (0,) * len(self.usable)
        self.watermark: Vector = tuple(int(config.watermark * blocks) for blocks in self.usable)
        self._reach = config.max_row_len
        self._groups_of_pool = tuple(
            tuple(group for group in self.groups if group.pool == pool) for pool in range(len(self.usable))
        )
        self._period_of_pool = tuple(
            lcm(*(group.block_size for group in groups if group.window)) for groups in self._groups_of_pool
        )

    def capacity_need(self, total: int) -> Vector:
        """Blocks that a request of `total` tokens needs at most at once, per pool."""
        return tuple(
            kernel.capacity_need(groups, total, self._reach, period)
            for groups, period in zip(self._groups_of_pool, self._period_of_pool, strict=True)
        )

    def new_columns(self, tables: tuple[BlockTable, ...], end: int) -> tuple[int, ...]:
        """Columns that each group's table lacks to cover `end` tokens."""
        return tuple(
            kernel.new_columns(end, group.block_size, table.num_columns)
            for group, table in zip(self.groups, tables, strict=True)
        )

    def need(self, tables: tuple[BlockTable, ...], end: int) -> Vector:
        """New blocks per pool for tables to cover `end` tokens."""
        return self._per_pool(self.new_columns(tables, end))

    def outdated_columns(self, live: LiveRequest, processed: int) -> tuple[int, ...]:
        """Per group the leading columns that `processed` tokens of progress outdate."""
        return tuple(
            kernel.outdated_columns(processed, group.window, group.block_size, table.num_columns)
            for group, table in zip(self.groups, live.tables, strict=True)
        )

    def coming_from_windows(self, live: LiveRequest, ledger: InFlightLedger) -> Vector:
        """Blocks that the request's own in-flight rows will certainly return through its windowed groups."""
        processed = live.progress.processed + sum(
            kernel.certain_progress(step.phase, row.length) for step, row in ledger.rows_of(live)
        )
        outdated = self.outdated_columns(live, processed)
        return self._per_pool(
            tuple(
                # A group without a window has no leading nulls, and outdates nothing.
                columns - table.num_leading_nulls
                for columns, table in zip(outdated, live.tables, strict=True)
            )
        )

    def _per_pool(self, counts: tuple[int, ...]) -> Vector:
        totals = [0] * len(self.usable)
        for group, count in zip(self.groups, counts, strict=True):
            totals[group.pool] += count
        return tuple(totals)

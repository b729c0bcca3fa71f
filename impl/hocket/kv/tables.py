"""The block tables of one request, one per KV cache group."""

from __future__ import annotations

from hocket.kv.pool import NULL_BLOCK


class BlockTable:
    """Columns of one group: `num_leading_nulls` that a window returned, then owned block ids.

    Column c holds tokens [c * block_size, (c + 1) * block_size) of the request.
    """

    __slots__ = ("block_ids", "num_leading_nulls")

    def __init__(self) -> None:
        self.num_leading_nulls = 0
        self.block_ids: list[int] = []

    @property
    def num_columns(self) -> int:
        return self.num_leading_nulls + len(self.block_ids)

    def drop_leading(self, columns: int) -> list[int]:
        """Turn the columns before `columns` into nulls and return the blocks that they held."""
        count = columns - self.num_leading_nulls
        assert 0 <= count <= len(self.block_ids), "a window moved back, or past the table"
        dropped = self.block_ids[:count]
        del self.block_ids[:count]
        self.num_leading_nulls = columns
        return dropped

    def whole(self) -> tuple[int, ...]:
        """All columns, leading nulls included, without trailing padding."""
        return (NULL_BLOCK,) * self.num_leading_nulls + tuple(self.block_ids)

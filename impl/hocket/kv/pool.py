"""One pool of KV cache blocks. Every block is exactly one of free, owned or fenced (S5)."""

from __future__ import annotations

from collections.abc import Iterable

NULL_BLOCK = 0


class BlockPool:
    """Ids 1 to `num_blocks`; the null block 0 is never handed out.

    A *fenced* block has lost its owner while a dispatched step can still write it. It becomes free when that
    step is processed, so no block in an in-flight write set belongs to another owner (S6).
    """

    __slots__ = ("_fenced", "_free", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A stack: the block freed last is handed out first, which keeps the working set small.
        self._free = list(range(num_blocks, NULL_BLOCK, -1))
        self._fenced: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_fenced(self) -> int:
        return sum(map(len, self._fenced.values()))

    def take(self, count: int) -> list[int]:
        """Hand out `count` free blocks."""
        assert 0 <= count <= len(self._free), "the planner granted more blocks than are free"
        if count == 0:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        return taken

    def give_back(self, blocks: Iterable[int]) -> None:
        """Free `blocks` at once."""
        self._free.extend(blocks)
        assert len(self._free) <= self.num_blocks, "a block was freed twice"

    def fence(self, step_id: int, block: int) -> None:
        """Keep `block` from other owners until `step_id` is processed."""
        self._fenced.setdefault(step_id, []).append(block)

    def settle(self, step_id: int) -> None:
        """`step_id` is processed: nothing can write its fenced blocks any more."""
        self.give_back(self._fenced.pop(step_id, ()))

"""One pool of KV cache blocks. Every block is exactly one of free, owned or fenced (S5)."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.kv import counts

NULL_BLOCK = 0


class BlockPool:
    """Ids 1 to `num_blocks`; the null block 0 is never handed out.

    A *fenced* block has lost its owner while a dispatched step can still write it. It becomes free when that
    step is processed, so no block in an in-flight write set belongs to another owner (S6).
    """

    __slots__ = ("_fenced", "_free", "counts", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A stack: the block freed last is handed out first, which keeps the working set small.
        self._free = list(range(num_blocks, NULL_BLOCK, -1))
        self._fenced: dict[int, list[int]] = {}
        self.counts = counts.all_free(num_blocks)

    @property
    def num_free(self) -> int:
        return self.counts.free

    @property
    def num_fenced(self) -> int:
        return self.counts.fenced

    def take(self, count: int) -> list[int]:
        """Hand out `count` free blocks."""
        assert counts.may_take(self.counts, count), "the planner granted more blocks than are free"
        if count == 0:
            return []
        self.counts = counts.after_take(self.counts, count)
        taken = self._free[-count:]
        del self._free[-count:]
        self._check()
        taken.reverse()
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Free `blocks`, which had an owner, at once."""
        assert counts.may_release(self.counts, len(blocks)), "a block was freed twice"
        self.counts = counts.after_return(self.counts, len(blocks))
        self._free.extend(blocks)
        self._check()

    def fence(self, step_id: int, block: int) -> None:
        """Keep `block`, which had an owner, from other owners until `step_id` is processed."""
        assert counts.may_release(self.counts, 1), "a block was fenced twice"
        self.counts = counts.after_fence(self.counts, 1)
        self._fenced.setdefault(step_id, []).append(block)

    def settle(self, step_id: int) -> None:
        """`step_id` is processed: nothing can write its fenced blocks any more."""
        blocks = self._fenced.pop(step_id, [])
        assert counts.may_settle(self.counts, len(blocks))
        self.counts = counts.after_settle(self.counts, len(blocks))
        self._free.extend(blocks)
        self._check()

    def _check(self) -> None:
        assert len(self._free) == self.counts.free, "the free blocks are not as many as are counted"

"""A pretend device: it knows only what `SchedulerOutput` tells a runner, and it remembers what every block
holds.

A token depends on the prompt and the position alone, so that the tokens of an isolated run can be written
down. What a
row may read is checked against what was really written into its blocks: a lost block, a block that two
    requests share, a replay that skipped outputs or a window that was cut too early all show as a wrong cell.
"""

from collections.abc import Callable, Sequence
from functools import cache
from zlib import crc32

from hocket import KVCacheConfig, Phase, SchedulerOutput
from hocket.runner.packed import pack_prefill

Accept = Callable[[str, int, int], int]
"""(request id, number of the decode row, its length) -> tokens that the row emits, 1 to its length."""

Cell = tuple[int, int]
"""(position, token) in the cache."""

REJECTED = -1


@cache
def _base(prompt: tuple[int, ...]) -> int:
    return crc32(repr(prompt).encode()) % 100_000 * 20_000


def model_token(prompt: tuple[int, ...], position: int) -> int:
    """The token that the pretend model emits for `position`: tokens of one request all differ."""
    return _base(prompt) + position


class RequestView:
    """The runner's side of one running request."""

    def __init__(self, epoch: int, history: list[int], groups: Sequence[str]) -> None:
        self.epoch = epoch
        self.history = history  # prompt, emitted tokens, and those that this device has sampled
        self.tables: dict[str, list[int]] = {group: [] for group in groups}
        self.computed = 0  # exact: rejected drafts do not count


class Device:
    """Executes dispatches in order; results are ready at once and handed over when the test says so."""

    def __init__(self, cache: KVCacheConfig, seats: int, accept: Accept) -> None:
        self.cache = cache
        self.seats = seats
        self.accept = accept
        self.views: dict[str, RequestView] = {}
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.emitted: dict[str, list[int]] = {}  # by the host, as its results were processed
        self.cells: dict[tuple[str, int], dict[int, Cell]] = {}  # (pool, block) -> offset -> cell
        self.decode_rows: dict[str, int] = {}

    def execute(self, output: SchedulerOutput) -> tuple[list[tuple[int, ...]], list[dict[str, set[int]]]]:
        """Run one output's notices and rows: per row the sampled tokens and, per pool, the blocks written."""
        for name in output.preempted_request_ids + output.finished_request_ids:
            self.views.pop(name, None)
        for row in range(len(output.request_ids)):
            self._take_row(output, row)
        assert len(self.views) <= self.seats, f"{len(self.views)} slots in use, {self.seats} seats"
        if output.phase is Phase.PREFILL:
            self._pack(output)
        tokens, writes = [], []
        for row, name in enumerate(output.request_ids):
            view, length = self.views[name], output.num_scheduled_tokens[row]
            prefill = output.phase is Phase.PREFILL
            sampled = self._prefill(output, row, view) if prefill else self._decode(name, view, length)
            tokens.append(sampled)
            writes.append(self._write(name, view, length, length if prefill else len(sampled)))
        return tokens, writes

    def _take_row(self, output: SchedulerOutput, row: int) -> None:
        """A row of a new epoch starts a view from nothing; any other row goes on where the device stands."""
        name, epoch, start = output.request_ids[row], output.epochs[row], output.num_computed_tokens[row]
        view = self.views.get(name)
        if view is None or view.epoch != epoch:
            assert start == 0, f"first row of {name} in epoch {epoch} starts at {start}"
            assert view is None or name in output.resumed_request_ids or not self.emitted[name]
            history = [*self.prompts[name], *self.emitted[name]]
            view = self.views[name] = RequestView(epoch, history, [g.name for g in self.cache.groups])
        assert (name in output.resumed_request_ids) <= (start == 0)
        for group, ids in output.new_block_ids[row].items():
            view.tables[group].extend(ids)
        # The host's count of a decode row is an upper bound: drafts in flight may be rejected.
        assert view.computed <= start if output.phase is Phase.DECODE else view.computed == start

    def _pack(self, output: SchedulerOutput) -> None:
        """Every prefill dispatch packs into valid metadata (S4)."""
        groups = self.cache.groups
        views = [self.views[name] for name in output.request_ids]
        pack = pack_prefill(
            request_ids=output.request_ids,
            chunk_starts=output.num_computed_tokens,
            chunk_lens=output.num_scheduled_tokens,
            histories=[view.history for view in views],
            block_tables={group.name: [view.tables[group.name] for view in views] for group in groups},
            block_sizes={group.name: group.block_size for group in groups},
            windows={group.name: group.window for group in groups},
            computed=[view.computed for view in views],
        )
        assert pack.num_tokens == sum(output.num_scheduled_tokens)

    def _prefill(self, output: SchedulerOutput, row: int, view: RequestView) -> tuple[int, ...]:
        end = output.num_computed_tokens[row] + output.num_scheduled_tokens[row]
        final = end == len(view.history)
        assert output.samples[row] == final, "only the row that reaches the end of the replay samples"
        assert output.lookahead_token_ids[row] == (None if final else view.history[end])
        if not final:
            return ()
        return (model_token(self.prompts[output.request_ids[row]], end),)

    def _decode(self, name: str, view: RequestView, length: int) -> tuple[int, ...]:
        assert view.computed == len(view.history) - 1, "a decode row reads the last token only"
        turn = self.decode_rows[name] = self.decode_rows.get(name, 0) + 1
        accepted = self.accept(name, turn, length)
        assert 1 <= accepted <= length
        return tuple(model_token(self.prompts[name], view.computed + 1 + ahead) for ahead in range(accepted))

    def _write(self, name: str, view: RequestView, length: int, kept: int) -> dict[str, set[int]]:
        """Check what the row reads, write its cells, go on by the `kept` ones; returns the blocks written."""
        start = view.computed
        sampled = [model_token(self.prompts[name], start + 1 + at) for at in range(kept)]
        if start + kept >= len(view.history):
            view.history += sampled[len(view.history) - start - 1 :]
        written: dict[str, set[int]] = {}
        for group in self.cache.groups:
            pool, table = group.pool or group.name, view.tables[group.name]
            first = 0 if group.window is None else max(0, start - group.window)
            for position in range(first, start):
                cell = self._cell(pool, table, position, group.block_size)
                assert cell == (position, view.history[position]), (
                    f"{name} reads {cell} at {position} of {group.name}"
                )
            for position in range(start, start + length):
                token = view.history[position] if position < start + kept else REJECTED
                block = table[position // group.block_size]
                self.cells.setdefault((pool, block), {})[position % group.block_size] = (position, token)
                written.setdefault(pool, set()).add(block)
        view.computed += kept
        return written

    def _cell(self, pool: str, table: list[int], position: int, block_size: int) -> Cell | None:
        block = table[position // block_size]
        return self.cells.get((pool, block), {}).get(position % block_size)

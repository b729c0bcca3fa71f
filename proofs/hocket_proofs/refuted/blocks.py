"""Faults in blocks: pools, fences, windows, set-aside, hold and preemption (S5, S6, S7, L6, L7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hocket.kv.cache import GroupedKVCache
from hocket.kv.pool import BlockPool
from hocket.sched import kernel, planner, preemption
from hocket.sched.in_flight import InFlightLedger
from hocket.sched.memory import Memory
from hocket.sched.planner import _Attempt
from hocket.sched.preemption import Account, Standing, Verdict
from hocket.sched.scheduler import Scheduler
from hocket_proofs.refuted.fault import (
    DRAFTING,
    HOLDING,
    LOCK_STEP,
    OWN_WINDOW,
    PLAIN,
    PROMISING,
    TIGHT,
    TWO,
    WINDOWED,
    Fault,
    Patch,
    on,
)  # fmt: skip
from hocket_spec.check.instances import Instance, Traffic
from hocket_spec.state import Config, Group

Candidates = Callable[[Standing, Account, int], Iterable[int]]


def _designate_among(candidates_of: Candidates) -> Callable[[Patch], None]:
    """The victims of a row are sought among others than its strict juniors without a row."""

    def judge(standing: Standing, account: Account, index: int, need: Any) -> Verdict:
        available = account.available_to(index)
        if kernel.fits(need, available):
            return Verdict(True, False, ())
        coming = standing.memory.coming_from_windows(standing.running[index], standing.ledger)
        within = kernel.add(kernel.add(available, standing.fenced), coming)
        if kernel.fits(need, within):
            return Verdict(False, True, ())
        candidates = [
            other for other in candidates_of(standing, account, index) if other not in account.victims
        ]
        chosen = kernel.designate(need, within, tuple(account.gain(other) for other in candidates))
        return Verdict(False, False, tuple(candidates[position] for position in chosen))

    def apply(patch: Patch) -> None:
        patch.set(preemption, "judge", judge)
        patch.set(planner, "judge", judge)

    return apply


def freed_blocks_at_once(patch: Patch) -> None:
    """No fences."""
    patch.wrap(GroupedKVCache, "release", lambda real: lambda self, tables, step: real(
        self, tables, lambda group, column: None))  # fmt: skip


def aborts_free_at_once(patch: Patch) -> None:
    """Preemption fences, an end does not."""

    def make(real: Any) -> Any:
        def end(self: Scheduler, live: Any) -> None:
            without = Patch()
            without.wrap(GroupedKVCache, "release", lambda release: lambda cache, tables, step: release(
                cache, tables, lambda group, column: None))  # fmt: skip
            try:
                real(self, live)
            finally:
                without.undo()

        return end

    patch.wrap(Scheduler, "_end", make)


def fences_forget_rejection(patch: Patch) -> None:
    """The write set of a decode row begins at its planned start."""
    patch.set(kernel, "write_start", lambda phase, start, prompt, outputs: start)


def fenced_by_the_oldest(patch: Patch) -> None:
    """A block is free when the first of two writers is done."""

    def make(real: Any) -> Any:
        def rows_of(self: Any, live: Any) -> Any:
            return iter(list(real(self, live))[::-1])

        return rows_of

    patch.wrap(InFlightLedger, "rows_of", make)


def second_group_not_released(patch: Patch) -> None:
    """Rollback is missing in the second group."""

    def release(self: Any, tables: Any, step: Any) -> None:
        for group, (pool_index, table) in enumerate(zip(self._pool_of_group, tables, strict=True)):
            pool = self._pools[pool_index]
            for column, block in enumerate(table.block_ids, start=table.num_leading_nulls):
                at = step(group, column)
                if group == 0:
                    pool.give_back((block,)) if at is None else pool.fence(at, block)
            table.block_ids.clear()
            table.num_leading_nulls = 0

    patch.set(GroupedKVCache, "release", release)


def block_handed_out_twice(patch: Patch) -> None:
    """Taking blocks leaves one of them in the pool, and another one goes nowhere: the count is right."""

    def make(real: Any) -> Any:
        def take(self: BlockPool, count: int) -> list[int]:
            taken: list[int] = real(self, count)
            if taken and self._free:
                self._free[0] = taken[0]
            return taken

        return take

    patch.wrap(BlockPool, "take", make)


def resumed_table_incomplete(patch: Patch) -> None:
    """The runner is told of a second chunk's blocks in the first group only."""

    def make(real: Any) -> Any:
        def grow(self: Any, tables: Any, columns: Any) -> Any:
            ids = real(self, tables, columns)
            return type(ids)(self.group_names, (ids._ids[0], *[()] * (len(self.group_names) - 1)))

        return grow

    patch.wrap(GroupedKVCache, "grow", make)


def window_early(patch: Patch) -> None:
    """Off by one token."""
    patch.wrap(kernel, "outdated_columns", lambda real: lambda done, window, block, columns: real(
        done + 1, window, block, columns))  # fmt: skip


def window_on_scheduled_progress(patch: Patch) -> None:
    """What is dispatched is taken for done."""
    patch.wrap(Memory, "outdated_columns", lambda real: lambda self, live, processed: real(
        self, live, max(processed, live.progress.computed)))  # fmt: skip


def windows_keep_blocks(patch: Patch) -> None:
    """A windowed group is held like a full one."""
    patch.set(kernel, "outdated_columns", lambda done, window, block, columns: 0)


def victims_not_held(patch: Patch) -> None:
    """A victim gets its next row, in the fallback's dispatch say, and never drains."""
    patch.set(planner, "held_back", lambda standing: frozenset())


def nothing_set_aside(patch: Patch) -> None:
    """Hold without set-aside: juniors take what drains."""
    patch.wrap(Account, "set_aside", lambda real: lambda self, seniors: real(self, 0))


def set_aside_within_one_phase(patch: Patch) -> None:
    """Only seniors of the phase that is tried count."""

    def note(phase: int) -> Any:
        def make(real: Any) -> Any:
            def attempt(self: _Attempt, *given: Any) -> None:
                self.account.phase = phase  # type: ignore[attr-defined]
                real(self, *given)

            return attempt

        return make

    def uncovered(real: Any) -> Any:
        def of_phase(self: Account, index: int) -> Any:
            phase = getattr(self, "phase", None)
            if phase is not None and self._standing.phases[index] != phase:
                return self._nothing
            return real(self, index)

        return of_phase

    patch.wrap(_Attempt, "prefill", note(kernel.PREFILL))
    patch.wrap(_Attempt, "decode", note(kernel.DECODE))
    patch.wrap(Account, "_uncovered", uncovered)


def set_aside_counted_twice(patch: Patch) -> None:
    """A senior's next chunk counts beside the promise that covers it: a junior preempts for nothing."""
    patch.set(kernel, "uncovered", lambda need, outstanding: need)


def promises_ignored(patch: Patch) -> None:
    """Two half-read prompts hold each other up."""
    patch.set(kernel, "outstanding", lambda promise, held: 0)


def promise_outlives_the_prompt(patch: Patch) -> None:
    """The promise is kept while decoding: blocks stand idle."""

    def make(real: Any) -> Any:
        def advance(self: Scheduler, phase: int, row: Any) -> Any:
            promise = row.live.promise
            made = real(self, phase, row)
            row.live.promise = promise
            return made

        return advance

    patch.wrap(Scheduler, "_advance", make)


def superfluous_victims(patch: Patch) -> None:
    """Everybody who could help is preempted."""
    patch.wrap(kernel, "designate", lambda real: lambda need, within, gains: tuple(range(len(gains)))
               if real(need, within, gains) else ())  # fmt: skip


def first_found_victims(patch: Patch) -> None:
    """What turned out superfluous is not dropped again."""

    def designate(need: Any, within: Any, gains: Any) -> tuple[int, ...]:
        chosen, covered = [], within
        for index, gain in enumerate(gains):
            if kernel.fits(need, covered):
                break
            if kernel.helps(gain, need, within):
                chosen.append(index)
                covered = kernel.add(covered, gain)
        return tuple(chosen) if kernel.fits(need, covered) else ()

    patch.set(kernel, "designate", designate)


def helpless_victims(patch: Patch) -> None:
    """A victim need not share a scarce pool."""
    patch.set(kernel, "helps", lambda gain, need, within: any(gain))
    patch.wrap(kernel, "designate", lambda real: lambda need, within, gains: tuple(
        i for i, g in enumerate(gains) if any(g)) if real(need, within, gains) else ())  # fmt: skip


def preempts_undrained(patch: Patch) -> None:
    """Victims lose the token that is on its way, and their blocks are fenced anyway."""
    patch.set(Standing, "drained", lambda self, index: True)


def does_not_wait_for_fences(patch: Patch) -> None:
    """Blocks that come back by themselves are not counted: preemption cascades."""

    def make(real: Any) -> Any:
        def init(self: Standing, *given: Any) -> None:
            real(self, *given)
            self.fenced = self.memory.nothing

        return init

    patch.wrap(Standing, "__init__", make)


def does_not_wait_for_its_window(patch: Patch) -> None:
    """A row preempts although its own window is about to return what it needs."""
    patch.set(Memory, "coming_from_windows", lambda self, live, ledger: self.nothing)


def victims_keep_their_row(patch: Patch) -> None:
    """A request that was preempted a moment ago still gets its row of the same dispatch."""

    def by_service(self: _Attempt, phase: int) -> Any:
        standing = self._standing
        ready = [i for i, p in enumerate(standing.phases) if p == phase and i not in self._held]
        return iter(sorted(ready, key=lambda index: standing.running[index].served))

    patch.set(_Attempt, "_by_service", by_service)


def chunk_shrunk_instead(patch: Patch) -> None:
    """A chunk that does not fit is cut to the blocks there are: two prompts shrink each other to a stop."""

    def make(real: Any) -> Any:
        def chunk_len(self: _Attempt, computed: int, replay_len: int) -> int:
            length: int = real(self, computed, replay_len)
            for live in self._standing.running:
                if live.progress.computed == computed and live.replay_len == replay_len:
                    while length > 1 and not kernel.fits(
                        self._memory.need(live.tables, computed + length), self.account.free
                    ):
                        length -= 1
            return length

        return chunk_len

    patch.wrap(_Attempt, "_chunk_len", make)


def preempts_for_drafts(patch: Patch) -> None:
    """The blocks of a row's drafts are asked for like those of its token."""

    def decode(self: _Attempt) -> None:
        for index in self._by_service(kernel.DECODE):
            live = self._standing.running[index]
            length = kernel.decode_len(live.allowed, live.drafts)
            if length > self._budget_left:
                break
            if self._grant(index, live.progress.computed + length):
                self._add_row(live, length, False)

    patch.set(_Attempt, "decode", decode)


def drafts_take_what_others_need(patch: Patch) -> None:
    """Drafts look at free blocks only."""
    patch.set(Account, "left_for_drafts", lambda self: self.free)


def drafts_not_counted(patch: Patch) -> None:
    """The second row's drafts do not see what the first row's took."""
    patch.set(Account, "take_drafts", lambda self, need: None)


def no_drafts_without_all(patch: Patch) -> None:
    """A row whose drafts find no blocks is dropped instead of falling back to one token."""

    def make(real: Any) -> Any:
        def extend(self: _Attempt) -> None:
            before = {id(row.live): row.length for row in self.rows}
            real(self)
            self.rows = [row for row in self.rows if row.length == before[id(row.live)]]

        return extend

    patch.wrap(_Attempt, "_extend_by_drafts", make)


def _everybody(standing: Standing, account: Account, index: int) -> Iterable[int]:
    return (i for i in range(len(standing.running)) if i != index and i not in account.dispatched)


def _oldest_first(standing: Standing, account: Account, index: int) -> Iterable[int]:
    return (i for i in range(index + 1, len(standing.running)) if i not in account.dispatched)


def _itself_too(standing: Standing, account: Account, index: int) -> Iterable[int]:
    return (i for i in range(len(standing.running) - 1, index - 1, -1) if i not in account.dispatched)


MANY = on(PLAIN, pools=(5,), traffic=(*TWO, Traffic(2, 3)))
POOLS = Instance(
    Config((Group(2), Group(1, 0, 1)), (3, 5), reserve=False), (Traffic(3, 2), Traffic(1, 3), Traffic(2, 2))
)
TIGHT_DRAFTS = on(DRAFTING, pools=(5,))
SPECULATING = (Traffic(2, 5), Traffic(1, 4))
OWN_RETURN = Instance(Config((Group(1), Group(2, 3)), (11,), drafts=1), SPECULATING)
LAST_BLOCKS = Instance(Config((Group(1),), (6,), drafts=1), SPECULATING)
FOUR = Instance(
    Config((Group(1),), (8,), reserve=False), (Traffic(3, 1), Traffic(4, 3), Traffic(3, 4), Traffic(4, 1))
)
UNREAD = Instance(
    Config((Group(1),), (4,), budget=4, drafts=1, decode_steps=3, reserve=False),
    (Traffic(1, 3), Traffic(2, 3), Traffic(3, 2)),
)
UNLIKE = Instance(
    Config((Group(2),), (5,), chunk=4, reserve=False, depth=1), (Traffic(8, 1), Traffic(4, 2), Traffic(2, 2))
)

FAULTS = (
    Fault("freed blocks are handed out at once", "a dispatch in flight writes into somebody else's block",
          LOCK_STEP, "differ", freed_blocks_at_once, PLAIN),
    Fault("aborted requests free their blocks at once", "preemption was thought of, abort was not", LOCK_STEP,
          "differ", aborts_free_at_once, PLAIN),
    Fault("fences forget that drafts are rejected", "a decode row starts lower than it was planned",
          LOCK_STEP, "differ", fences_forget_rejection, DRAFTING),
    Fault("fenced by the oldest writer", "free while the second dispatch still writes", LOCK_STEP, "differ",
          fenced_by_the_oldest, on(PLAIN, depth=3)),
    Fault("rollback missing in the second group", "each preemption leaks", LOCK_STEP, "differ",
          second_group_not_released, on(WINDOWED, preempts=1)),
    Fault("a block handed out twice", "two owners of one block", LOCK_STEP, "S5 block-conservation",
          block_handed_out_twice, PLAIN),
    Fault("the runner is told of one group only", "tables of the others stay short", LOCK_STEP, "S5",
          resumed_table_incomplete, WINDOWED),
    Fault("a windowed block returns too early", "off by one token", LOCK_STEP, "differ", window_early,
          WINDOWED),
    Fault("window freed on scheduled progress", "rows in flight still read it", LOCK_STEP, "differ",
          window_on_scheduled_progress, WINDOWED),
    Fault("windows keep their blocks", "a sliding window that never slides", LOCK_STEP,
          "blocks of KV cache pool", windows_keep_blocks, WINDOWED),
    Fault("victims are not held back", "the fallback dispatches them again, and they never drain", LOCK_STEP,
          "decode, due is empty", victims_not_held, HOLDING),
    Fault("hold without set-aside", "juniors take what the victims gave up", LOCK_STEP,
          "decode, due is prefill", nothing_set_aside, PLAIN),
    Fault("set-aside within one phase only", "decode rows eat a senior's next chunk", LOCK_STEP,
          "decode, due is prefill", set_aside_within_one_phase, PLAIN),
    Fault("a promise counted twice", "a junior preempts although there is enough", LOCK_STEP, "served",
          set_aside_counted_twice, PROMISING),
    Fault("promises are not kept", "admitted prompts run into each other", LOCK_STEP, "victims",
          promises_ignored, PROMISING),
    Fault("a promise outlives the prompt", "blocks stand idle until the request ends", LOCK_STEP, "promise",
          promise_outlives_the_prompt, PROMISING),
    Fault("all juniors are victims", "everybody who could help is preempted", LOCK_STEP,
          "empty, due is decode", superfluous_victims, MANY),
    Fault("a superfluous victim", "what turned out superfluous is not dropped again", LOCK_STEP, "victims",
          first_found_victims, UNLIKE),
    Fault("a victim that shares no scarce pool", "preempted, and of no help", LOCK_STEP, "served",
          helpless_victims, POOLS),
    Fault("newest preempts oldest", "victims are sought from the most senior down", LOCK_STEP,
          "empty, due is decode", _designate_among(_oldest_first), MANY),
    Fault("requester preempts a senior", "the order of seniority is not looked at", LOCK_STEP,
          "empty, due is decode", _designate_among(_everybody), PLAIN),
    Fault("requester that preempts itself", "evicts itself, is admitted again, for ever", LOCK_STEP,
          "decode, due is prefill", _designate_among(_itself_too), TIGHT),
    Fault("victims are preempted undrained", "their token on its way is lost", LOCK_STEP,
          "decode, due is prefill", preempts_undrained, PLAIN),
    Fault("cascade", "fenced blocks do not count, so that one shortage preempts again and again", LOCK_STEP,
          "prefill, due is empty", does_not_wait_for_fences, PLAIN),
    Fault("does not wait for its own window", "preempts for blocks that it is about to return", LOCK_STEP,
          "decode, due is empty", does_not_wait_for_its_window, OWN_RETURN),
    Fault("a drained victim runs in the same call", "preempted, and dispatched all the same", LOCK_STEP,
          "runnable", victims_keep_their_row, FOUR),
    Fault("chunk shrunk instead of preempting", "two prompts shrink each other to a stop", LOCK_STEP,
          "prefill, due is empty", chunk_shrunk_instead, OWN_WINDOW),
    Fault("preemption for drafts", "speculation costs somebody its place", LOCK_STEP, "empty, due is decode",
          preempts_for_drafts, TIGHT_DRAFTS),
    Fault("drafts take what others need", "the next row of a request finds nothing", LOCK_STEP, "drafts",
          drafts_take_what_others_need, UNREAD),
    Fault("drafts are not counted", "two rows take the same blocks", LOCK_STEP,
          "granted more blocks than are free", drafts_not_counted, LAST_BLOCKS),
    Fault("no row without its drafts", "a row is dropped instead of falling back to one token", LOCK_STEP,
          "empty, due is decode", no_drafts_without_all, TIGHT_DRAFTS),
)  # fmt: skip

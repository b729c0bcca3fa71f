"""Who gets blocks: set-aside, who is blocked, whom a blocked row may preempt, and who is held back for it.

All of it is a pure function of the state at the start of the call and of the rows granted so far in the
attempt; nothing is stored between calls.
"""

from __future__ import annotations

from typing import NamedTuple

from hocket.core.config import SchedulerConfig
from hocket.kv.cache import GroupedKVCache
from hocket.sched import kernel
from hocket.sched.in_flight import InFlightLedger
from hocket.sched.kernel import Vector
from hocket.sched.live import LiveRequest
from hocket.sched.memory import Memory


class Standing:
    """The running requests (most senior first) as a call finds them.

    Phase, next row's need, promises, blocks.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        memory: Memory,
        cache: GroupedKVCache,
        ledger: InFlightLedger,
        running: list[LiveRequest],
    ) -> None:
        self.memory = memory
        self.ledger = ledger
        self.running = running
        self.free = cache.free()
        self.fenced = cache.fenced()
        self.held = cache.held
        self.phases = [
            kernel.runnable_phase(live.progress.computed, live.replay_len, live.allowed) for live in running
        ]
        self.next_needs: dict[int, Vector] = {}
        self.outstanding: dict[int, Vector] = {}
        for index, live in enumerate(running):
            length = self._next_len(config, index)
            need = memory.need(live.tables, live.progress.computed + length)
            if any(need):
                self.next_needs[index] = need
            if any(live.promise):
                self.outstanding[index] = outstanding(live.promise, cache.held(live.tables))

    def _next_len(self, config: SchedulerConfig, index: int) -> int:
        """The next row under a full budget.

        A decode row counts one token: drafts never block or preempt anybody.
        """
        if self.phases[index] == kernel.PREFILL:
            live = self.running[index]
            return kernel.chunk_len(
                live.progress.computed,
                live.replay_len,
                config.aligned_chunk_size,
                config.max_num_batched_tokens,
                config.chunk_alignment,
            )
        return 1 if self.phases[index] == kernel.DECODE else 0

    def drained(self, index: int) -> bool:
        """No row of the running request is in flight."""
        return self.ledger.rows_in_flight(self.running[index].epoch) == 0


class Account:
    """Blocks as one attempt sees them while it grants rows one by one. Nothing outside changes."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._outstanding = dict(standing.outstanding)
        self._nothing = standing.memory.nothing
        self.free = standing.free
        self.promised = self._nothing
        for vector in self._outstanding.values():
            self.promised = kernel.add(self.promised, vector)
        # Next rows without a row in this dispatch so far, most senior first: whoever is served in order of
        # seniority finds no senior here to add up.
        self._needs_to_come = dict(standing.next_needs)
        self._kept_aside = self._nothing
        self.dispatched: set[int] = set()
        self.victims: set[int] = set()

    def set_aside(self, seniors: int) -> Vector:
        """For the next rows of the first `seniors` running requests that are not in this dispatch so far.

        Only what their promises do not cover: nobody else can take promised blocks anyway.
        """
        total = self._kept_aside
        for index in self._needs_to_come:
            if index >= seniors:
                break
            total = kernel.add(total, self._uncovered(index))
        return total

    def keep_aside(self, index: int) -> None:
        """Set the next row of `index` aside for everybody asked about from now on, all of them junior."""
        self._kept_aside = kernel.add(self._kept_aside, self._uncovered(index))
        del self._needs_to_come[index]

    def available(self, seniors: int, own_outstanding: Vector) -> Vector:
        """Free, less what others are promised, less what is set aside for `seniors` more senior running
        requests.
        """
        aside = self.set_aside(seniors)
        return tuple(map(kernel.may_take, self.free, self.promised, own_outstanding, aside))

    def available_to(self, index: int) -> Vector:
        """What running request `index` may take."""
        return self.available(index, self.own_outstanding(index))

    def own_outstanding(self, index: int) -> Vector:
        """Blocks that running request `index` is promised and does not hold."""
        return self._outstanding.get(index, self._nothing)

    def gain(self, index: int) -> Vector:
        """What preempting running request `index` makes available: blocks that it holds and is promised."""
        return kernel.add(
            self._standing.held(self._standing.running[index].tables), self.own_outstanding(index)
        )

    def grant(self, index: int, need: Vector, ends_replay: bool) -> None:
        """Running request `index` gets a row that takes `need`; its promise ends with its replay."""
        live = self._standing.running[index]
        self.dispatched.add(index)
        self._needs_to_come.pop(index, None)
        self.free = kernel.subtract(self.free, need)
        left = self._nothing
        if any(live.promise) and not ends_replay:
            left = outstanding(live.promise, kernel.add(self._standing.held(live.tables), need))
        self._set_outstanding(index, left)

    def admit(self, need: Vector, still_promised: Vector) -> None:
        """A waiting request gets its first row and becomes a running one."""
        self.free = kernel.subtract(self.free, need)
        self.promised = kernel.add(self.promised, still_promised)

    def preempt(self, index: int) -> None:
        """Running request `index` (drained) gives up its blocks and its promise."""
        self.victims.add(index)
        self._needs_to_come.pop(index, None)
        self.free = kernel.add(self.free, self._standing.held(self._standing.running[index].tables))
        self._set_outstanding(index, self._nothing)

    def left_for_drafts(self) -> Vector:
        """Free, less all promises, less the next rows of all running requests not in this dispatch."""
        return self.available(len(self._standing.running), self._nothing)

    def take_drafts(self, need: Vector) -> None:
        self.free = kernel.subtract(self.free, need)

    def _uncovered(self, index: int) -> Vector:
        need = self._needs_to_come[index]
        return tuple(map(kernel.uncovered, need, self.own_outstanding(index)))

    def _set_outstanding(self, index: int, vector: Vector) -> None:
        own = self.own_outstanding(index)
        self.promised = tuple(map(kernel.promised_after, self.promised, own, vector))
        self._outstanding[index] = vector


class Verdict(NamedTuple):
    """Whether a row's need fits now.

    If not, whether it only waits for results, or whom it designates (indices).
    """

    fits: bool = False
    waits_for_results: bool = False
    victims: tuple[int, ...] = ()


FITS = Verdict(fits=True)
WAITS_FOR_RESULTS = Verdict(waits_for_results=True)


def outstanding(promise: Vector, held: Vector) -> Vector:
    """Per pool what is promised and not held."""
    return tuple(map(kernel.outstanding, promise, held))


def judge(standing: Standing, account: Account, index: int, need: Vector) -> Verdict:
    """Judge running request `index`, whose row takes `need`.

    Only strict juniors not in this dispatch are designated.
    """
    available = account.available_to(index)
    if kernel.fits(need, available):
        return FITS
    coming = standing.memory.coming_from_windows(standing.running[index], standing.ledger)
    within = kernel.add(kernel.add(available, standing.fenced), coming)
    if kernel.fits(need, within):
        return WAITS_FOR_RESULTS
    candidates = [
        junior
        for junior in range(len(standing.running) - 1, index, -1)
        if junior not in account.dispatched and junior not in account.victims
    ]
    chosen = kernel.designate(need, within, tuple(account.gain(junior) for junior in candidates))
    return Verdict(victims=tuple(candidates[position] for position in chosen))


def held_back(standing: Standing) -> frozenset[int]:
    """Victims that the most senior blocked row designates: they get no row in either phase, so that they
    drain.

    A blocked row that neither waits for results nor finds enough juniors makes no claim; the next one may.
    """
    account = Account(standing)
    for index, need in standing.next_needs.items():
        verdict = judge(standing, account, index, need)
        if verdict.waits_for_results or verdict.victims:
            return frozenset(verdict.victims)
        account.keep_aside(index)
    return frozenset()

"""What one call dispatches.

An attempt at the owed phase, else at the other one. Planning changes no state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from hocket.core.config import SchedulerConfig
from hocket.kv.cache import GroupedKVCache
from hocket.sched import kernel
from hocket.sched.in_flight import InFlightLedger
from hocket.sched.kernel import Turn, Vector
from hocket.sched.live import LiveRequest
from hocket.sched.memory import Memory
from hocket.sched.preemption import Account, Standing, held_back, judge, outstanding
from hocket.sched.waiting import WaitingQueue


class PlannedRow(NamedTuple):
    """`length` tokens from the request's computed progress on.

    `admitted` if the request is waiting so far.
    """

    live: LiveRequest
    length: int
    admitted: bool = False


class Plan(NamedTuple):
    """Rows of one phase (or NO_PHASE and none), and the drained running requests that they preempt."""

    phase: int
    rows: tuple[PlannedRow, ...]
    victims: tuple[LiveRequest, ...]


class Planner:
    """Chooses phase, rows and victims from the state; the scheduler carries the plan out."""

    def __init__(
        self, config: SchedulerConfig, memory: Memory, cache: GroupedKVCache, ledger: InFlightLedger
    ) -> None:
        self._config = config
        self._memory = memory
        self._cache = cache
        self._ledger = ledger

    def plan(self, turn: Turn, running: list[LiveRequest], waiting: WaitingQueue) -> Plan:
        """The owed phase's dispatch if there is one, else the other phase's, in the same call."""
        standing = Standing(self._config, self._memory, self._cache, self._ledger, running)
        held = held_back(standing)
        owed = self._attempt(turn.owed, standing, held, waiting)
        other = None if owed.rows else self._attempt(kernel.other_phase(turn.owed), standing, held, waiting)
        phase = kernel.choose_phase(turn.owed, bool(owed.rows), bool(other and other.rows))
        chosen = owed if other is None or phase == turn.owed else other
        return Plan(
            phase,
            tuple(chosen.rows),
            tuple(running[index] for index in sorted(chosen.account.victims)),
        )

    def _attempt(
        self, phase: int, standing: Standing, held: frozenset[int], waiting: WaitingQueue
    ) -> _Attempt:
        attempt = _Attempt(self._config, standing, held)
        if phase == kernel.PREFILL:
            attempt.prefill(waiting)
        else:
            attempt.decode()
        return attempt


class _Attempt:
    """One try at a dispatch of one phase."""

    def __init__(self, config: SchedulerConfig, standing: Standing, held: frozenset[int]) -> None:
        self._config = config
        self._standing = standing
        self._memory = standing.memory
        self._held = held
        self._budget_left = config.max_num_batched_tokens
        self._num_admitted = 0
        self.account = Account(standing)
        self.rows: list[PlannedRow] = []

    def prefill(self, waiting: WaitingQueue) -> None:
        """Overdue head first, then running prefills, least recently served first, then the queue in order."""
        head = waiting.head
        overdue = head if head is not None and head.overdue else None
        admissions_open = overdue is None or self._admit(overdue)
        for index in self._by_service(kernel.PREFILL):
            live = self._standing.running[index]
            length = self._chunk_len(live.progress.computed, live.replay_len)
            end = live.progress.computed + length
            if kernel.row_fits(length, self._budget_left) and self._grant(index, end):
                self._add_row(live, length)
        for live in waiting if admissions_open else ():
            if live is not overdue and not self._admit(live):
                break

    def decode(self) -> None:
        """Least recently served first, until a row of full length no longer fits the budget.

        Drafts come last.
        """
        for index in self._by_service(kernel.DECODE):
            live = self._standing.running[index]
            length = kernel.decode_len(live.allowed, live.drafts)
            if not kernel.row_fits(length, self._budget_left):
                break
            if self._grant(index, live.progress.computed + 1):
                self._add_row(live, length)
        self._extend_by_drafts()

    def _by_service(self, phase: int) -> Iterator[int]:
        """Indices of ready requests of a phase: least recently served first, ties by seniority."""
        standing = self._standing
        for index in sorted(range(len(standing.running)), key=lambda index: standing.running[index].served):
            # Asked late on purpose: a row granted meanwhile may have preempted this one (S3).
            preempted = index in self.account.victims
            if kernel.may_have_row(phase, standing.phases[index], index in self._held, preempted):
                yield index

    def _chunk_len(self, computed: int, replay_len: int) -> int:
        config = self._config
        return kernel.chunk_len(
            computed, replay_len, config.aligned_chunk_size, self._budget_left, config.chunk_alignment
        )

    def _add_row(self, live: LiveRequest, length: int, admitted: bool = False) -> None:
        self.rows.append(PlannedRow(live, length, admitted))
        self._budget_left = kernel.budget_after(self._budget_left, length)

    def _grant(self, index: int, end: int) -> bool:
        """Give running request `index` the blocks to cover `end` tokens, by preempting drained juniors if it
        must.
        """
        standing, account = self._standing, self.account
        live = standing.running[index]
        need = self._memory.need(live.tables, end)
        verdict = judge(standing, account, index, need)
        if not verdict.fits and not self._preempt(index, need, verdict.victims):
            return False
        account.grant(index, need, end >= live.replay_len)
        return True

    def _preempt(self, index: int, need: Vector, victims: tuple[int, ...]) -> bool:
        """Preempt now, or not at all.

        Only drained victims, and only if the row is then dispatched in this call.
        """
        if not victims or not all(self._standing.drained(victim) for victim in victims):
            return False
        reach = self.account.available_to(index)
        for victim in victims:
            reach = kernel.add(reach, self.account.gain(victim))
        if not kernel.fits(need, reach):
            return False
        for victim in victims:
            self.account.preempt(victim)
        return True

    def _admit(self, live: LiveRequest) -> bool:
        """Admit a waiting request with its first chunk if it is drained and finds seat, tokens and blocks."""
        standing, account, memory = self._standing, self.account, self._memory
        seniors = bisect_left(standing.running, live.seniority, key=lambda other: other.seniority)
        num_running = kernel.seats_taken(len(standing.running), len(account.victims), self._num_admitted)
        # One preempted in this call is ahead of its juniors in the queue, and not admissible in it (S3).
        if any(victim < seniors for victim in account.victims):
            return False
        in_flight = standing.ledger.rows_in_flight(live.epoch)
        if not kernel.may_admit(in_flight, num_running, self._config.max_num_seqs):
            return False
        length = self._chunk_len(0, live.num_tokens)
        if not kernel.row_fits(length, self._budget_left):
            return False
        need = memory.need(live.tables, length)
        ask = kernel.admission_ask(live.replay_promise, need, memory.watermark, num_running > 0)
        if not kernel.fits(ask, account.available(seniors, memory.nothing)):
            return False
        # Nothing is outstanding if the row is the whole replay: then it takes all that was promised.
        account.admit(need, outstanding(live.replay_promise, need))
        self._num_admitted += 1
        self._add_row(live, length, True)
        return True

    def _extend_by_drafts(self) -> None:
        """Rows were granted one token each.

        In order of seniority each gets its drafts' blocks or falls back to one.
        """
        drafting = [position for position, row in enumerate(self.rows) if row.length > 1]
        for position in sorted(drafting, key=lambda position: self.rows[position].live.seniority):
            live, length, _ = self.rows[position]
            computed = live.progress.computed
            one = self._memory.need(live.tables, computed + 1)
            extra = kernel.subtract(self._memory.need(live.tables, computed + length), one)
            if kernel.fits(extra, self.account.left_for_drafts()):
                self.account.take_drafts(extra)
            else:
                self.rows[position] = PlannedRow(live, 1)

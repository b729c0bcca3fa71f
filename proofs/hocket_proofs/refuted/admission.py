"""Faults in admission, order and seats (S3, S9, L3, L4)."""

from __future__ import annotations

from typing import Any

from hocket.sched import kernel, planner
from hocket.sched.in_flight import InFlightLedger
from hocket.sched.memory import Memory
from hocket.sched.planner import _Attempt
from hocket.sched.scheduler import Scheduler
from hocket.sched.waiting import WaitingQueue
from hocket_proofs.refuted.fault import (
    HOLDING,
    LOCK_STEP,
    MARKED,
    OWN_WINDOW,
    PLAIN,
    WINDOWED,
    Fault,
    Patch,
    on,
)  # fmt: skip
from hocket_spec.check.instances import Instance, Traffic
from hocket_spec.state import Config, Group


def readmits_undrained(patch: Patch) -> None:
    """Old rows in flight are forgotten."""
    patch.wrap(kernel, "may_admit", lambda real: lambda rows, running, seats: real(0, running, seats))


def looks_at_the_newest_dispatch_only(patch: Patch) -> None:
    """At most one dispatch in flight is assumed."""

    def rows_in_flight(self: InFlightLedger, epoch: int) -> int:
        return sum(row.epoch == epoch for row in self._steps[-1].rows) if self._steps else 0

    patch.set(InFlightLedger, "rows_in_flight", rows_in_flight)


def one_discard_flag_per_request(patch: Patch) -> None:
    """The first result that comes back clears the flag, though a second one is on its way."""

    def process_oldest(self: InFlightLedger) -> Any:
        step = self._steps.popleft()
        for row in step.rows:
            self._rows_of_epoch.pop(row.epoch, None)
        return step

    patch.set(InFlightLedger, "process_oldest", process_oldest)


def discard_debt_with_nothing_in_flight(patch: Patch) -> None:
    """Each preemption expects a result, in flight or not."""

    def make(real: Any) -> Any:
        def preempt(self: Scheduler, live: Any) -> None:
            self._ledger._rows_of_epoch[live.epoch] += not self._ledger.rows_in_flight(live.epoch)
            real(self, live)

        return preempt

    patch.wrap(Scheduler, "_preempt", make)


def a_seat_too_many(patch: Patch) -> None:
    """`<=` for `<`."""
    patch.wrap(kernel, "may_admit", lambda real: lambda rows, running, seats: real(rows, running, seats + 1))


def past_a_blocked_head(patch: Patch) -> None:
    """Whoever fits is admitted."""

    def make(real: Any) -> Any:
        def admit(self: _Attempt, live: Any) -> bool:
            real(self, live)
            return True

        return admit

    patch.wrap(_Attempt, "_admit", make)


def a_blocked_head_stops_running_rows(patch: Patch) -> None:
    """No prefill at all while the head waits."""

    def make(real: Any) -> Any:
        def prefill(self: _Attempt, waiting: Any) -> None:
            real(self, waiting)
            head = waiting.head
            if head is not None and all(row.live is not head for row in self.rows):
                self.rows.clear()
                self.account.victims.clear()

        return prefill

    patch.wrap(_Attempt, "prefill", make)


def admission_takes_what_is_set_aside(patch: Patch) -> None:
    """Newcomers look at free blocks, not at what their seniors' next rows want."""
    patch.set(planner, "bisect_left", lambda *given, **options: 0)


def one_group_missing_in_admission(patch: Patch) -> None:
    """The first cache group speaks for all of them."""

    def make(real: Any) -> Any:
        def need(self: Memory, tables: Any, end: int) -> Any:
            return tuple(n if pool == 0 else 0 for pool, n in enumerate(real(self, tables, end)))

        return need

    patch.wrap(Memory, "need", make)


def reservation_counts_depth(patch: Patch) -> None:
    """What was accepted can never be admitted: refusal looked at one step, the promise at all in flight."""
    patch.wrap(Scheduler, "_promise", lambda real: lambda self, tokens: real(
        self, tokens + self.config.async_depth))  # fmt: skip


def watermark_while_nothing_runs(patch: Patch) -> None:
    """An idle machine keeps blocks back from the only request."""
    patch.wrap(kernel, "admission_ask", lambda real: lambda promise, row, mark, runs: real(
        promise, row, mark, True))  # fmt: skip


def priorities_ignored(patch: Patch) -> None:
    """The queue is in order of arrival."""
    patch.set(WaitingQueue, "_entry", staticmethod(lambda live: (0, -live.seniority[1], live)))


def preempted_goes_to_the_end(patch: Patch) -> None:
    """A preempted request queues like a new one."""

    def make(real: Any) -> Any:
        def preempt(self: Scheduler, live: Any) -> None:
            self._leave_running(live)
            live.status, live.progress = "preempted", kernel.Progress(0, 0, 0)
            live.replay_promise = self._promise(live.num_tokens)
            live.seniority = (live.seniority[0], self._next_arrival)
            self._next_arrival += 1
            self._waiting.push(live)
            self._notices.preempted(live.request_id)

        return preempt

    patch.wrap(Scheduler, "_preempt", make)


def nobody_becomes_overdue(patch: Patch) -> None:
    """A head that was passed over has no better claim to tokens the next time."""

    def make(real: Any) -> Any:
        def dispatch(self: Scheduler, plan: Any) -> Any:
            head = self._waiting.head
            before = head is not None and head.overdue
            out = real(self, plan)
            if head is not None:
                head.overdue = before and head.overdue
            return out

        return dispatch

    patch.wrap(Scheduler, "_dispatch", make)


def the_next_head_becomes_overdue(patch: Patch) -> None:
    """The mark goes to whoever is head afterwards: endless short prompts overtake a half-read long one."""

    def make(real: Any) -> Any:
        def dispatch(self: Scheduler, plan: Any) -> Any:
            out = real(self, plan)
            if plan.phase == kernel.PREFILL and self._waiting.head is not None:
                self._waiting.head.overdue = True
            return out

        return dispatch

    patch.wrap(Scheduler, "_dispatch", make)


def seniors_take_all_tokens(patch: Patch) -> None:
    """Tokens go by seniority, not to whoever was served least recently."""

    def by_service(self: _Attempt, phase: int) -> Any:
        for index, ready in enumerate(self._standing.phases):
            if ready == phase and index not in self._held and index not in self.account.victims:
                yield index

    patch.set(_Attempt, "_by_service", by_service)


def capacity_forgets_the_window(patch: Patch) -> None:
    """A windowed group is counted as if it kept everything: requests that fit are refused."""
    patch.wrap(kernel, "capacity_need", lambda real: lambda groups, total, reach, period: real(
        tuple(g._replace(window=0) for g in groups), total, reach, period))  # fmt: skip


SHORT_OF_TOKENS = Instance(Config((Group(2),), (9,), chunk=1, budget=1), (Traffic(2, 3), Traffic(1, 3)))
CROWDED = Instance(
    Config((Group(2),), (9,), chunk=2, budget=2), (Traffic(4, 1), Traffic(2, 1), Traffic(2, 1))
)
RANKED = on(PLAIN, traffic=(Traffic(4, 2, 1), Traffic(4, 2, 1), Traffic(2, 2, 0)))

FAULTS = (
    Fault("re-admits before the old rows are drained", "a result of the past meets the new incarnation",
          LOCK_STEP, "prefill, due is empty", readmits_undrained, PLAIN),
    Fault("looks at the newest dispatch only", "drained was written for depth 2; depth 3 breaks it",
          LOCK_STEP, "differ", looks_at_the_newest_dispatch_only, on(PLAIN, depth=3)),
    Fault("one discard flag per request", "two old rows in flight, one flag", LOCK_STEP, "differ",
          one_discard_flag_per_request, on(PLAIN, depth=3)),
    Fault("discard debt with nothing in flight", "waits for ever for a result that was never dispatched",
          LOCK_STEP, "empty, due is prefill", discard_debt_with_nothing_in_flight, PLAIN),
    Fault("takes a seat too many", "a comparison off by one", LOCK_STEP, "seat", a_seat_too_many,
          on(PLAIN, seats=1)),
    Fault("admission past a blocked head", "small requests overtake a large one for ever", LOCK_STEP,
          "prefill, due is empty", past_a_blocked_head, PLAIN),
    Fault("a blocked head that stops running rows too", "half-read prompts wait for one that does not fit",
          LOCK_STEP, "empty, due is prefill", a_blocked_head_stops_running_rows, PLAIN),
    Fault("admission takes what is set aside", "newcomers starve a senior's next row", LOCK_STEP,
          "prefill, due is decode", admission_takes_what_is_set_aside, HOLDING),
    Fault("one group missing in admission", "admitted with blocks in the first group only", LOCK_STEP,
          "granted more blocks than are free", one_group_missing_in_admission, OWN_WINDOW),
    Fault("reservation that counts depth while refusal does not", "accepted, and never admitted", LOCK_STEP,
          "empty, due is prefill", reservation_counts_depth, on(WINDOWED, depth=3)),
    Fault("watermark while nothing runs", "an idle machine refuses its only request", LOCK_STEP,
          "empty, due is prefill", watermark_while_nothing_runs, MARKED),
    Fault("overtaking admission", "the queue ignores priorities", LOCK_STEP, "empty, due is prefill",
          priorities_ignored, RANKED),
    Fault("a preempted request goes to the end", "work that was half done waits behind new work", LOCK_STEP,
          "differ", preempted_goes_to_the_end, PLAIN),
    Fault("nobody becomes overdue", "a head that fits is passed over without bound", LOCK_STEP, "overdue",
          nobody_becomes_overdue, CROWDED),
    Fault("the next head becomes overdue", "short prompts take every prefill step from a long one", LOCK_STEP,
          "overdue", the_next_head_becomes_overdue, CROWDED),
    Fault("seniors take all tokens", "a junior never decodes while a senior does", LOCK_STEP, "budget",
          seniors_take_all_tokens, SHORT_OF_TOKENS),
    Fault("capacity forgets the window", "a prompt that fits through its window is refused", LOCK_STEP,
          "blocks of KV cache pool", capacity_forgets_the_window, WINDOWED),
)  # fmt: skip

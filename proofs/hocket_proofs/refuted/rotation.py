"""Faults in the choice of the phase and in what a turn costs (L1, L2)."""

from __future__ import annotations

from typing import Any

from hocket.core.phase import Phase
from hocket.sched import kernel
from hocket.sched.kernel import Turn
from hocket.sched.notices import Notices
from hocket.sched.planner import Planner, _Attempt
from hocket.sched.scheduler import Scheduler
from hocket_proofs.refuted.fault import HOLDING, LOCK_STEP, PLAIN, TALKS, Fault, Patch, on


def _after_empty(patch: Patch, change: Any) -> None:
    """Change the turn when a call with room in the pipeline dispatched nothing."""

    def make(real: Any) -> Any:
        def schedule(self: Scheduler) -> Any:
            room = len(self._ledger) < self.config.async_depth
            out = real(self)
            if room and out.phase is None:
                self._turn = change(self._turn)
            return out

        return schedule

    patch.wrap(Scheduler, "schedule", make)


def flip_on_every_call(patch: Patch) -> None:
    """Every call hands the turn over, whatever it dispatched."""
    patch.set(kernel, "turn_after", lambda turn, ran, p, d: Turn(kernel.other_phase(turn.owed), 0))
    _after_empty(patch, lambda turn: Turn(kernel.other_phase(turn.owed), 0))


def _always_first(phase: int) -> Any:
    def apply(patch: Patch) -> None:
        patch.wrap(Planner, "plan", lambda real: lambda self, turn, *rest: real(self, Turn(phase, 0), *rest))

    return apply


def turn_charged_on_attempt(patch: Patch) -> None:
    """An attempt that dispatched nothing counts as a step of the turn."""
    _after_empty(patch, lambda turn: kernel.turn_after(turn, turn.owed, 1, 1))


def credit_lost_on_empty_steps(patch: Patch) -> None:
    """An empty output starts the turn anew."""
    _after_empty(patch, lambda turn: Turn(turn.owed, 0))


def fallback_uses_up_the_turn(patch: Patch) -> None:
    """The owed phase pays although the other one ran."""
    patch.wrap(kernel, "turn_after", lambda real: lambda turn, ran, p, d: real(turn, turn.owed, p, d))


def debt_from_uncontested_steps(patch: Patch) -> None:
    """Steps that nobody contested are paid back later by the phase that ran."""
    patch.wrap(kernel, "turn_after", lambda real: lambda turn, ran, p, d: real(turn, ran, p, d)
               if ran == turn.owed else Turn(turn.owed, turn.steps - 1))  # fmt: skip


def one_step_of_a_turn_too_many(patch: Patch) -> None:
    """`>` for `>=`."""
    patch.wrap(kernel, "turn_after", lambda real: lambda turn, ran, p, d: real(turn, ran, p + 1, d + 1))


def no_fallback(patch: Patch) -> None:
    """The owed phase or nothing."""
    patch.wrap(kernel, "choose_phase", lambda real: lambda owed, mine, other: real(owed, mine, False))


def fallback_drops_notices(patch: Patch) -> None:
    """The failed attempt had taken the notices already."""

    def make(real: Any) -> Any:
        def dispatch(self: Scheduler, plan: Any) -> Any:
            if plan.phase != self._turn.owed:
                self._notices.take()
            return real(self, plan)

        return dispatch

    patch.wrap(Scheduler, "_dispatch", make)


def notices_twice(patch: Patch) -> None:
    """Notices are read, and not taken."""
    patch.set(Notices, "take", lambda self: (tuple(self._preempted), tuple(self._finished)))


def preempted_then_ended_is_named_twice(patch: Patch) -> None:
    """A request that was preempted and then aborted is named as both."""
    patch.set(Notices, "finished", lambda self, name: self._finished.__setitem__(name, None))


def both_phases_in_one_dispatch(patch: Patch) -> None:
    """A prefill dispatch with budget left takes decode rows along."""

    def make(real: Any) -> Any:
        def prefill(self: _Attempt, waiting: Any) -> None:
            real(self, waiting)
            for index in self._by_service(kernel.DECODE) if self.rows else ():
                live = self._standing.running[index]
                if self._grant(index, live.progress.computed + 1):
                    self._add_row(live, 1, False)

        return prefill

    patch.wrap(_Attempt, "prefill", make)


def deeper_than_the_pipeline(patch: Patch) -> None:
    """One dispatch too many in flight."""

    def make(real: Any) -> Any:
        def schedule(self: Scheduler) -> Any:
            if len(self._ledger) != self.config.async_depth:
                return real(self)
            plan = self._planner.plan(self._turn, self._running, self._waiting)
            return self._dispatch(plan) if plan.phase else self._empty_output()

        return schedule

    patch.wrap(Scheduler, "schedule", make)


SLOW_TURNS = on(PLAIN, prefill_steps=2, decode_steps=2)

FAULTS = (
    Fault("flip on every call", "the literal reading of rotation; it resonates with the pipeline", LOCK_STEP,
          "differ", flip_on_every_call, PLAIN),
    Fault("prefill first", "new prompts freeze every running answer", LOCK_STEP, "phase",
          _always_first(Phase.PREFILL), PLAIN),
    Fault("decode first", "a long answer keeps every prompt waiting", LOCK_STEP, "phase",
          _always_first(Phase.DECODE), TALKS),
    Fault("turn charged on attempt", "trying in vain costs the turn", LOCK_STEP, "differ",
          turn_charged_on_attempt, HOLDING),
    Fault("credit lost on empty steps", "an empty output starts the turn anew", LOCK_STEP, "differ",
          credit_lost_on_empty_steps, SLOW_TURNS),
    Fault("a fallback uses up the turn", "the owed phase pays for what the other one got", LOCK_STEP,
          "differ", fallback_uses_up_the_turn, PLAIN),
    Fault("debt from uncontested steps", "who ran alone must wait for it later", LOCK_STEP, "differ",
          debt_from_uncontested_steps, PLAIN),
    Fault("one step of a turn too many", "a comparison off by one", LOCK_STEP, "differ",
          one_step_of_a_turn_too_many, PLAIN),
    Fault("no fallback in the same call", "an empty prefill attempt ends the call", LOCK_STEP, "phase",
          no_fallback, PLAIN),
    Fault("fallback that drops notices", "the attempt that failed had taken them", LOCK_STEP, "notices",
          fallback_drops_notices, PLAIN),
    Fault("notices are delivered twice", "the runner drops a request that came back", LOCK_STEP, "notices",
          notices_twice, PLAIN),
    Fault("preempted and finished at once", "one id in two notices", LOCK_STEP, "notice",
          preempted_then_ended_is_named_twice, PLAIN),
    Fault("both phases in one dispatch", "mixed batches, as most engines have them", LOCK_STEP, "runnable",
          both_phases_in_one_dispatch, TALKS),
    Fault("deeper than the pipeline", "one unprocessed dispatch too many", LOCK_STEP, "pipeline",
          deeper_than_the_pipeline, PLAIN),
)  # fmt: skip

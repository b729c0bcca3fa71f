"""Turns and waits, for any cadence and without end: L1, L2, L4, and what L7 takes from them."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import z3

from hocket.core.config import SchedulerConfig
from hocket.sched import kernel
from hocket.sched.kernel import DECODE, NO_PHASE, PREFILL, Turn
from hocket_proofs.symbolic.lifting import boolean, integer, run
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import term


class Call(NamedTuple):
    """What one call with room in the pipeline comes to: the phase that ran, the turn after it, and how often
    each phase has been passed over while it was serviceable, since it last ran.
    """

    ran: Any
    turn: Turn
    prefill_waits: Any
    decode_waits: Any


def call(turn: Turn, steps: tuple[Any, Any], ready: tuple[Any, Any], waits: tuple[Any, Any]) -> Call:
    """The shipped choice and the shipped effect on the turn; the waits are counted beside them."""
    prefill, decode = ready
    owed, other = (prefill, decode) if turn.owed == PREFILL else (decode, prefill)
    ran = kernel.choose_phase(turn.owed, owed, other)
    after = kernel.turn_after(turn, ran, *steps)
    prefill_waits = 0 if ran == PREFILL else waits[0] + (1 if prefill else 0)
    decode_waits = 0 if ran == DECODE else waits[1] + (1 if decode else 0)
    return Call(ran, after, prefill_waits, decode_waits)


P, D = integer("prefill_steps"), integer("decode_steps")
OWED, STEPS = integer("owed"), integer("steps")
CAN_PREFILL, CAN_DECODE = boolean("prefill serviceable"), boolean("decode serviceable")
PREFILL_WAITS, DECODE_WAITS = integer("prefill waits"), integer("decode waits")
TURN = Turn(OWED, STEPS)
CADENCE = z3.And(term(P) >= 1, term(D) >= 1)


def turn_holds(turn: Turn) -> Any:
    """One of two phases is owed, and its turn is not over."""
    owed, steps = term(turn.owed), term(turn.steps)
    return z3.Or(
        z3.And(owed == PREFILL, steps >= 0, steps < term(P)),
        z3.And(owed == DECODE, steps >= 0, steps < term(D)),
    )


def waits_hold(turn: Turn, prefill_waits: Any, decode_waits: Any) -> Any:
    """While the other phase is owed, one has waited for its steps so far at most; then for all of them."""
    owed, steps, prefill, decode = map(term, (turn.owed, turn.steps, prefill_waits, decode_waits))
    return z3.And(
        turn_holds(turn),
        z3.If(owed == DECODE, prefill <= steps, prefill <= term(D)),
        z3.If(owed == PREFILL, decode <= steps, decode <= term(P)),
    )


def bounds() -> Any:
    """What the shipped configuration says, for an arbitrary cadence and depth."""
    config = SimpleNamespace(
        prefill_steps_per_turn=P, decode_steps_per_turn=D, async_depth=integer("async_depth")
    )
    return run(SchedulerConfig.waiting_bound, config)


def bounded_wait() -> Iterable[Lemma]:
    """L1 by an inductive invariant, and that its bounds are the least ones."""
    done = run(call, TURN, (P, D), (CAN_PREFILL, CAN_DECODE), (PREFILL_WAITS, DECODE_WAITS))
    now, bound = waits_hold(TURN, PREFILL_WAITS, DECODE_WAITS), bounds()
    after = waits_hold(done.turn, done.prefill_waits, done.decode_waits)
    yield Lemma("the first turn satisfies the invariant", waits_hold(kernel.first_turn(), 0, 0), (CADENCE,))
    yield Lemma("every call keeps the invariant", after, (CADENCE, now))
    yield Lemma(
        "the invariant bounds both waits by waiting_bound()",
        z3.And(term(PREFILL_WAITS) <= term(bound.prefill), term(DECODE_WAITS) <= term(bound.decode)),
        (CADENCE, now),
    )
    both = (CADENCE, now, term(CAN_PREFILL), term(CAN_DECODE))
    for owed, count, before, waits, most in (
        (DECODE, D, PREFILL_WAITS, done.prefill_waits, bound.prefill),
        (PREFILL, P, DECODE_WAITS, done.decode_waits, bound.decode),
    ):
        yield Lemma(
            f"while phase {owed} is owed the other one waits longer with every step, up to the bound",
            z3.And(
                term(waits) == term(STEPS) + 1,
                term(waits) <= term(most),
                z3.Or(
                    z3.And(term(done.turn.owed) == owed, term(done.turn.steps) == term(STEPS) + 1),
                    z3.And(term(STEPS) + 1 == term(count), term(waits) == term(most)),
                ),
            ),
            (*both, term(OWED) == owed, term(before) == term(STEPS)),
        )


def choice() -> Iterable[Lemma]:
    """What a call runs, and what that does to the turn."""
    done = run(call, TURN, (P, D), (CAN_PREFILL, CAN_DECODE), (PREFILL_WAITS, DECODE_WAITS))
    ran, owed = term(done.ran), term(OWED)
    given = (CADENCE, turn_holds(TURN))
    yield Lemma(
        "something runs iff something can",
        (ran != NO_PHASE) == z3.Or(term(CAN_PREFILL), term(CAN_DECODE)),
        given,
    )
    yield Lemma(
        "one phase runs, and one that can",
        z3.Or(
            ran == NO_PHASE,
            z3.And(ran == PREFILL, term(CAN_PREFILL)),
            z3.And(ran == DECODE, term(CAN_DECODE)),
        ),
        given,
    )
    first = run(kernel.first_turn)
    begins = z3.And(term(first.owed) == DECODE, term(first.steps) == 0)
    yield Lemma("decode is owed first, and all its steps", begins)
    mine = z3.If(owed == PREFILL, term(CAN_PREFILL), term(CAN_DECODE))
    yield Lemma("the owed phase runs if it can", z3.Implies(mine, ran == owed), given)
    same = z3.And(term(done.turn.owed) == owed, term(done.turn.steps) == term(STEPS))
    yield Lemma("fallback and empty output leave the turn alone", z3.Implies(ran != owed, same), given)
    steps = z3.If(owed == PREFILL, term(P), term(D))
    over = z3.And(term(done.turn.owed) != owed, term(done.turn.steps) == 0)
    on = z3.And(term(done.turn.owed) == owed, term(done.turn.steps) == term(STEPS) + 1)
    yield Lemma(
        "a turn has exactly its steps",
        z3.Implies(ran == owed, z3.If(term(STEPS) + 1 == steps, over, on)),
        given,
    )


def head_call(turn: Turn, steps: tuple[Any, Any], decode: Any, overdue: Any, left_out: Any) -> Any:
    """A call while the head of the queue fits, so that prefill is serviceable. A prefill dispatch takes an
    overdue head first (the planner's order); another one it may leave out, for lack of tokens.
    """
    done = call(turn, steps, (True, decode), (0, 0))
    admitted = done.ran == PREFILL and (overdue or not left_out)
    return done.ran, done.turn, kernel.overdue_after(overdue, done.ran, admitted), admitted


OVERDUE, LEFT_OUT, PASSED = boolean("overdue"), boolean("left out"), integer("passed over")


def head_holds(turn: Turn, overdue: Any, passed: Any) -> Any:
    """How often the head can have been passed over so far; 0 satisfies it in every turn."""
    owed, steps, late, count = map(term, (turn.owed, turn.steps, overdue, passed))
    p, d = term(P), term(D)
    decode_owed = z3.If(late, z3.If(p == 1, count <= d + 1 + steps, count <= steps + 1), count <= steps)
    fresh = z3.If(z3.Or(p == 1, steps == 0), count <= d, count <= 0)
    prefill_owed = z3.If(late, z3.If(p == 1, count <= 2 * d + 1, count <= d + 1), fresh)
    return z3.And(turn_holds(turn), z3.If(owed == DECODE, decode_owed, prefill_owed))


def admission_bound() -> Iterable[Lemma]:
    """L4: a head that fits at every call is admitted before the bound is passed."""
    ran, after, late, admitted = run(head_call, TURN, (P, D), CAN_DECODE, OVERDUE, LEFT_OUT)
    now, most = head_holds(TURN, OVERDUE, PASSED), term(bounds().admission)
    count = term(PASSED)
    yield Lemma(
        "whoever becomes head begins with 0 in any turn",
        head_holds(TURN, OVERDUE, 0),
        (CADENCE, turn_holds(TURN)),
    )
    yield Lemma(
        "a call that does not admit the head keeps the invariant",
        head_holds(after, late, integer("passed over") + 1),
        (CADENCE, now, count >= 0, z3.Not(term(admitted))),
    )
    yield Lemma(
        "the invariant bounds the count by waiting_bound()", count <= most, (CADENCE, now, count >= 0)
    )
    yield Lemma(
        "the bound is 2d + 1 calls where prefill has one step per turn, else d + 1",
        most == term(D) + 1 + z3.If(term(P) == 1, term(D), 0),
        (CADENCE,),
    )
    yield Lemma(
        "a prefill dispatch that leaves the head out makes it overdue, no other does",
        term(late) == z3.And(z3.Not(term(admitted)), z3.Or(term(OVERDUE), term(ran) == PREFILL)),
        (CADENCE, turn_holds(TURN)),
    )
    yield Lemma(
        "a head is admitted in prefill only",
        z3.Implies(term(admitted), term(ran) == PREFILL),
        (CADENCE, turn_holds(TURN)),
    )


def senior_once_it_fits() -> Iterable[Lemma]:
    """L7, its second part: once its row fits, the senior's phase comes within max(p, d) calls, and a dispatch
    that holds every ready row has one of the senior.
    """
    now, bound = waits_hold(TURN, PREFILL_WAITS, DECODE_WAITS), bounds()
    waits = z3.If(boolean("senior prefills").term, term(PREFILL_WAITS), term(DECODE_WAITS))
    most = z3.If(term(P) > term(D), term(P), term(D))
    yield Lemma("either wait is at most max(p, d)", waits <= most, (CADENCE, now))
    yield Lemma(
        "waiting_bound() adds what depth - 1 results take to it",
        term(bound.senior_progress) == integer("async_depth").term - 1 + most,
        (CADENCE,),
    )

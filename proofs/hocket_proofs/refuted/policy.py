"""Policies that sound right and starve somebody: the explorer must show it on the model itself (L1-L7)."""

from __future__ import annotations

from typing import Any

from hocket_proofs.refuted.fault import EXPLORER, PLAIN, PROMISING, TWO, Fault, Patch, on
from hocket_spec import actions, dispatch, rules, walk
from hocket_spec.check.instances import Instance, Traffic
from hocket_spec.state import DECODE, PREFILL, RUNNING, Config, Group, State


def _first(first: int) -> Any:
    def due(cfg: Config, s: State) -> int:
        order = (first, PREFILL + DECODE - first)
        return next((p for p in order if dispatch.serviceable(cfg, s, p)), 0)

    def apply(patch: Patch) -> None:
        patch.set(dispatch, "due", due)
        patch.set(actions, "due", due)

    return apply


def _rotation(rotate: Any) -> Any:
    return lambda patch: patch.set(dispatch, "rotate", rotate)


def fallback_pays(cfg: Config, s: State, phase: int) -> tuple[int, int]:
    """A fallback is charged to the owed phase."""
    return PREFILL + DECODE - s.owed, 0


def turn_never_ends(cfg: Config, s: State, phase: int) -> tuple[int, int]:
    """Whoever is owed stays owed while it has work."""
    return s.owed, 0


def nobody_is_designated(patch: Patch) -> None:
    """Two half-read prompts, nobody may preempt."""
    for module in (walk, rules):
        patch.set(module, "designate", lambda *given: rules.Claim(False, ()))


def everybody_is_designated(patch: Patch) -> None:
    """All juniors go."""

    def make(real: Any) -> Any:
        def designate(cfg: Config, s: State, r: Any, *rest: Any) -> rules.Claim:
            claim: rules.Claim = real(cfg, s, r, *rest)
            juniors = s.requests[[x.name for x in s.requests].index(r.name) + 1 :]
            others = tuple(x for x in juniors if x.status == RUNNING and x.name not in rest[-1])
            return rules.Claim(False, others) if claim.victims else claim

        return designate

    patch.wrap(walk, "designate", make)
    patch.wrap(rules, "designate", make)


def newcomers_first(patch: Patch) -> None:
    """Last in, first out."""

    def make(real: Any) -> Any:
        def add(cfg: Config, s: State, *given: Any) -> State:
            after: State = real(cfg, s, *given)
            return after._replace(requests=(after.requests[-1], *after.requests[:-1]))

        return add

    patch.wrap(actions, "add", make)


def promise_counted_twice(patch: Patch) -> None:
    """The next chunk of a promised prompt is set aside once more."""
    for module in (rules, walk):
        patch.set(module, "set_aside", rules.next_need)


def pools_overdrawn(patch: Patch) -> None:
    """Everything fits."""
    patch.set(walk, "fits", lambda ask, have: True)


def nobody_is_held(patch: Patch) -> None:
    """Victims go on getting rows, and never drain."""
    for module in (rules, walk):
        patch.set(module, "hold", lambda cfg, s: frozenset())


def nobody_is_overdue(patch: Patch) -> None:
    """A head that was passed over has no better claim the next time."""

    def token_order(s: State, phase: int) -> Any:
        running = sorted([r for r in s.requests if rules.ready_phase(r) == phase], key=lambda r: r.served)
        return running if phase == DECODE else running + [r for r in s.requests if r.status != RUNNING]

    patch.set(walk, "token_order", token_order)


def tokens_by_seniority(patch: Patch) -> None:
    """The most senior take all tokens."""

    def make(real: Any) -> Any:
        def token_order(s: State, phase: int) -> Any:
            order = [x.name for x in s.requests]
            return sorted(real(s, phase), key=lambda r: (r.status != RUNNING, order.index(r.name)))

        return token_order

    patch.wrap(walk, "token_order", make)


def nothing_promised(patch: Patch) -> None:
    """Promises are made and not subtracted."""
    for module in (rules, walk):
        patch.set(module, "outstanding", lambda cfg, r: (0,) * len(cfg.pools))


TALKERS = on(PLAIN, traffic=(Traffic(1, 5), Traffic(2, 1), Traffic(1, 5)), pools=(8,))
LONG = Instance(Config((Group(2),), (3,), reserve=False), (Traffic(6, 1), Traffic(6, 1)))
CROWD = Instance(Config((Group(2),), (4,), depth=1, seats=1), (Traffic(2, 1), Traffic(2, 1), Traffic(2, 1)))
MANY = on(PLAIN, pools=(5,), traffic=(*TWO, Traffic(2, 3)))
SLOW = Instance(Config((Group(3),), (4,), reserve=False), (Traffic(6, 4), Traffic(3, 5), Traffic(1, 1)))
NARROW = Instance(Config((Group(2),), (9,), chunk=1, budget=1), (Traffic(1, 4), Traffic(1, 4), Traffic(1, 4)))
STREAM = Instance(Config((Group(2),), (9,), chunk=2, budget=2, depth=1), (Traffic(12, 1), Traffic(2, 1)))

FAULTS = (
    Fault("policy: prefill first", "decode is passed over as long as prompts arrive", EXPLORER,
          "L5 completion", _first(PREFILL), PLAIN),
    Fault("policy: decode first", "prefill is passed over as long as anybody answers", EXPLORER, "L1 prefill",
          _first(DECODE), TALKERS),
    Fault("policy: a fallback is charged", "a phase that ran out of turn loses the next one too", EXPLORER,
          "L1", _rotation(fallback_pays), PLAIN),
    Fault("policy: the turn never ends", "whoever is owed stays owed", EXPLORER, "L1",
          _rotation(turn_never_ends), TALKERS),
    Fault("policy: nobody may preempt", "two half-read prompts, and nothing goes on", EXPLORER, "stuck",
          nobody_is_designated, LONG),
    Fault("policy: all juniors go", "preempted in vain", EXPLORER, "L6", everybody_is_designated, MANY),
    Fault("policy: newcomers first", "arrivals without end overtake the one that waits", EXPLORER, "L5",
          newcomers_first, CROWD),
    Fault("policy: a promise counted twice", "preempted in vain, for blocks that were promised already",
          EXPLORER, "L6", promise_counted_twice, PROMISING),
    Fault("policy: everything fits", "a pool is overdrawn", EXPLORER, "S5", pools_overdrawn, PLAIN),
    Fault("policy: nobody is held", "victims never drain, and the senior row waits for them", EXPLORER, "L7",
          nobody_is_held, SLOW),
    Fault("policy: nobody is overdue", "a head that fits is passed over without bound", EXPLORER, "L4",
          nobody_is_overdue, STREAM),
    Fault("policy: tokens by seniority", "a junior gets no token while a senior decodes", EXPLORER, "L3",
          tokens_by_seniority, NARROW),
    Fault("policy: promises are not kept", "blocks are given away that somebody was promised", EXPLORER,
          "S5 block-conservation", nothing_promised, PROMISING),
)  # fmt: skip

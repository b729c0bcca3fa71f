"""L3, L4 and L6 where they speak of one state: who is ready, whether the head fits, whether a preemption
was due.
"""

from itertools import combinations

from hocket_spec.blocks import coming, fits, free, gain, minus, outstanding, plus
from hocket_spec.rules import blocked, chunk, hold, next_need, ready_phase
from hocket_spec.state import RUNNING, Config, Request, State, find
from hocket_spec.walk import Taking, admission


def ready(cfg: Config, s: State, r: Request, phase: int) -> bool:
    """Has tokens left in that phase, is not blocked, not held (L3)."""
    return ready_phase(r) == phase and not blocked(cfg, s, r) and r.name not in hold(cfg, s)


def head_fits(cfg: Config, s: State, r: Request) -> bool:
    """r is the head of the waiting queue and would be admitted if it were tried first (L4)."""
    head = next((x for x in s.requests if x.status != RUNNING), None)
    return head == r and not admission(cfg, s, r, chunk(cfg, r, cfg.budget), frozenset())


def l6_minimal_preemption(cfg: Config, taking: Taking) -> str:
    """Without the victims the row cannot be served, with any proper subset neither, and with all of them it
    is.
    """
    s, ask = taking.state, taking.ask
    r = find(s, taking.name)
    if r is None:
        return "L6 minimal-preemption: taken for nobody"
    have, senior = free(cfg, s), True
    for x in s.requests:  # counted on its own, not by the rules that chose the victims
        wants = next_need(cfg, x) if senior and x.name not in taking.given else (0,) * len(cfg.pools)
        senior = senior and x.name != r.name
        if x.status == RUNNING and x.name != r.name:
            have = minus(have, tuple(map(max, outstanding(cfg, x), wants)))
    reach = plus(have, coming(cfg, s, r))
    victims = [v for name in taking.victims if (v := find(s, name))]
    order = [x.name for x in s.requests]
    if any(order.index(v.name) <= order.index(r.name) or v.status != RUNNING for v in victims):
        return f"L6 minimal-preemption: {taking.victims} are not strictly junior to {r.name}"
    for n in range(len(victims)):
        for some in combinations(victims, n):
            if fits(ask, plus(reach, gain(cfg, some))):
                return f"L6 minimal-preemption: {[v.name for v in some]} of {taking.victims} suffice"
    return "" if fits(ask, plus(have, gain(cfg, tuple(victims)))) else "L6 minimal-preemption: not sufficient"

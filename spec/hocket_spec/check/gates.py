"""Situations that a run must have met to count: a check that never saw them says nothing about them."""

from hocket_spec import actions
from hocket_spec.blocks import coming, fenced, fits, plus
from hocket_spec.check.choices import witnesses
from hocket_spec.rules import allowed, available, drained, next_need, ready_phase
from hocket_spec.state import DECODE, NONE, PREEMPTED, PREFILL, RUNNING, Config, State, find
from hocket_spec.walk import attempt

GATES = {
    "preempted in flight": "preempt_request while a result of the request is in flight",
    "aborted in flight": "abort while a result of the request is in flight",
    "stale result": "a result whose epoch has ended is processed",
    "id reused in flight": "an id comes again while rows of its old owner are in flight",
    "blocked prefill": "a prefill row or admission is refused for blocks, and decode runs instead",
    "blocked decode": "a decode row is refused for blocks",
    "drained victim": "the memory pressure of a row preempts, in the call that dispatches the row",
    "held victim": "a victim is held back until it is drained",
    "fenced block wanted": "a row waits for a fenced block",
    "own window awaited": "a row waits for what its own window will return",
    "fallback": "the owed phase has nothing to run, and the other one runs in the same call",
    "nothing serviceable": "requests and room in the pipeline, and no phase can run before a result",
    "pipeline full": "schedule() with async_depth dispatches in flight",
    "readmitted": "a preempted request comes back",
    "undrained head": "the head of the queue waits for its old rows",
    "no seat": "the head of the queue waits for a seat",
    "budget spent": "a ready row is left out for lack of tokens",
    "chunk floored to nothing": "the alignment leaves nothing of the budget",
    "overdue head": "a head that was left out takes its tokens first",
    "window return": "a window returns blocks",
    "drafts carried": "a decode row carries drafts",
    "drafts without blocks": "a decode row falls back to one token",
    "fewer drafts wanted": "a request wants fewer drafts than a row of it could carry",
    "drafts rejected": "a decode row returns fewer tokens than reserved",
    "decode on unread prompt": "a first decode row is dispatched while the last chunk is in flight",
    "overtaken by priority": "a more senior arrival stands before somebody who waits",
}  # fmt: skip


def of_state(cfg: Config, s: State) -> set[str]:
    """What schedule() meets in this state."""
    if len(s.flight) >= cfg.depth:
        return {"pipeline full"}
    met: set[str] = set()
    phase = actions.due(cfg, s)
    if phase == NONE and s.requests:
        met.add("nothing serviceable")
    elif phase not in (NONE, s.owed):
        met.add("fallback")
    for p in (PREFILL, DECODE):
        why = set(attempt(cfg, s, p).refused.values())
        said = {"held": "held victim", "drained": "undrained head", "seat": "no seat"}
        met |= {told for rule, told in said.items() if rule in why}
        if "blocks" in why and (p == DECODE or phase == DECODE):
            met.add("blocked decode" if p == DECODE else "blocked prefill")
    if phase:
        met |= of_dispatch(cfg, s, phase)
    for r in s.requests:
        ask, have = next_need(cfg, r), available(cfg, s, r, frozenset())
        if ready_phase(r) and not fits(ask, have) and fits(ask, plus(have, coming(cfg, s, r))):
            enough = fits(ask, plus(have, fenced(cfg, s)))
            met.add("fenced block wanted" if enough else "own window awaited")
    return met


def of_dispatch(cfg: Config, s: State, phase: int) -> set[str]:
    """What the dispatch that is due meets."""
    plan = attempt(cfg, s, phase)
    why, met = set(plan.refused.values()), set[str]()
    met |= {"drained victim"} if plan.takings else set()
    met |= {"budget spent"} if "budget" in why else set()
    met |= {"chunk floored to nothing"} if "alignment" in why and cfg.alignment > 1 else set()
    wanted = sum(n > 1 for n in plan.full.values()) if phase == DECODE else 0
    for x in [x for x in s.requests if phase == DECODE and x.name in plan.full]:
        met |= {"fewer drafts wanted"} if x.drafts < min(cfg.drafts, allowed(x) - 1) else set()
    met |= {"drafts without blocks"} if len(witnesses(cfg, s)) < 2**wanted else set()
    if phase == PREFILL:
        before = [r for x in plan.rows if (r := find(s, x.name))]
        met |= {"overdue head"} if before[0].overdue else set()
        met |= {"readmitted"} if any(r.status == PREEMPTED for r in before) else set()
    return met


def of_edge(before: State, kind: str, subject: int, w: actions.Witness, after: State) -> set[str]:
    """What this very action meets; `subject` is the request that is added, preempted or aborted."""
    met: set[str] = set()
    r = find(before, subject)
    if kind in ("preempt", "abort") and r and r.status == RUNNING and not drained(before, r):
        met.add("preempted in flight" if kind == "preempt" else "aborted in flight")
    if kind == "add":
        met |= (
            {"id reused in flight"}
            if any(x.name == subject for d in before.flight for x in d.rows)
            else set()
        )
        last = after.requests[-1] if after.requests else None
        met |= (
            {"overtaken by priority"} if last and last.name != subject and last.status != RUNNING else set()
        )
    if kind == "complete":
        live = {(x.name, x.epoch): x for x in before.requests if x.status == RUNNING}
        for x in before.flight[0].rows:
            old, new = live.get((x.name, x.epoch)), find(after, x.name)
            met |= {"stale result"} if old is None else set()
            if old and new and new.epoch == old.epoch:
                met |= (
                    {"window return"}
                    if any(a[0] < b[0] for a, b in zip(old.columns, new.columns, strict=True))
                    else set()
                )
                met |= {"drafts rejected"} if x.reserved > new.outputs - old.outputs > 0 else set()
    if kind == "schedule" and w.phase == DECODE:
        met |= {"drafts carried"} if any(x.length > 1 for x in w.rows) else set()
        old_outputs = {x.name: x.outputs - (x.replay - x.prompt) for x in before.requests}
        met |= {"decode on unread prompt"} if any(old_outputs[x.name] == 0 for x in w.rows) else set()
    return met

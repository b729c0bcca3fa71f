"""The actions: schedule (dispatch.py), and here add, complete, preempt, abort. Each gives the next state."""

from typing import NamedTuple

from hocket_spec.blocks import capacity, fits, returned
from hocket_spec.dispatch import EMPTY, NAMES, RULES, Refused, Witness, due, schedule, serviceable
from hocket_spec.state import AS_CONFIGURED, DECODE, RUNNING, WAITING, Config, Request, State, find, put
from hocket_spec.walk import release

__all__ = [
    "EMPTY", "NAMES", "RULES", "Output", "Refused", "Result", "Witness", "abort", "add", "complete", "due",
    "preempt", "schedule", "serviceable",
]  # fmt: skip


class Output(NamedTuple):
    """What a client is told: tokens emitted to it now, and whether it has ended."""

    name: int
    tokens: int
    finished: bool
    reason: str = ""


class Result(NamedTuple):
    """A row's result: tokens sampled (0 for a chunk that does not sample), and whether the last of them
    stops it.
    """

    tokens: int
    stops: bool = False


def complete(cfg: Config, s: State, results: tuple[Result, ...]) -> tuple[State, tuple[Output, ...]]:
    """Process the oldest dispatch. A row whose epoch has ended changes nothing at all."""
    done, s = s.flight[0], s._replace(flight=s.flight[1:])
    outputs = []
    for x, result in zip(done.rows, results, strict=True):
        r = find(s, x.name)
        if r is None or r.status != RUNNING or r.epoch != x.epoch:
            continue
        unused = x.length - result.tokens if done.phase == DECODE else 0
        r = r._replace(
            outputs=r.outputs + result.tokens, placeholders=r.placeholders - x.reserved,
            computed=r.computed - unused, processed=r.processed + x.length - unused,
        )  # fmt: skip
        ends = result.stops or r.outputs >= r.limit
        s = release(cfg, s, r, gone=True) if ends else put(s, r._replace(columns=returned(cfg, r)))
        if result.tokens:
            reason = "stop" if result.stops else "length" if ends else ""
            outputs.append(Output(r.name, result.tokens, ends, reason))
    return s, tuple(outputs)


def add(
    cfg: Config, s: State, name: int, prompt: int, limit: int, priority: int = 0, drafts: int = AS_CONFIGURED
) -> State:
    """A new request joins behind its equals; ValueError for one that could never fit."""
    if find(s, name) or not fits(capacity(cfg, prompt + limit - 1), cfg.pools):
        raise ValueError(f"request {name} is a duplicate or can never fit")
    none = (0,) * len(cfg.pools)
    columns = ((0, 0),) * len(cfg.groups)
    r = Request(
        name, prompt, limit, priority, s.epochs, WAITING, prompt, 0, 0, 0, 0, columns, none, 0, False, drafts
    )
    at = sum(1 for x in s.requests if x.priority <= priority)
    return s._replace(requests=(*s.requests[:at], r, *s.requests[at:]), epochs=s.epochs + 1)


def preempt(cfg: Config, s: State, name: int) -> State:
    """From outside: at once, drained or not. Nothing happens to a request that does not run."""
    r = find(s, name)
    return release(cfg, s, r, gone=False) if r and r.status == RUNNING else s


def abort(cfg: Config, s: State, name: int) -> State:
    """The request ends now, whatever is in flight."""
    r = find(s, name)
    return release(cfg, s, r, gone=True) if r else s

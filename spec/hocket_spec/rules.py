"""What a dispatch may take: needs, set-aside, hold, victims. Pure functions of the state, recomputed at
each call.

Seniority decides about blocks, service decides about tokens.
"""

from functools import lru_cache
from typing import NamedTuple

from hocket_spec.blocks import capacity, coming, fits, free, gain, minus, need, outstanding, plus
from hocket_spec.state import DECODE, NONE, PREFILL, RUNNING, Config, Request, State, Vector


def allowed(r: Request) -> int:
    """Tokens that may still be asked for: nothing is scheduled past max_tokens or max_model_len."""
    return r.limit - r.outputs - r.placeholders


def decode_length(cfg: Config, r: Request) -> int:
    """A token and its drafts: as many as are configured, as the request wants, and as it may still emit."""
    return 1 + min(cfg.drafts, r.drafts, allowed(r) - 1)


def ready_phase(r: Request) -> int:
    """The phase in which a running request has a next row; carried by progress, never by a row's length."""
    if r.status != RUNNING:
        return NONE
    if r.computed < r.replay:
        return PREFILL
    return DECODE if allowed(r) >= 1 else NONE


def chunk(cfg: Config, r: Request, left: int) -> int:
    """Length of the next chunk under a token budget; a chunk that is not the last one ends on the
    alignment.
    """
    n = min(cfg.chunk, r.replay - r.computed, left)
    end = r.computed + n
    return n if end >= r.replay else end // cfg.alignment * cfg.alignment - r.computed


def next_need(cfg: Config, r: Request) -> Vector:
    """Blocks that the next row wants; drafts never count, so that they never block, hold or preempt
    anybody.
    """
    phase = ready_phase(r)
    if not phase:
        return (0,) * len(cfg.pools)
    return need(cfg, r, chunk(cfg, r, cfg.budget) if phase == PREFILL else 1)


def drained(s: State, r: Request) -> bool:
    """No row of this incarnation (its last one, once ended) is in flight."""
    return not any(x.name == r.name and x.epoch == r.epoch for d in s.flight for x in d.rows)


def set_aside(cfg: Config, r: Request) -> Vector:
    """What r's next row wants beyond its promise, which nobody else can take anyway: not counted twice."""
    return tuple([max(0, n - p) for n, p in zip(next_need(cfg, r), outstanding(cfg, r), strict=True)])


def available(cfg: Config, s: State, r: Request, given: frozenset[int]) -> Vector:
    """What r may take: free blocks, less all promises to others, less the next rows of its seniors that
    have none.

    Seniors are those before r in the seniority order; `given` names the requests that have a row already.
    """
    v = free(cfg, s)
    senior = True
    for x in s.requests:
        if x.name == r.name:
            senior = False
            continue
        if x.status == RUNNING:
            if any(x.promise):
                v = minus(v, outstanding(cfg, x))
            if senior and x.name not in given:
                v = minus(v, set_aside(cfg, x))
    return v


class Claim(NamedTuple):
    """What a row that lacks blocks may do: wait for results, or have victims, or neither (then it just
    waits).
    """

    waits: bool
    victims: tuple[Request, ...]


def designate(cfg: Config, s: State, r: Request, ask: Vector, have: Vector, given: frozenset[int]) -> Claim:
    """The inclusion-minimal set of strictly juniors, from the most junior upward, without which r cannot go
    on.
    """
    reach = plus(have, coming(cfg, s, r))
    if fits(ask, reach):
        return Claim(True, ())
    scarce = [k for k, (a, v) in enumerate(zip(ask, reach, strict=True)) if a and a > v]
    place = [x.name for x in s.requests].index(r.name)
    chosen: list[Request] = []
    for x in reversed(s.requests[place + 1 :]):
        if x.status != RUNNING or x.name in given or not any(gain(cfg, (x,))[k] for k in scarce):
            continue
        chosen.append(x)
        if fits(ask, plus(reach, gain(cfg, tuple(chosen)))):
            break
    else:
        return Claim(False, ())
    for x in reversed(tuple(chosen)):  # the most senior of the chosen first
        rest = tuple([y for y in chosen if y is not x])
        if fits(ask, plus(reach, gain(cfg, rest))):
            chosen = list(rest)
    return Claim(False, tuple(chosen))


def blocked(cfg: Config, s: State, r: Request) -> bool:
    """Ready, and its next row does not fit at the start of the call."""
    return ready_phase(r) != NONE and not fits(next_need(cfg, r), available(cfg, s, r, frozenset()))


@lru_cache(maxsize=4096)
def hold(cfg: Config, s: State) -> frozenset[int]:
    """Victims of the most senior blocked row that can get further at all: they get no new row in either
    phase.
    """
    for r in s.requests:
        if not ready_phase(r):
            continue
        ask, have = next_need(cfg, r), available(cfg, s, r, frozenset())
        if fits(ask, have):
            continue
        claim = designate(cfg, s, r, ask, have, frozenset())
        if claim.waits or claim.victims:
            return frozenset([x.name for x in claim.victims])
    return frozenset()


def promised(cfg: Config, r: Request) -> Vector:
    """The promise made at admission: the whole replay, so that two half-read prompts never hold each other
    up.
    """
    return capacity(cfg, r.replay) if cfg.reserve else (0,) * len(cfg.pools)


def admission_ask(cfg: Config, s: State, r: Request, tokens: int) -> Vector:
    """Blocks that must be there to admit: promise or first chunk, and the watermark unless nothing runs."""
    ask = tuple([max(a, b) for a, b in zip(promised(cfg, r), need(cfg, r, tokens), strict=True)])
    if cfg.watermark and any(x.status == RUNNING for x in s.requests):
        ask = tuple([a + w if a else 0 for a, w in zip(ask, cfg.watermark, strict=True)])
    return ask

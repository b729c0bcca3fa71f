"""Blocks, counted per pool: what is needed, held, promised, fenced, returned, and what may be taken."""

from functools import cache

from hocket_spec.state import PREFILL, Config, Request, State, Vector, rows_of


def ceil_div(a: int, b: int) -> int:
    """The number of b-sized blocks that cover a."""
    return -(-a // b)


def plus(a: Vector, b: Vector) -> Vector:
    """Entry by entry."""
    return tuple([x + y for x, y in zip(a, b, strict=True)])


def minus(a: Vector, b: Vector) -> Vector:
    """Entry by entry."""
    return tuple([x - y for x, y in zip(a, b, strict=True)])


def fits(ask: Vector, available: Vector) -> bool:
    """A row that takes nothing from a pool is never stopped by that pool, however overdrawn it looks."""
    return all(not a or a <= v for a, v in zip(ask, available, strict=True))


def held(cfg: Config, r: Request) -> Vector:
    """Blocks that the request owns."""
    v = [0] * len(cfg.pools)
    for g, (lo, hi) in zip(cfg.groups, r.columns, strict=True):
        v[g.pool] += hi - lo
    return tuple(v)


def need(cfg: Config, r: Request, tokens: int) -> Vector:
    """Blocks that are missing before the next tokens can be written."""
    v = [0] * len(cfg.pools)
    end = r.computed + tokens
    for g, (_, hi) in zip(cfg.groups, r.columns, strict=True):
        v[g.pool] += max(0, -(-end // g.block) - hi)
    return tuple(v)


def outstanding(cfg: Config, r: Request) -> Vector:
    """Promised to the request and not held by it yet: nobody else may take these."""
    if not any(r.promise):
        return r.promise
    return tuple([max(0, p - h) for p, h in zip(r.promise, held(cfg, r), strict=True)])


@cache
def capacity(cfg: Config, total: int) -> Vector:
    """Blocks per pool within which a request that writes `total` tokens can always advance, at any
    progress.
    """
    step = max(cfg.chunk, 1 + cfg.drafts)
    best = [0] * len(cfg.pools)
    for q in range(total):
        v = [0] * len(cfg.pools)
        for g in cfg.groups:
            back = max(0, q - g.window) // g.block if g.window else 0
            v[g.pool] += ceil_div(min(q + step, total), g.block) - back
        best = [max(a, b) for a, b in zip(best, v, strict=True)]
    return tuple(best)


def fenced(cfg: Config, s: State) -> Vector:
    """Released blocks that an in-flight dispatch may still write."""
    v = (0,) * len(cfg.pools)
    for d in s.flight:
        v = plus(v, d.fenced)
    return v


def free(cfg: Config, s: State) -> Vector:
    """What is neither owned nor fenced."""
    v = list(minus(cfg.pools, fenced(cfg, s)))
    for r in s.requests:
        for g, (lo, hi) in zip(cfg.groups, r.columns, strict=True):
            v[g.pool] -= hi - lo
    return tuple(v)


def write_set(r: Request, phase: int, start: int, end: int) -> tuple[int, int]:
    """Tokens that an in-flight row can write: rejected drafts of earlier rows move a decode row's true
    start down.
    """
    return (start, end) if phase == PREFILL else (r.prompt + r.outputs - 1, end)


def fences(cfg: Config, s: State, r: Request) -> list[Vector]:
    """Per in-flight dispatch: how many of r's blocks it must fence when r lets go of them (newest writer
    keeps).
    """
    result = [[0] * len(cfg.pools) for _ in s.flight]
    writes = [
        (t, write_set(r, d.phase, x.start, x.start + x.length))
        for t, d in enumerate(s.flight) for x in d.rows if x.name == r.name and x.epoch == r.epoch
    ]  # fmt: skip
    for g, (lo, hi) in zip(cfg.groups, r.columns, strict=True):
        for column in range(lo, hi):
            for t, (first, end) in reversed(writes):
                if first // g.block <= column < ceil_div(end, g.block):
                    result[t][g.pool] += 1
                    break
    return [tuple(v) for v in result]


def certain_progress(s: State, r: Request) -> int:
    """Processed progress once every in-flight row of the request has returned at least what it must."""
    return r.processed + sum(x.length if phase == PREFILL else 1 for phase, x in rows_of(s, r))


def coming(cfg: Config, s: State, r: Request) -> Vector:
    """What results alone will free for r: fenced blocks, and what its own windows certainly return."""
    v = list(fenced(cfg, s))
    if any(g.window for g in cfg.groups):
        least = certain_progress(s, r)
        for g, (lo, hi) in zip(cfg.groups, r.columns, strict=True):
            if g.window:
                v[g.pool] += max(0, min(max(0, least - g.window) // g.block, hi) - lo)
    return tuple(v)


def returned(cfg: Config, r: Request) -> tuple[tuple[int, int], ...]:
    """Columns after windows have given back what is wholly older than processed progress less the window."""
    return tuple([
        (max(lo, min(hi, max(0, r.processed - g.window) // g.block)), hi) if g.window else (lo, hi)
        for g, (lo, hi) in zip(cfg.groups, r.columns, strict=True)
    ])  # fmt: skip


def gain(cfg: Config, victims: tuple[Request, ...]) -> Vector:
    """What preempting them makes available in the end: blocks held, and promises dropped."""
    v = (0,) * len(cfg.pools)
    for x in victims:
        v = plus(v, plus(held(cfg, x), outstanding(cfg, x)))
    return v

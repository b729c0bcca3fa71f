"""S1-S10, and L2 at rest, as predicates: each returns what is violated, '' if nothing is."""

from collections.abc import Callable

from hocket_spec.actions import Output, due
from hocket_spec.blocks import ceil_div, free, held, outstanding, returned, write_set
from hocket_spec.state import DECODE, PREFILL, RUNNING, Config, State, find, rows_of


def s1_homogeneity(cfg: Config, s: State) -> str:
    """Every dispatch is of one phase: a kernel for grouped caches takes prefill rows or decode rows, never
    both.
    """
    for d in s.flight:
        for x in d.rows:
            r = find(s, x.name)
            if r is None or r.status != RUNNING or r.epoch != x.epoch:
                continue
            inside = x.start + x.length <= r.replay if d.phase == PREFILL else x.start >= r.replay
            if d.phase not in (PREFILL, DECODE) or not inside:
                return f"S1 homogeneity: {x} in a dispatch of phase {d.phase}, replay {r.replay}"
    return ""


def s3_drained_readmission(cfg: Config, s: State) -> str:
    """A running request has no row of an ended epoch in flight: its result would meet the new incarnation."""
    for r in s.requests:
        for d in s.flight:
            if r.status == RUNNING and any(x.name == r.name and 0 <= x.epoch != r.epoch for x in d.rows):
                older = [x for x in d.rows if x.name == r.name]
                return f"S3 drained-readmission: {r.name} runs in epoch {r.epoch} with {older} in flight"
    return ""


def s4_rows_continue(cfg: Config, s: State) -> str:
    """The rows of a request continue each other without gap and end at its scheduled progress: they pack."""
    for r in s.requests:
        rows = rows_of(s, r) if r.status == RUNNING else []
        ends = [x.start + x.length for _, x in rows]
        if any(x.length < 1 for _, x in rows):
            return f"S4 metadata-well-formed: empty row of {r.name}"
        starts = [x.start for _, x in rows]
        if all(phase == PREFILL for phase, _ in rows) and starts[1:] != ends[:-1]:
            return f"S4 metadata-well-formed: chunks of {r.name} start at {starts}, end at {ends}"
        if rows and rows[-1][0] == PREFILL and ends[-1] != r.computed:
            return f"S4 metadata-well-formed: {r.name} ends at {ends[-1]}, computed {r.computed}"
    return ""


def s5_block_conservation(cfg: Config, s: State) -> str:
    """No pool is overdrawn, promises are covered by free blocks, and whoever does not run owns nothing."""
    rest = free(cfg, s)
    if any(v < 0 for v in rest):
        return f"S5 block-conservation: free {rest}"
    promises = [outstanding(cfg, r) for r in s.requests]
    if any(sum(p[k] for p in promises) > v for k, v in enumerate(rest)):
        return f"S5 block-conservation: promised {promises}, free {rest}"
    for r in s.requests:
        if r.status != RUNNING and (any(held(cfg, r)) or any(r.promise) or r.computed or r.processed):
            return f"S5 block-conservation: {r.name} does not run and has {r.columns}, {r.computed} computed"
    return ""


def s6_writes_owned(cfg: Config, s: State) -> str:
    """An in-flight row writes blocks that its request owns (by identity: see runner.py)."""
    for r in s.requests:
        for phase, x in rows_of(s, r) if r.status == RUNNING else []:
            first, end = write_set(r, phase, x.start, x.start + x.length)
            for g, (lo, hi) in zip(cfg.groups, r.columns, strict=True):
                if first // g.block < lo or ceil_div(end, g.block) > hi:
                    return f"S6 no-write-after-free: {r.name} writes [{first}, {end}), owns {lo}..{hi} of {g}"
    return ""


def s7_window_history(cfg: Config, s: State) -> str:
    """A windowed group still maps what an in-flight row reads, however few drafts were accepted before."""
    for r in s.requests:
        least = r.processed
        for phase, x in rows_of(s, r) if r.status == RUNNING else []:
            for g, (lo, _) in zip(cfg.groups, r.columns, strict=True):
                if g.window and lo * g.block > max(0, min(least, x.start) - g.window):
                    return (
                        f"S7 window-history: {r.name} reads from {least} - {g.window}, {lo} columns returned"
                    )
            least += x.length if phase == PREFILL else 1
        if r.status == RUNNING and r.columns != returned(cfg, r):
            return f"S7 window-history: {r.name} keeps columns wholly older than its windows: {r.columns}"
    return ""


def s8_token_accounting(cfg: Config, s: State) -> str:
    """Placeholders are the tokens reserved by in-flight rows of this epoch; replay covers all outputs."""
    for r in s.requests:
        reserved = sum(x.reserved for _, x in rows_of(s, r)) if r.status == RUNNING else 0
        if r.placeholders != reserved:
            return f"S8 token-accounting: {r.name} has {r.placeholders} placeholders, {reserved} in flight"
        if (
            r.status == RUNNING
            and r.computed >= r.replay
            and r.computed + 1 != r.prompt + r.outputs + reserved
        ):
            return f"S8 token-accounting: {r.name} computed {r.computed}, outputs {r.outputs} + {reserved}"
        if r.status != RUNNING and r.replay != r.prompt + r.outputs:
            return f"S8 token-accounting: replay of {r.name} is {r.replay}, outputs {r.outputs}"
    return ""


def s9_budgets(cfg: Config, s: State) -> str:
    """Tokens per dispatch, seats, chunk size, alignment, and nothing past max_tokens or max_model_len."""
    if sum(r.status == RUNNING for r in s.requests) > cfg.seats or len(s.flight) > cfg.depth:
        return "S9 budgets: more requests than seats, or more dispatches than the pipeline holds"
    for d in s.flight:
        if sum(x.length for x in d.rows) > cfg.budget:
            return f"S9 budgets: {d}"
    for r in s.requests:
        if r.outputs + r.placeholders > r.limit or r.computed > r.prompt + r.limit - 1:
            return f"S9 budgets: {r.name} is scheduled past its limit: {r}"
        for phase, x in rows_of(s, r) if r.status == RUNNING else []:
            end = x.start + x.length
            if x.length > (cfg.chunk if phase == PREFILL else 1 + min(cfg.drafts, r.drafts)):
                return f"S9 budgets: {x}"
            if phase == PREFILL and end < r.replay and end % cfg.alignment:
                return f"S9 budgets: {x} ends off alignment"
    return ""


def s10_unfinished(cfg: Config, s: State) -> str:
    """Whoever is still here has not ended, and is here once."""
    names = [r.name for r in s.requests]
    if len(set(names)) != len(names) or any(r.outputs >= r.limit for r in s.requests):
        return f"S10 one-terminal-event: {s.requests}"
    return ""


def l2_not_stuck(cfg: Config, s: State) -> str:
    """With nothing in flight and an unfinished request, schedule() is not empty: nothing else would ever
    happen.
    """
    return "L2 work-conservation: stuck" if s.requests and not s.flight and not due(cfg, s) else ""


STATE_PROPERTIES: tuple[Callable[[Config, State], str], ...] = (
    s1_homogeneity, s3_drained_readmission, s4_rows_continue, s5_block_conservation, s6_writes_owned,
    s7_window_history, s8_token_accounting, s9_budgets, s10_unfinished, l2_not_stuck,
)  # fmt: skip


def violated(cfg: Config, s: State) -> str:
    """The first property that does not hold in this state."""
    return next((why for p in STATE_PROPERTIES if (why := p(cfg, s))), "")


def s2_no_stale_mutation(before: State, after: State) -> str:
    """Processing the oldest dispatch leaves every request alone whose epoch has ended or is not the row's."""
    live = {(r.name, r.epoch) for r in before.requests if r.status == RUNNING}
    hit = {x.name for x in before.flight[0].rows if (x.name, x.epoch) in live}
    for r in before.requests:
        if r.name not in hit and find(after, r.name) != r:
            return f"S2 no-stale-mutation: {r} became {find(after, r.name)}"
    return ""


def s10_one_terminal(before: State, after: State, outputs: tuple[Output, ...]) -> str:
    """A request leaves exactly when its terminal output is given, and outputs never shrink."""
    left = sorted(r.name for r in before.requests if find(after, r.name) is None)
    if left != sorted(o.name for o in outputs if o.finished):
        return f"S10 one-terminal-event: left {left}, told {outputs}"
    for r in before.requests:
        now = find(after, r.name)
        if now and now.outputs < r.outputs:
            return f"S8 token-accounting: outputs of {r.name} shrank"
    return ""

"""Small closed systems to explore: a configuration, the requests that may arrive, what may happen to them.

Diversity beats size: memory is tight by construction, chunks and blocks differ, and a family is a regular
sample of the product of all options, the same in every run.
"""

from collections.abc import Iterator
from math import gcd, prod
from typing import NamedTuple

from hocket_spec.blocks import capacity
from hocket_spec.state import AS_CONFIGURED, Config, Group


class Traffic(NamedTuple):
    """A request that may arrive: prompt and limit in tokens, priority (small = senior), drafts wanted."""

    prompt: int
    limit: int
    priority: int = 0
    drafts: int = AS_CONFIGURED


class Instance(NamedTuple):
    """again: finished requests may return (endless traffic). stops: any sampled token may be the last one."""

    config: Config
    traffic: tuple[Traffic, ...]
    again: bool = True
    stops: bool = True
    aborts: bool = False
    preempts: int = 0  # external preemptions, in all
    watch: bool = False  # one request, any one, is watched from arrival to end


GROUPS: tuple[tuple[Group, ...], ...] = (
    (Group(2),),
    (Group(1), Group(2, 0, 1)),
    (Group(2), Group(2, 2, 1)),
    (Group(3), Group(1, 0, 0)),
    (Group(1), Group(2, 3, 0)),
    (Group(2), Group(1, 1, 1)),
    (Group(1),),
)
TRAFFIC: tuple[tuple[Traffic, ...], ...] = (
    (Traffic(4, 3), Traffic(3, 3, drafts=0)),
    (Traffic(2, 2), Traffic(4, 2), Traffic(4, 2)),
    (Traffic(1, 4, drafts=1), Traffic(3, 2), Traffic(6, 1)),
    (Traffic(3, 3), Traffic(3, 3), Traffic(3, 3)),
    (Traffic(2, 3, 0), Traffic(3, 2, 1), Traffic(4, 2, 1)),
    (Traffic(1, 3), Traffic(1, 3), Traffic(2, 2), Traffic(4, 2)),
    (Traffic(1, 4, 0), Traffic(4, 1, 1)),
)
CHUNKS = (2, 3, 1, 4)
BUDGETS = (99, 4, 2, 3)
SEATS = (9, 2, 3)
DRAFTS = (0, 1, 0, 3)
TURNS = ((1, 1), (2, 1), (1, 3))
SPARE = (0, 1, 0, 2)
SWITCHES = ((False, 0), (True, 0), (False, 1), (True, 1))  # aborts, external preemptions
RESERVE = (True, False)
ALIGNMENT = (1, 2)
WATERMARK = (0, 0, 0, 1)
OPTIONS: tuple[tuple[object, ...], ...] = (
    GROUPS, TRAFFIC, CHUNKS, BUDGETS, SEATS, DRAFTS, TURNS, SPARE, SWITCHES, RESERVE, ALIGNMENT, WATERMARK,
)  # fmt: skip


def instance(depth: int, pick: tuple[int, ...], watch: bool = False) -> Instance:
    """The instance with the options of that index in each list; sizes are made to fit each other."""
    groups, traffic = GROUPS[pick[0]], TRAFFIC[pick[1]]
    alignment = min(ALIGNMENT[pick[10]], CHUNKS[pick[2]])
    drafts = DRAFTS[pick[5]]
    pools = 1 + max(g.pool for g in groups)
    cfg = Config(
        groups, (0,) * pools, CHUNKS[pick[2]] // alignment * alignment,
        max(BUDGETS[pick[3]], alignment, 1 + drafts), SEATS[pick[4]], depth, drafts, *TURNS[pick[6]],
        alignment=alignment, reserve=RESERVE[pick[9]],
        watermark=(WATERMARK[pick[11]],) * pools if WATERMARK[pick[11]] and pools == 1 else (),
    )  # fmt: skip
    needs = [capacity(cfg, t.prompt + t.limit - 1) for t in traffic]
    cfg = cfg._replace(pools=tuple(max(v) + SPARE[pick[7]] for v in zip(*needs, strict=True)))
    aborts, preempts = SWITCHES[pick[8]]
    return Instance(cfg, traffic, aborts=aborts, preempts=preempts, watch=watch)


def family(depth: int, count: int, watch: bool = False, offset: int = 0) -> Iterator[Instance]:
    """`count` instances, evenly spread over the product of all options."""
    sizes = [len(option) for option in OPTIONS]
    total = prod(sizes)
    stride = next(n for n in range(int(total * 0.618), total) if gcd(n, total) == 1)
    for k in range(count):
        place, pick = (offset + k * stride) % total, []
        for size in sizes:
            pick.append(place % size)
            place //= size
        yield instance(depth, tuple(pick), watch)

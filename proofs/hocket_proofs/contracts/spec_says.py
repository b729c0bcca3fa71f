"""The specification's side of what `kernel_says.py` says with the functions that ship: same names, same
arguments. CrossHair compares the two over all paths.

What a rule does not speak of is filled with any value; what no scheduler can meet is made legal first, in the
same way on both sides, because a comparison has no preconditions.
"""

from __future__ import annotations

from hocket_spec import blocks, dispatch, rules
from hocket_spec.state import DECODE, PREFILL, RUNNING, Config, Group, Request, State

CONFIG = Config((Group(4),), (9,))
REQUEST = Request(0, 1, 1, 0, 0, RUNNING, 1, 0, 0, 0, 0, ((0, 0),), (0,), 0, False)


def turn(owed_prefill: bool, steps: int, ran: int, prefill_steps: int, decode_steps: int) -> tuple[int, int]:
    """The turn after a dispatch, or after none."""
    config = CONFIG._replace(prefill_steps=prefill_steps, decode_steps=decode_steps)
    state = State(PREFILL if owed_prefill else DECODE, steps, (), (), 0)
    return dispatch.rotate(config, state, ran)


def chunk(computed: int, rest: int, size: int, left: int) -> int:
    """A chunk at alignment 4; none is below 0, which the planner does not dispatch."""
    request = REQUEST._replace(computed=computed, replay=computed + max(1, rest))
    config = CONFIG._replace(chunk=max(1, size), alignment=4)
    return max(0, rules.chunk(config, request, max(0, left)))


def decode_row(allowed: int, drafts: int, wanted: int) -> int:
    """Tokens of a decode row."""
    request = REQUEST._replace(limit=allowed, drafts=wanted)
    return rules.decode_length(CONFIG._replace(drafts=drafts), request)


def phase(computed: int, replay: int, limit: int, outputs: int, placeholders: int) -> int:
    """The phase in which a running request has a next row."""
    request = REQUEST._replace(
        computed=computed, replay=replay, limit=limit, outputs=outputs, placeholders=placeholders
    )
    return rules.ready_phase(request)


def fits(ask: tuple[int, int], have: tuple[int, int]) -> bool:
    """Whether every pool has what is asked of it."""
    return blocks.fits(ask, have)


def outstanding(promise: int, low: int, high: int) -> int:
    """Blocks promised and not held."""
    request = REQUEST._replace(promise=(promise,), columns=((low, low + max(0, high)),))
    return blocks.outstanding(CONFIG, request)[0]


def new_blocks(computed: int, tokens: int, columns: int) -> int:
    """Blocks that a row needs, at 4 tokens to a block."""
    return blocks.need(CONFIG, REQUEST._replace(computed=computed, columns=((0, columns),)), tokens)[0]


def window(processed: int, columns: int) -> int:
    """Leading columns that a window of 5 tokens has left behind, at 4 tokens to a block."""
    config = CONFIG._replace(groups=(Group(4, 5),))
    request = REQUEST._replace(processed=processed, columns=((0, max(0, columns)),))
    return blocks.returned(config, request)[0][0]


def written(prefill: bool, start: int, length: int, outputs: int) -> tuple[int, int]:
    """What a row in flight may write."""
    request = REQUEST._replace(prompt=7, outputs=outputs)
    return blocks.write_set(request, PREFILL if prefill else DECODE, start, start + length)

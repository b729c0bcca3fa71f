"""The counters of one request from admission to its end (S8, S9), and that they come to an end (L5).

The row in question is the oldest in flight; of the others only sums are known: how many they are, how many
tokens they have, how many they reserved. What is used of sums is shown in `sums`. Outputs are counted by the
length of a list, to which the scheduler appends token by token; that is taken for granted here, and tested.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import z3

from hocket.sched import kernel
from hocket.sched.kernel import DECODE, PREFILL, Progress
from hocket_proofs.symbolic.lifting import integer, run, symbol
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import term


class Life(NamedTuple):
    """A running request. rows, tokens, reserved: sums over its rows in flight."""

    prompt: Any
    limit: Any
    replay: Any
    outputs: Any
    progress: Progress
    rows: Any
    tokens: Any
    reserved: Any


class Sent(NamedTuple):
    """A row as it was dispatched."""

    phase: Any
    length: Any
    reserved: Any


LIFE = Life._make(
    [
        *(integer(name) for name in Life._fields[:4]),
        symbol(Progress, "progress", 0),
        *(integer(name) for name in Life._fields[5:]),
    ]
)
ROW = Sent(integer("phase"), integer("length"), integer("row reserved"))
ACCEPTED, DRAFTS, MIN_TOKENS = integer("accepted"), integer("drafts"), integer("min_tokens")


def sums_are_counts(life: Life) -> Any:
    """Rows in flight have a token each at least; none have no tokens and reserve none (`sums`)."""
    rows, tokens, reserved = map(term, life[5:])
    return z3.And(
        rows >= 0,
        tokens >= rows,
        reserved >= 0,
        z3.Implies(rows == 0, z3.And(tokens == 0, reserved == 0)),
    )


def life_holds(life: Life) -> Any:
    """What is true of a running request at any time."""
    prompt, limit, replay, outputs = map(term, life[:4])
    computed, processed, placeholders = map(term, life.progress)
    _, tokens, reserved = map(term, life[5:])
    return z3.And(
        prompt >= 1,
        limit >= 1,
        0 <= outputs,
        outputs < limit,
        1 <= replay,
        replay <= prompt + outputs,
        processed >= 0,
        sums_are_counts(life),
        computed == processed + tokens,
        placeholders == reserved,
        outputs + placeholders <= limit,
        z3.If(
            computed < replay,
            z3.And(placeholders == 0, replay == prompt + outputs),
            computed + 1 == prompt + outputs + placeholders,
        ),
    )


def begun(life: Life) -> Life:
    """Admitted: nothing computed, nothing in flight, and all of prompt and outputs to be replayed."""
    return life._replace(
        replay=life.prompt + life.outputs, progress=run(kernel.no_progress), rows=0, tokens=0, reserved=0
    )


def sent(life: Life, phase: Any, length: Any) -> Life:
    """A row of `length` tokens is dispatched: shipped samples, reservation and effect."""
    samples = kernel.row_samples(phase, life.progress.computed + length, life.replay)
    reserved = kernel.reserved_tokens(phase, length, samples)
    return life._replace(
        progress=kernel.progress_scheduled(life.progress, length, reserved),
        rows=kernel.rows_after_dispatch(life.rows),
        tokens=life.tokens + length,
        reserved=life.reserved + reserved,
    )


def told(life: Life, row: Sent, accepted: Any) -> Life:
    """The result of a current row is processed, and the request goes on."""
    return life._replace(
        outputs=life.outputs + accepted,
        progress=kernel.progress_after_result(life.progress, True, *row, accepted),
        rows=kernel.rows_after_result(life.rows),
        tokens=life.tokens - row.length,
        reserved=life.reserved - row.reserved,
    )


def allowed(life: Life) -> Any:
    """The shipped count of tokens that may still be asked for."""
    return kernel.tokens_allowed(life.limit, life.outputs, life.progress.placeholders)


def chunk_sent() -> tuple[Life, tuple[Any, ...]]:
    """A chunk, and what is known when it is dispatched."""
    runnable = run(kernel.runnable_phase, LIFE.progress.computed, LIFE.replay, run(allowed, LIFE))
    left, length = term(LIFE.replay) - term(LIFE.progress.computed), term(ROW.length)
    return run(sent, LIFE, PREFILL, ROW.length), (
        life_holds(LIFE),
        term(runnable) == PREFILL,
        1 <= length,
        length <= left,
    )


def decode_sent() -> tuple[Life, tuple[Any, ...]]:
    """A decode row with all its drafts or none, and what is known when it is dispatched."""
    may = run(allowed, LIFE)
    runnable = run(kernel.runnable_phase, LIFE.progress.computed, LIFE.replay, may)
    full = term(run(kernel.decode_len, may, DRAFTS))
    return run(sent, LIFE, DECODE, ROW.length), (
        life_holds(LIFE),
        term(runnable) == DECODE,
        term(DRAFTS) >= 0,
        z3.Or(term(ROW.length) == 1, term(ROW.length) == full),
    )


def part_of_all(life: Life, row: Sent) -> Any:
    """A row in flight is part of the sums, and all of them if it is the only one (`sums`)."""
    rows, tokens, reserved = map(term, life[5:])
    _, length, own = map(term, row)
    others = z3.And(tokens - length >= rows - 1, reserved - own >= 0)
    return z3.And(rows >= 1, others, z3.Implies(rows == 1, z3.And(tokens == length, reserved == own)))


def row_in_flight() -> tuple[Any, ...]:
    """What is known of the oldest row in flight: its shape, that it is part of the sums, and that a chunk
    begins where processed progress ends (`order`).
    """
    phase, length, reserved = map(term, ROW)
    end = term(LIFE.progress.processed) + length
    shape = z3.Or(
        z3.And(phase == PREFILL, z3.Or(reserved == 0, reserved == 1), end <= term(LIFE.replay)),
        z3.And(phase == DECODE, reserved == length),
    )
    return (life_holds(LIFE), shape, length >= 1, part_of_all(LIFE, ROW))


def result() -> tuple[Life, tuple[Any, ...]]:
    """A result after which the request goes on."""
    after, accepted = run(told, LIFE, ROW, ACCEPTED), term(ACCEPTED)
    fits = term(run(kernel.result_fits, True, ROW.reserved, ACCEPTED))
    ending = run(kernel.end_after_token, after.outputs, LIFE.limit, MIN_TOKENS, False)
    on = z3.Or(accepted == 0, term(ending) == kernel.GOES_ON)
    return after, (*row_in_flight(), fits, on)


def accounting() -> Iterable[Lemma]:
    """S8: the invariant holds from admission on."""
    fresh = (term(LIFE.prompt) >= 1, 0 <= term(LIFE.outputs), term(LIFE.outputs) < term(LIFE.limit))
    yield Lemma("holds at admission", life_holds(begun(LIFE)), fresh)
    for name, (after, given) in (("chunk", chunk_sent()), ("decode row", decode_sent())):
        yield Lemma(f"kept by the dispatch of a {name}", life_holds(after), given)
    after, given = result()
    yield Lemma("kept by a result after which the request goes on", life_holds(after), given)
    yield Lemma("outputs never shrink", term(after.outputs) >= term(LIFE.outputs), given)
    yield Lemma(
        "processed progress never shrinks",
        term(after.progress.processed) >= term(LIFE.progress.processed),
        given,
    )
    yield Lemma(
        "what a request may ask for is the limit less outputs and placeholders",
        term(run(allowed, LIFE)) + term(LIFE.outputs) + term(LIFE.progress.placeholders) == term(LIFE.limit),
    )
    yield Lemma(
        "a chunk that samples is the last one, and samples the first position not emitted",
        z3.Implies(
            term(run(kernel.row_samples, PREFILL, LIFE.progress.computed + ROW.length, LIFE.replay)),
            term(LIFE.progress.computed) + term(ROW.length) == term(LIFE.prompt) + term(LIFE.outputs),
        ),
        chunk_sent()[1],
    )


def order() -> Iterable[Lemma]:
    """Chunks in flight continue each other: `before` counts the tokens of older rows in flight."""
    start, before, length = integer("start"), integer("before"), integer("older length")
    lies = term(start) == term(LIFE.progress.processed) + term(before)
    yield Lemma(
        "a row begins behind all rows in flight",
        term(LIFE.progress.computed) == term(LIFE.progress.processed) + term(LIFE.tokens),
        (life_holds(LIFE),),
    )
    after = run(told, LIFE, Sent(PREFILL, length, integer("older reserved")), ACCEPTED)
    yield Lemma(
        "and keeps its place when an older chunk is processed",
        term(start) == term(after.progress.processed) + term(before) - term(length),
        (lies,),
    )
    yield Lemma(
        "no chunk follows a decode row",
        term(run(kernel.runnable_phase, LIFE.progress.computed, LIFE.replay, run(allowed, LIFE))) != PREFILL,
        (life_holds(LIFE), term(LIFE.progress.computed) >= term(LIFE.replay)),
    )


def limits() -> Iterable[Lemma]:
    """S9: no phantom step, nothing past the limits."""
    now, computed = life_holds(LIFE), term(LIFE.progress.computed)
    yield Lemma(
        "never more is computed than prompt and outputs but the last",
        computed <= term(LIFE.prompt) + term(LIFE.limit) - 1,
        (now,),
    )
    yield Lemma(
        "outputs and reserved tokens stay within the limit",
        term(LIFE.outputs) + term(LIFE.progress.placeholders) <= term(LIFE.limit),
        (now,),
    )
    outputs, limit, least = integer("outputs"), integer("limit"), integer("min_tokens")
    for ends in (True, False):
        ending = term(run(kernel.end_after_token, outputs, limit, least, ends))
        early = z3.And(term(outputs) >= term(least), z3.BoolVal(ends))
        wanted = z3.If(
            early,
            kernel.ENDS_BY_STOP,
            z3.If(term(outputs) >= term(limit), kernel.ENDS_BY_LENGTH, kernel.GOES_ON),
        )
        yield Lemma(
            f"an end is a stop after min_tokens, else the limit (stop token: {ends})", ending == wanted
        )


def rank(life: Life) -> Any:
    """Tokens left to emit, and tokens of the replay left to process."""
    left = term(life.replay) - term(life.progress.processed)
    return term(life.limit) - term(life.outputs) + z3.If(left > 0, left, 0)


def completion() -> Iterable[Lemma]:
    """L5: a request that is not preempted ends after so many results."""
    after, given = result()
    yield Lemma("there is something left to do", rank(LIFE) >= 1, (life_holds(LIFE),))
    yield Lemma("every result leaves less to do", rank(after) < rank(LIFE), given)
    yield Lemma(
        "a running request with nothing in flight has a row to dispatch",
        term(run(kernel.runnable_phase, LIFE.progress.computed, LIFE.replay, run(allowed, LIFE)))
        != kernel.NO_PHASE,
        (life_holds(LIFE), term(LIFE.rows) == 0),
    )
    phase, length = integer("phase"), integer("length")
    yield Lemma(
        "processed progress certainly grows: by a chunk, or by a token",
        term(run(kernel.certain_progress, phase, length)) == z3.If(term(phase) == PREFILL, term(length), 1),
    )
    yield Lemma(
        "and by no less when the result comes",
        term(after.progress.processed) - term(LIFE.progress.processed)
        >= term(run(kernel.certain_progress, ROW.phase, ROW.length)),
        given,
    )

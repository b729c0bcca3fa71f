"""One row of a dispatch: its phase, its length, its tokens, seat and place in the pipeline (S1, S9)."""

from __future__ import annotations

from collections.abc import Iterable

import z3

from hocket.sched import kernel
from hocket.sched.kernel import DECODE, NO_PHASE, PREFILL
from hocket_proofs.symbolic.lifting import boolean, integer, lift, run
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import FLOOR, REST, quotients, term
from hocket_proofs.theorems.arithmetic import multiple, within_one

COMPUTED, REPLAY, ALLOWED = integer("computed"), integer("replay_len"), integer("allowed")
SIZE, BUDGET, ALIGNMENT = integer("chunk_size"), integer("budget_left"), integer("alignment")
DRAFTS, WANTED = integer("drafts"), integer("wanted")
PHASE, HELD, PREEMPTED = integer("phase"), boolean("held"), boolean("preempted")

CHUNKED = (
    term(COMPUTED) >= 0,
    term(COMPUTED) < term(REPLAY),
    term(SIZE) >= 1,
    term(BUDGET) >= 0,
    term(ALIGNMENT) >= 1,
)


def homogeneity() -> Iterable[Lemma]:
    """A row is let into a dispatch of one phase only, and then lies in that phase from end to end."""
    runnable = run(kernel.runnable_phase, COMPUTED, REPLAY, ALLOWED)
    may = term(run(kernel.may_have_row, PHASE, runnable, HELD, PREEMPTED))
    other = term(run(kernel.may_have_row, run(kernel.other_phase, PHASE), runnable, HELD, PREEMPTED))
    phases = z3.Or(term(PHASE) == PREFILL, term(PHASE) == DECODE)
    length = term(run(kernel.chunk_len, COMPUTED, REPLAY, SIZE, BUDGET, ALIGNMENT))
    yield Lemma("a row is let into one phase at most", z3.Not(z3.And(may, other)), (phases,))
    yield Lemma(
        "a prefill row lies within the replay",
        z3.And(term(COMPUTED) < term(REPLAY), term(COMPUTED) + length <= term(REPLAY)),
        (may, term(PHASE) == PREFILL, *CHUNKED),
    )
    yield Lemma(
        "a decode row lies past the replay and may emit",
        z3.And(term(COMPUTED) >= term(REPLAY), term(ALLOWED) > 0),
        (may, term(PHASE) == DECODE),
    )
    yield Lemma(
        "whoever has tokens left, is not held and not preempted is let into its phase",
        may,
        (
            term(runnable) != NO_PHASE,
            term(PHASE) == term(runnable),
            z3.Not(term(HELD)),
            z3.Not(term(PREEMPTED)),
        ),
    )
    yield Lemma(
        "held or preempted means no row in either phase",
        z3.Not(z3.Or(may, other)),
        (phases, z3.Or(term(HELD), term(PREEMPTED))),
    )
    left = z3.If(term(COMPUTED) < term(REPLAY), PREFILL, z3.If(term(ALLOWED) > 0, DECODE, NO_PHASE))
    yield Lemma("the replay comes first, then outputs, then nothing", term(runnable) == left)


def chunks() -> Iterable[Lemma]:
    """A chunk is the longest one that size, budget, replay and alignment allow."""
    lifted = lift(kernel.chunk_len, COMPUTED, REPLAY, SIZE, BUDGET, ALIGNMENT, assume=CHUNKED)
    computed, replay, alignment = term(COMPUTED), term(REPLAY), term(ALIGNMENT)
    longer = integer("a longer one").term
    for number, path in enumerate(lifted.paths):
        length, given = term(path.result), (*CHUNKED, path.condition)
        end, name = computed + length, f"chunk, path {number}"
        within = (longer <= term(SIZE), longer <= term(BUDGET), computed + longer <= replay, length < longer)
        most = z3.And(length <= term(SIZE), length <= term(BUDGET), end <= replay)
        aligned = REST(end, alignment) == 0
        ends, skips = [z3.BoolVal(True)], [z3.BoolVal(True)]
        for cut, _ in quotients(length):
            q = FLOOR(cut, alignment)
            ends.append(multiple(end, alignment, q))
            skips.append(within_one(computed + longer, alignment, q))
        yield Lemma(f"{name}: keeps to size, budget and replay", z3.And(0 <= length, most), given)
        yield Lemma(
            f"{name}: is none, or the last one, or ends on the alignment",
            z3.Or(length == 0, end == replay, aligned),
            (*given, *ends),
        )
        also = z3.Or(computed + longer == replay, REST(computed + longer, alignment) == 0)
        yield Lemma(f"{name}: no longer one would do", z3.Not(z3.And(*within, also)), (*given, *skips))


def decode_rows() -> Iterable[Lemma]:
    """A decode row has a token and its drafts, and nothing is scheduled past a limit."""
    length = term(run(kernel.decode_len, ALLOWED, DRAFTS))
    drafts, allowed = term(DRAFTS), term(ALLOWED)
    given = (allowed >= 1, drafts >= 0)
    yield Lemma(
        "a decode row has 1 to 1 + drafts tokens, and no more than are allowed",
        z3.And(length >= 1, length <= 1 + drafts, length <= allowed),
        given,
    )
    yield Lemma(
        "it has all its drafts unless the limit is nearer",
        z3.Or(length == 1 + drafts, length == allowed),
        given,
    )
    own = term(run(kernel.row_drafts, DRAFTS, WANTED))
    yield Lemma(
        "drafts are those configured or wanted, whichever are fewer",
        z3.And(own <= drafts, own <= term(WANTED), z3.Or(own == drafts, own == term(WANTED))),
    )
    most, model, prompt = integer("max_tokens"), integer("max_model_len"), integer("prompt_len")
    limit = term(run(kernel.output_limit, most, model, prompt))
    yield Lemma(
        "outputs end at max_tokens or where prompt and outputs fill the model length",
        z3.And(
            limit <= term(most),
            term(prompt) + limit <= term(model),
            z3.Or(limit == term(most), term(prompt) + limit == term(model)),
        ),
    )


def reserved() -> Iterable[Lemma]:
    """How many tokens a row may emit."""
    end, length = integer("end"), integer("length")
    samples = run(kernel.row_samples, PHASE, end, REPLAY)
    tokens = term(run(kernel.reserved_tokens, PHASE, length, samples))
    final = term(end) >= term(REPLAY)
    yield Lemma(
        "a decode row reserves its length, a final chunk 1, another chunk none",
        tokens == z3.If(term(PHASE) == DECODE, term(length), z3.If(final, 1, 0)),
        (z3.Or(term(PHASE) == PREFILL, term(PHASE) == DECODE),),
    )


def limits() -> Iterable[Lemma]:
    """Token budget, seats and depth by induction: each guard keeps what the effect uses up."""
    length, spent, total = integer("length"), integer("spent"), integer("max_num_batched_tokens")
    fits = term(run(kernel.row_fits, length, BUDGET))
    left = term(run(kernel.budget_after, BUDGET, length))
    yield Lemma(
        "a row has tokens, and tokens left never go below 0", z3.And(term(length) >= 1, left >= 0), (fits,)
    )
    yield Lemma(
        "what is spent and what is left make up the budget",
        term(spent) + term(length) + left == term(total),
        (fits, term(spent) + term(BUDGET) == term(total)),
    )
    yield Lemma(
        "a row that has tokens and finds them fits", fits, (term(length) >= 1, term(length) <= term(BUDGET))
    )
    running, gone, new = integer("running"), integer("preempted"), integer("admitted")
    rows, seats = integer("rows_in_flight"), integer("max_num_seqs")
    taken = run(kernel.seats_taken, running, gone, new)
    admit = term(run(kernel.may_admit, rows, taken, seats))
    yield Lemma(
        "an admission keeps to the seats",
        term(run(kernel.seats_taken, running, gone, new + 1)) <= term(seats),
        (admit,),
    )
    yield Lemma(
        "seats are those of the running, less the preempted, and the admitted ones",
        term(taken) == term(running) - term(gone) + term(new),
    )
    yield Lemma(
        "a preemption gives its seat back",
        term(run(kernel.seats_taken, running, gone + 1, new)) == term(taken) - 1,
    )
    yield Lemma(
        "nobody preempted and nobody admitted: the running ones have their seats",
        term(run(kernel.seats_taken, running, 0, 0)) == term(running),
    )
    yield Lemma(
        "a drained request with a seat free is admitted", admit, (term(rows) == 0, term(taken) < term(seats))
    )
    flight, depth = integer("in_flight"), integer("async_depth")
    room = term(run(kernel.has_room, flight, depth))
    yield Lemma(
        "a dispatch keeps to the depth, and is made if there is room",
        room == (term(flight) + 1 <= term(depth)),
    )

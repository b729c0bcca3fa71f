"""Old results and new incarnations, for any number of requests, rows, preemptions, and any depth (S2, S3).

The requests and epochs are arrays without bound. Every action reads the entries of one request, runs the
shipped guard and the shipped effect on them, and stores what comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import z3

from hocket.sched import kernel
from hocket.sched.kernel import Epochs, Progress
from hocket_proofs.symbolic.lifting import integer, run, symbolic
from hocket_proofs.symbolic.prover import Lemma
from hocket_proofs.symbolic.values import term

INT, BOOL = z3.IntSort(), z3.BoolSort()
NUMBERS, TRUTHS = z3.ArraySort(INT, INT), z3.ArraySort(INT, BOOL)


class World(NamedTuple):
    """Arrays by request: known, running, preempted, epoch, lives (admissions after a preemption; a ghost) and
    its progress. Arrays by epoch: rows (in flight), owner (whose it is), life (in which of its lives); two
    ghosts.
    """

    known: Any
    running: Any
    preempted: Any
    epoch: Any
    lives: Any
    computed: Any
    processed: Any
    placeholders: Any
    rows: Any
    owner: Any
    life: Any
    unused: Any


WORLD = World._make([
    *(z3.Const(name, TRUTHS) for name in World._fields[:3]),
    *(z3.Const(name, NUMBERS) for name in World._fields[3:11]),
    z3.Int("unused"),
])  # fmt: skip
Q, R, E, F = z3.Ints("request another_request row_epoch another_epoch")


def at(array: Any, index: Any) -> Any:
    """The entry of an array."""
    return z3.Select(array, index)


def progress_of(w: World, q: Any) -> Progress:
    """The counters of a request, as the shipped functions take them."""
    return Progress._make(symbolic(at(array, q)) for array in (w.computed, w.processed, w.placeholders))


def with_progress(w: World, q: Any, progress: Progress) -> World:
    """The world with the counters of a request exchanged."""
    given = zip(Progress._fields, progress, strict=True)
    return w._replace(**{name: z3.Store(getattr(w, name), q, term(value)) for name, value in given})


class Action(NamedTuple):
    """An action of request `Q` (or on a row of epoch `E`): when it is taken, and the world after it."""

    name: str
    when: Any
    after: World


def arrives(w: World) -> Action:
    """Added: an epoch that nobody has had."""
    epochs = run(kernel.epochs_at_arrival, symbolic(w.unused))
    own = term(epochs.own)
    new = w._replace(
        known=z3.Store(w.known, Q, True),
        running=z3.Store(w.running, Q, False),
        preempted=z3.Store(w.preempted, Q, False),
        epoch=z3.Store(w.epoch, Q, own),
        lives=z3.Store(w.lives, Q, 0),
        owner=z3.Store(w.owner, own, Q),
        life=z3.Store(w.life, own, 0),
        unused=term(epochs.unused),
    )
    return Action("arrival", z3.Not(at(w.known, Q)), with_progress(new, Q, run(kernel.no_progress)))


def admitted(w: World, drain: bool = True) -> Action:
    """Admitted as the shipped guard lets it; or without the guard, to see what the epoch alone does."""
    running, seats = integer("running requests"), integer("max_num_seqs")
    may = term(run(kernel.may_admit, symbolic(at(w.rows, at(w.epoch, Q))), running, seats))
    epochs = run(
        kernel.epochs_at_admission,
        Epochs(symbolic(at(w.epoch, Q)), symbolic(w.unused)),
        symbolic(at(w.preempted, Q)),
    )
    own, lives = term(epochs.own), at(w.lives, Q) + z3.If(at(w.preempted, Q), 1, 0)
    when = z3.And(at(w.known, Q), z3.Not(at(w.running, Q)), may if drain else z3.BoolVal(True))
    return Action(
        "admission",
        when,
        w._replace(
            running=z3.Store(w.running, Q, True),
            preempted=z3.Store(w.preempted, Q, False),
            epoch=z3.Store(w.epoch, Q, own),
            lives=z3.Store(w.lives, Q, lives),
            owner=z3.Store(w.owner, own, Q),
            life=z3.Store(w.life, own, lives),
            unused=term(epochs.unused),
        ),
    )


def dispatched(w: World) -> Action:
    """A row of a running request, under its epoch."""
    epoch, length, reserved = at(w.epoch, Q), integer("length"), integer("reserved")
    rows = term(run(kernel.rows_after_dispatch, symbolic(at(w.rows, epoch))))
    progress = run(kernel.progress_scheduled, progress_of(w, Q), length, reserved)
    return Action(
        "dispatch",
        z3.And(at(w.known, Q), at(w.running, Q)),
        with_progress(w._replace(rows=z3.Store(w.rows, epoch, rows)), Q, progress),
    )


def current(w: World) -> Any:
    """The shipped verdict on a row of epoch `E`: does its result count?"""
    q = at(w.owner, E)
    return term(run(kernel.is_current, symbolic(E), symbolic(at(w.epoch, q)), symbolic(at(w.running, q))))


def processed(w: World) -> Action:
    """A result: the row counts down, and its request changes if the row is current."""
    q = at(w.owner, E)
    rows = term(run(kernel.rows_after_result, symbolic(at(w.rows, E))))
    phase, length, reserved, accepted = map(integer, ("phase", "length", "reserved", "accepted"))
    progress = run(
        kernel.progress_after_result,
        progress_of(w, q),
        symbolic(current(w)),
        phase,
        length,
        reserved,
        accepted,
    )
    return Action(
        "result", at(w.rows, E) > 0, with_progress(w._replace(rows=z3.Store(w.rows, E, rows)), q, progress)
    )


def preempted(w: World) -> Action:
    """Preempted, drained or not."""
    new = w._replace(running=z3.Store(w.running, Q, False), preempted=z3.Store(w.preempted, Q, True))
    return Action(
        "preemption", z3.And(at(w.known, Q), at(w.running, Q)), with_progress(new, Q, run(kernel.no_progress))
    )


def ended(w: World) -> Action:
    """Ended, whatever is in flight; a later request of the same id is another one."""
    return Action("end", at(w.known, Q), w._replace(running=z3.Store(w.running, Q, False)))


def actions(drain: bool = True) -> Iterator[Action]:
    """Everything that can happen."""
    yield arrives(WORLD)
    yield admitted(WORLD, drain)
    for action in (dispatched, processed, preempted, ended):
        yield action(WORLD)


def epochs_hold(w: World, q: Any, e: Any) -> Any:
    """Of request q and epoch e: no epoch is used twice, and no rows are in flight of one not yet given."""
    epoch, given = at(w.epoch, q), z3.And(1 <= e, e < w.unused)
    return z3.And(
        w.unused >= 1,
        z3.Implies(at(w.known, q), z3.And(1 <= epoch, epoch < w.unused, at(w.owner, epoch) == q)),
        z3.Implies(given, at(w.known, at(w.owner, e))),
        at(w.rows, e) >= 0,
        z3.Implies(z3.Not(given), at(w.rows, e) == 0),
    )


def drained_holds(w: World, q: Any, e: Any) -> Any:
    """All rows in flight of a request are of the epoch that it has, or had last."""
    return z3.And(epochs_hold(w, q, e), z3.Implies(at(w.rows, e) > 0, at(w.epoch, at(w.owner, e)) == e))


def lives_hold(w: World, q: Any, e: Any) -> Any:
    """An epoch belongs to one life of one request: to the present one only if it is its epoch."""
    mine = z3.And(1 <= e, e < w.unused, at(w.owner, e) == q, at(w.known, q))
    return z3.And(
        epochs_hold(w, q, e),
        z3.Implies(at(w.known, q), at(w.life, at(w.epoch, q)) == at(w.lives, q)),
        z3.Implies(z3.And(mine, e != at(w.epoch, q)), at(w.life, e) < at(w.lives, q)),
    )


def always(holds: Any, w: World) -> Any:
    """For all requests and epochs: instances for those that an action or a claim can speak of."""
    owners = (at(w.owner, E), at(w.owner, F))
    epochs = (E, F, at(w.epoch, Q), at(w.epoch, R), at(w.epoch, owners[0]), w.unused)
    return z3.And([holds(w, q, e) for q in (Q, R, *owners) for e in epochs])


def empty() -> World:
    """Nothing there: the state in which a scheduler begins."""
    zeros, none = z3.K(INT, z3.IntVal(0)), z3.K(INT, z3.BoolVal(False))
    return World._make([none, none, none, *[zeros] * 8, z3.IntVal(1)])


def inductive(name: str, holds: Any, drain: bool = True) -> Iterable[Lemma]:
    """Holds in the beginning, and every action keeps it."""
    yield Lemma(f"{name}: holds where nothing is", holds(empty(), R, F))
    for action in actions(drain):
        yield Lemma(
            f"{name}: kept by every {action.name}",
            holds(action.after, R, F),
            (always(holds, WORLD), action.when),
        )


def untouched(before: World, after: World, q: Any) -> Any:
    """Nothing of request q has changed."""
    names = ("known", "running", "preempted", "epoch", "computed", "processed", "placeholders")
    return z3.And([at(getattr(after, name), q) == at(getattr(before, name), q) for name in names])


def no_stale_mutation() -> Iterable[Lemma]:
    """S2: whatever the row, a request whose running epoch is another one does not change."""
    result = processed(WORLD)
    same = z3.And(at(WORLD.owner, E) == R, at(WORLD.epoch, R) == E, at(WORLD.running, R))
    yield Lemma(
        "a result changes no request but the one that runs in the row's epoch",
        z3.Implies(z3.Not(same), untouched(WORLD, result.after, R)),
        (result.when,),
    )
    yield Lemma(
        "a row counts iff its request runs in the row's epoch",
        current(WORLD)
        == z3.And(at(WORLD.epoch, at(WORLD.owner, E)) == E, at(WORLD.running, at(WORLD.owner, E))),
    )
    reserved, accepted = integer("reserved"), integer("accepted")
    least = run(kernel.least_tokens, symbolic(z3.Bool("current")), reserved)
    yield Lemma(
        "of a stale row any number of tokens will do that it may have emitted",
        term(run(kernel.result_fits, False, reserved, accepted))
        == z3.And(0 <= term(accepted), term(accepted) <= term(reserved)),
    )
    yield Lemma(
        "of a current row at least one token, if it reserved any",
        term(run(kernel.result_fits, True, reserved, accepted))
        == z3.And(
            term(accepted) <= term(reserved),
            z3.If(term(reserved) >= 1, term(accepted) >= 1, term(accepted) >= term(reserved)),
        ),
    )
    yield Lemma("no more than one is asked for", term(least) <= 1)


def drained_readmission() -> Iterable[Lemma]:
    """S3, and that the drain rule alone keeps old results away."""
    yield from inductive("one epoch in flight", drained_holds)
    action, holds = admitted(WORLD), always(drained_holds, WORLD)
    mine = z3.And(at(WORLD.owner, F) == Q, F < WORLD.unused)
    yield Lemma(
        "whoever is admitted has no row in flight",
        z3.Implies(mine, at(WORLD.rows, F) == 0),
        (holds, action.when),
    )
    q = at(WORLD.owner, E)
    yield Lemma(
        "a result that meets a running request is of its epoch, compared or not",
        E == at(WORLD.epoch, q),
        (holds, at(WORLD.rows, E) > 0, at(WORLD.running, q)),
    )
    yield Lemma(
        "rows in flight are counted one by one",
        z3.And(
            term(run(kernel.rows_after_dispatch, symbolic(E))) == E + 1,
            term(run(kernel.rows_after_result, symbolic(E))) == E - 1,
        ),
    )


def epoch_alone() -> Iterable[Lemma]:
    """Without the drain rule: a fresh epoch at each re-admission keeps old results away."""
    yield from inductive("one life, one epoch", lives_hold, drain=False)
    q = at(WORLD.owner, E)
    yield Lemma(
        "a result that counts is of the present life of its request",
        z3.Implies(current(WORLD), at(WORLD.life, E) == at(WORLD.lives, q)),
        (always(lives_hold, WORLD), at(WORLD.rows, E) > 0),
    )
    resumed = admitted(WORLD, drain=False)
    yield Lemma(
        "whoever comes back after a preemption has a fresh epoch, above all others",
        z3.Implies(
            at(WORLD.preempted, Q),
            z3.And(
                at(resumed.after.epoch, Q) >= WORLD.unused, resumed.after.unused > at(resumed.after.epoch, Q)
            ),
        ),
        (resumed.when,),
    )
    yield Lemma(
        "whoever is admitted first keeps the epoch of its arrival",
        z3.Implies(z3.Not(at(WORLD.preempted, Q)), at(resumed.after.epoch, Q) == at(WORLD.epoch, Q)),
        (resumed.when,),
    )

"""What is proved of the functions that ship: the table. Z3 is loaded when lemmas are asked for only."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hocket_proofs.symbolic.prover import Lemma

PROVED, EXHAUSTED = "proved", "exhausted"
NO_BOUND = "no bound"
DECISIONS, FOUNDATIONS = "decisions", "foundations"


class Theorem(NamedTuple):
    """A property of hocket that follows from lemmas about shipped functions.

    property: as in ARCHITECTURE. says: the claim in words. parts: the functions that make its lemmas, as
    `module.function` of this package; they speak of the shipped functions as they are when called. about:
    decisions, which a fault in a decision must make fail, or the foundations that all others rest on.
    """

    property: str
    says: str
    parts: tuple[str, ...]
    label: str = PROVED
    scope: str = NO_BOUND
    about: str = DECISIONS

    def lemmas(self) -> Iterator[Lemma]:
        """Everything that is to be shown."""
        for part in self.parts:
            module, _, function = part.partition(".")
            yield from getattr(import_module(f"hocket_proofs.theorems.{module}"), function)()


THEOREMS: tuple[Theorem, ...] = (
    Theorem(
        "S1 homogeneity",
        "a row is let into a dispatch of one phase, the one in which it lies from its "
        "first token to its last",
        ("rows.homogeneity",),
    ),
    Theorem(
        "S2 no-stale-mutation",
        "a result changes the progress of no request but the one that runs in the "
        "row's epoch, among any number of requests",
        ("epochs.no_stale_mutation",),
    ),
    Theorem(
        "S2 no-stale-mutation",
        "the epoch alone keeps old results from new incarnations, without the drain rule",
        ("epochs.epoch_alone",),
    ),
    Theorem(
        "S3 drained-readmission",
        "no row of an ended epoch is in flight when its request is admitted: the "
        "drain rule alone keeps old results from new incarnations",
        ("epochs.drained_readmission",),
    ),
    Theorem(
        "S4 metadata-well-formed",
        "the rules of rows accept exactly the packs that are contiguous, "
        "disjoint, covering and in bounds, for any number of rows",
        ("packed.exact_rules", "packed.any_number_of_rows"),
    ),
    Theorem(
        "S4 metadata-well-formed",
        "the rules of tables accept exactly those with a block where the chunk "
        "reads or writes and null past it, for any number of columns, block size and window",
        ("packed.tables",),
    ),
    Theorem(
        "S5 block-conservation",
        "every take, return, fence and settle of a pool keeps each block exactly "
        "one of free, owned and fenced",
        ("blocks.conservation",),
    ),
    Theorem(
        "S5 block-conservation",
        "what guards let a row, its drafts or an admission take leaves no pool "
        "short and every promise covered; all pools give, or none",
        ("blocks.promises", "blocks.admission", "blocks.all_or_nothing", "blocks.unlike_vectors"),
    ),
    Theorem(
        "S5 block-conservation",
        "the starts that the capacity formula looks at are enough: no start needs "
        "more, windows and drafts included; of any number of them the largest need is kept",
        ("capacity.enough_starts", "capacity.loop_body", "capacity.whole_loop", "capacity.fold"),
    ),
    Theorem(
        "S5 block-conservation",
        "what the formula counts is what tables hold: refusal, admission, promise "
        "and growth speak of the same blocks",
        ("capacity.tables",),
    ),
    Theorem(
        "S6 no-write-after-free",
        "the columns that are fenced are exactly those that a row in flight may "
        "write, whatever drafts are rejected",
        ("blocks.writes",),
    ),
    Theorem(
        "S6 no-write-after-free",
        "slot mapping is injective within a group: two tokens share a physical "
        "row only if they share block and place, for any block size and compression ratio",
        ("slots.injective",),
    ),
    Theorem(
        "S6 no-write-after-free",
        "no two steps in flight share a staging buffer, and the one that is filled is none of theirs, "
        "at any pipeline depth",
        ("ring.never_shared",),
    ),
    Theorem(
        "S6 no-write-after-free",
        "free slots are in ascending order and nobody's, newcomers get slots of their own, and no slot has "
        "two owners, for any number of slots and requests",
        ("slot_assignment.invariant", "slot_assignment.newcomers", "slot_assignment.loops"),
    ),
    Theorem(
        "S7 window-history",
        "a windowed group keeps every token that a row from processed progress on "
        "reads, and returns what none reads, for any window and block size",
        ("windows.history",),
    ),
    Theorem("S7 window-history", "a table grows to the end of its row and no further", ("windows.growth",)),
    Theorem(
        "S8 token-accounting",
        "placeholders are the tokens reserved in flight, every row's tokens belong "
        "to the next positions, outputs never shrink; for any number of rows in flight",
        ("progress.accounting", "progress.order", "sums.rows_in_flight"),
    ),
    Theorem(
        "S9 budgets",
        "tokens, seats, depth, chunk size, alignment, drafts and model length are kept, and "
        "no longer row would keep them",
        ("rows.decode_rows", "rows.reserved", "rows.limits", "rows.chunks"),
    ),
    Theorem("S9 budgets", "no request is scheduled past max_tokens or max_model_len", ("progress.limits",)),
    Theorem(
        "L1 bounded-wait",
        "a serviceable phase is passed over at most as often as `waiting_bound()` says, "
        "at any cadence, and no smaller bound holds",
        ("rotation.bounded_wait",),
    ),
    Theorem(
        "L2 work-conservation",
        "a call dispatches iff a phase is serviceable: the owed one if it is, else "
        "the other; only the owed one uses up its turn",
        ("rotation.choice",),
    ),
    Theorem(
        "L4 admission",
        "a head that fits at every call is passed over at most as often as "
        "`waiting_bound()` says, at any cadence, if prefill takes an overdue head first",
        ("rotation.admission_bound",),
    ),
    Theorem(
        "L5 completion",
        "every result leaves a request less to do: it ends after at most limit + replay "
        "results unless it is preempted, and has a row to dispatch when none is in flight",
        ("progress.completion",),
    ),
    Theorem(
        "L6 minimal-preemption",
        "victims suffice, none is superfluous, so that no proper subset suffices, they are sought from the "
        "most junior upward, and there are none only if all together do not suffice or none is needed",
        ("victims.search", "victims.sparing", "victims.turns", "sums.part_of_sum", "sums.one_left_out"),
        scope="any number of juniors, up to four pools",
    ),
    Theorem(
        "L6 minimal-preemption",
        "victims suffice, no proper subset of them does, and they are the most junior that do",
        ("victims.all_shapes",),
        EXHAUSTED,
        "up to 3 juniors in a pool or 2 in two, any numbers",
    ),
    Theorem(
        "L7 senior-progress",
        "in part: once the senior's row fits, its phase is passed over at most max(p, d) times more",
        ("rotation.senior_once_it_fits",),
    ),
    Theorem(
        "L7 senior-progress",
        "in part: nobody takes blocks from the next row of the most senior running request, blocked or not, "
        "and with no row of it in flight all juniors together suffice for it",
        ("senior.shortage", "senior.results", "senior.victims_exist"),
    ),
    Theorem(
        "L7 senior-progress",
        "in part: while it designates the same victims, or none as it only waits for results, they are "
        "drained and its row fits after depth - 1 results at most; once it only waits, it designates nobody "
        "any more",
        ("senior.rows_of_held", "senior.drained_in_time", "senior.stage", "senior.waiting"),
    ),
    Theorem(
        "all of these",
        "what is proved is said of the functions that ship: every input takes a path, "
        "numbers give the same, and a second translator comes to the same terms",
        ("translation.lifting", "translation.signs"),
        about=FOUNDATIONS,
    ),
    Theorem(
        "all of these",
        "what the other theorems use of quotients and rests",
        ("arithmetic.facts",),
        about=FOUNDATIONS,
    ),
)

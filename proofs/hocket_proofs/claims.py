"""Every claim that is checked: the property, what exactly is claimed, with which tool, and how far.

The labels are exact. *proved*: no bound. *exhausted*: all states of the stated families. *tested*: so many
steps. `hocket verify` prints this table with what it found, and `proofs/CLAIMS.md` is made from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from hocket_proofs import families
from hocket_proofs.contracts import gate
from hocket_proofs.jobs import GLUE, PLAIN_FAULTS, PROFILES, Done, Profile
from hocket_proofs.refuted import FAULTS
from hocket_proofs.refuted.fault import Fault
from hocket_proofs.theorems import EXHAUSTED, THEOREMS
from hocket_spec.check.gates import GATES

TESTED = "tested"

# With depth 1 a call with room in the pipeline has nothing in flight, so there is nothing to wait for.
UNREACHABLE = frozenset({
    "decode on unread prompt", "fenced block wanted", "nothing serviceable", "own window awaited",
    "undrained head",
})  # fmt: skip


class Evidence(NamedTuple):
    """What the pieces of one tool on one group of families came to together."""

    done: tuple[Done, ...]
    profile: Profile

    @property
    def cases(self) -> int:
        """Instances, packs, faults or worlds."""
        return sum(d.cases for d in self.done)

    @property
    def exhausted(self) -> int:
        """Cases that were walked to their end."""
        return sum(d.exhausted for d in self.done)

    @property
    def steps(self) -> int:
        """Transitions, edges or steps."""
        return sum(d.steps for d in self.done)

    @property
    def seconds(self) -> float:
        """CPU seconds."""
        return sum(d.seconds for d in self.done)

    @property
    def broken(self) -> str:
        """The first thing that is wrong."""
        return next((d.broken for d in self.done if d.broken), "")


class Claim(NamedTuple):
    """One row of the table. `source`: (kind of work, families). `bound`: how far, from what was found.
    `short`: what falls short of the claim, '' if nothing.
    """

    property: str
    says: str
    tool: str
    label: str
    scope: str
    source: tuple[str, str]
    bound: Callable[[Evidence], str]
    short: Callable[[Evidence], str]


def _all_exhausted(e: Evidence) -> str:
    return e.broken or (
        "" if e.cases and e.exhausted == e.cases else f"{e.cases - e.exhausted} not exhausted"
    )


def _instances(e: Evidence) -> str:
    return f"{e.cases} instances, {e.steps:,} transitions"


def _lemmas(e: Evidence) -> str:
    return f"{e.cases} lemmas"


def _confirmed(e: Evidence) -> str:
    return f"{e.exhausted} of {e.cases} confirmed over all paths"


def _no_difference(e: Evidence) -> str:
    return e.broken or ("" if e.steps else "nothing was run")


SMALL = "all states of the small families"
WIDE = "larger instances, breadth first up to a limit"

IN_LOCK_STEP = {
    "S1 homogeneity": "every dispatch is of one phase",
    "S2 no-stale-mutation": "a result of an ended epoch changes nothing",
    "S3 drained-readmission": "no row of a new epoch before all old ones are processed",
    "S5 block-conservation": "each block, by id, is free, owned or fenced, one of them; promises are covered",
    "S6 no-write-after-free": "no block that a dispatch in flight may write has another owner, by block id",
    "S7 window-history": "windowed tables map every token that a dispatch reads, by block id",
    "S8 token-accounting": "placeholders, outputs and replays agree; nothing is emitted twice",
    "S9 budgets": "tokens, seats, chunk size, alignment and limits are kept",
    "S10 one-terminal-event": "one terminal output each, and one notice",
    "L2 work-conservation": "an output is empty only if no phase is serviceable; never stuck",
    "L6 minimal-preemption": "victims are those that the rules name, in the call that dispatches the row",
}

CONTRACTS = {
    gate.CLAIMS: "contracts on kernel, pools, validator, slot assignment and slot mapping hold",
    gate.TWINS: "where the specification has the same rule, it and the kernel say the same",
}

ON_THE_GRAPH = {
    "L1 bounded-wait": ("a serviceable phase is passed over at most as often as `waiting_bound()` says",
                        ("L1 prefill", "L1 decode")),
    "L3 row-fairness": ("a ready row runs within ceil(ready rows / capacity) dispatches of its phase",
                        ("L3 prefill", "L3 decode")),
    "L4 admission": ("a head that fits is passed over at most as often as `waiting_bound()` says", ("L4",)),
    "L5 completion": ("no fair cycle in which a request makes no progress, under endless traffic", ()),
    "L6 minimal-preemption": ("no proper subset of the victims suffices, and all of them do", ()),
    "L7 senior-progress": ("the most senior ready request gets a row as `waiting_bound()`, L3 say", ("L7",)),
}  # fmt: skip


def _waits(e: Evidence, names: Iterable[str]) -> list[tuple[float, int]]:
    return [(w.longest, w.bound) for d in e.done for w, *_ in d.waits if w.name in names]


def _tight(names: tuple[str, ...]) -> Callable[[Evidence], str]:
    def bound(e: Evidence) -> str:
        text = f"{e.cases} instances, {sum(d.states for d in e.done):,} states"
        found = _waits(e, names)
        if found:
            reached = sum(longest == most for longest, most in found)
            text += (
                f"; longest wait {max(longest for longest, _ in found):g}, the bound reached {reached} times"
            )
        return text

    return bound


def _reached(e: Evidence) -> set[str]:
    """Which bound was reached, at which cadence; of L7 also at which depth."""
    return {
        f"{w.name} at {p}:{d}" + (f", depth {depth}" if w.name == "L7" else "")
        for x in e.done
        for w, depth, p, d in x.waits
        if w.longest == w.bound
    }


def _tightness(e: Evidence) -> str:
    """Every cadence must show that no smaller bound would hold; for L7, whose bound has it, every depth."""
    wanted = [f"{name} at {p}:{d}" for name in ("L1 prefill", "L1 decode", "L4") for p, d in families.TURNS]
    wanted += [f"L7 at {p}:{d}, depth {depth}" for p, d in families.TURNS for depth in families.DEPTHS]
    missing = [where for where in wanted if where not in _reached(e)]
    return f"not reached: {', '.join(missing)}" if missing else ""


def _met(e: Evidence) -> str:
    met = {situation for d in e.done for situation in d.met}
    missing = []
    for depth in families.DEPTHS:
        wanted = set(GATES) - (UNREACHABLE if depth == 1 else set())
        missing += [f"{name!r} at depth {depth}" for name in sorted(wanted) if (depth, name) not in met]
    return f"never met: {', '.join(missing)}" if missing else ""


def _enough(e: Evidence) -> str:
    most = e.profile.transitions
    return "" if e.steps >= most else f"{e.steps:,} transitions, {most:,} are claimed"


def _by_layer(faults: Iterable[Fault]) -> str:
    return ", ".join(f"{count} by {layer}" for layer, count in Counter(f.layer for f in faults).items())


def _claims() -> Iterable[Claim]:
    for k, theorem in enumerate(THEOREMS):
        source = ("proof", f"theorem {k}")
        yield Claim(
            theorem.property,
            theorem.says,
            "Z3",
            theorem.label,
            theorem.scope,
            source,
            _lemmas,
            _all_exhausted,
        )
    for kind, says in CONTRACTS.items():
        yield Claim(
            "all of these", says, "CrossHair", EXHAUSTED, "any integers; short tuples, constant block sizes",
            ("contract", kind), _confirmed, _all_exhausted,
        )  # fmt: skip
    for name, says in IN_LOCK_STEP.items():
        yield Claim(
            name, says, "lock-step", EXHAUSTED, SMALL, ("lock-step", "small"), _instances, _all_exhausted
        )
    for name, (says, measures) in ON_THE_GRAPH.items():
        yield Claim(name, says, "explorer", EXHAUSTED, SMALL, ("explorer", "small"), _tight(measures),
                    _all_exhausted)  # fmt: skip
    yield Claim(
        "L1, L4, L7", "the bounds are reached at every cadence: none smaller would hold",
        "explorer", EXHAUSTED, SMALL, ("explorer", "small"),
        lambda e: f"reached in {len(_reached(e))} cases", lambda e: e.broken or _tightness(e),
    )  # fmt: skip
    yield Claim(
        "S1-S10, L2, L6", "the scheduler is where the model is after every action", "lock-step", TESTED, WIDE,
        ("lock-step", "wide"), _instances, _no_difference,
    )  # fmt: skip
    yield Claim(
        "all of these", "the lock-step is as long as the profile says", "lock-step", TESTED,
        "all families together", ("lock-step", "all"), lambda e: f"{e.steps:,} transitions", _enough,
    )  # fmt: skip
    yield Claim(
        "all of these", f"each of {len(GATES)} situations was met at every depth that can meet it", "gates",
        TESTED, "all families together", ("lock-step", "all"), lambda e: f"{len(GATES)} situations", _met,
    )  # fmt: skip
    yield Claim(
        "S4 metadata-well-formed", "the validator's verdict, code, row and message are the specification's",
        "packs", EXHAUSTED, "two packs under all pairs of edits", ("packs", "packs"),
        lambda e: f"{e.cases:,} packs", _all_exhausted,
    )  # fmt: skip
    yield Claim(
        "R1 schedule-invariance", "texts as in isolation, no cache row is another's, no block is lost",
        "simulation", TESTED, "random worlds with a simulated model", ("simulation", "worlds"),
        lambda e: f"{e.cases} worlds, {e.steps:,} steps", _no_difference,
    )  # fmt: skip
    yield Claim(
        "R1 schedule-invariance", "recorded runs conform; tokens, logits and drafts as in isolation",
        "trace replay", TESTED, "a small DeepSeek-V4 model at depth 1, 2 and 3", ("model", "traces"),
        lambda e: f"{e.cases} runs, {e.steps} dispatches", _no_difference,
    )  # fmt: skip
    for faults, source in ((PLAIN_FAULTS, ("refuted", "faults")), (GLUE, ("model", "faults"))):
        yield Claim(
            "all of these", "each seeded fault is refuted by the check that claims to see it", "refuted",
            TESTED, f"{len(faults)} faults: {_by_layer(faults)}", source,
            lambda e: f"{e.exhausted} of {e.cases} faults refuted", _all_exhausted,
        )  # fmt: skip


CLAIMS: tuple[Claim, ...] = tuple(_claims())

NEEDS = {
    "model": ("torch", "model"),
    "proof": ("z3", "verify"),
    "contract": ("crosshair", "verify"),
}  # kind of work -> package, extra that brings it


def evidence(claim: Claim, done: Iterable[Done], profile: Profile) -> Evidence:
    """The pieces that a claim rests on."""
    kind, which = claim.source
    mine = [d for d in done if d.job.kind == kind]
    if which == "small":
        mine = [d for d in mine if d.job.family != "wide"]
    elif which != "all":
        mine = [d for d in mine if d.job.family == which]
    return Evidence(tuple(mine), profile)


PAGE = """\
# Claims

Made by `hocket verify --claims`; do not edit. `hocket verify` (`make verify`) runs all of them and prints
this table with what it found; it ends with status 1 if anything falls short.

*proved* holds without bound, *exhausted* in all states of the stated families, *tested* in the steps that
were run. Assumed throughout: the device executes dispatches in the order given, results are processed in that
order, and each is processed once. What holds of the model over every dispatch that its rules allow holds of
the scheduler on the same instances, because there the scheduler is in lock-step with the model. In lock-step
one scheduler stands for each state of the model; what two of them could differ in, the numbers of blocks and
epochs, is taken to decide nothing.

| property | claim | tool | label | bound |
|---|---|---|---|---|
{claims}

## Families

Every pool holds the largest request of its instance, and little more. Traffic never ends: who has finished
may come again. Every sampled token may be the last, every number of drafts may be accepted, results come back
at any moment. All of it at depth 1, 2 and 3.

| family | instances | what varies |
|---|---|---|
{families}

## Profiles

| profile | lock-step transitions at least | minutes at most (2 cores) | part of the small families |
|---|---|---|---|
{profiles}

## Seeded faults

| fault | what it does | refuted by |
|---|---|---|
{faults}
"""


def page() -> str:
    """The text of `proofs/CLAIMS.md`."""
    small = families.small()
    wide = families.wide(PROFILES["standard"].wide)
    return PAGE.format(
        claims="\n".join(f"| {c.property} | {c.says} | {c.tool} | *{c.label}* | {c.scope} |" for c in CLAIMS),
        families="\n".join(f"| {f.name} | {len(f.members)} | {f.varies} |" for f in (*small, wide)),
        profiles="\n".join(
            f"| {p.name} | {p.transitions:,} | {p.minutes} | {'all' if p.every == 1 else f'1 of {p.every}'} |"
            for p in PROFILES.values()
        ),
        faults="\n".join(f"| {f.name} | {f.story} | {f.layer} |" for f in FAULTS),
    )

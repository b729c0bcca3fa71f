"""Each clause of each property by hand: a state that just holds, and one that just does not."""

from collections.abc import Callable
from typing import Any

import pytest

from hocket_spec import properties as p
from hocket_spec.actions import Output
from hocket_spec.state import (
    DECODE,
    PREEMPTED,
    PREFILL,
    RUNNING,
    WAITING,
    Config,
    Dispatch,
    Group,
    Request,
    Row,
    State,
    initial,
    rows_of,
)

CFG = Config((Group(2), Group(2, 3, 1)), (9, 9), chunk=3, budget=4, seats=2, depth=2, drafts=1)
ALIGNED = CFG._replace(alignment=2)

# Prompt of 4, one output processed; the row that feeds it is in flight.
A = Request(0, 4, 3, 0, 1, RUNNING, 4, 5, 4, 1, 1, ((0, 3), (0, 3)), (0, 0), 1, False)
ROW = Row(0, 1, 4, 1, 1, True)
# Prompt of 7, two chunks of it in flight, the rest to come.
B = A._replace(
    name=1, epoch=2, prompt=7, replay=7, computed=4, processed=0, outputs=0, placeholders=0,
    columns=((0, 2), (0, 2)),
)  # fmt: skip
FIRST, SECOND = Row(1, 2, 0, 2, 0, False), Row(1, 2, 2, 2, 0, False)
# Nobody's any more, or of an incarnation that has ended.
GONE = Row(9, 3, 0, 2, 0, False)
OUT = A._replace(
    status=PREEMPTED, replay=5, computed=0, processed=0, placeholders=0, columns=((0, 0), (0, 0)), served=0
)
NEW = OUT._replace(status=WAITING, replay=4, outputs=0)
# Nothing in flight: seven tokens processed, so the window has returned two columns.
LONG = A._replace(
    prompt=6, replay=6, computed=7, processed=7, outputs=2, placeholders=0, columns=((0, 4), (2, 4))
)
# Two decode rows in flight, after the window returned one column.
DEEP = LONG._replace(
    computed=8, processed=6, outputs=1, placeholders=2, limit=4, columns=((0, 4), (1, 4))
)  # fmt: skip
DEEP_ROWS = (Row(0, 1, 6, 1, 1, True), Row(0, 1, 7, 1, 1, True))


def of(*rows: Row, phase: int = DECODE) -> Dispatch:
    return Dispatch(phase, rows, (0, 0))


def state(*requests: Request, flight: tuple[Dispatch, ...] = ()) -> State:
    return State(DECODE, 0, requests, flight, 9)


def chunks(*rows: Row) -> tuple[Dispatch, ...]:
    return tuple(of(row, phase=PREFILL) for row in rows)


def one(row: Row = ROW, **changed: Any) -> State:
    return state(A._replace(**changed), flight=(of(row),))


def two(first: Row = FIRST, second: Row = SECOND, **changed: Any) -> State:
    return state(B._replace(**changed), flight=chunks(first, second))


def out(**changed: Any) -> State:
    return state(OUT._replace(**changed))


HOLDS: dict[str, tuple[Config, State]] = {
    "nothing": (CFG, initial()),
    "decode row": (CFG, one()),
    "two chunks": (CFG, two()),
    "two chunks, aligned": (ALIGNED, two()),
    "last chunk off alignment": (
        ALIGNED,
        state(
            B._replace(computed=7, columns=((0, 4), (0, 4)), placeholders=1),
            flight=chunks(Row(1, 2, 4, 3, 1, True)),
        ),
    ),
    "last chunk, then decode before its result": (
        CFG,
        state(
            A._replace(outputs=0, processed=2, placeholders=2),
            flight=(of(ROW._replace(start=2, length=2), phase=PREFILL), of(ROW)),
        ),
    ),
    "both": (CFG, state(A, B._replace(processed=2), flight=(of(ROW), *chunks(SECOND)))),
    "rows of nobody": (CFG, state(A, flight=(of(GONE, ROW), of(GONE)))),
    "preempted, its row in flight": (CFG, state(OUT, flight=(of(ROW),))),
    "its old row in flight, and it waits": (CFG, state(NEW._replace(epoch=7), flight=(of(ROW),))),
    "waits": (CFG, state(NEW)),
    "window returned": (CFG, state(LONG)),
    "two decode rows over a window": (CFG, state(DEEP, flight=(of(DEEP_ROWS[0]), of(DEEP_ROWS[1])))),
    "draft": (CFG, one(ROW._replace(length=2, reserved=2), computed=6, placeholders=2)),
    "promise": (CFG, two(promise=(4, 4))),
    "all tokens of a step": (
        CFG,
        state(
            A,
            B._replace(processed=2, computed=5, columns=((0, 3), (0, 3))),
            flight=(of(Row(1, 2, 2, 3, 0, False), phase=PREFILL), of(ROW)),
        ),
    ),
}


@pytest.mark.parametrize("name", HOLDS)
def test_holds(name: str) -> None:
    assert p.violated(*HOLDS[name]) == ""


S1, S3, S4 = p.s1_homogeneity, p.s3_drained_readmission, p.s4_rows_continue
S5, S6, S7 = p.s5_block_conservation, p.s6_writes_owned, p.s7_window_history
S8, S9, S10 = p.s8_token_accounting, p.s9_budgets, p.s10_unfinished
SEATS = "S9 budgets: more requests than seats, or more dispatches than the pipeline holds"
TWO_MORE = (A._replace(name=2, epoch=4), A._replace(name=3, epoch=5))

Check = Callable[[Config, State], str]
BREAKS: dict[str, tuple[Check, State, str]] = {
    "decode row within the replay": (S1, one(ROW._replace(start=3)), "replay 4"),
    "decode row in prefill": (S1, state(A, flight=chunks(ROW)), "of phase 1, replay 4"),
    "chunk past the replay": (S1, two(SECOND._replace(length=6)), "replay 7"),
    "phase that is none": (S1, state(B, flight=(of(FIRST, phase=3),)), "of phase 3"),
    "wrong row after nobody's": (S1, state(A, flight=(*chunks(GONE), of(GONE, ROW._replace(start=0)))), "S1"),
    "wrong row in the second dispatch": (S1, two(FIRST, SECOND._replace(start=6)), "S1 homogeneity"),
    "older row of who runs": (S3, state(A, flight=(of(ROW._replace(epoch=0)),)), "with [Row(name=0, epoch=0"),
    "older row beside others": (
        S3,
        state(A, flight=(of(ROW), of(GONE, ROW._replace(epoch=7)))),
        "S3 drained",
    ),
    "older row of the second": (
        S3,
        state(OUT, B, flight=(of(FIRST._replace(epoch=0)),)),
        "1 runs in epoch 2",
    ),
    "empty row": (S4, one(ROW._replace(length=0)), "S4 metadata-well-formed: empty row of 0"),
    "gap between chunks": (S4, two(FIRST, SECOND._replace(start=3)), "start at [0, 3], end at [2, 5]"),
    "chunk again": (S4, two(FIRST, FIRST), "start at [0, 0]"),
    "chunks end before the progress": (S4, two(computed=5), "1 ends at 4, computed 5"),
    "chunk after a decode row": (
        S4,
        state(A._replace(computed=9), flight=(of(ROW), of(ROW._replace(start=5), phase=PREFILL))),
        "0 ends at 6, computed 9",
    ),
    "pool overdrawn": (S5, one(columns=((0, 10), (0, 3))), "free (-1, 6)"),
    "second pool overdrawn": (S5, one(columns=((0, 3), (0, 10))), "free (6, -1)"),
    "promise without blocks": (S5, two(promise=(10, 0)), "promised [(8, 0)], free (7, 7)"),
    "promise of the second pool": (S5, two(promise=(0, 10)), "S5 block-conservation: promised"),
    "waiter with a block": (S5, out(columns=((0, 1), (0, 0))), "does not run and has"),
    "waiter with a promise": (S5, out(promise=(0, 1)), "does not run and has"),
    "waiter with progress": (S5, out(computed=1), "does not run and has"),
    "waiter with processed progress": (S5, out(processed=1), "does not run and has"),
    "write past the table": (S6, one(columns=((0, 2), (0, 3))), "writes [4, 5), owns 0..2"),
    "write past the second table": (
        S6,
        one(columns=((0, 3), (0, 2))),
        "owns 0..2 of Group(block=2, window=3",
    ),
    "write before the table": (S6, one(columns=((0, 3), (3, 3))), "owns 3..3"),
    "chunk before the table": (S6, two(columns=((1, 2), (0, 2))), "writes [0, 2), owns 1..2"),
    "chunk past the table": (S6, two(columns=((0, 1), (0, 2))), "writes [2, 4), owns 0..1"),
    "rejected drafts not written": (
        S6,
        state(A._replace(columns=((3, 4), (0, 4)), computed=7), flight=(of(ROW._replace(start=6)),)),
        "writes [4, 7), owns 3..4",
    ),
    "history gone": (S7, one(columns=((0, 3), (1, 3))), "0 reads from 4 - 3, 1 columns returned"),
    "history of the second row gone": (
        S7,
        state(DEEP._replace(columns=((0, 4), (3, 4))), flight=(of(DEEP_ROWS[1]),)),
        "reads from 6 - 3, 3 columns",
    ),
    "history under rejected drafts": (
        S7,
        state(DEEP._replace(columns=((0, 4), (2, 4))), flight=(of(DEEP_ROWS[0]),)),
        "reads from 6 - 3, 2 columns",
    ),
    "history of a late start": (
        S7,
        state(B._replace(columns=((0, 2), (1, 2))), flight=chunks(FIRST._replace(length=4))),
        "reads from 0 - 3",
    ),
    "window kept": (S7, state(LONG._replace(columns=((0, 4), (1, 4)))), "keeps columns wholly older"),
    "placeholder too many": (S8, one(placeholders=2), "0 has 2 placeholders, 1 in flight"),
    "placeholder too few": (S8, one(placeholders=0), "0 has 0 placeholders, 1 in flight"),
    "placeholder of who waits": (S8, out(placeholders=1), "0 has 1 placeholders, 0 in flight"),
    "placeholder of an ended row": (
        S8,
        state(OUT._replace(placeholders=1), flight=(of(ROW),)),
        "0 in flight",
    ),
    "one computed too many": (S8, one(computed=6), "computed 6, outputs 1 + 1"),
    "at the end of the replay": (
        S8,
        state(LONG._replace(computed=6, replay=6, placeholders=0)),
        "computed 6",
    ),
    "output that the replay forgets": (S8, out(replay=4), "replay of 0 is 4, outputs 1"),
    "one seat too many": (S9, state(A, *TWO_MORE), SEATS),
    "pipeline too deep": (S9, state(flight=(of(GONE),) * 3), SEATS),
    "one token too many in a step": (
        S9,
        state(flight=(of(GONE._replace(length=3), GONE),)),
        "S9 budgets: Dispatch",
    ),
    "output past the limit": (S9, one(outputs=4, placeholders=0), "0 is scheduled past its limit"),
    "placeholder past the limit": (S9, one(outputs=3), "0 is scheduled past its limit"),
    "computed past the limit": (S9, one(computed=7), "0 is scheduled past its limit"),
    "long chunk": (S9, two(FIRST, SECOND._replace(length=4)), "S9 budgets: Row("),
    "two drafts": (S9, one(ROW._replace(length=3)), "S9 budgets: Row("),
    "draft of who wants none": (S9, one(ROW._replace(length=2), drafts=0), "S9 budgets: Row("),
    "ended": (S10, out(outputs=3), "S10 one-terminal-event: "),
    "there twice": (S10, state(OUT, B, OUT), "S10 one-terminal-event: "),
}


@pytest.mark.parametrize("name", BREAKS)
def test_breaks(name: str) -> None:
    check, s, text = BREAKS[name]
    why = check(CFG, s)
    assert text in why
    assert why.startswith(check.__name__.partition("_")[0].upper() + " ")


def test_chunk_off_alignment_breaks() -> None:
    off = two(FIRST, SECOND._replace(length=1), computed=3)
    assert S9(CFG, off) == ""
    assert S9(ALIGNED, off).endswith("ends off alignment")


def test_what_is_just_within_holds() -> None:
    """Each at its bound: the same with one more is in the table above."""
    assert S9(CFG, one(computed=6)) == ""
    assert S9(CFG, one(outputs=2)) == ""
    assert S9(CFG, state(A, B)) == S9(CFG, state(flight=(of(GONE),) * 2)) == ""
    assert S9(CFG, state(OUT, NEW._replace(name=2), A, B)) == "", "who waits has no seat"
    assert S9(CFG, state(OUT, flight=(of(ROW._replace(length=3)),))) == "", (
        "a row of nobody has had its check"
    )
    assert S5(CFG, one(columns=((0, 9), (0, 9)))) == ""
    assert S5(CFG, two(promise=(9, 9))) == ""
    assert S6(CFG, state(OUT, flight=(of(ROW),))) == S7(CFG, state(OUT, flight=(of(ROW),))) == ""
    assert S10(CFG, out(outputs=2)) == ""
    reads_nothing = state(OUT._replace(columns=((0, 0), (3, 3))), flight=(of(ROW),))
    assert S7(CFG, reads_nothing) == "", "who does not run"
    fine = Config((Group(1, 3),), (9,))
    first_token = B._replace(columns=((1, 4),), promise=(0,))
    assert S7(fine, state(first_token, flight=chunks(FIRST))).startswith("S7"), (
        "the first token, in a block of one"
    )
    assert S8(CFG, state(LONG._replace(computed=7, processed=7))) == ""


def test_stuck_breaks() -> None:
    """Nothing in flight, a request that holds every block and cannot go on."""
    full = Config((Group(2),), (1,), chunk=2)
    fits = NEW._replace(columns=((0, 0),), promise=(0,), prompt=1, replay=1, limit=1)
    assert p.l2_not_stuck(full, state(fits)) == ""
    stuck = state(fits._replace(prompt=4, replay=4))
    assert p.l2_not_stuck(full, stuck) == "L2 work-conservation: stuck"
    assert p.l2_not_stuck(full, stuck._replace(flight=(of(GONE),))) == "", "a result may free something"
    assert p.l2_not_stuck(full, state()) == ""


def test_stale_mutation_breaks() -> None:
    before = state(OUT, B, flight=(of(ROW), *chunks(FIRST)))
    gone = before._replace(flight=before.flight[1:])
    assert p.s2_no_stale_mutation(before, gone) == ""
    for changed in ({"outputs": 2}, {"epoch": 3}, {"status": RUNNING}):
        after = gone._replace(requests=(OUT._replace(**changed), B))
        assert p.s2_no_stale_mutation(before, after).startswith(f"S2 no-stale-mutation: {OUT} became ")
    bystander = gone._replace(requests=(OUT, B._replace(computed=5)))
    assert p.s2_no_stale_mutation(before, bystander).endswith(f"became {B._replace(computed=5)}")
    other = before._replace(requests=(A._replace(epoch=7), B))
    assert p.s2_no_stale_mutation(other, gone).startswith("S2"), "the row is not of its epoch"
    current = state(A, B, flight=before.flight)
    after = gone._replace(requests=(A._replace(outputs=2), B))
    assert p.s2_no_stale_mutation(current, after) == ""


def test_terminal_output_breaks() -> None:
    before = state(A, B)
    ended, goes_on = Output(0, 1, True, "stop"), Output(1, 1, False)
    assert p.s10_one_terminal(before, state(B), (ended, goes_on)) == ""
    assert p.s10_one_terminal(before, before, (goes_on,)) == ""
    for after, told in (
        (before, (ended,)),
        (state(B), (goes_on,)),
        (state(B), (ended, ended)),
        (state(B), ()),
    ):
        assert p.s10_one_terminal(before, after, told).startswith("S10 one-terminal-event: left [")
    shrunk = state(A._replace(outputs=0), B)
    assert p.s10_one_terminal(before, shrunk, ()) == "S8 token-accounting: outputs of 0 shrank"
    assert p.s10_one_terminal(before, state(A._replace(outputs=2), B), ()) == ""


def test_rows_of_an_incarnation() -> None:
    """By name and by epoch, oldest first."""
    other = ROW._replace(name=5)
    s = state(A, flight=(of(ROW, other), of(ROW._replace(epoch=7)), of(ROW._replace(start=5), phase=PREFILL)))
    assert rows_of(s, A) == [(DECODE, ROW), (PREFILL, ROW._replace(start=5))]
    assert initial() == State(DECODE, 0, (), (), 0)


REMOVABLE = (*p.STATE_PROPERTIES,)


@pytest.mark.parametrize("check", REMOVABLE, ids=lambda check: check.__name__)
def test_removing_a_check_is_seen(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, what only it sees passes `violated`, as this file would say in red."""
    name = check.__name__.partition("_")[0].upper() + " "
    seen = [s for found, s, _ in BREAKS.values() if found is check]
    if check is p.l2_not_stuck:
        seen = [state(NEW._replace(prompt=4, replay=4, limit=9))]
    cfg = CFG if check is not p.l2_not_stuck else CFG._replace(pools=(1, 1))
    assert any(p.violated(cfg, s).startswith(name) for s in seen)
    monkeypatch.setattr(p, "STATE_PROPERTIES", tuple(c for c in p.STATE_PROPERTIES if c is not check))
    assert not any(p.violated(cfg, s).startswith(name) for s in seen)

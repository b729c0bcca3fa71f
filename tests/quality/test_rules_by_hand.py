"""Block arithmetic, rules and actions by hand, where no small instance pins them down."""

from typing import Any

import pytest

from hocket_spec import actions, blocks, dispatch, rules, walk
from hocket_spec.actions import EMPTY, Refused, Result, Witness
from hocket_spec.rules import Claim
from hocket_spec.state import (
    AS_CONFIGURED,
    DECODE,
    NONE,
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
    find,
    initial,
)

ONE = Config((Group(1),), (10,), reserve=False)
PAIR = Config((Group(1), Group(1, 0, 1)), (10, 10), reserve=False)
# Two windowed groups and a full one on a shared pool, one apart.
MANY = Config((Group(2), Group(1, 2), Group(2, 3), Group(4, 0, 1)), (40, 40), chunk=4, drafts=1)


def running(name: int, *columns: tuple[int, int], cfg: Config = ONE, **more: Any) -> Request:
    """Somebody in the middle of a long prompt."""
    none = (0,) * len(cfg.pools)
    request = Request(name, 9, 3, 0, name + 1, RUNNING, 9, 4, 4, 0, 0, columns, none, 0, False)
    return request._replace(replay=more.get("prompt", 9))._replace(**more)


def state(*requests: Request, flight: tuple[Dispatch, ...] = (), epochs: int = 50) -> State:
    return State(DECODE, 0, requests, flight, epochs)


def flown(r: Request, phase: int, start: int, length: int, fenced: tuple[int, ...] = (0,)) -> Dispatch:
    reserved = length if phase == DECODE else 0
    return Dispatch(phase, (Row(r.name, r.epoch, start, length, reserved, phase == DECODE),), fenced)


# --- Blocks ---------------------------------------------------------------------------------------


def test_vectors() -> None:
    assert blocks.ceil_div(6, 3) == 2
    assert blocks.ceil_div(7, 3) == 3
    assert blocks.plus((1, 2), (3, 4)) == (4, 6)
    assert blocks.minus((1, 2), (3, 5)) == (-2, -3)
    assert blocks.fits((1, 0), (1, -5))
    assert not blocks.fits((1, 1), (1, 0))


def test_groups_of_one_pool_add_up() -> None:
    r = running(0, (0, 3), (1, 4), (0, 2), (0, 2), cfg=MANY, computed=5, promise=(12, 3))
    assert blocks.held(MANY, r) == (3 + 3 + 2, 2)
    assert blocks.need(MANY, r, 4) == (2 + 5 + 3, 1)
    assert blocks.need(MANY, r, 0) == (0 + 1 + 1, 0)
    assert blocks.outstanding(MANY, r) == (4, 1)
    assert blocks.outstanding(MANY, r._replace(promise=(7, 2))) == (0, 0)
    assert blocks.gain(MANY, (r, r._replace(promise=(0, 0)))) == (8 + 4 + 8, 2 + 1 + 2)
    flight = (Dispatch(PREFILL, (), (3, 1)), Dispatch(DECODE, (), (1, 0)))
    assert blocks.free(MANY, state(r, r, flight=flight)) == (40 - 16 - 4, 40 - 4 - 1)


@pytest.mark.parametrize(
    ("cfg", "total", "most"),
    [
        (Config((Group(2), Group(1, 2, 1)), (0, 0), chunk=2), 5, (3, 4)),
        (Config((Group(2), Group(1, 2)), (0,), chunk=2), 5, (7,)),
        (Config((Group(2), Group(1, 2)), (0,), chunk=1, drafts=1), 5, (7,)),
        (Config((Group(2), Group(1, 2)), (0,), chunk=1), 5, (6,)),
        (Config((Group(2),), (0,), chunk=2), 0, (0,)),
        (Config((Group(2, 3),), (0,), chunk=3), 9, (4,)),
    ],
)
def test_capacity(cfg: Config, total: int, most: tuple[int, ...]) -> None:
    assert blocks.capacity(cfg, total) == most


def test_write_set() -> None:
    r = running(0, (0, 9), prompt=4, outputs=2)
    assert blocks.write_set(r, PREFILL, 2, 4) == (2, 4)
    assert blocks.write_set(r, DECODE, 7, 9) == (5, 9), "rejected drafts move the true start down"


def test_progress_that_is_certain() -> None:
    r = running(0, (0, 9), processed=3)
    flight = (flown(r, PREFILL, 3, 4), flown(r, DECODE, 7, 3))
    assert blocks.certain_progress(state(r, flight=flight), r) == 3 + 4 + 1
    assert blocks.certain_progress(state(r), r) == 3


def test_what_is_coming() -> None:
    """Fenced blocks, and of the windowed groups the columns that lie wholly before what is certain."""
    r = running(0, (0, 5), (1, 9), (0, 5), (0, 3), cfg=MANY, processed=4, computed=9)
    flight = (flown(r, PREFILL, 4, 4, (2, 1)), flown(r, DECODE, 8, 1, (1, 0)))
    # 9 are certain: (9 - 2) // 1 - 1 and (9 - 3) // 2 columns.
    assert blocks.coming(MANY, state(r, flight=flight), r) == (3 + 6 + 3, 1)
    late = r._replace(columns=((0, 5), (8, 9), (4, 5), (0, 3)))
    assert blocks.coming(MANY, state(late, flight=flight), late) == (3, 1)
    short = r._replace(columns=((0, 5), (1, 3), (0, 1), (0, 3)))
    assert blocks.coming(MANY, state(short, flight=flight), short) == (3 + 2 + 1, 1)
    odd = r._replace(processed=3)
    assert blocks.coming(MANY, state(odd, flight=flight), odd) == (3 + 5 + 2, 1)
    fresh = r._replace(processed=0, columns=((0, 5), (0, 9), (0, 5), (0, 3)))
    assert blocks.coming(MANY, state(fresh), fresh) == (0, 0)


def test_windows_return() -> None:
    r = running(0, (0, 5), (1, 9), (0, 5), (0, 3), cfg=MANY, processed=8)
    assert blocks.returned(MANY, r) == ((0, 5), (6, 9), (2, 5), (0, 3))
    assert blocks.returned(MANY, r._replace(processed=1)) == ((0, 5), (1, 9), (0, 5), (0, 3))
    assert blocks.returned(MANY, r._replace(columns=((0, 5), (1, 4), (3, 5), (0, 3)))) == (
        (0, 5), (4, 4), (3, 5), (0, 3),
    )  # fmt: skip


def test_newest_writer_keeps_the_fence() -> None:
    cfg = Config((Group(2), Group(4, 0, 1)), (9, 9), reserve=False)
    r = running(0, (0, 4), (0, 2), cfg=cfg, computed=8, processed=2, served=5)
    flight = (flown(r, PREFILL, 2, 3, (0, 0)), flown(r, PREFILL, 5, 3, (0, 0)))
    s = state(r, flight=flight)
    assert blocks.fences(cfg, s, r) == [(1, 1), (2, 1)], "column 0 of the first group is free at once"
    returned = r._replace(columns=((2, 4), (0, 2)))
    assert blocks.fences(cfg, s, returned) == [(0, 1), (2, 1)], "what a window gave back is not its own"
    spare = r._replace(columns=((0, 5), (0, 2)))
    assert blocks.fences(cfg, s, spare) == [(1, 1), (2, 1)], "nobody writes the last column"
    assert blocks.fences(cfg, s, r._replace(epoch=9)) == [(0, 0), (0, 0)]
    after = walk.release(cfg, s, r, gone=False)
    assert blocks.fenced(cfg, after) == (3, 2)
    assert blocks.free(cfg, after) == (6, 7)
    assert find(after, 0) == r._replace(
        status=PREEMPTED, replay=9, computed=0, processed=0, columns=((0, 0), (0, 0)), served=0
    )
    assert walk.release(cfg, s, r, gone=True).requests == ()


# --- Rules ----------------------------------------------------------------------------------------


def test_lengths() -> None:
    r = running(0, (0, 4), outputs=1, placeholders=1, limit=6)
    assert rules.allowed(r) == 4
    three = ONE._replace(drafts=3)
    assert rules.decode_length(three, r) == 4
    assert rules.decode_length(three, r._replace(drafts=1)) == 2
    assert rules.decode_length(three, r._replace(limit=4)) == 2
    cfg = ONE._replace(chunk=4, alignment=4)
    assert rules.chunk(cfg, r._replace(computed=0), 99) == 4
    assert rules.chunk(cfg, r._replace(computed=2), 99) == 2, "its end is aligned, not its length"
    assert rules.chunk(cfg, r._replace(computed=6), 99) == 3, "the last one ends where the prompt does"
    assert rules.chunk(cfg, r._replace(computed=0), 3) == 0


def test_phase_in_which_somebody_is_ready() -> None:
    r = running(0, (0, 4))
    assert rules.ready_phase(r) == PREFILL
    assert rules.ready_phase(r._replace(computed=9)) == DECODE
    assert rules.ready_phase(r._replace(computed=9, placeholders=2)) == DECODE
    assert rules.ready_phase(r._replace(computed=9, placeholders=3)) == NONE
    assert rules.ready_phase(r._replace(status=WAITING)) == NONE


def test_next_need_and_set_aside() -> None:
    cfg = ONE._replace(chunk=3, drafts=2, budget=99)
    assert rules.next_need(cfg, running(0, (0, 4))) == (3,)
    assert rules.next_need(cfg, running(0, (0, 9), computed=9)) == (1,), "drafts never count"
    assert rules.next_need(cfg, running(0, (0, 4), status=WAITING)) == (0,)
    assert rules.set_aside(cfg, running(0, (0, 4), promise=(6,))) == (1,)
    assert rules.set_aside(cfg, running(0, (0, 4), promise=(9,))) == (0,)


def test_available() -> None:
    """Promises of all others, next rows of seniors that have none yet."""
    cfg = ONE._replace(pools=(40,), chunk=3)
    senior, r = running(0, (0, 4), promise=(5,)), running(1, (0, 4), promise=(6,))
    junior, waits = running(2, (0, 4), promise=(7,)), running(3, (0, 0), status=WAITING, promise=(9,))
    s = state(senior, r, junior, waits)
    assert rules.available(cfg, s, r, frozenset()) == (40 - 12 - 1 - 2 - 3,)
    assert rules.available(cfg, s, r, frozenset({0})) == (40 - 12 - 1 - 3,)
    assert rules.available(cfg, s, waits, frozenset({0, 1})) == (40 - 12 - 1 - 2 - 3 - 0,)


# Asks of the first pool; the third junior has blocks of the second one only.
SENIOR = running(0, (0, 1), (0, 0), cfg=PAIR)
JUNIORS = (
    running(1, (0, 3), (0, 0), cfg=PAIR),
    running(2, (0, 1), (0, 0), cfg=PAIR),
    running(3, (0, 0), (0, 5), cfg=PAIR),
)
CROWD = state(SENIOR, *JUNIORS)
NOBODY: frozenset[int] = frozenset()


def claim(
    ask: tuple[int, int],
    have: tuple[int, int] = (0, 0),
    given: frozenset[int] = NOBODY,
    s: State = CROWD,
    r: Request = SENIOR,
) -> Claim:
    return rules.designate(PAIR, s, r, ask, have, given)


def test_victims() -> None:
    assert claim((3, 0), (3, 0)) == Claim(True, ()), "results will do"
    assert claim((3, 0)) == Claim(False, (JUNIORS[0],)), "the second one turns out superfluous"
    assert claim((4, 0)) == Claim(False, (JUNIORS[1], JUNIORS[0]))
    assert claim((1, 0)) == Claim(False, (JUNIORS[1],)), "from the most junior upward"
    assert claim((5, 0)) == Claim(False, ()), "all of them do not suffice"
    assert claim((1, 0), given=frozenset({2})) == Claim(False, (JUNIORS[0],))
    assert claim((1, 1), (1, 0)) == Claim(False, (JUNIORS[2],))
    assert claim((1, 0), r=JUNIORS[1]) == Claim(False, ()), "seniors are nobody's victims"
    resting = state(SENIOR, JUNIORS[0], JUNIORS[1]._replace(status=WAITING))
    assert claim((1, 0), s=resting) == Claim(False, (JUNIORS[0],))
    fenced = state(SENIOR, *JUNIORS, flight=(Dispatch(PREFILL, (), (2, 0)),))
    assert claim((3, 0), s=fenced) == Claim(False, (JUNIORS[1],))
    assert claim((2, 0), s=fenced) == Claim(True, ())


def test_superfluous_victims_are_dropped_one_by_one() -> None:
    """Two, two and one block: the one is dropped, both others stay."""
    sizes = (2, 2, 1)
    juniors = [running(i, (0, size), (0, 0), cfg=PAIR) for i, size in enumerate(sizes, start=1)]
    assert claim((4, 0), s=state(SENIOR, *juniors)) == Claim(False, (juniors[1], juniors[0]))
    assert claim((5, 0), s=state(SENIOR, *juniors)) == Claim(False, tuple(reversed(juniors)))


def test_blocked_and_hold() -> None:
    cfg = ONE._replace(pools=(6,), chunk=2)
    first, second = running(0, (0, 4)), running(1, (0, 2))
    s = state(first, second)
    assert rules.blocked(cfg, s, first)
    assert rules.hold(cfg, s) == frozenset({1})
    roomy = cfg._replace(pools=(8,))
    assert not rules.blocked(roomy, s, first)
    assert rules.hold(roomy, s) == frozenset()
    assert not rules.blocked(cfg, s, first._replace(status=WAITING))
    helpless = state(first, second._replace(columns=((0, 1),), computed=1), running(2, (0, 1)))
    assert rules.hold(cfg, helpless) == frozenset({1, 2})
    waits = state(first, second, flight=(Dispatch(PREFILL, (), (2,)),))
    assert rules.hold(cfg._replace(pools=(8,)), waits) == frozenset(), (
        "results will do, and nobody else holds"
    )
    alone = state(first, running(1, (0, 0), computed=9, limit=0))
    assert rules.hold(cfg._replace(pools=(4,)), alone) == frozenset()


def test_who_can_get_no_further_holds_nobody_and_the_next_may() -> None:
    """The most senior one lacks three blocks of the second pool, and all juniors together hold two."""
    cfg = Config((Group(1), Group(4, 0, 1)), (18, 3), chunk=12, reserve=False)
    first = running(0, (0, 16), (0, 1), cfg=cfg, prompt=16)
    second = running(1, (0, 1), (0, 1), cfg=cfg, computed=1, prompt=2)
    third = running(2, (0, 1), (0, 1), cfg=cfg, computed=1)
    assert rules.hold(cfg, state(first, third)) == frozenset()
    assert rules.hold(cfg, state(first, second, third)) == frozenset({2})


def test_admission_ask() -> None:
    r = running(0, (0, 0), status=WAITING, computed=0, replay=5, prompt=5)
    cfg = ONE._replace(chunk=2, watermark=(3,))
    keeps = cfg._replace(reserve=True)
    busy = state(running(1, (0, 4)), r)
    assert rules.promised(cfg, r) == (0,)
    assert rules.promised(keeps, r) == (5,)
    assert rules.admission_ask(cfg, busy, r, 2) == (2 + 3,)
    assert rules.admission_ask(keeps, busy, r, 2) == (5 + 3,)
    assert rules.admission_ask(keeps, state(r), r, 2) == (5,), "waived while nothing runs"
    assert rules.admission_ask(cfg._replace(watermark=()), busy, r, 2) == (2,)
    assert rules.admission_ask(cfg, busy, r, 0) == (0,), "a pool of which nothing is asked stops nobody"


# --- Dispatches and actions -----------------------------------------------------------------------


def test_refusals_say_rule_reason_and_detail() -> None:
    refused = Refused("seat", "row of 3")
    assert (str(refused), refused.rule) == ("seat: at most max_num_seqs requests run (row of 3)", "seat")
    assert str(Refused("seat")) == "seat: at most max_num_seqs requests run"


SMALL = Config((Group(2),), (9,), depth=1)


def test_refusals_of_a_whole_call() -> None:
    s = actions.add(SMALL, initial(), 0, 2, 2)
    with pytest.raises(Refused, match=r"\(empty, due is prefill\)$"):
        actions.schedule(SMALL, s, EMPTY)
    with pytest.raises(Refused, match=r"\(an empty output changes nothing\)$"):
        actions.schedule(SMALL, initial(), Witness(NONE, (), frozenset({0})))
    full = s._replace(flight=(Dispatch(PREFILL, (), (0,)),))
    assert actions.schedule(SMALL, full, EMPTY) is full
    with pytest.raises(Refused, match=r"^pipeline: "):
        actions.schedule(SMALL, full, Witness(PREFILL, (), frozenset()))


def test_turns() -> None:
    cfg = SMALL._replace(prefill_steps=2, decode_steps=3)
    s = initial()._replace(owed=PREFILL)
    assert dispatch.rotate(cfg, s, PREFILL) == (PREFILL, 1)
    assert dispatch.rotate(cfg, s._replace(taken=1), PREFILL) == (DECODE, 0)
    assert dispatch.rotate(cfg, s._replace(taken=1), DECODE) == (PREFILL, 1), "a fallback costs nobody a turn"
    s = s._replace(owed=DECODE)
    assert dispatch.rotate(cfg, s._replace(taken=1), DECODE) == (DECODE, 2)
    assert dispatch.rotate(cfg, s._replace(taken=2), DECODE) == (PREFILL, 0)


def test_epochs_are_fresh() -> None:
    """At each add and at each admission after a preemption; a first admission keeps the one it has."""
    s = actions.add(SMALL, actions.add(SMALL, initial(), 0, 2, 2), 1, 2, 1)
    assert ([r.epoch for r in s.requests], s.epochs) == ([0, 1], 2)
    plan = walk.attempt(SMALL, s, PREFILL)
    s = actions.schedule(SMALL, s, Witness(PREFILL, plan.rows, frozenset()))
    assert ([r.epoch for r in s.requests], s.epochs) == ([0, 1], 2)
    assert [r.served for r in s.requests] == [1, 1]
    s = actions.preempt(SMALL, s, 0)
    s, _ = actions.complete(SMALL, s, (Result(1), Result(1)))
    plan = walk.attempt(SMALL, s, PREFILL)
    s = actions.schedule(SMALL, s, Witness(PREFILL, plan.rows, frozenset()))
    assert ([r.epoch for r in s.requests], s.epochs) == ([2], 3)
    assert s.flight[0].rows == (Row(0, 2, 0, 2, 1, True),)


def test_actions_on_nobody_change_nothing() -> None:
    s = actions.add(SMALL, initial(), 0, 2, 2)
    assert actions.preempt(SMALL, s, 7) is s
    assert actions.preempt(SMALL, s, 0) is s, "it waits"
    assert actions.abort(SMALL, s, 7) is s
    assert actions.abort(SMALL, s, 0).requests == ()


def test_add_refuses_and_keeps_the_order() -> None:
    s = actions.add(SMALL, initial(), 0, 2, 2, priority=1)
    for name, prompt in ((0, 2), (1, 30)):
        with pytest.raises(ValueError, match=f"^request {name} is a duplicate or can never fit$"):
            actions.add(SMALL, s, name, prompt, 2)
    s = actions.add(SMALL, actions.add(SMALL, s, 1, 2, 2, priority=0), 2, 2, 2, priority=1)
    assert [r.name for r in s.requests] == [1, 0, 2]
    assert [r.name for r in actions.add(SMALL, s, 3, 2, 2).requests] == [1, 3, 0, 2], "0 if nothing is said"
    assert find(s, 2) == Request(
        2, 2, 2, 1, 2, WAITING, 2, 0, 0, 0, 0, ((0, 0),), (0,), 0, False, AS_CONFIGURED
    )
    assert actions.add(SMALL, initial(), 0, 2, 17).requests, "just fits: 18 tokens in 9 blocks"
    with pytest.raises(ValueError, match="fit"):
        actions.add(SMALL, initial(), 0, 2, 18)


def test_results_are_told() -> None:
    cfg = SMALL._replace(drafts=2)
    a = running(0, (0, 4), prompt=3, replay=3, limit=4, computed=6, processed=3, outputs=1, placeholders=3)
    s = state(a, flight=(flown(a, DECODE, 3, 3),))
    after, told = actions.complete(cfg, s, (Result(2),))
    assert told == (actions.Output(0, 2, False, ""),)
    assert find(after, 0) == a._replace(outputs=3, placeholders=0, computed=5, processed=5)
    after, told = actions.complete(cfg, s, (Result(3),))
    assert (after.requests, told) == ((), (actions.Output(0, 3, True, "length"),))
    after, told = actions.complete(cfg, s, (Result(1, True),))
    assert (after.requests, told) == ((), (actions.Output(0, 1, True, "stop"),))
    for other in (a._replace(epoch=9), a._replace(status=PREEMPTED)):
        stale = s._replace(requests=(other,))
        assert actions.complete(cfg, stale, (Result(2),)) == (stale._replace(flight=()), ())


def why(cfg: Config, s: State, w: Witness) -> str:
    with pytest.raises(Refused) as caught:
        actions.schedule(cfg, s, w)
    return str(caught.value).partition(" (")[0].partition(":")[0] + str(caught.value).rpartition(" (")[2]


def test_refusals_name_the_row() -> None:
    cfg = SMALL._replace(pools=(2,), reserve=False, depth=2)
    s = actions.add(cfg, actions.add(cfg, initial(), 4, 2, 2), 5, 2, 2)
    plan = walk.attempt(cfg, s, PREFILL)
    assert [x.name for x in plan.rows] == [4, 5]
    right = Witness(PREFILL, plan.rows, frozenset())
    stranger = plan.rows[0]._replace(name=7)
    assert why(cfg, s, right._replace(rows=(*plan.rows, stranger))) == "runnablerow of 7)"
    assert why(cfg, s, right._replace(rows=(*plan.rows, plan.rows[0]))) == "runnablerow of 4)"
    assert why(cfg, s, right._replace(rows=plan.rows[:1])) == "admittedno row of 5)"
    assert why(cfg, s, right._replace(victims=frozenset({5}))) == "victims[5], due are [])"
    moved = plan.rows[0]._replace(start=1)
    assert (
        why(cfg, s, right._replace(rows=(moved, plan.rows[1]))) == f"length{moved}, granted {plan.rows[0]})"
    )
    longer = plan.rows[0]._replace(length=9)
    assert (
        why(cfg, s, right._replace(rows=(longer, plan.rows[1]))) == f"length{longer}, granted {plan.rows[0]})"
    )


def test_refusals_of_drafts() -> None:
    """Two requests with one draft each, and a block for one of them."""
    cfg = Config((Group(1),), (7,), drafts=1, reserve=False)
    flags = {"prompt": 2, "computed": 2, "processed": 2, "outputs": 1, "limit": 5}
    s = state(running(0, (0, 2), **flags), running(1, (0, 2), **flags))
    plan = walk.attempt(cfg, s, DECODE)
    assert plan.full == {0: 2, 1: 2}
    long = tuple(x._replace(length=2, reserved=2) for x in plan.rows)
    for rows in ((long[0], plan.rows[1]), (plan.rows[0], long[1]), plan.rows):
        after = actions.schedule(cfg, s, Witness(DECODE, rows, frozenset()))
        assert [r.computed for r in after.requests] == [2 + x.length for x in rows]
        assert [r.placeholders for r in after.requests] == [x.reserved for x in rows]
        assert after.flight[-1].rows == rows
    assert why(cfg, s, Witness(DECODE, long, frozenset())) == f"drafts{long[1]})"
    odd = long[0]._replace(reserved=1)
    assert (
        why(cfg, s, Witness(DECODE, (odd, plan.rows[1]), frozenset())) == f"length{odd}, granted {long[0]})"
    )
    half = long[0]._replace(length=3)
    assert (
        why(cfg, s, Witness(DECODE, (half, plan.rows[1]), frozenset()))
        == f"length{half}, granted {plan.rows[0]})"
    )
    grown = walk.extend(cfg, plan, plan.rows[0])
    assert grown is not None
    assert grown[1] == long[0]
    assert walk.extend(cfg, grown[0], long[0]) is None, "it has them already"
    assert walk.extend(cfg, grown[0], plan.rows[1]) is None, "no block is left"
    assert walk.extend(cfg._replace(drafts=0), plan._replace(full={0: 1, 1: 1}), plan.rows[0]) is None


def test_drafts_take_only_what_nobody_needs() -> None:
    """Promises of others, and next rows of those that are not in the dispatch."""
    cfg = Config((Group(1),), (12,), drafts=1, chunk=3, reserve=False)
    flags = {"prompt": 2, "computed": 2, "processed": 2, "outputs": 1, "limit": 5}
    talks, reads = running(0, (0, 2), **flags), running(1, (0, 4))
    for pools, promise, carries in (
        (9, 0, False),
        (10, 0, True),
        (10, 8, False),
        (11, 8, True),
        (9, 5, False),
    ):
        at = cfg._replace(pools=(pools + 1,))
        s = state(talks, reads._replace(promise=(promise,)))
        plan = walk.attempt(at, s, DECODE)
        assert [x.name for x in plan.rows] == [0]
        assert (walk.extend(at, plan, plan.rows[0]) is not None) == carries, (pools, promise)


def test_token_order() -> None:
    a, b = running(0, (0, 4), served=5), running(1, (0, 4), served=2)
    c = running(2, (0, 0), status=WAITING, computed=0, processed=0)
    d = c._replace(name=3, overdue=True)
    e = running(4, (0, 9), computed=9, served=1)

    def names(*requests: Request, phase: int = PREFILL) -> list[int]:
        return [r.name for r in walk.token_order(state(*requests), phase)]

    assert names(a, b, c, d, e) == [1, 0, 2, 3]
    assert names(a, b, d, c, e) == [3, 1, 0, 2], "an overdue head comes first"
    assert names(a, b, e, d, phase=DECODE) == [4]
    assert names() == []


def refused(cfg: Config, s: State, phase: int = PREFILL) -> dict[int, str]:
    return walk.attempt(cfg, s, phase).refused


def test_reasons_why_nothing_is_granted() -> None:
    cfg = ONE._replace(chunk=4, budget=4, pools=(30,))
    a, b = running(0, (0, 4)), running(1, (0, 4), served=3)
    waits = running(2, (0, 0), status=WAITING, computed=0, processed=0, prompt=4)
    next_one = waits._replace(name=3, epoch=9)
    assert refused(cfg, state(a, b, waits, next_one)) == {1: "budget", 2: "budget", 3: "queue"}
    wide = cfg._replace(budget=99)
    assert refused(wide, state(a, b, waits, next_one)) == {}
    assert refused(wide._replace(seats=2), state(a, b, waits, next_one)) == {2: "seat", 3: "queue"}
    gone = waits._replace(status=PREEMPTED)
    undrained = (flown(gone, PREFILL, 0, 2),)
    assert refused(wide, state(a, gone, next_one, flight=undrained)) == {2: "drained", 3: "queue"}
    assert refused(wide._replace(pools=(9,)), state(a, waits)) == {2: "blocks"}
    aligned = cfg._replace(alignment=4, budget=6)
    assert refused(aligned, state(a._replace(prompt=20, replay=20), b._replace(prompt=20, replay=20))) == {
        1: "alignment"
    }
    assert refused(aligned, state(a._replace(prompt=20, replay=20), waits._replace(prompt=9, replay=9))) == {
        2: "alignment"
    }
    decodes = [running(i, (0, 9), computed=9, outputs=1, prompt=8, replay=8, served=i) for i in range(3)]
    assert refused(cfg._replace(budget=2, chunk=1), state(*decodes), DECODE) == {2: "budget"}
    tight = cfg._replace(pools=(8,), budget=99)
    assert refused(tight, state(a, b, flight=(flown(b, PREFILL, 0, 4),))) == {0: "blocks", 1: "held"}
    assert refused(tight, state(a, b)) == {}, "it is drained, and preempted in the call"
    smaller = b._replace(columns=((0, 2),), computed=2)
    fenced = (Dispatch(PREFILL, (), (2,)),)
    assert refused(tight, state(a, smaller, flight=fenced)) == {0: "blocks", 1: "held"}, (
        "not with its blocks alone"
    )


def test_rows_reserve_what_they_may_emit() -> None:
    talks = running(0, (0, 9), computed=9)
    after, row = walk.grant(ONE, state(talks), talks, DECODE, 2)
    assert row == Row(0, 1, 9, 2, 2, True)
    assert find(after, 0) == talks._replace(computed=11, placeholders=2, columns=((0, 11),))
    reads = running(0, (0, 4), promise=(9,))
    for length, samples in ((4, False), (5, True)):
        after, row = walk.grant(ONE, state(reads), reads, PREFILL, length)
        assert row == Row(0, 1, 4, length, int(samples), samples)
        assert find(after, 0) == reads._replace(
            computed=4 + length, placeholders=int(samples), columns=((0, 4 + length),),
            promise=(0,) if samples else (9,),
        )  # fmt: skip


def test_rows_after_a_victim_of_the_same_call() -> None:
    """In service order: who takes, the victim, and one that needs no block."""
    cfg = ONE._replace(chunk=4, budget=99, pools=(16,))
    takes, last = running(0, (0, 4)), running(1, (0, 8), served=2)
    victim = running(2, (0, 4), served=1)
    s = state(takes, last, victim)
    plan = walk.attempt(cfg, s, PREFILL)
    assert [x.name for x in plan.rows] == [0, 1]
    assert plan.takings == (walk.Taking(s, 0, (4,), frozenset(), (2,)),)
    assert plan.refused == {}
    assert rules.hold(cfg, state(running(7, (0, 0), computed=9, limit=0), takes, victim)) == frozenset()
    busy = state(running(7, (0, 8), computed=9, limit=0), takes, victim)
    assert rules.hold(cfg, busy) == frozenset({2}), "who has nothing to run holds nobody, and stops nobody"


def test_decode_rows_take_one_token() -> None:
    """Of the two that a row with its draft would be long."""
    cfg = ONE._replace(drafts=1, pools=(10,))
    s = state(running(0, (0, 9), computed=9), running(1, (0, 1), computed=1))
    plan = walk.attempt(cfg, s, DECODE)
    assert plan.full == {0: 2}
    assert plan.takings == (walk.Taking(s, 0, (1,), frozenset(), (1,)),)


def test_what_was_refused_before_the_budget_was_spent() -> None:
    cfg = ONE._replace(chunk=1, budget=1, pools=(29,))
    fits = [running(i, (0, 10), computed=9, served=i) for i in (1, 2)]
    junior = running(0, (0, 9), computed=9)
    assert refused(cfg, state(*fits, junior), DECODE) == {0: "blocks", 2: "budget"}

"""The runner's view by hand: what small instances do not tell apart."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from hocket_spec import runner
from hocket_spec.runner import Mismatch, View
from hocket_spec.state import DECODE, PREFILL, Group
from hocket_spec.told import Slot


class Row(NamedTuple):
    name: str
    epoch: int
    start: int
    length: int
    new: Mapping[str, tuple[int, ...]]
    samples: bool = True


class Out(NamedTuple):
    """An output with the fields that a runner obeys."""

    phase: int | None
    request_ids: tuple[str, ...]
    epochs: tuple[int, ...]
    num_computed_tokens: tuple[int, ...]
    num_scheduled_tokens: tuple[int, ...]
    samples: tuple[bool, ...]
    new_block_ids: tuple[Mapping[str, tuple[int, ...]], ...]
    preempted_request_ids: tuple[str, ...] = ()
    finished_request_ids: tuple[str, ...] = ()
    resumed_request_ids: tuple[str, ...] = ()


def out(phase: int | None, *rows: Row, preempted: str = "", finished: str = "", resumed: str = "") -> Out:
    columns: Any = tuple(zip(*rows, strict=True)) or ((),) * 6
    ids, epochs, starts, lengths, new, samples = columns
    return Out(
        phase, ids, epochs, starts, lengths, samples, new,
        tuple(preempted.split()), tuple(finished.split()), tuple(resumed.split()),
    )  # fmt: skip


ONE = View(("full",), (Group(1),))


def after(view: View, *outs: Out) -> View:
    for told in outs:
        view = runner.receive(view, told)
    return view


def first(name: str, epoch: int, *blocks: int) -> Out:
    """A whole prompt in blocks of one token."""
    return out(PREFILL, Row(name, epoch, 0, len(blocks), {"full": blocks}))


def processed(view: View, *accepted: int) -> View:
    return runner.settle(view, accepted)


def test_what_ended_may_come_again_as_a_new_one() -> None:
    view = after(ONE, first("a", 1, 1), out(None, preempted="a"), out(None, finished="a"), first("a", 2, 2))
    assert (view.preempted, view.slots["a"].epoch) == (frozenset(), 2)


def test_who_never_ran_may_end() -> None:
    assert after(ONE, out(None, finished="nobody")) == ONE


def test_groups_without_new_blocks_may_be_left_out() -> None:
    view = View(("full", "coarse"), (Group(1), Group(8, 0, 1)))
    view = after(view, out(PREFILL, Row("a", 1, 0, 2, {"full": (1, 2), "coarse": (1,)})))
    view = after(view, out(DECODE, Row("a", 1, 2, 1, {"full": (3,)})))
    assert view.slots["a"].tables == ((1, 2, 3), (1,))


@pytest.mark.parametrize("window", [0, 4])
def test_history_that_nobody_maps_is_seen(window: int) -> None:
    slot = Slot(1, 2, 2, 2, ((0, 2),), True)
    view = View(("full",), (Group(1, window),), {"a": slot})
    with pytest.raises(Mismatch, match=r"^S7 window-history: a reads full from 0, table "):
        after(view, out(DECODE, Row("a", 1, 2, 1, {"full": (3,)})))


def test_every_block_of_a_row_is_written() -> None:
    """The second block of a chunk in flight, given to somebody else."""
    view = after(View(("full",), (Group(2),)), out(PREFILL, Row("a", 1, 0, 4, {"full": (1, 2)})))
    for block in (1, 2):
        with pytest.raises(Mismatch, match=r"^S6 no-write-after-free: "):
            after(view, out(PREFILL, Row("b", 2, 0, 1, {"full": (block,)}), finished="a"))


def test_late_block_of_a_late_chunk_is_written() -> None:
    view = after(View(("full",), (Group(2),)), out(PREFILL, Row("a", 1, 0, 2, {"full": (1,)}, samples=False)))
    view = after(processed(view, 0), out(PREFILL, Row("a", 1, 2, 2, {"full": (2,)})))
    told = out(PREFILL, Row("b", 2, 0, 1, {"full": (2,)}), finished="a")
    with pytest.raises(Mismatch, match=r"^S6 no-write-after-free: "):
        after(view, told)
    after(view, told._replace(new_block_ids=({"full": (1,)},)))


def test_block_in_flight_does_not_go_to_the_next_of_the_same_name() -> None:
    view = after(ONE, first("a", 1, 1))
    with pytest.raises(Mismatch, match=r"^S6 no-write-after-free: "):
        after(view, first("a", 2, 1)._replace(finished_request_ids=("a",)))
    after(view, first("a", 2, 2)._replace(finished_request_ids=("a",)))


def drafting() -> View:
    """a has two decode rows with a draft each in flight, b a plain one beside the second."""
    return after(
        ONE,
        first("a", 1, 1, 2, 3, 4),
        first("b", 2, 5, 6),
        out(DECODE, Row("a", 1, 4, 2, {"full": (7, 8)})),
        out(DECODE, Row("a", 1, 6, 2, {"full": (9, 10)}), Row("b", 2, 2, 1, {"full": (11,)})),
    )


def may_be_given_away(view: View, block: int) -> bool:
    """Both end, and somebody new is given the block."""
    try:
        after(view, out(PREFILL, Row("c", 3, 0, 1, {"full": (block,)}), finished="a b"))
    except Mismatch as mismatch:
        if not str(mismatch).startswith("S6 no-write-after-free: "):
            raise
        return False
    return True


def test_accepted_drafts_move_what_a_later_row_can_write() -> None:
    """The token after the first row's is certain once its draft was accepted: nobody writes it any more."""
    view = processed(processed(drafting(), 1), 1)
    blocks = (4, 7, 8, 9, 10, 11)
    assert [b for b in blocks if may_be_given_away(view, b)] == [4]
    assert [b for b in blocks if may_be_given_away(processed(view, 1), b)] == [4, 7]
    assert [b for b in blocks if may_be_given_away(processed(view, 2), b)] == [4, 7, 8]


def test_epochs_are_fresh() -> None:
    """Neither that of somebody who lives, though nothing of it is in flight, nor the newest again."""
    quiet = processed(after(ONE, first("a", 1, 1)), 1)
    with pytest.raises(Mismatch, match=r"^S2 no-stale-mutation: epoch 1 of b is not fresh, newest 1$"):
        after(quiet, first("b", 1, 2))
    gone = after(quiet, out(None, preempted="a"))
    again = Row("a", 1, 0, 1, {"full": (1,)})
    with pytest.raises(Mismatch, match=r"^S2 no-stale-mutation: epoch 1 of a is not fresh, newest 1$"):
        after(gone, out(PREFILL, again, resumed="a"))
    back = after(gone, out(PREFILL, again._replace(epoch=2), resumed="a"))
    assert (back.newest, back.preempted) == (2, frozenset())
    flying = after(ONE, first("a", 1, 1), out(None, finished="a"))
    with pytest.raises(Mismatch, match=r"^S2 no-stale-mutation: epoch 1 of b is not fresh"):
        after(flying, first("b", 1, 2))


def test_resumption_is_told_exactly() -> None:
    with pytest.raises(Mismatch, match=r"^S3 drained-readmission: a resumed True, preempted False$"):
        after(ONE, first("a", 1, 1)._replace(resumed_request_ids=("a",)))
    with pytest.raises(Mismatch, match=r"^S4 metadata-well-formed: of \('b',\) not all have a row$"):
        after(ONE, first("a", 1, 1)._replace(resumed_request_ids=("b",)))


def test_rows_need_a_phase() -> None:
    with pytest.raises(Mismatch, match=r"^S1 homogeneity: an output without a phase has rows$"):
        after(ONE, first("a", 1, 1)._replace(phase=None))
    with pytest.raises(Mismatch, match=r"^S1 homogeneity: an output without a phase has rows$"):
        after(ONE, out(None, resumed="a"))


def test_slot_after_its_first_chunk() -> None:
    view = after(ONE, out(PREFILL, Row("a", 1, 0, 2, {"full": (1, 2)}, samples=False)))
    assert view.slots["a"] == Slot(1, 2, 2, 0, ((1, 2),), False)
    assert view.flight[0][1][0].writes == {(0, 1): 1, (0, 2): 2}

"""The runner's view: each way in which a scheduler's outputs can contradict each other is seen."""

from typing import Any, NamedTuple

import pytest

from hocket_spec import runner
from hocket_spec.state import DECODE, PREFILL, Group

GROUPS = (Group(2), Group(2, 2, 1))
START = runner.View(("full", "window"), GROUPS)


class Out(NamedTuple):
    """An output with the fields that a runner obeys."""

    phase: int | None = None
    request_ids: tuple[str, ...] = ()
    epochs: tuple[int, ...] = ()
    num_computed_tokens: tuple[int, ...] = ()
    num_scheduled_tokens: tuple[int, ...] = ()
    samples: tuple[bool, ...] = ()
    new_block_ids: tuple[dict[str, tuple[int, ...]], ...] = ()
    preempted_request_ids: tuple[str, ...] = ()
    finished_request_ids: tuple[str, ...] = ()
    resumed_request_ids: tuple[str, ...] = ()


def row(
    name: str, epoch: int, start: int, length: int, blocks: tuple[int, ...],
    window: tuple[int, ...] | None = None, phase: int = PREFILL, samples: bool = True, **notices: Any,
) -> Out:  # fmt: skip
    tables = {"full": blocks, "window": blocks if window is None else window}
    return Out(phase, (name,), (epoch,), (start,), (length,), (samples,), (tables,), **notices)


def after(*outs: Out) -> runner.View:
    view = START
    for out in outs:
        view = runner.receive(view, out)
    return view


A = row("a", 1, 0, 4, (1, 2))
A_DECODES = row("a", 1, 4, 1, (3,), phase=DECODE)

SOUND = {
    "prompt, then decode before its result": (A, A_DECODES),
    "two requests": (A, row("b", 2, 0, 2, (4,))),
    "preempted and resumed": (
        row("a", 1, 0, 2, (1,), samples=False),
        Out(preempted_request_ids=("a",)),
    ),
}
WRONG: dict[str, tuple[str, tuple[Out, ...]]] = {
    "chunk does not start where the last one ended": ("S4", (A, row("a", 1, 3, 1, (3,)))),
    "empty row": ("S4", (row("a", 1, 0, 0, ()),)),
    "table does not cover the row": ("S5", (row("a", 1, 0, 4, (1,)),)),
    "table longer than the row needs": ("S5", (row("a", 1, 0, 4, (1, 2, 3)),)),
    "null block handed out": ("null block", (row("a", 1, 0, 4, (1, 0)),)),
    "block owned by two": ("S5", (A, row("b", 2, 0, 2, (2,), (4,)))),
    "block mapped twice by one": ("S5", (row("a", 1, 0, 4, (1, 1)),)),
    "decode without a token": ("last token", (row("a", 1, 0, 4, (1, 2), samples=False), A_DECODES)),
    "two rows in one dispatch": ("two rows", (A._replace(
        request_ids=("a", "a"), epochs=(1, 1), num_computed_tokens=(0, 4), num_scheduled_tokens=(4, 1),
        samples=(True, True), new_block_ids=(A.new_block_ids[0], {"full": (3,), "window": (3,)})),)),
    "epoch changes without a resumption": ("epoch", (A, row("a", 2, 4, 1, (3,)))),
    "epoch of somebody else": ("not fresh", (A, row("b", 1, 0, 2, (4,)))),
    "resumed but never preempted": ("resumed", (row("a", 1, 0, 4, (1, 2), resumed_request_ids=("a",)),)),
    "preempted comes back without a word": ("resumed", (
        A, Out(preempted_request_ids=("a",)), row("a", 2, 0, 4, (5, 6)))),
    "preempted twice": ("no slot", (A, Out(preempted_request_ids=("a",)), Out(preempted_request_ids=("a",)))),
    "notice named twice": ("twice", (A, Out(preempted_request_ids=("a",), finished_request_ids=("a",)))),
    "resumed with older rows in flight": ("S3", (
        A, row("a", 2, 0, 4, (5, 6), preempted_request_ids=("a",), resumed_request_ids=("a",)))),
    "freed block handed out while it may be written": ("S6", (
        A, row("b", 2, 0, 2, (2,), (4,), finished_request_ids=("a",)))),
    "rows without a phase": ("S1", (A._replace(phase=None),)),
}  # fmt: skip


@pytest.mark.parametrize("case", SOUND)
def test_view_follows(case: str) -> None:
    assert after(*SOUND[case]).newest >= 1


@pytest.mark.parametrize("case", WRONG)
def test_view_refuses(case: str) -> None:
    part, outs = WRONG[case]
    view = after(*outs[:-1])
    with pytest.raises(runner.Mismatch, match=part):
        runner.receive(view, outs[-1])


def test_freed_block_is_sound_once_its_dispatch_is_processed() -> None:
    view = runner.settle(after(A), (1,))
    view = runner.receive(view, row("b", 2, 0, 2, (2,), finished_request_ids=("a",)))
    assert view.slots["b"].computed == 2


def test_rejected_drafts_come_off_and_their_rows_are_written_again() -> None:
    view = after(A, row("a", 1, 4, 3, (3, 4), phase=DECODE), row("a", 1, 7, 1, (), phase=DECODE))
    view = runner.settle(runner.settle(view, (1,)), (1,))
    assert view.slots["a"].computed == 6
    assert view.slots["a"].processed == 5
    assert view.flight[0][1][0].first == 5


def test_history_that_a_window_needs_must_be_mapped() -> None:
    view = runner.settle(after(A), (1,))
    assert view.slots["a"].tables == ((1, 2), (0, 2))
    with_less = view.slots["a"]._replace(tables=((1, 2), (0, 0)))
    view = view._replace(slots={"a": with_less})
    with pytest.raises(runner.Mismatch, match="S7"):
        runner.receive(view, A_DECODES)

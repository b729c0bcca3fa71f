"""The slot table by itself: what a slot keeps, what an ended epoch may no longer change, what it refuses."""

from dataclasses import replace

import numpy as np
import pytest

from hocket import KVCacheConfig, KVGroupSpec, Phase, Request, SamplingParams, Scheduler, SchedulerConfig
from hocket.runner.api import NewRequest, RunnerError
from hocket.runner.inputs import commit, launched, plan_step, settle
from hocket.runner.slots import MAX_SLOTS, SlotTable
from hocket.runner.step_result import LaunchedStep
from tests.unit.runner.test_steps import VOCAB, Pair

KV = KVCacheConfig(groups=(KVGroupSpec("full", 4, 24), KVGroupSpec("near", 2, 24)))


def table(slots=3):
    return SlotTable(slots, KV, max_model_len=40)


@pytest.mark.parametrize("slots", [0, -1, MAX_SLOTS + 1, 10**9, 2**300, True])
def test_a_number_of_slots_out_of_range_is_refused_by_the_name_of_its_knob(slots):
    with pytest.raises(ValueError, match=rf"max_num_seqs must be an int in \[1, {MAX_SLOTS}\], got"):
        table(slots)


@pytest.mark.parametrize("max_model_len", [10**12, 10**30, 2**255])
def test_tables_that_memory_does_not_hold_are_refused_by_their_size(max_model_len):
    size = 4 * MAX_SLOTS * (max_model_len // 4)
    group = KVCacheConfig(groups=(KVGroupSpec("full", 4, 24),))
    with pytest.raises(ValueError, match=rf"max_num_seqs = {MAX_SLOTS} and max_model_len = .* {size} bytes"):
        SlotTable(MAX_SLOTS, group, max_model_len // 4 * 4)


def grown(slots, names, fresh, blocks):
    """`grown_tables` of the rows of `names`, each with so many new blocks of both groups, and stored."""
    rows = np.array([slots.slot_of(name) for name in names])
    added = [{name: tuple(range(1, count + 1)) for name in ("full", "near")} for count in blocks]
    tables, columns = slots.grown_tables(rows, np.array(fresh), added)
    slots.store(rows, tables, columns)
    return tables


def occupied(**epochs):
    slots = table()
    for slot, (name, epoch) in enumerate(epochs.items()):
        slots.occupy(name, epoch, slot)
    return slots


def test_a_slot_that_was_not_the_lowest_free_one_was_reserved_by_mistake():
    with pytest.raises(AssertionError, match=r"slot 1 was reserved, of .* the lowest is given"):
        table().occupy("a", 1, 1)


def test_a_new_incarnation_starts_from_an_empty_table_whatever_its_slot_held():
    """Planned before the old one is dropped, beside a row whose table is as long as the old one was."""
    slots = occupied(old=1, long=2)
    grown(slots, ["old", "long"], [True, True], [5, 6])
    tables = grown(slots, ["old", "long"], [True, False], [1, 0])
    for line in (tables["full"][0], slots.tables["full"][0]):
        assert line[:6].tolist() == [1, 0, 0, 0, 0, 0]
    assert tables["full"][1].tolist() == [1, 2, 3, 4, 5, 6]
    assert slots.columns["full"].tolist() == [1, 6, 0]


def test_a_slot_that_was_dropped_leaves_nothing_to_the_next_owner():
    slots = occupied(a=1, b=2)
    grown(slots, ["a", "b"], [True, True], [5, 6])
    slots.launched(0, 0, 7, 7, True)
    slots.drop("a")
    assert slots.slot_of("a") is None
    slots.occupy("c", 3, 0)
    grown(slots, ["c"], [True], [1])
    tables = grown(slots, ["c", "b"], [False, False], [0, 0])
    assert tables["full"][0].tolist() == [1, 0, 0, 0, 0, 0]
    assert not slots.tables["full"][0, 1:].any()
    slots.launched(0, 0, 3, 3, False)
    assert (slots.computed[0], slots.at_most[0], slots.unsettled[0]) == (3, 3, 0)


def booked(slots, slot=0):
    return [int(values[slot]) for values in (slots.computed, slots.at_most, slots.unsettled)]


def test_a_result_of_an_ended_epoch_books_nothing():
    """Not of the request's new incarnation, nor of another request of its id (S2)."""
    slots = occupied(a=1)
    slots.launched(0, 0, 4, 4, True)
    slots.drop("a")
    assert not slots.settled("a", 1, 2, 1)
    slots.occupy("a", 2, 0)
    slots.launched(0, 0, 6, 6, True)
    assert not slots.settled("a", 1, 2, 1)
    assert booked(slots) == [6, 6, 1]
    assert slots.settled("a", 2, 0, 0)
    assert booked(slots) == [6, 6, 0]


def test_tokens_of_an_aborted_request_are_not_those_of_the_next_one_of_its_id():
    """Launched before, settled after the id was used again: as on a device that works on its own."""
    config = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=12, max_model_len=40, async_depth=2)
    scheduler, slots, plans = Scheduler(config, KV), table(), []
    for prompt in ((1, 2, 3), (7, 8, 9, 10)):
        item = Request("a", prompt, SamplingParams(max_tokens=5))
        scheduler.add_request(item)
        plan = plan_step(slots, scheduler.schedule(), [NewRequest(item, 0)], 50)
        commit(slots, plan)
        launched(slots, plan)
        plans.append(plan)
        if len(plans) == 1:
            scheduler.abort_request("a")
    settle(slots, plans[0], [[30]])
    assert slots.records["a"].tokens == [7, 8, 9, 10]
    assert booked(slots) == [4, 4, 1]
    settle(slots, plans[1], [[40]])
    assert slots.records["a"].tokens == [7, 8, 9, 10, 40]
    assert booked(slots) == [4, 4, 0]


# --- What a runner refuses although a scheduler would not ask for it --------------------------------


def test_a_prompt_beyond_the_vocabulary_changes_no_byte():
    pair = Pair()
    pair.add("a", [1, VOCAB])
    output, new = pair.plan()
    before = pair.bytes()
    with pytest.raises(ValueError, match=rf"token_ids\[1\] {VOCAB} is outside \[0, {VOCAB - 1}\]"):
        pair.runner.execute(output, new)
    assert pair.bytes() == before


def test_a_decode_row_amid_a_prefill_changes_no_byte():
    pair = Pair()
    pair.add("a", range(20))
    pair.dispatch()
    pair.complete()
    output, new = pair.plan()
    assert output.num_computed_tokens == (6,)
    decode = replace(
        output, phase=Phase.DECODE, num_scheduled_tokens=(1,), samples=(True,), lookahead_token_ids=(None,)
    )
    before = pair.bytes()
    with pytest.raises(RunnerError, match="request 'a': 20 tokens, a decode row at 6 needs 7"):
        pair.runner.execute(decode, new)
    assert pair.bytes() == before


def test_a_step_is_settled_after_it_was_waited_for():
    with pytest.raises(AssertionError, match="wait comes first"):
        LaunchedStep(table(), None, None).settle()

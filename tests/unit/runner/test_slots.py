"""The slot table by itself: what a slot keeps, what an ended epoch may no longer change, what it refuses."""

import pytest

from hocket import KVCacheConfig, KVGroupSpec
from hocket.runner.slots import MAX_SLOTS, SlotTable

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

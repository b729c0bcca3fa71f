"""The whole engine on the fake device, in deferred mode, under torch_npu's stream sanitizer."""

import pytest

from hocket import Phase
from tests.npu.t2.check import check


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_values_of_the_cpu_and_no_wait_but_for_results(depth: int, drafts: int) -> None:
    watch, counts = check(depth, drafts, sanitized=depth > 1)
    assert set(watch.steps) == {Phase.PREFILL, Phase.DECODE}
    assert len(watch.waits) == len(watch.steps) > 8
    assert counts["job"] > 1000, "compute went through the device"
    assert counts["wait"] >= len(watch.steps), "each result's copy waits for its step"


@pytest.mark.parametrize("event", ["preempted", "again"])
@pytest.mark.parametrize(("depth", "drafts"), [(2, 0), (3, 2)])
def test_results_of_an_ended_epoch_change_nothing(depth: int, drafts: int, event: str) -> None:
    check(depth, drafts, event)

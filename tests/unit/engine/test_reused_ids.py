"""An id is used again while results of the request that had it before are still to come: who it was decides
the epoch, never the name.
"""

import threading

import pytest

from hocket.runner.api import RunnerOutput
from tests.unit.engine.world import Wrapped, drain, make_engine, request, results, step_into, tokens_of


class FirstRowFails(Wrapped):
    """The first step waits for the gate, and its first row fails."""

    def __init__(self, inner):
        super().__init__(inner)
        self.gate = threading.Event()

    def execute(self, output, new_requests=()):
        result = super().execute(output, new_requests)
        if output.step_id != 1:
            return result
        self.gate.wait(10)
        rows = len(output.request_ids)
        tokens = ((), *result.sampled_token_ids[1:])
        return RunnerOutput(output.step_id, tokens, (None,) * rows, {0: "broken logits"})


@pytest.mark.parametrize("depth", [2, 3])
def test_a_failed_row_of_an_aborted_request_does_not_end_the_next_one_of_its_id(depth):
    with make_engine(depth, wrap=FirstRowFails) as engine:
        engine.add_request(request("a", max_tokens=1))
        assert engine.step(wait=False) == []
        assert engine.abort_request("a").finish_reason == "abort"
        engine.add_request(request("a", (8,), max_tokens=5))
        engine.step(wait=False)
        state = engine.scheduler.request_state("a")
        assert state.status == "running", "or else this test tests nothing"
        engine.runner.gate.set()
        found = results(drain(engine))
    assert found["a"].error is None
    assert found["a"].token_ids == tokens_of((8,), 5)


def test_a_preemption_of_an_aborted_request_is_not_counted_for_the_next_one_of_its_id():
    with make_engine(1) as engine:
        # Somebody who stays: the notice comes with the step that the next request of the name is in.
        engine.add_request(request("stays", (5,), max_tokens=9))
        engine.add_request(request("a", max_tokens=9))
        updates = {}
        step_into(engine, updates)
        del updates["a"]
        engine.preempt_request("a")
        engine.abort_request("a")
        engine.add_request(request("a", (8,), max_tokens=3))
        found = results(drain(engine, updates))
    assert found["a"].metrics.num_preemptions == 0
    assert found["a"].token_ids == tokens_of((8,), 3)

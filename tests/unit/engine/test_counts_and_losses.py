"""What is counted of accepted drafts, when an engine owes somebody an update, what a lost step costs."""

import io
import json

import pytest

from hocket.engine.errors import EngineDeadError
from hocket.engine.executor import DeviceExecutor
from hocket.obs.trace import TraceWriter
from hocket.runner.simulated import SimulatedRunner
from tests.unit.engine.test_device_executor import Device, Step, device_engine
from tests.unit.engine.world import KV, VOCAB, drain, make_engine, request, results, text_of, tokens_of

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


# --- Accepted drafts ------------------------------------------------------------------------------


@DEPTHS
@pytest.mark.parametrize(("taken", "accepted"), [(6, 4), (7, 5), (8, 6), (9, 6), (10, 7)])
def test_drafts_behind_a_stop_string_were_not_accepted(depth, taken, accepted):
    """Three drafts a row, all right: rows end at tokens 1, 5, 9, 13, ...; the last of a row is no draft."""
    tokens = tokens_of((1, 2, 3), 20)
    stop = text_of(tokens[taken - 2 : taken])
    assert stop not in text_of(tokens[: taken - 1])
    runner = SimulatedRunner(KV, max_num_seqs=4, max_model_len=100, vocab_size=VOCAB, acceptance=1.0)
    with make_engine(depth, runner=runner, num_speculative_tokens=3) as engine:
        engine.add_request(request("a", max_tokens=20, stop=(stop,)))
        found = results(drain(engine))["a"]
    assert found.token_ids == tokens[:taken]
    assert found.metrics.num_accepted_tokens == accepted
    assert engine.stats.num_accepted_tokens == accepted


@DEPTHS
def test_a_stop_string_in_the_last_token_allowed_ends_the_request_once(depth):
    """Scheduler and stop string end it together: nothing was aborted, and nothing of the kind is recorded."""
    tokens, trace = tokens_of((1, 2, 3), 6), io.StringIO()
    with make_engine(depth, shadow_check=True, trace=TraceWriter(trace)) as engine:
        engine.add_request(request("a", max_tokens=6, stop=(text_of(tokens[4:6]),)))
        engine.add_request(request("b", (4,), max_tokens=9))
        found = results(drain(engine))
    assert (found["a"].finish_reason, found["a"].token_ids) == ("stop", tokens)
    assert found["b"].token_ids == tokens_of((4,), 9)
    assert not [line for line in trace.getvalue().splitlines() if json.loads(line)["action"] == "abort"]


# --- Updates that are owed --------------------------------------------------------------------------


@DEPTHS
def test_an_engine_that_owes_a_last_update_is_not_done(depth):
    """Ctrl-C between the scheduler's news and the caller's: no step must pass for the end of the work."""
    with make_engine(depth) as engine:
        engine.add_request(request("a", max_tokens=1))
        real = engine.scheduler.update_from_output

        def half(*what):
            real(*what)
            raise KeyboardInterrupt

        engine.scheduler.update_from_output = half
        with pytest.raises(KeyboardInterrupt):
            drain(engine)
        assert not engine.scheduler.has_unfinished_requests()
        assert engine.has_unfinished_requests()
        with pytest.raises(EngineDeadError):
            drain(engine)


# --- Steps of a device ------------------------------------------------------------------------------


class Recovers(Step):
    """Lost when it is waited for the first time, there the second time: as a driver that starts anew."""

    def wait(self):
        self.device.log.append(f"wait {self.number}")
        if self.device.fails_at == self.number:
            self.device.fails_at = None
            raise OSError("device lost")
        return self.result


class Restarts(Device):
    def launch(self, output, new_requests=()):
        step = super().launch(output, new_requests)
        return step and Recovers(self, step.number, step.result)


def test_what_comes_after_a_lost_step_is_lost_whatever_the_device_says_later():
    engine, device = device_engine(3)
    with engine:
        device = Restarts(device.inner)
        executor = DeviceExecutor(device)
        device.fails_at = 1
        engine.add_request(request("a", max_tokens=9))
        for _ in range(3):
            output = engine.scheduler.schedule()
            executor.submit(
                output, [engine._unsent.pop(r) for r in output.request_ids if r in engine._unsent]
            )
        assert not executor.ready()
        for _ in range(2):
            assert isinstance(executor.collect().result, OSError)
            assert executor.ready()
        assert device.log.count("wait 1") == 1
        with pytest.raises(AssertionError, match="what comes after a lost step is not booked"):
            executor.drop()
        executor.shutdown()


def test_the_seconds_of_a_step_begin_when_the_device_was_done_with_the_one_before():
    now = 0.0
    engine, device = device_engine(3)
    with engine:
        executor = DeviceExecutor(device, clock=lambda: now)
        engine.add_request(request("a", max_tokens=9))
        for launched_at in (1.0, 2.0, 3.0):
            now = launched_at
            output = engine.scheduler.schedule()
            executor.submit(
                output, [engine._unsent.pop(r) for r in output.request_ids if r in engine._unsent]
            )
        spent = []
        for ended_at in (5.0, 7.0, 7.5):
            now = ended_at
            spent.append(executor.collect().seconds)
            executor.drop()
        assert spent == [4.0, 2.0, 0.5]
        executor.shutdown()

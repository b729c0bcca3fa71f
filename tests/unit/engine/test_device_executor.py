"""Steps on a device that works on its own: launched ahead, looked at late, settled in order."""

import asyncio
import threading

import pytest

from hocket import AsyncEngine
from hocket.engine.errors import EngineDeadError
from hocket.engine.executor import DeviceExecutor, InlineExecutor
from tests.unit.engine.world import Wrapped, drain, make_engine, request, results, step_into, tokens_of


class Step:
    """Its result is there when the device says so."""

    def __init__(self, device, number, result):
        self.device, self.number, self.result = device, number, result

    def ready(self):
        return self.device.done >= self.number

    def wait(self):
        self.device.log.append(f"wait {self.number}")
        if self.device.fails_at == self.number:
            raise OSError("device lost")
        if self.device.interrupts.pop(self.number, False):
            raise KeyboardInterrupt
        self.device.done = max(self.device.done, self.number)
        return self.result

    def settle(self):
        self.device.log.append(f"settle {self.number}")


class Device(Wrapped):
    """A simulated runner behind `launch`."""

    asynchronous = True

    def __init__(self, inner):
        super().__init__(inner)
        self.log, self.count, self.done = [], 0, 0
        self.fails_at = self.refuses_at = None
        self.interrupts = {}

    def launch(self, output, new_requests=()):
        result = self.inner.execute(output, new_requests)
        if result is None:
            return None
        self.count += 1
        if self.refuses_at == self.count:
            raise OSError("no memory")
        self.log.append(f"launch {self.count}")
        return Step(self, self.count, result)


def device_engine(depth=2, **knobs):
    engine = make_engine(depth, wrap=Device, **knobs)
    assert isinstance(engine._executor, DeviceExecutor if depth > 1 else InlineExecutor)
    return engine, engine.runner


@pytest.mark.parametrize("depth", [2, 3])
def test_the_same_texts(depth):
    engine, device = device_engine(depth)
    with engine:
        for i in range(5):
            engine.add_request(request(f"r{i}", range(i + 1), max_tokens=6))
        found = results(drain(engine))
    for i in range(5):
        assert found[f"r{i}"].token_ids == tokens_of(range(i + 1), 6)
    settled = [entry for entry in device.log if entry.startswith("settle")]
    assert settled == [f"settle {n}" for n in range(1, device.count + 1)]


def test_steps_are_launched_before_older_ones_are_looked_at():
    engine, device = device_engine(2)
    with engine:
        engine.add_request(request("r", max_tokens=4))
        drain(engine)
    assert device.log[:6] == ["launch 1", "launch 2", "wait 1", "settle 1", "launch 3", "wait 2"]


def test_a_result_that_is_not_there_is_not_waited_for():
    engine, device = device_engine(2)
    with engine:
        engine.add_request(request("r", max_tokens=2))
        assert engine.step(wait=False) == []
        assert not engine.can_step()
        assert "wait 1" not in device.log
        device.done = 1
        assert engine.can_step()
        assert [len(update.new_token_ids) for update in engine.step(wait=False)] == [1]
        drain(engine)


def test_at_depth_1_a_step_is_executed_whole():
    engine, device = device_engine(1)
    with engine:
        engine.add_request(request("r", max_tokens=3))
        assert results(drain(engine))["r"].token_ids == tokens_of((1, 2, 3), 3)
    assert device.log == []


def test_a_step_that_cannot_be_launched_ends_the_engine_after_the_results_before_it():
    engine, device = device_engine(2)
    with engine:
        device.refuses_at = 3
        engine.add_request(request("r", max_tokens=9))
        updates = {}
        with pytest.raises(EngineDeadError, match="OSError: no memory"):
            drain(engine, updates)
    assert [len(update.new_token_ids) for update in updates["r"]] == [1, 1]


def test_a_lost_device_ends_the_engine():
    engine, device = device_engine(3)
    with engine:
        device.fails_at = 2
        engine.add_request(request("r", max_tokens=9))
        updates = {}
        with pytest.raises(EngineDeadError, match="OSError: device lost"):
            drain(engine, updates)
        assert len(updates["r"]) == 1
        with pytest.raises(EngineDeadError, match="device lost"):
            engine.step()


@pytest.mark.parametrize("fails_at", [1, 2])
def test_after_a_lost_step_shutdown_waits_for_all_that_was_launched(fails_at):
    """The device must not work on memory that is given back."""
    engine, device = device_engine(3)
    device.fails_at = fails_at
    engine.add_request(request("r", max_tokens=9))
    with pytest.raises(EngineDeadError, match="OSError: device lost"):
        drain(engine)
    assert device.count > fails_at, "steps were launched behind the lost one"
    with pytest.raises(EngineDeadError, match="device lost"):
        engine.step()
    del device.log[:]
    engine.shutdown()
    assert device.log == [f"wait {n}" for n in range(fails_at, device.count + 1)]


def test_ctrl_c_while_it_waits_loses_nothing():
    engine, device = device_engine(2)
    with engine:
        device.interrupts[2] = True
        engine.add_request(request("r", max_tokens=5))
        updates = {}
        with pytest.raises(KeyboardInterrupt):
            drain(engine, updates)
        drain(engine, updates)
    assert results(updates)["r"].token_ids == tokens_of((1, 2, 3), 5)


def test_whoever_waits_for_results_is_woken():
    def build(on_result):
        return device_engine(2, on_result=on_result)[0]

    async def main():
        async with AsyncEngine(build) as engine:
            streams = [engine.stream(request(f"r{i}", range(i + 2), max_tokens=7)) for i in range(3)]

            async def whole(stream):
                return [token async for update in stream for token in update.new_token_ids]

            return await asyncio.wait_for(asyncio.gather(*map(whole, streams)), 30)

    texts = asyncio.run(main())
    assert texts == [list(tokens_of(range(i + 2), 7)) for i in range(3)]


def test_a_callback_that_fails_ends_the_engine():
    heard = threading.Event()

    def on_result():
        heard.set()
        raise OSError("nobody listens")

    engine, _ = device_engine(2, on_result=on_result)
    with engine:
        engine.add_request(request("r", max_tokens=9))
        updates = {}
        step_into(engine, updates)
        assert heard.wait(10)
        with pytest.raises(EngineDeadError, match="nobody listens"):
            drain(engine, updates)

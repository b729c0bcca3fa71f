"""Ctrl-C at the worst moments: who waited goes on without a loss, who worked is dead, nobody hangs."""

import os
import subprocess
import sys
import threading
import time

import pytest

from hocket.engine.errors import EngineDeadError
from tests.unit.engine.world import drain, make_engine, request, results, tokens_of

DEEP = pytest.mark.parametrize("depth", [2, 3])
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


def within(action, seconds=20):
    """What `action` returns or raises, in another thread: a hang is red soon."""
    outcome = []

    def run():
        try:
            outcome.append((action(), None))
        except BaseException as error:  # noqa: BLE001 - raised below
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, "it hangs"
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def interrupted(*_):
    raise KeyboardInterrupt


@DEEP
@pytest.mark.parametrize("at", [1, 2, 5])
def test_ctrl_c_at_the_very_moment_a_result_comes_in_loses_nothing(depth, at):
    with make_engine(depth) as engine:
        real, calls = engine._executor.collect, 0

        def late():
            nonlocal calls
            executed = real()
            calls += 1
            if calls == at:
                raise KeyboardInterrupt
            return executed

        engine._executor.collect = late
        engine.add_request(request("a", max_tokens=8))
        updates = {}
        with pytest.raises(KeyboardInterrupt):
            drain(engine, updates)
        found = results(within(lambda: drain(engine, updates)))
    assert found["a"].token_ids == tokens_of((1, 2, 3), 8)


RANDOM = """
import _thread, os, signal, sys, threading, time
sys.path[:0] = [sys.argv[1]]
signal.signal(signal.SIGINT, signal.default_int_handler)  # what ran this may ignore it
from hocket.engine.errors import EngineDeadError
from tests.unit.engine.test_interrupts import within
from tests.unit.engine.world import Wrapped, drain, make_engine, request, tokens_of

class Pauses(Wrapped):
    steps = 0
    def execute(self, *what):
        self.steps += 1
        if self.steps == 5:
            time.sleep(0.004)  # so that the other thread waits for this result
        return super().execute(*what)

alive = dead = 0
for trial in range(80):
    runner, fired = [], []
    def wrap(inner):
        runner.append(Pauses(inner))
        return runner[0]
    def come():
        if runner[0].steps == 5 and not fired:
            fired.append(1)
            if trial % 2:
                _thread.interrupt_main()
            else:
                os.kill(os.getpid(), signal.SIGINT)
    engine, updates = make_engine(2, on_result=come, wrap=wrap), {}
    engine.add_request(request("a", max_tokens=30))
    try:
        drain(engine, updates)
        time.sleep(1)
        raise SystemExit("never interrupted")
    except KeyboardInterrupt:
        pass
    try:
        within(lambda: drain(engine, updates), 10)
        assert updates["a"][-1].result.token_ids == tokens_of((1, 2, 3), 30)
        alive += 1
    except EngineDeadError:
        dead += 1
print("alive", alive, "dead", dead)
os._exit(0 if alive else 1)
"""


def test_an_interrupt_as_a_result_comes_in_never_hangs():
    run = subprocess.run(
        [sys.executable, "-c", RANDOM, os.getcwd()], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_signal_ends_the_wait_for_a_result():
    """`collect` sleeps in a call that a signal wakes."""
    code = (
        "import os, signal, threading, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # what ran this may ignore it
        "from hocket.engine.executor import ThreadExecutor\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try: ThreadExecutor(None).collect()\n"
        "except KeyboardInterrupt: os._exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 7


@DEPTHS
@pytest.mark.parametrize("where", ["add_request", "schedule", "update_from_output", "abort_request"])
def test_ctrl_c_amid_a_change_is_the_end_of_the_engine(depth, where):
    with make_engine(depth) as engine:
        engine.add_request(request("a", max_tokens=8))
        engine.step()
        real = getattr(engine.scheduler, where)

        def half(*what):
            real(*what)
            raise KeyboardInterrupt

        setattr(engine.scheduler, where, half)
        actions = {
            "add_request": lambda: engine.add_request(request("b")),
            "abort_request": lambda: engine.abort_request("a"),
        }
        with pytest.raises(KeyboardInterrupt):
            actions.get(where, lambda: drain(engine))()
        with pytest.raises(EngineDeadError):
            within(lambda: drain(engine))
        with pytest.raises(EngineDeadError):
            engine.add_request(request("c"))


@DEPTHS
def test_updates_that_were_ready_before_ctrl_c_are_not_lost(depth):
    with make_engine(depth) as engine:
        engine.add_request(request("a", max_tokens=1))
        real = engine._hand_over_notices
        engine._hand_over_notices = lambda: interrupted() if engine._updates else real()
        with pytest.raises(KeyboardInterrupt):
            drain(engine)
        assert engine.has_unfinished_requests()
        assert [update.finish_reason for update in engine.step()] == ["length"]
        with pytest.raises(EngineDeadError):
            drain(engine)
        assert not engine.has_unfinished_requests()


def test_waiting_does_not_spin():
    """A worker that has nothing to say costs the waiting thread no time."""
    from hocket.engine.executor import ThreadExecutor

    executor = ThreadExecutor(None)
    spent = []

    def wait():
        begin = time.thread_time()
        executor.collect()
        spent.append(time.thread_time() - begin)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.3)
    executor.submit("anything", ())  # no runner: it fails, which is a result too
    thread.join(10)
    executor.shutdown()
    assert spent[0] < 0.1

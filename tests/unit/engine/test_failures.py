"""What dies, and who is told: exceptions of runner, trace, observers, callbacks, tokenizer, of any kind."""

import asyncio
import io
import json
import threading
import time
import types

import pytest
import tokenizers

from hocket.core.errors import UnknownRequestError
from hocket.engine.engine import run_all
from hocket.engine.errors import EngineDeadError
from hocket.model import tokenizer as tokenizer_module
from hocket.model.recall import recall_tokenizer
from hocket.model.tokenizer import Tokenizer
from hocket.obs.trace import TraceWriter
from hocket.runner.philox import random_bits
from tests.unit.engine.test_async_engine import Slow, run, serve
from tests.unit.engine.test_engine import Dies
from tests.unit.engine.test_interrupts import within
from tests.unit.engine.world import (
    Wrapped,
    drain,
    make_engine,
    request,
    results,
    tokens_of,
)

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


class PanicError(BaseException):
    """As the exceptions of libraries in Rust: no Exception."""


class Raises(Wrapped):
    """The fourth dispatch raises."""

    def __init__(self, inner, error):
        super().__init__(inner)
        self.error, self.left = error, 4

    def execute(self, output, new_requests=()):
        self.left -= 1
        if not self.left:
            raise self.error
        return super().execute(output, new_requests)


KINDS = pytest.mark.parametrize("kind", [OSError, PanicError, SystemExit, KeyboardInterrupt])


@DEPTHS
@KINDS
def test_whatever_a_runner_raises_everybody_who_waits_hears_of_it(depth, kind):
    async def main():
        engine = serve(depth, wrap=lambda inner: Raises(inner, kind("lost")))
        waiting = [asyncio.ensure_future(engine.generate(request(f"r{i}", max_tokens=50))) for i in range(3)]
        for outcome in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10):
            assert isinstance(outcome, EngineDeadError)
            assert isinstance(outcome.__cause__, kind)
        with pytest.raises(EngineDeadError, match="lost"):
            await asyncio.wait_for(engine.add_request(request("late")), 10)
        engine.shutdown()

    run(main)


@DEPTHS
@KINDS
def test_wishes_to_leave_are_raised_as_they_are_and_all_else_as_death(depth, kind):
    with make_engine(depth, wrap=lambda inner: Raises(inner, kind("lost"))) as engine:
        engine.add_request(request("a", max_tokens=20))
        with pytest.raises(kind if kind in (SystemExit, KeyboardInterrupt) else EngineDeadError):
            within(lambda: drain(engine))
        with pytest.raises(EngineDeadError, match="lost") as caught:
            engine.step()
        assert isinstance(caught.value.__cause__, kind)


def test_what_an_action_raises_is_raised_where_it_was_asked_for_and_bothers_nobody():
    async def main():
        def panics(_):
            raise PanicError("mine")

        async with serve() as engine:
            with pytest.raises(PanicError, match="mine"):
                await asyncio.wait_for(engine.call(panics), 10)
            assert (await engine.generate(request("a", max_tokens=3))).finish_reason == "length"

    run(main)


# --- Callbacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("kind", [RuntimeError, PanicError])
def test_a_callback_that_raises_does_not_hang_the_engine(depth, kind):
    def broken():
        raise kind("nobody wakes")

    with make_engine(depth, on_result=broken) as engine:
        engine.add_request(request("a", max_tokens=30))
        with pytest.raises(EngineDeadError, match="nobody wakes"):
            within(lambda: drain(engine))


def test_a_clock_that_raises_does_not_hang_the_engine():
    def clock():
        if threading.current_thread().name == "hocket-runner":
            raise OSError("no clock")
        return 0.0

    with make_engine(2, clock=clock) as engine:
        engine.add_request(request("a", max_tokens=30))
        with pytest.raises(EngineDeadError, match="no clock"):
            within(lambda: drain(engine))


@DEPTHS
def test_an_observer_that_raises_ends_the_engine_after_the_updates(depth):
    def broken(report):
        if any(report.output.samples):
            raise OSError("disk full")

    with make_engine(depth) as engine:
        engine.observers.append(broken)
        engine.add_request(request("a", max_tokens=1))
        updates = {}
        with pytest.raises(EngineDeadError, match="disk full") as caught:
            drain(engine, updates)
    assert isinstance(caught.value.__cause__, OSError)
    assert results(updates)["a"].token_ids == tokens_of((1, 2, 3), 1)


def test_an_observer_that_raises_costs_no_stream_its_last_update():
    async def generate_on(engine):
        while True:
            await engine.generate(request("b"))

    async def main():
        engine = serve()

        def broken(report):
            raise OSError("disk full")

        await engine.call(lambda e: e.observers.append(broken))
        assert (await engine.generate(request("a", max_tokens=1))).finish_reason == "length"
        with pytest.raises(EngineDeadError, match="disk full"):
            await generate_on(engine)
        engine.shutdown()

    run(main)


@DEPTHS
def test_an_observer_may_call_the_engine(depth):
    with make_engine(depth) as engine:
        ended = []

        def ends(report):
            if not ended:
                ended.append(engine.abort_request("a"))

        engine.observers.append(ends)
        engine.add_request(request("a", max_tokens=30))
        engine.add_request(request("b", (4,), max_tokens=5))
        found = drain(engine)
    assert ended[0].finish_reason == "abort"
    assert found["b"][-1].result.token_ids == tokens_of((4,), 5)


# --- Updates that are ready when something else fails ---------------------------------------------


def fails_at_the_end(engine):
    """The next schedule that would only carry notices fails."""
    real = engine.scheduler.schedule

    def schedule():
        if not engine.scheduler.has_unfinished_requests():
            raise OSError("broken")
        return real()

    engine.scheduler.schedule = schedule


@DEPTHS
def test_the_last_update_comes_before_the_failure_of_the_same_step(depth):
    with make_engine(depth) as engine:
        engine.add_request(request("a", max_tokens=2))
        fails_at_the_end(engine)
        updates = {}
        with pytest.raises(EngineDeadError, match="broken"):
            drain(engine, updates)
        assert not engine.has_unfinished_requests()
    assert results(updates)["a"].token_ids == tokens_of((1, 2, 3), 2)


def test_the_last_update_of_an_abort_comes_before_the_failure_of_the_same_call():
    with make_engine(1) as engine:
        engine.add_request(request("a", max_tokens=9))
        engine.step()
        fails_at_the_end(engine)
        assert engine.abort_request("a").finish_reason == "abort"
        assert engine.has_unfinished_requests()
        assert engine.can_step()
        with pytest.raises(EngineDeadError, match="broken"):
            engine.step()
        assert not engine.has_unfinished_requests()


# --- Traces ---------------------------------------------------------------------------------------


class FullDisk(io.StringIO):
    """A file that takes no line of an action."""

    def __init__(self, action, kind):
        super().__init__()
        self.action, self.kind = action, kind

    def write(self, line):
        if json.loads(line)["action"] == self.action:
            raise self.kind("disk full")
        return super().write(line)


@DEPTHS
@pytest.mark.parametrize("kind", [OSError, ValueError])  # a closed file raises ValueError
@pytest.mark.parametrize("action", ["add", "schedule", "complete", "preempt", "abort"])
def test_an_action_that_cannot_be_traced_ends_the_engine_at_once(depth, action, kind):
    with make_engine(depth, trace=TraceWriter(FullDisk(action, kind))) as engine:

        def go():
            engine.add_request(request("a", max_tokens=30))
            for _ in range(3):
                engine.step()
            engine.preempt_request("a")
            engine.abort_request("a")
            raise AssertionError("not refused")

        with pytest.raises(EngineDeadError, match=f"{kind.__name__}: disk full") as caught:
            within(go)
        assert isinstance(caught.value.__cause__, kind)
        for later in (engine.step, lambda: engine.add_request(request("b"))):
            with pytest.raises(EngineDeadError, match="disk full"):
                later()


def test_a_header_that_cannot_be_written_starts_no_thread():
    class Refuses(TraceWriter):
        def header(self, *what):
            raise OSError("disk full")

    before = set(threading.enumerate())
    with pytest.raises(OSError, match="disk full"):
        make_engine(2, trace=Refuses(io.StringIO()))
    assert set(threading.enumerate()) <= before


def test_refusals_are_not_failures():
    with make_engine(1, max_num_queued_reqs=1) as engine:
        engine.add_request(request("a", max_tokens=3))
        with pytest.raises(UnknownRequestError):
            engine.preempt_request("nobody")
        with pytest.raises(ValueError, match="request_id"):
            engine.abort_request(7)
        with pytest.raises(RuntimeError, match="max_num_queued_reqs"):
            engine.add_request(request("b"))
        assert set(results(drain(engine))) == {"a"}


# --- Tokenizers -----------------------------------------------------------------------------------


def panicking():
    """A tokenizer whose library panics at token 8, "|"."""
    content = json.loads(recall_tokenizer()._backend.to_str())
    content["decoder"] = {"type": "Strip", "content": "|", "start": 0, "stop": 3}
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)))


def test_a_panic_of_the_library_is_a_value_error(monkeypatch, tmp_path):
    tokenizer = panicking()
    with pytest.raises(ValueError, match="cannot decode") as caught:
        tokenizer.decode([8])
    assert not isinstance(caught.value.__cause__, Exception), "or else this test tests nothing"

    def panic(*what, **knobs):
        raise PanicError("oh")

    tokenizer._backend = types.SimpleNamespace(encode=panic)
    with pytest.raises(ValueError, match="cannot encode this text: oh"):
        tokenizer.encode("x")
    (tmp_path / "tokenizer.json").write_text("{}")
    broken = types.SimpleNamespace(Tokenizer=types.SimpleNamespace(from_str=panic))
    monkeypatch.setattr(tokenizer_module, "tokenizers", broken)
    with pytest.raises(ValueError, match="not a tokenizer: oh"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_no_panic_passes_through_the_tokenizer(kind):
    def leave(*what, **knobs):
        raise kind

    tokenizer = panicking()
    tokenizer._backend = types.SimpleNamespace(encode=leave, decode=leave)
    with pytest.raises(kind):
        tokenizer.encode("x")
    with pytest.raises(kind):
        tokenizer.decode([1])


@DEPTHS
def test_a_request_whose_text_makes_the_library_panic_fails_alone(depth):
    class Half:
        """Panics for texts with the first three tokens of one request; has none for others."""

        inner = panicking()

        def decode(self, token_ids, *, skip_special_tokens=True):
            bad = tuple(token_ids)[:3] == tokens_of((1, 2, 3), 3)
            return self.inner.decode([8]) if bad else ""

    async def main():
        async with serve(depth, tokenizer=Half()) as engine:
            bad, good = await asyncio.gather(
                engine.generate(request("bad", max_tokens=9)),
                engine.generate(request("good", (4,), max_tokens=9)),
            )
            assert (bad.finish_reason, bad.error.split(":")[0]) == ("error", "ValueError")
            assert good.token_ids == tokens_of((4,), 9)

    run(main)


# --- Who is told what -----------------------------------------------------------------------------


def test_everybody_gets_an_exception_of_their_own():
    async def main():
        engine = serve(2, wrap=lambda inner: Dies(inner, 4))
        waiting = [asyncio.ensure_future(engine.generate(request(f"r{i}", max_tokens=50))) for i in range(3)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        for _ in range(3):
            with pytest.raises(EngineDeadError) as caught:
                await engine.abort("x")
            outcomes.append(caught.value)
        assert len({id(outcome) for outcome in outcomes}) == 6
        assert len({id(outcome.__cause__) for outcome in outcomes}) == 1
        assert isinstance(outcomes[0].__cause__, OSError)
        engine.shutdown()

    run(main)


def test_death_in_the_engine_thread_has_its_cause():
    async def main():
        engine = serve()

        def broken(update):
            raise ZeroDivisionError("bug")

        engine._deliver = broken
        with pytest.raises(EngineDeadError, match="ZeroDivisionError") as caught:
            await engine.generate(request("a"))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        engine.shutdown()

    run(main)


def test_shutdown_keeps_the_first_failure():
    engine = make_engine(2, wrap=lambda inner: Dies(inner, 0))
    engine.add_request(request("a"))
    with pytest.raises(EngineDeadError):
        drain(engine)
    engine.shutdown()
    with pytest.raises(EngineDeadError, match="device lost"):
        engine.step()


def test_a_command_that_was_cancelled_is_not_carried_out_and_harms_nobody():
    engine, gate, done = serve(), threading.Event(), []
    first = engine._post(lambda: gate.wait(10))
    cancelled = engine._post(lambda: done.append("cancelled"))
    other = engine._post(lambda: done.append("other"))
    assert cancelled.cancel()
    gate.set()
    other.result(10)
    assert first.result(10)
    assert done == ["other"]
    assert engine._post(lambda: "alive").result(10) == "alive"
    engine.shutdown()


def test_a_command_that_was_cancelled_before_death_does_not_keep_it_from_others():
    engine, posted = serve(), []

    def step(wait=True):
        posted.append(engine._post(lambda: None))
        assert posted[0].cancel()
        posted.append(engine._post(lambda: None))
        raise OSError("lost")

    engine.engine.step = step
    engine._wake.set()
    engine._thread.join(10)
    with pytest.raises(EngineDeadError, match="lost"):
        posted[1].result(10)
    engine.shutdown()


def test_a_stream_closed_late_leaves_the_next_request_of_its_name_alone():
    async def main():
        async with serve(2, wrap=Slow) as engine:
            old = await engine.add_request(request("a", max_tokens=90))
            assert await engine.abort("a")
            new = await engine.add_request(request("a", (8,), max_tokens=5))
            await old.aclose()  # its last update was never read
            for _ in range(100):
                engine.engine.runner.gate.release()
            last = [update async for update in new][-1]
            assert last.result.token_ids == tokens_of((8,), 5)

    run(main)


def test_a_request_whose_caller_is_cancelled_as_it_is_added_is_dropped():
    async def main():
        async with serve(2, wrap=Slow) as engine:
            loop, real = asyncio.get_running_loop(), engine.engine.add_request

            def add(wanted):
                real(wanted)
                loop.call_soon_threadsafe(task.cancel)
                time.sleep(0.05)

            engine.engine.add_request = add
            task = asyncio.ensure_future(engine.add_request(request("a", max_tokens=90)))
            with pytest.raises(asyncio.CancelledError):
                await task
            try:
                for _ in range(200):
                    if not await engine.call(lambda e: e._outputs.request_ids):
                        return
                    await asyncio.sleep(0.005)
                raise AssertionError("it lives on, and nobody listens")
            finally:
                for _ in range(200):
                    engine.engine.runner.gate.release()

    run(main)


# --- When another step is worth while -------------------------------------------------------------


def test_with_a_full_pipeline_only_a_result_makes_a_step_worth_while():
    with make_engine(2, wrap=Slow) as engine:
        engine.add_request(request("a", max_tokens=5))
        assert engine.step(wait=False) == []
        assert len(engine._in_flight) == 2
        assert not engine.can_step()
        for _ in range(20):
            engine.runner.gate.release()
        deadline = time.monotonic() + 10
        while not engine.can_step():
            assert time.monotonic() < deadline
        assert drain(engine)


@pytest.mark.parametrize("action", ["abort", "preempt", "add"])
def test_after_an_empty_output_an_action_makes_a_step_worth_while(action):
    """Depth 4, all of request a is in flight, its neighbour waits for the seat."""
    with make_engine(4, wrap=Slow, max_num_seqs=1) as engine:
        engine.add_request(request("a", max_tokens=2))
        engine.add_request(request("b", (4,), max_tokens=2))
        engine.step(wait=False)
        assert len(engine._in_flight) == 2
        assert not engine.can_step()
        if action == "abort":
            engine.abort_request("a")
        elif action == "preempt":
            engine.preempt_request("a")
        else:
            engine.add_request(request("c"))
        assert engine.can_step()
        for _ in range(40):
            engine.runner.gate.release()
        found = within(lambda: drain(engine))
        assert found["b"][-1].result.token_ids == tokens_of((4,), 2)


def test_the_seed_of_a_request_follows_from_the_number_of_requests_before_it():
    seen = {}

    class Sees(Wrapped):
        def execute(self, output, new_requests=()):
            seen.update({new.request.request_id: new.seed for new in new_requests})
            return super().execute(output, new_requests)

    with make_engine(1, wrap=Sees, seed=5) as engine:
        run_all(engine, [request("a"), request("own", seed=77), request("b"), request("c")])
    assert seen == {"a": random_bits(5, 0), "own": 77, "b": random_bits(5, 2), "c": random_bits(5, 3)}

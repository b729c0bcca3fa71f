"""The engine behind asyncio: streams, aborts, refusals, death and shutdown."""

import asyncio
import threading

import pytest

from hocket import Request, SamplingParams, SchedulerConfig
from hocket.engine.async_engine import AsyncEngine
from hocket.engine.errors import EngineDeadError
from hocket.obs.trace import AddRecord, TraceWriter, read_trace
from tests.e2e.world import tiny_folder
from tests.unit.engine.test_engine import Dies
from tests.unit.engine.world import Wrapped, make_engine, request, text_of, tokens_of

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


def serve(depth=2, **knobs):
    return AsyncEngine(lambda on_result: make_engine(depth, on_result=on_result, **knobs))


def run(main):
    """Run a coroutine function to its end; a test that hangs is red soon."""
    return asyncio.run(asyncio.wait_for(main(), 60))


@DEPTHS
def test_streams_side_by_side(depth):
    async def main():
        async with serve(depth) as engine:
            prompts = [(i, i + 1, i + 2) for i in range(7)]

            async def one(i):
                updates = [u async for u in engine.stream(request(f"r{i}", prompts[i], max_tokens=10 + i))]
                assert [u.finished for u in updates] == [False] * (len(updates) - 1) + [True]
                assert "".join(u.new_text for u in updates) == updates[-1].result.text
                return updates[-1].result

            found = await asyncio.gather(*map(one, range(7)))
            for i, result in enumerate(found):
                assert result.token_ids == tokens_of(prompts[i], 10 + i)
                assert result.text == text_of(result.token_ids)

    run(main)


def test_late_arrivals_and_idle_times():
    async def main():
        async with serve() as engine:
            for i in range(3):
                result = await engine.generate(request("again", (i,), max_tokens=4))
                assert result.token_ids == tokens_of((i,), 4)
                await asyncio.sleep(0.02)

    run(main)


def test_the_engine_sleeps_while_nothing_happens():
    async def main():
        async with serve() as engine:
            await engine.generate(request("a"))
            await asyncio.sleep(0.05)
            steps = 0
            real = engine.engine.step

            def counted(wait=True):
                nonlocal steps
                steps += 1
                return real(wait)

            engine.engine.step = counted
            await asyncio.sleep(0.2)
            assert steps <= 1

    run(main)


def test_a_command_that_comes_while_the_thread_prepares_to_sleep_is_not_lost():
    class Tricky(threading.Event):
        """Lets a command come in at the very moment of the first `clear`."""

        late = None

        def clear(self):
            if self.late is None:
                self.late = engine._post(lambda: "obeyed")
            super().clear()

    engine = serve(1)
    asleep, engine._wake = engine._wake, Tricky()
    asleep.set()
    assert engine._post(lambda: "first").result(10) == "first"
    assert engine._wake.late.result(10) == "obeyed"
    engine.shutdown()


class Slow(Wrapped):
    """Every dispatch waits for permission."""

    def __init__(self, inner):
        super().__init__(inner)
        self.gate = threading.Semaphore(0)

    def execute(self, output, new_requests=()):
        if not output.is_empty:
            assert self.gate.acquire(timeout=30)
        return super().execute(output, new_requests)


def test_an_arrival_is_scheduled_while_another_dispatch_runs():
    """With room in the pipeline nobody waits for the dispatch that runs."""

    async def main():
        async with serve(3, wrap=Slow) as engine:
            first = asyncio.ensure_future(engine.generate(request("a", max_tokens=2)))
            while await engine.call(lambda e: e.scheduler.num_in_flight) < 2:
                await asyncio.sleep(0.001)
            second = asyncio.ensure_future(engine.generate(request("b", (4,), max_tokens=2)))
            while await engine.call(lambda e: e.scheduler.num_running) < 2:
                await asyncio.sleep(0.001)
            for _ in range(20):
                engine.engine.runner.gate.release()
            assert (await first).token_ids == tokens_of((1, 2, 3), 2)
            assert (await second).token_ids == tokens_of((4,), 2)

    run(main)


@DEPTHS
def test_abort_ends_the_stream(depth):
    async def main():
        async with serve(depth) as engine:
            updates = []
            async for update in engine.stream(request("a", max_tokens=90)):
                updates.append(update)
                if len(updates) == 3:
                    assert await engine.abort("a")
            assert updates[-1].finish_reason == "abort"
            assert not await engine.abort("a")
            assert not await engine.abort("nobody")
            assert (await engine.generate(request("a", (8,), max_tokens=5))).token_ids == tokens_of((8,), 5)

    run(main)


@DEPTHS
def test_leaving_a_stream_early_aborts_its_request_and_no_other_of_that_name(depth):
    async def main():
        async with serve(depth) as engine:
            stream = engine.stream(request("a", max_tokens=90))
            await anext(stream)
            await stream.aclose()
            result = await engine.generate(request("a", (8,), max_tokens=20))
            assert result.token_ids == tokens_of((8,), 20)
            assert await engine.call(lambda e: e.scheduler.has_unfinished_requests()) is False

    run(main)


def test_a_request_is_accepted_or_refused_before_its_first_update():
    async def main():
        async with serve() as engine:
            stream = await engine.add_request(request("a", max_tokens=5))
            with pytest.raises(ValueError, match="unique"):
                await engine.add_request(request("a"))
            assert [u.finished async for u in stream][-1]
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
            await stream.aclose()
            dropped = await engine.add_request(request("a", max_tokens=90))
            await anext(dropped)
            await dropped.aclose()
            await dropped.aclose()
            while await engine.call(lambda e: e.has_unfinished_requests()):
                await asyncio.sleep(0.001)

    run(main)


def test_a_cancelled_task_leaves_nothing_behind():
    async def main():
        async with serve(2, wrap=Slow) as engine:
            task = asyncio.ensure_future(engine.generate(request("a", max_tokens=90)))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(200):
                engine.engine.runner.gate.release()
            while await engine.call(lambda e: e.has_unfinished_requests()):
                await asyncio.sleep(0.001)
            assert (await engine.generate(request("a", max_tokens=2))).finish_reason == "length"

    run(main)


def test_a_bad_request_is_refused_and_bothers_nobody():
    async def main():
        async with serve() as engine:
            good = asyncio.ensure_future(engine.generate(request("good", max_tokens=30)))
            await asyncio.sleep(0)
            with pytest.raises(ValueError, match="prompt_token_ids"):
                await engine.generate(request("bad", (99,)))
            assert (await good).token_ids == tokens_of((1, 2, 3), 30)

    run(main)


@DEPTHS
def test_death_reaches_everybody_who_waits_and_everybody_who_comes(depth):
    async def main():
        engine = serve(depth, wrap=lambda inner: Dies(inner, 4))
        waiting = [asyncio.ensure_future(engine.generate(request(f"r{i}", max_tokens=50))) for i in range(3)]
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, EngineDeadError)
            assert "device lost" in str(outcome)
        assert engine.is_dead
        for late in (engine.generate(request("late")), engine.abort("r0"), engine.call(lambda e: e)):
            with pytest.raises(EngineDeadError, match="device lost"):
                await late
        engine.shutdown()

    run(main)


def test_an_unexpected_fault_in_the_engine_thread_is_a_death_too():
    async def main():
        engine = serve()

        def broken(update):
            raise ZeroDivisionError("bug")

        engine._deliver = broken
        with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
            await engine.generate(request("a"))
        engine.shutdown()

    run(main)


def test_shutdown_aborts_what_lives():
    async def main():
        engine = serve()
        stream = engine.stream(request("a", max_tokens=90))
        await anext(stream)
        await asyncio.get_running_loop().run_in_executor(None, engine.shutdown)
        rest = [update async for update in stream]
        assert rest[-1].finish_reason == "abort"
        with pytest.raises(EngineDeadError, match="shut down"):
            await engine.generate(request("b"))

    run(main)


def test_a_caller_whose_loop_is_gone_does_not_stop_the_engine():
    engine = serve()

    async def start():
        stream = engine.stream(request("a", max_tokens=90))
        await anext(stream)
        return stream  # never finished: the loop closes first

    loop = asyncio.new_event_loop()
    stream = loop.run_until_complete(start())
    loop.close()

    async def main():
        return await engine.generate(request("b", (4,), max_tokens=5))

    assert run(main).token_ids == tokens_of((4,), 5)
    engine.shutdown()
    del stream


def test_a_checkpoint_folder_is_served_with_seed_and_trace(tmp_path):
    """The same seed says the same, another one something else, and the trace has what was done."""
    config = SchedulerConfig(max_num_seqs=2, max_model_len=400)
    params = SamplingParams(max_tokens=12, temperature=8.0, ignore_eos=True)

    async def said(seed):
        with TraceWriter(tmp_path / str(seed)) as trace:
            async with AsyncEngine.from_model(tiny_folder(), config, seed=seed, trace=trace) as engine:
                return (await engine.generate(Request("r", (1, 2, 3), params))).token_ids

    first, again, other = (asyncio.run(said(seed)) for seed in (5, 5, 6))
    assert first == again != other
    assert any(isinstance(record, AddRecord) for record in read_trace(tmp_path / "6").records)

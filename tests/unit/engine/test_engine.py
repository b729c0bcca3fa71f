"""The engine on a simulated runner: results, stops, failures that stay alone, and death that does not."""

import subprocess
import sys
from dataclasses import replace

import pytest

from hocket import KVCacheConfig, KVGroupSpec
from hocket.core.errors import QueueFullError
from hocket.core.phase import Phase
from hocket.engine.engine import run_all
from hocket.engine.errors import EngineDeadError
from hocket.engine.results import RequestMetrics
from hocket.runner.simulated import SimulatedRunner
from tests.unit.engine.world import (
    KV,
    VOCAB,
    Letters,
    Wrapped,
    drain,
    make_engine,
    request,
    results,
    step_into,
    text_of,
    tokens_of,
    wait_for_runner,
)

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


@DEPTHS
def test_results_do_not_depend_on_depth(depth):
    with make_engine(depth) as engine:
        prompts = {f"r{i}": tuple(range(i, i + 3 + 6 * i)) for i in range(4)}
        prompts = {name: tuple(token % VOCAB for token in prompt) for name, prompt in prompts.items()}
        for name, prompt in prompts.items():
            engine.add_request(request(name, prompt, max_tokens=9))
        found = results(drain(engine))
    for name, prompt in prompts.items():
        assert found[name].token_ids == tokens_of(prompt, 9)
        assert found[name].text == text_of(tokens_of(prompt, 9))
        assert found[name].prompt_token_ids == prompt
        assert found[name].finish_reason == "length"
        assert found[name].error is None


@DEPTHS
def test_the_pipeline_is_filled_to_its_depth(depth):
    with make_engine(depth) as engine:
        engine.add_request(request("a", max_tokens=30))
        most = 0
        while engine.has_unfinished_requests():
            engine._fill()
            most = max(most, engine.scheduler.num_in_flight)
            engine.step()
    assert most == depth


@DEPTHS
def test_the_runner_hears_of_the_last_end_too(depth):
    with make_engine(depth) as engine:
        run_all(engine, [request("a"), request("b", max_tokens=3)])
    assert engine.runner.slots.request_ids == ()
    with make_engine(depth) as engine:
        engine.add_request(request("c"))
        engine.step()
        engine.abort_request("c")
        drain(engine)
    assert engine.runner.slots.request_ids == ()
    assert engine.runner.slots.records == {}


@DEPTHS
@pytest.mark.parametrize("kind", ["eos", "stop_token_ids"])
def test_stop_tokens(depth, kind):
    tokens = tokens_of((1, 2, 3), 20)
    stop = tokens[5]
    at = tokens.index(stop)
    knobs = {"eos": stop} if kind == "eos" else {"stop_token_ids": (stop,)}
    with make_engine(depth) as engine:
        last = run_all(engine, [request("a", max_tokens=20, **knobs), request("b", (4, 5), max_tokens=20)])
    assert last["a"].result.token_ids == tokens[: at + 1]
    assert last["a"].result.finish_reason == "stop"
    assert last["b"].result.token_ids == tokens_of((4, 5), 20)


@DEPTHS
def test_min_tokens_and_ignore_eos(depth):
    tokens = tokens_of((1, 2, 3), 20)
    stop = tokens[2]
    again = next((i for i in range(5, 20) if tokens[i] == stop), None)
    with make_engine(depth) as engine:
        last = run_all(
            engine,
            [
                request("min", max_tokens=20, eos=stop, min_tokens=6),
                request("ignore", max_tokens=20, eos=stop, ignore_eos=True),
            ],
        )
    assert last["min"].result.token_ids == (tokens if again is None else tokens[: again + 1])
    assert last["ignore"].result.token_ids == tokens


@DEPTHS
def test_max_model_len_ends_by_length(depth):
    with make_engine(depth, max_model_len=12) as engine:
        last = run_all(engine, [request("a", (1,) * 8, max_tokens=50)])
    assert last["a"].result.token_ids == tokens_of((1,) * 8, 4)
    assert last["a"].finish_reason == "length"


@DEPTHS
def test_a_stop_string_cuts_the_text_and_frees_the_request(depth):
    tokens = tokens_of((1, 2, 3), 40)
    text = text_of(tokens)
    stop = text_of(tokens[6:9])[1:]  # from inside a token's text to inside another's
    where = text.index(stop)
    done = next(n for n in range(1, 41) if stop in text_of(tokens[:n]))
    with make_engine(depth) as engine:
        engine.add_request(request("a", max_tokens=40, stop=(stop, "not there")))
        engine.add_request(request("b", (7,), max_tokens=40))
        found = results(drain(engine))
    assert engine.runner.slots.request_ids == ()
    assert found["a"].text == text[:where]
    assert found["a"].token_ids == tokens[:done]
    assert found["a"].finish_reason == "stop"
    assert found["b"].token_ids == tokens_of((7,), 40)


@DEPTHS
def test_a_stop_string_completed_by_the_last_token_allowed(depth):
    tokens = tokens_of((1, 2, 3), 5)
    stop = text_of(tokens)[-3:]
    with make_engine(depth) as engine:
        last = run_all(engine, [request("a", max_tokens=5, stop=(stop,))])
    assert last["a"].result.finish_reason == "stop"
    assert last["a"].result.text == text_of(tokens)[: text_of(tokens).index(stop)]


@DEPTHS
def test_a_stop_string_in_the_middle_of_accepted_drafts_drops_the_tokens_after_it(depth):
    tokens = tokens_of((1, 2, 3), 20)
    done = 7  # three drafts a row: rows end at tokens 1, 5, 9, ...
    stop = text_of(tokens[done - 2 : done])
    assert stop not in text_of(tokens[: done - 1])
    kv_runner = SimulatedRunner(KV, max_num_seqs=4, max_model_len=100, vocab_size=VOCAB, acceptance=1.0)
    with make_engine(depth, runner=kv_runner, num_speculative_tokens=3) as engine:
        engine.add_request(request("a", max_tokens=20, stop=(stop,)))
        found = results(drain(engine))
    assert found["a"].token_ids == tokens[:done]
    assert found["a"].text == text_of(tokens)[: text_of(tokens).index(stop)]


@DEPTHS
def test_min_tokens_keeps_stop_strings_away(depth):
    tokens = tokens_of((1, 2, 3), 30)
    stop = text_of(tokens[:1])
    with make_engine(depth) as engine:
        last = run_all(engine, [request("a", max_tokens=30, min_tokens=4, stop=(stop,))])
    result = last["a"].result
    assert len(result.token_ids) >= 4
    assert result.text.startswith(text_of(tokens[:3]))


def test_text_that_may_begin_a_stop_string_is_held_back():
    tokens = tokens_of((1, 2, 3), 4)
    stop = text_of(tokens[:2]) + "!"
    with make_engine(1) as engine:
        engine.add_request(request("a", max_tokens=4, stop=(stop,)))
        texts = [update.new_text for update in drain(engine)["a"]]
    assert texts[:2] == ["", ""]
    assert "".join(texts) == text_of(tokens)


@DEPTHS
def test_abort(depth):
    with make_engine(depth) as engine:
        engine.add_request(request("a", max_tokens=50))
        engine.add_request(request("b", (5,), max_tokens=6))
        updates = {}
        for _ in range(4):
            step_into(engine, updates)
        update = engine.abort_request("a")
        updates["a"].append(update)
        assert engine.abort_request("a") is None
        assert engine.abort_request("nobody") is None
        found = results(drain(engine, updates))
    assert found["a"].finish_reason == "abort"
    assert found["a"].token_ids == tokens_of((1, 2, 3), 50)[: len(found["a"].token_ids)]
    assert found["a"].text == text_of(found["a"].token_ids)
    assert found["b"].token_ids == tokens_of((5,), 6)


def test_a_request_aborted_before_its_first_row_leaves_nothing():
    with make_engine(1) as engine:
        engine.add_request(request("a"))
        assert engine.abort_request("a").result.token_ids == ()
        assert not engine.has_unfinished_requests()
        assert engine._unsent == {}
        assert engine.step() == []
    assert engine.runner.slots.records == {}


@DEPTHS
def test_external_preemption_changes_no_token(depth):
    with make_engine(depth) as engine:
        engine.add_request(request("a", range(20), max_tokens=20))
        engine.add_request(request("b", (5,), max_tokens=20))
        updates = {}
        for i in range(400):
            if not engine.has_unfinished_requests():
                break
            if i % 7 == 3:
                for name in ("a", "b"):
                    state = engine.scheduler.request_state(name)
                    if state is not None and state.status == "running":
                        engine.preempt_request(name)
            step_into(engine, updates)
        found = results(updates)
    assert found["a"].token_ids == tokens_of(range(20), 20)
    assert found["b"].token_ids == tokens_of((5,), 20)
    assert found["a"].metrics.num_preemptions + found["b"].metrics.num_preemptions == engine.stats.preemptions
    assert engine.stats.preemptions > 2


@DEPTHS
def test_memory_pressure_changes_no_token(depth):
    kv = KVCacheConfig(groups=(KVGroupSpec("full", 4, 9), KVGroupSpec("near", 2, 16, window=5)))
    with make_engine(depth, kv=kv) as engine:
        wanted = [request(f"r{i}", range(i, i + 6), max_tokens=18) for i in range(4)]
        last = run_all(engine, wanted)
    assert engine.stats.preemptions > 0
    for item in wanted:
        assert last[item.request_id].result.token_ids == tokens_of(item.prompt_token_ids, 18)


@DEPTHS
def test_after_an_empty_output_something_happens_before_the_next_call(depth):
    """A result, an arrival, an abort or a preemption; and with a full pipeline nobody asks."""
    kv = KVCacheConfig(groups=(KVGroupSpec("full", 4, 9), KVGroupSpec("near", 2, 16, window=5)))
    with make_engine(depth, kv=kv) as engine:
        scheduler, quiet, empties = engine.scheduler, False, 0

        def watched(action, name):
            def call(*args, **kwargs):
                nonlocal quiet, empties
                if name == "schedule":
                    assert not quiet, "nothing has happened since an empty output"
                    assert scheduler.num_in_flight < depth
                outcome = action(*args, **kwargs)
                quiet = name == "schedule" and outcome.is_empty
                empties += quiet
                return outcome

            return call

        for name in ("schedule", "update_from_output", "add_request", "abort_request", "preempt_request"):
            setattr(scheduler, name, watched(getattr(scheduler, name), name))
        for i in range(4):
            engine.add_request(request(f"r{i}", range(i, i + 6), max_tokens=18))
        for i in range(500):
            if i == 9:
                engine.preempt_request("r0")
            if i == 15:
                engine.abort_request("r3")
            engine.step()
        assert not engine.has_unfinished_requests()
    assert empties > 0


def test_the_worst_gap_is_the_longest_between_two_results():
    metrics = RequestMetrics(arrival_s=10.0)
    assert (metrics.ttft_s, metrics.latency_s) == (None, None)
    for now in (13.0, 14.0, 19.0, 21.0):
        metrics.tokens_at(now)
    assert (metrics.ttft_s, metrics.worst_gap_s, metrics.last_token_s) == (3.0, 5.0, 21.0)


def test_metrics_and_stats():
    ticks = iter(range(10**6))
    with make_engine(1, clock=lambda: float(next(ticks))) as engine:
        last = run_all(engine, [request("a", range(20), max_tokens=5), request("b", max_tokens=2)])
    for name in "ab":
        metrics = last[name].result.metrics
        assert 0 <= metrics.arrival_s < metrics.first_token_s <= metrics.last_token_s <= metrics.finished_s
        assert metrics.ttft_s == metrics.first_token_s - metrics.arrival_s
        assert metrics.latency_s == metrics.finished_s - metrics.arrival_s
        assert metrics.worst_gap_s >= 1
    stats = engine.stats
    assert stats.prefill_tokens == 23
    assert stats.decode_tokens == 4 + 1
    assert stats.prefill_steps == stats.prefill_s == 3
    assert stats.decode_tokens_per_s == stats.decode_tokens / stats.decode_s


def test_observers_see_every_step_in_order():
    with make_engine(2) as engine:
        reports = []
        engine.observers.append(reports.append)
        run_all(engine, [request("a", range(20), max_tokens=4)])
    assert [report.output.step_id for report in reports] == list(range(1, len(reports) + 1))
    assert [report.output.phase for report in reports][:3] == [Phase.PREFILL] * 3


BAD = {
    "prompt token": (
        request("x", (1, VOCAB)),
        r"request 'x': prompt_token_ids\[1\] must be an int in \[0, 25\], got 26",
    ),
    "stop token": (request("x", stop_token_ids=(3, 99)), r"request 'x': stop_token_ids\[1\]"),
    "logprobs": (request("x", logprobs=27), "request 'x': logprobs"),
    "too long": (request("x", (1,) * 100), "request 'x': prompt_token_ids must hold at most"),
    "twice": (request("live"), "request_id must be unique"),
    "no request": ("x", "request must be a Request"),
    "never fits": (request("x", (1,) * 90, max_tokens=9), "needs 25 blocks of KV cache pool 'full'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_are_refused_before_anything_changes(case):
    bad, message = BAD[case]
    kv = KVCacheConfig(groups=(KVGroupSpec("full", 4, 20), KVGroupSpec("near", 2, 60, window=5)))
    with make_engine(2, kv=kv) as engine:
        engine.add_request(request("live", max_tokens=5))
        updates = {}
        step_into(engine, updates)
        for action in (engine.check_request, engine.add_request):
            with pytest.raises(ValueError, match=message):
                action(bad)
        assert engine.scheduler.num_waiting == 0
        assert engine._outputs.request_ids == ("live",)
        assert results(drain(engine, updates))["live"].token_ids == tokens_of((1, 2, 3), 5)


def test_stop_strings_need_a_tokenizer():
    engine = make_engine(1)
    engine.tokenizer = None
    with pytest.raises(ValueError, match="stop must be"):
        engine.add_request(request("x", stop=("a",)))


def test_a_full_queue_refuses_and_checking_does_not_mind():
    with make_engine(1, max_num_queued_reqs=1) as engine:
        engine.add_request(request("a"))
        engine.check_request(request("b"))
        with pytest.raises(QueueFullError):
            engine.add_request(request("b"))
        assert set(results(drain(engine))) == {"a"}


class FailsOn(Letters):
    """Detokenising fails at certain tokens."""

    def __init__(self, tokens):
        self.tokens = tokens

    def decode(self, token_ids, *, skip_special_tokens=True):
        if tuple(token_ids)[-len(self.tokens) :] == self.tokens:
            raise KeyError("no such piece")
        return super().decode(token_ids)


@DEPTHS
@pytest.mark.parametrize("count", [3, 8])
def test_a_request_whose_text_fails_fails_alone(depth, count):
    """count 8 is the very token with which the scheduler ends the request by itself."""
    tokens = tokens_of((1, 2, 3), 8)
    with make_engine(depth, tokenizer=FailsOn(tokens[count - 3 : count])) as engine:
        updates = {}
        engine.add_request(request("bad", max_tokens=8))
        engine.add_request(request("good", (9, 9), max_tokens=8))
        updates = drain(engine, updates)
    assert [update.finished for update in updates["bad"]].count(True) == 1
    result = updates["bad"][-1].result
    assert result.finish_reason == "error"
    assert result.error == "KeyError: 'no such piece'"
    assert results({"good": updates["good"]})["good"].token_ids == tokens_of((9, 9), 8)
    assert engine.runner.slots.request_ids == ()


class FailsRow(Wrapped):
    """The n-th sampling row of a request fails."""

    def __init__(self, inner, name="bad", at=3):
        super().__init__(inner)
        self.name, self.left = name, at

    def execute(self, output, new_requests=()):
        result = super().execute(output, new_requests)
        if result is None or self.name not in output.request_ids:
            return result
        row = output.request_ids.index(self.name)
        self.left -= output.samples[row]
        if self.left > 0 or not output.samples[row]:
            return result
        sampled = list(result.sampled_token_ids)
        sampled[row] = ()
        return replace(result, sampled_token_ids=tuple(sampled), failures={row: "no finite logits"})


@DEPTHS
@pytest.mark.parametrize("at", [1, 3])
def test_a_row_that_fails_ends_its_request_alone(depth, at):
    with make_engine(depth, wrap=lambda inner: FailsRow(inner, at=at)) as engine:
        engine.add_request(request("bad", range(12), max_tokens=8))
        engine.add_request(request("good", (9, 9), max_tokens=8))
        found = results(drain(engine))
    assert found["bad"].finish_reason == "error"
    assert found["bad"].error == "no finite logits"
    assert found["bad"].token_ids == tokens_of(range(12), 8)[: at - 1]
    assert found["good"].token_ids == tokens_of((9, 9), 8)


def test_a_failed_row_of_an_ended_epoch_ends_nobody():
    """The row fails, but its request was preempted meanwhile: it starts again and succeeds."""

    class FailsOnce(FailsRow):
        def execute(self, output, new_requests=()):
            result = super().execute(output, new_requests)
            if self.left <= 0:
                self.name = "nobody"
            return result

    with make_engine(2, wrap=lambda inner: FailsOnce(inner, at=3)) as engine:
        engine.add_request(request("bad", max_tokens=8))
        updates = {}
        while engine.runner.left > 0:
            step_into(engine, updates)
            engine._fill()
            wait_for_runner(engine)
        engine.preempt_request("bad")  # the row that failed has run, its result is not processed
        found = results(drain(engine, updates))
    assert found["bad"].finish_reason == "length"
    assert found["bad"].token_ids == tokens_of((1, 2, 3), 8)


class Dies(Wrapped):
    def __init__(self, inner, after):
        super().__init__(inner)
        self.left = after

    def execute(self, output, new_requests=()):
        self.left -= 1
        if self.left < 0:
            raise OSError("device lost")
        return super().execute(output, new_requests)


@DEPTHS
@pytest.mark.parametrize("after", [0, 3])
def test_an_engine_that_dies_says_so(depth, after):
    engine = make_engine(depth, wrap=lambda inner: Dies(inner, after))
    engine.add_request(request("a", max_tokens=20))
    with pytest.raises(EngineDeadError, match="OSError: device lost") as caught:
        drain(engine)
    assert isinstance(caught.value.__cause__, OSError)
    for action in (
        engine.step,
        lambda: engine.add_request(request("b")),
        lambda: engine.abort_request("a"),
        lambda: engine.preempt_request("a"),
    ):
        with pytest.raises(EngineDeadError, match="device lost"):
            action()
    engine.shutdown()


@DEPTHS
def test_a_malformed_pack_kills_the_engine_and_changes_no_byte_of_the_runner(depth):
    from tests.unit.runner.test_steps import state_bytes

    with make_engine(depth) as engine:
        engine.add_request(request("a", (5,) * 60, max_tokens=4))
        engine.step()
        schedule = engine.scheduler.schedule

        def spoilt():
            output = schedule()
            if output.phase == Phase.PREFILL:
                return replace(output, num_computed_tokens=tuple(n + 1 for n in output.num_computed_tokens))
            return output

        engine.scheduler.schedule = spoilt
        with pytest.raises(
            EngineDeadError, match=r"packed prefill: request 0 \('a'\): chunk_start"
        ) as caught:
            drain(engine)
        assert isinstance(caught.value.__cause__, ValueError)
        before = state_bytes(engine.runner)
        with pytest.raises(EngineDeadError):
            engine.step()
    assert state_bytes(engine.runner) == before


def test_an_engine_that_was_shut_down_refuses():
    engine = make_engine(2)
    engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        engine.step()


@pytest.mark.parametrize("depth", [1, 2])
def test_ctrl_c_while_waiting_for_a_result_leaves_the_engine_alive(depth, monkeypatch):
    """At depth 1 it interrupts the runner itself: that engine is dead."""
    with make_engine(depth) as engine:
        engine.add_request(request("a", max_tokens=5))
        updates = {}
        step_into(engine, updates)

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            target = (engine._executor, "collect") if depth == 2 else (engine.runner, "execute")
            patch.setattr(*target, interrupted)
            with pytest.raises(KeyboardInterrupt):
                engine.step()
        if depth == 2:
            assert results(drain(engine, updates))["a"].finish_reason == "length"
        else:
            with pytest.raises(EngineDeadError):
                engine.step()


def test_seeds_of_requests():
    seen = {}

    class Sees(Wrapped):
        def execute(self, output, new_requests=()):
            seen.update({new.request.request_id: new.seed for new in new_requests})
            return super().execute(output, new_requests)

    for seed in (0, 0, 1):
        seen.clear()
        with make_engine(1, wrap=Sees, seed=seed) as engine:
            run_all(engine, [request("own", seed=77), request("a"), request("b")])
        assert seen["own"] == 77
        assert len({*seen.values()}) == 3
        if seed == 0:
            first = getattr(test_seeds_of_requests, "first", dict(seen))
            test_seeds_of_requests.first = first
            assert seen == first
        else:
            assert seen["a"] != first["a"]
    with pytest.raises(ValueError, match="seed must be"):
        make_engine(1, seed=-1)


def test_no_torch_without_a_model():
    code = (
        "import sys; import hocket.engine.engine, hocket.engine.async_engine, hocket.runner.simulated, "
        "hocket.obs.trace; from hocket import Engine, AsyncEngine; "
        "assert not {'torch', 'tokenizers', 'tqdm'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""Shadow mode: healthy runs pass with the model beside them; a seeded fault is stopped with its property."""

import sys
from importlib.abc import MetaPathFinder
from typing import Any

import pytest

from hocket import KVCacheConfig, KVGroupSpec
from hocket.cli.main import main
from hocket.engine.errors import EngineDeadError
from hocket.engine.llm import LLM
from hocket.model.recall import needle_prompt, recall_folder
from hocket.obs.shadow import ShadowCheckError
from hocket.obs.trace import ScheduleRecord, TraceWriter, read_trace
from hocket.sched.scheduler import Scheduler
from hocket_proofs.refuted import FAULTS
from hocket_proofs.refuted.fault import seeded
from tests.unit.engine.world import drain, make_engine, request, results, step_into, wait_for_runner

TIGHT = KVCacheConfig(
    groups=(KVGroupSpec("full", 4, pool="main"), KVGroupSpec("near", 2, window=5, pool="main")),
    pools={"main": 18},
)


def busy(engine: Any) -> dict[str, Any]:
    """Memory pressure, preemption from outside, abort, a stop string's place, and names that come again."""
    updates: dict[str, Any] = {}
    for i in range(3):
        engine.add_request(request(f"r{i}", range(i, i + 7), max_tokens=24, priority=-i, eos=25))
    engine.add_request(request("leaves", range(9), max_tokens=20))
    for i in range(14):
        step_into(engine, updates)
        if i == 4:
            engine.preempt_request("r1")
        if i in (6, 9):
            update = engine.abort_request("leaves")
            assert update is not None
            engine.add_request(request("leaves", range(i), max_tokens=5))
    return drain(engine, updates)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_healthy_run_is_the_same_with_it(depth: int) -> None:
    said = []
    for shadow_check in (False, True):
        with make_engine(depth, kv=TIGHT, shadow_check=shadow_check) as engine:
            updates = busy(engine)
            said.append({name: [u.new_token_ids for u in news] for name, news in updates.items()})
            assert engine.stats.preemptions > 1
            assert bool(engine._recorders) == shadow_check
    assert said[0] == said[1]


@pytest.mark.parametrize("depth", [2, 3])
def test_id_that_comes_again_while_its_old_rows_are_in_flight(depth: int) -> None:
    """Before the notice of its end was handed out, and after it."""
    with make_engine(depth, shadow_check=True) as engine:
        engine.add_request(request("other", range(9), max_tokens=40))
        for i in range(12):
            engine.add_request(request("again", range(3 + i), max_tokens=20))
            for _ in range(1 + i % 4):
                engine.step()
            assert engine.abort_request("again") is not None
        engine.add_request(request("again", range(5), max_tokens=4))
        found = {u.request_id: u.result for news in drain(engine).values() for u in news if u.result}
        assert len(found["again"].token_ids) == 4


def test_drafts_conform() -> None:
    with make_engine(2, num_speculative_tokens=2, shadow_check=True) as engine:
        engine.add_request(request("a", range(20), max_tokens=30))
        engine.add_request(request("b", range(3), max_tokens=9))
        assert set(results(drain(engine))) == {"a", "b"}
        assert engine.stats.num_accepted_tokens > 0


# Faults of the scheduler, the property with which the shadow stops each, and a depth at which it shows.
STOPPED = {
    "both phases in one dispatch": ("S1 homogeneity", 1),
    "the epoch survives preemption": ("S2 no-stale-mutation", 2),
    "one discard flag per request": ("S3 drained-readmission", 2),
    "a block handed out twice": ("S5 block-conservation", 1),
    "freed blocks are handed out at once": ("S6 no-write-after-free", 2),
    "results of an ended epoch count": ("S8 token-accounting", 2),
    "replay judged by prompt length": ("S9 budgets", 1),
    "abort without notice": ("S10 one-terminal-event", 1),
    "a fallback uses up the turn": ("L1 bounded-wait", 3),
    "no fallback in the same call": ("L2 work-conservation", 1),
    "reservation that counts depth while refusal does not": ("L4 admission", 2),
    "promises are not kept": ("L6 minimal-preemption", 1),
}


def died(depth: int, **knobs: Any) -> EngineDeadError:
    """The end of a busy engine."""
    with make_engine(depth, kv=TIGHT, shadow_check=True, **knobs) as engine:
        with pytest.raises(EngineDeadError) as caught:
            busy(engine)
        return caught.value


@pytest.mark.parametrize("name", STOPPED)
def test_seeded_fault_is_stopped_with_its_property(name: str) -> None:
    expected, depth = STOPPED[name]
    fault = next(f for f in FAULTS if f.name == name)
    with seeded(fault):
        error = died(depth)
    cause = error.__cause__
    assert isinstance(cause, ShadowCheckError)
    assert cause.why.partition(":")[0] == expected
    assert 0 < len(cause.before) <= 10
    assert expected in str(error)
    assert all(f"\n    {action}" in str(error) for action in cause.before)


def test_what_is_refused_is_not_carried_out_and_ends_the_trace(tmp_path: Any) -> None:
    """The runner never sees the dispatch; the trace has it as its last record."""
    fault = next(f for f in FAULTS if f.name == "both phases in one dispatch")
    path = tmp_path / "trace.ndjson"
    with seeded(fault), TraceWriter(path) as trace, make_engine(1, shadow_check=True, trace=trace) as engine:
        engine.add_request(request("a", range(3), max_tokens=9))
        engine.add_request(request("b", range(20), max_tokens=9))
        ran: list[Any] = []
        inner = engine._executor.submit
        engine._executor.submit = lambda output, news: (ran.append(output), inner(output, news))[1]
        with pytest.raises(EngineDeadError):
            drain(engine)
    last = read_trace(path).records[-1]
    assert isinstance(last, ScheduleRecord)
    assert ran
    assert last.output not in ran


def test_results_in_flight_are_held_against_the_model_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that says more than it was told, at depth 3."""
    real = Scheduler.update_from_output

    def babbles(self: Scheduler, output: Any, result: Any) -> Any:
        return [*real(self, output, result)] * 2

    monkeypatch.setattr(Scheduler, "update_from_output", babbles)
    with make_engine(3, shadow_check=True) as engine:
        engine.add_request(request("a"))
        wait_for_runner(engine)
        with pytest.raises(EngineDeadError, match="S8 token-accounting"):
            drain(engine)


class Absent(MetaPathFinder):
    """An environment without the specification and its tools."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in ("hocket_proofs", "hocket_spec"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_without_the_specification_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] in ("hocket_proofs", "hocket_spec")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    make_engine(1).shutdown()
    with pytest.raises(ValueError, match="shadow_check needs the packages hocket_proofs and hocket_spec"):
        make_engine(1, shadow_check=True)
    assert main(["trace", "check", "nowhere"]) == 2
    assert "hocket trace check needs the packages hocket_proofs" in capsys.readouterr().err
    assert main(["verify"]) == 2
    assert "hocket verify needs the packages hocket_proofs" in capsys.readouterr().err


def test_argument_is_a_truth_value() -> None:
    with pytest.raises(ValueError, match="shadow_check must be True or False, got 1"):
        make_engine(1, shadow_check=1)


MODEL = ["--max-num-seqs", "4", "--max-model-len", "512", "--no-progress"]


def test_flag_and_argument_reach_the_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = needle_prompt(200).text
    words = ["generate", "--model", str(recall_folder()), *MODEL, "--prompt", prompt, "--max-tokens", "3"]
    knobs = {"max_num_seqs": 4, "max_model_len": 512}
    assert main([*words, "--shadow-check"]) == 0
    with LLM(recall_folder(), shadow_check=True, **knobs) as llm:
        assert llm.generate([prompt], use_tqdm=False)[0].finish_reason == "stop"
    monkeypatch.setattr("hocket_proofs.replay.Replay.apply", lambda self, record: 1 / 0)
    capsys.readouterr()
    assert main([*words, "--shadow-check"]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert main(words) == 0
    with (
        LLM(recall_folder(), shadow_check=True, **knobs) as llm,
        pytest.raises(EngineDeadError, match="ZeroDivisionError"),
    ):
        llm.generate([prompt], use_tqdm=False)

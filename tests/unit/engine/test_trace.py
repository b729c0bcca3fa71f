"""Traces: what is written can be read back and replayed; bad files are named, with the line."""

import io
import json

import pytest

from hocket import KVCacheConfig, KVGroupSpec, ModelRunnerOutput, Scheduler, SchedulerConfig
from hocket.core.records import SchedulerOutput
from hocket.engine.engine import run_all
from hocket.obs.trace import (
    AbortRecord,
    AddRecord,
    CompleteRecord,
    PreemptRecord,
    ScheduleRecord,
    TraceWriter,
    output_from_json,
    output_to_json,
    read_trace,
)
from tests.unit.engine.world import CONFIG, KV, drain, make_engine, request, results, tokens_of


def traced(path, depth):
    """A run with everything in it: stop string, abort, preemption, memory pressure, an idle time."""
    kv = KVCacheConfig(
        groups=(KVGroupSpec("full", 4, pool="main"), KVGroupSpec("near", 2, window=5, pool="main")),
        pools={"main": 18},
    )
    with TraceWriter(path) as trace, make_engine(depth, kv=kv, trace=trace) as engine:
        early = run_all(engine, [request("early", max_tokens=2)])
        said = tokens_of((3,), 6)
        engine.add_request(request("stops", (3,), max_tokens=20, stop=(chr(ord("a") + said[4]),)))
        engine.add_request(request("leaves", range(9), max_tokens=20))
        for i in range(3):
            engine.add_request(request(f"r{i}", range(i, i + 7), max_tokens=24, priority=-i, eos=25))
        updates = {}
        for i in range(8):
            for update in engine.step():
                updates.setdefault(update.request_id, []).append(update)
            if i == 4:
                engine.preempt_request("r1")
            if i == 6:
                updates["leaves"] = [*updates.get("leaves", ()), engine.abort_request("leaves")]
        found = results(drain(engine, updates))
        return found | {"early": early["early"].result}, engine.stats


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_trace_replays_on_a_fresh_scheduler(tmp_path, depth):
    found, stats = traced(tmp_path / "trace.ndjson", depth)
    trace = read_trace(tmp_path / "trace.ndjson")
    assert trace.header.scheduler_config.async_depth == depth
    assert trace.header.runner["runner"] == "simulated"
    scheduler = Scheduler(trace.header.scheduler_config, trace.header.kv_cache_config)
    flying, tokens, kinds = [], {}, set()
    for record in trace.records:
        kinds.add(type(record))
        match record:
            case AddRecord(_, added):
                scheduler.add_request(added)
            case ScheduleRecord(_, output):
                assert scheduler.schedule() == output
                if not output.is_empty:
                    flying.append(output)
            case CompleteRecord(_, step_id, sampled, outputs):
                assert step_id == flying[0].step_id
                news = scheduler.update_from_output(flying.pop(0), ModelRunnerOutput(step_id, sampled))
                assert tuple(news) == outputs
                for item in news:
                    tokens[item.request_id] = tokens.get(item.request_id, ()) + item.new_token_ids
            case PreemptRecord(_, request_id):
                scheduler.preempt_request(request_id)
            case AbortRecord(_, request_id, reason, output):
                assert scheduler.abort_request(request_id, reason) == output
    assert not scheduler.has_unfinished_requests()
    assert {name: r.token_ids for name, r in found.items()} == {name: tokens.get(name, ()) for name in found}
    assert kinds == {AddRecord, ScheduleRecord, CompleteRecord, PreemptRecord, AbortRecord}
    assert stats.preemptions > 1, "memory pressure, besides the preemption from outside"
    times = [record.t for record in trace.records]
    assert times == sorted(times)


def test_a_refused_request_is_not_in_the_trace():
    target = io.StringIO()
    with make_engine(1, trace=TraceWriter(target)) as engine, pytest.raises(ValueError):
        engine.add_request(request("bad", (99,)))
    assert [json.loads(line)["action"] for line in target.getvalue().splitlines()] == ["header"]


def test_the_trace_of_an_engine_that_died_ends_with_its_last_action(tmp_path):
    from tests.unit.engine.test_engine import Dies

    path = tmp_path / "trace.ndjson"
    trace = TraceWriter(path)
    engine = make_engine(2, trace=trace, wrap=lambda inner: Dies(inner, 2))
    engine.add_request(request("a"))
    with pytest.raises(RuntimeError):
        drain(engine)
    assert isinstance(read_trace(path).records[-1], ScheduleRecord)  # not closed, and there all the same
    engine.shutdown()
    trace.close()


def test_outputs_survive_json():
    engine = make_engine(2)
    engine.add_request(request("a", range(20)))
    output = engine.scheduler.schedule()
    names = tuple(group.name for group in KV.groups)
    assert output_from_json(json.loads(json.dumps(output_to_json(output))), names) == output
    empty = SchedulerOutput(None, None, finished_request_ids=("x",))
    assert output_from_json(json.loads(json.dumps(output_to_json(empty))), names) == empty
    engine.shutdown()


def lines(change=None, at=0):
    target = io.StringIO()
    trace = TraceWriter(target)
    trace.header(CONFIG, KV, {})
    trace.add(request("a"))
    trace.schedule(SchedulerOutput(None, None))
    records = [json.loads(line) for line in target.getvalue().splitlines()]
    if change is not None:
        change(records[at])
    return [json.dumps(record) for record in records]


BAD = {
    "empty": ([], "empty, expected a header"),
    "no header": (lines()[1:], ":1: ValueError: the first record must be a header"),
    "version": (lines(lambda r: r.update(version=2)), "version 2"),
    "bad config": (
        lines(lambda r: r["scheduler_config"].update(async_depth=0)),
        ":1: ValueError: async_depth",
    ),
    "unknown knob": (
        lines(lambda r: r["scheduler_config"].update(x=0)),
        ":1: ValueError: scheduler_config must have the fields",
    ),
    "not json": ([*lines(), "{"], ":4: JSONDecodeError"),
    "no object": ([*lines(), "[]"], ":4: TypeError"),
    "unknown action": ([*lines(), '{"action": "dance", "t": 0}'], ":4: ValueError: action must be"),
    "no time": (
        [*lines(), '{"action": "preempt", "request_id": "a"}'],
        ":4: ValueError: preempt must have the fields",
    ),
    "bad request": (lines(lambda r: r["request"].update(prompt_token_ids=[]), 1), ":2: ValueError"),
    "unknown group": (
        lines(lambda r: r["output"].update(new_block_ids=[{"far": [1]}]), 2),
        ":3: ValueError: new_block_ids must name groups",
    ),
    "field missing": (lines(lambda r: r["output"].pop("phase"), 2), ":3: ValueError: output must have"),
    "unknown phase": (
        lines(lambda r: r["output"].update(phase="mixed"), 2),
        ":3: ValueError: phase must be prefill, decode or null",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_with_file_and_line(tmp_path, case):
    content, message = BAD[case]
    path = tmp_path / "bad.ndjson"
    path.write_text("\n".join(content))
    with pytest.raises(ValueError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_headers_restore_configurations():
    target = io.StringIO()
    config = SchedulerConfig(max_num_seqs=3, watermark=0.25, max_num_queued_reqs=7, reserve_full_prompt=False)
    TraceWriter(target).header(config, KV, {"x": 1})
    from hocket.obs.trace import _header

    header = _header(json.loads(target.getvalue()))
    assert (header.scheduler_config, header.kv_cache_config, header.runner) == (config, KV, {"x": 1})


def test_an_old_trace_is_replaced_by_the_first_action_and_not_before(tmp_path):
    path = tmp_path / "trace.ndjson"
    path.write_text("old\n")
    with TraceWriter(path) as trace:
        trace.header(CONFIG, KV, {})
    assert path.read_text() == "old\n"
    with TraceWriter(path) as trace:
        trace.header(CONFIG, KV, {})
        trace.schedule(SchedulerOutput(None, None))
    assert len(read_trace(path).records) == 1


def test_a_new_trace_without_actions_has_its_header(tmp_path):
    with TraceWriter(tmp_path / "new") as trace:
        trace.header(CONFIG, KV, {})
    assert read_trace(tmp_path / "new").header.scheduler_config == CONFIG


def test_a_bad_path_is_noticed_at_once_and_a_device_is_none(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        TraceWriter(tmp_path / "nowhere" / "trace.ndjson")
    with TraceWriter("/dev/null") as trace:
        trace.header(CONFIG, KV, {})
        trace.schedule(SchedulerOutput(None, None))

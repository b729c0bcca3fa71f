"""Trace check: recorded runs conform to the model; each kind of edit is refused, with line and property."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from hocket.cli.main import main
from hocket.obs.trace import ScheduleRecord, iter_trace
from hocket_proofs import trace_check
from hocket_proofs.replay import BROKEN, Replay
from hocket_proofs.trace_check import Refusal, check
from hocket_spec.actions import RULES
from hocket_spec.walk import attempt
from tests.unit.engine.test_trace import traced

Records = list[dict[str, Any]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Records]:
    """A run at each depth with everything in it: stops, an abort, preemptions, memory pressure."""
    found = {}
    for depth in (1, 2, 3):
        path = tmp_path_factory.mktemp("traces") / "trace.ndjson"
        traced(path, depth)
        found[depth] = [json.loads(line) for line in path.read_text().splitlines()]
    return found


def written(path: Path, records: Records) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_recorded_run_conforms(recorded: dict[int, Records], tmp_path: Path, depth: int) -> None:
    found = check(written(tmp_path / "trace.ndjson", recorded[depth]))
    assert found.records == len(recorded[depth]) - 1
    assert found.dispatches > 40
    assert found.preemptions > 0
    assert (found.stale_rows > 0) == (depth > 1)


def nth(records: Records, wanted: Callable[[dict[str, Any]], Any], n: int = 0) -> int:
    return [i for i, record in enumerate(records) if wanted(record)][n]


def dispatched(phase: str, rows: int = 1) -> Callable[[dict[str, Any]], bool]:
    return lambda r: (
        r["action"] == "schedule"
        and r["output"]["phase"] == phase
        and len(r["output"]["request_ids"]) >= rows
    )


ROW_FIELDS = (
    "request_ids", "epochs", "num_computed_tokens", "num_scheduled_tokens", "samples", "lookahead_token_ids",
    "new_block_ids",
)  # fmt: skip


def without_row(output: dict[str, Any], row: int) -> None:
    for field in ROW_FIELDS:
        del output[field][row]


def foreign_row(records: Records) -> int:
    """A decode dispatch takes along a request that is still in prefill or waits."""
    i = nth(records, dispatched("decode", rows=2))
    output = records[i]["output"]
    names = [r["request"]["request_id"] for r in records[:i] if r["action"] == "add"]
    other = next(name for name in reversed(names) if name not in output["request_ids"])
    for field in ROW_FIELDS:
        output[field].append(output[field][0])
    output["request_ids"][-1] = other
    return i


def results_exchanged(records: Records) -> int:
    """The second result comes before the first."""
    i, j = (nth(records, lambda r: r["action"] == "complete", n) for n in (4, 5))
    records[i]["step_id"], records[j]["step_id"] = records[j]["step_id"], records[i]["step_id"]
    return i


def epoch_of_another(records: Records) -> int:
    """A row goes on in a fresh epoch without a preemption."""
    i = nth(records, dispatched("decode"), 2)
    records[i]["output"]["epochs"][0] += 50
    return i


def back_too_early(records: Records) -> int:
    """A resumed row is dispatched before a result of its old rows is in."""

    def takes(record: dict[str, Any], name: str) -> bool:
        if record["action"] == "preempt":
            return bool(record["request_id"] == name)
        return record["action"] == "schedule" and name in record["output"]["preempted_request_ids"]

    for i, record in enumerate(records):
        for name in record["output"]["resumed_request_ids"] if record["action"] == "schedule" else ():
            away = max(j for j in range(i) if takes(records[j], name))
            between = [j for j in range(away + 1, i) if records[j]["action"] == "complete"]
            if len(between) > 1:  # after the first of them there is room in the pipeline
                records.insert(between[0] + 1, records.pop(i))
                return between[0] + 1
    raise AssertionError("nobody came back")


def wrong_lookahead(records: Records) -> int:
    """A chunk is told of another token than the one that follows it."""
    i = nth(records, lambda r: dispatched("prefill")(r) and any(r["output"]["lookahead_token_ids"]))
    ahead = records[i]["output"]["lookahead_token_ids"]
    row = next(row for row, token in enumerate(ahead) if token)
    ahead[row] += 1
    return i


def lookahead_unsaid(records: Records) -> int:
    i = wrong_lookahead(records)
    ahead = records[i]["output"]["lookahead_token_ids"]
    records[i]["output"]["lookahead_token_ids"] = [None] * len(ahead)
    return i


def nobody_resumes(records: Records) -> int:
    """Somebody without a row is said to go on."""
    i = nth(records, dispatched("decode"))
    records[i]["output"]["resumed_request_ids"].append("nobody")
    return i


def chunk_elsewhere(records: Records) -> int:
    i = nth(records, lambda r: dispatched("prefill")(r) and max(r["output"]["num_computed_tokens"]) > 0)
    output = records[i]["output"]
    row = output["num_computed_tokens"].index(max(output["num_computed_tokens"]))
    output["num_computed_tokens"][row] -= 1
    return i


def block_of_another(records: Records) -> int:
    """A row is given a block that another request owns."""
    i = nth(records, dispatched("prefill"))
    owned = next(iter(records[i]["output"]["new_block_ids"][0].values()))
    j = nth(records, lambda r: dispatched("prefill")(r) and any(r["output"]["new_block_ids"]), 1)
    ids = next(ids for ids in records[j]["output"]["new_block_ids"] if ids)
    group = next(iter(ids))
    ids[group] = [owned[0], *ids[group][1:]]
    return j


def block_from_nowhere(records: Records) -> int:
    i = nth(records, dispatched("prefill"))
    ids = records[i]["output"]["new_block_ids"][0]
    group = next(iter(ids))
    ids[group] = [999, *ids[group][1:]]
    return i


def block_below_the_first(records: Records) -> int:
    i = nth(records, dispatched("prefill"))
    ids = records[i]["output"]["new_block_ids"][0]
    group = next(iter(ids))
    ids[group] = [-1, *ids[group][1:]]
    return i


def block_missing(records: Records) -> int:
    i = nth(records, dispatched("prefill"))
    ids = records[i]["output"]["new_block_ids"][0]
    ids.pop(next(iter(ids)))
    return i


def token_invented(records: Records) -> int:
    i = nth(records, lambda r: r["action"] == "complete" and r["outputs"])
    records[i]["outputs"][0]["new_token_ids"][0] += 1
    return i


def told_twice(records: Records) -> int:
    i = nth(records, lambda r: r["action"] == "complete" and r["outputs"])
    records[i]["outputs"].append(records[i]["outputs"][0])
    return i


def token_too_many(records: Records) -> int:
    i = nth(records, dispatched("prefill"))
    records[i]["output"]["num_scheduled_tokens"][0] += 1
    return i


def end_without_notice(records: Records) -> int:
    i = nth(records, lambda r: r["action"] == "schedule" and r["output"]["finished_request_ids"])
    records[i]["output"]["finished_request_ids"] = []
    return i


def other_reason(records: Records) -> int:
    i = nth(records, lambda r: r["action"] == "complete" and any(o["finished"] for o in r["outputs"]))
    ended = next(o for o in records[i]["outputs"] if o["finished"])
    ended["finish_reason"] = "stop" if ended["finish_reason"] == "length" else "length"
    return i


def ended_twice(records: Records) -> int:
    i = nth(records, lambda r: r["action"] == "abort" and r["output"])
    records.insert(i + 1, records[i])
    return i + 1


def other_phase(records: Records) -> int:
    """A dispatch of one phase where the other is owed."""
    i = nth(records, dispatched("decode"), 1)
    j = nth(records, lambda r: records.index(r) > i and dispatched("prefill")(r))
    records[i]["output"], records[j]["output"] = records[j]["output"], records[i]["output"]
    return i


def idle(records: Records) -> int:
    """An empty output where a phase is serviceable."""
    i = nth(records, dispatched("decode"))
    output = records[i]["output"]
    output |= {"phase": None, "step_id": None} | {field: [] for field in ROW_FIELDS}
    return i


def passed_over(records: Records) -> int:
    i = nth(records, dispatched("decode", rows=2))
    without_row(records[i]["output"], 1)
    return i


def not_admitted(records: Records) -> int:
    i = nth(
        records, lambda r: dispatched("prefill", rows=2)(r) and r["output"]["num_computed_tokens"][-1] == 0
    )
    without_row(records[i]["output"], -1)
    return i


def preempted_in_vain(records: Records) -> int:
    """A notice of a preemption that nothing calls for."""
    i = nth(records, dispatched("decode", rows=2), 1)
    running = records[i]["output"]["request_ids"][1]
    without_row(records[i]["output"], 1)
    records[i]["output"]["preempted_request_ids"].append(running)
    return i


def preempted_for_nobody(records: Records) -> int:
    """A prefill step names a victim that runs, and that nobody needs."""
    i = nth(records, dispatched("decode"))
    j = nth(records, lambda r: records.index(r) > i and dispatched("prefill")(r))
    output = records[j]["output"]
    victim = next(n for n in records[i]["output"]["request_ids"] if n not in output["request_ids"])
    output["preempted_request_ids"].append(victim)
    return j


def moments(records: Records, path: Path) -> Iterator[tuple[int, Replay]]:
    """Each dispatch, with the model as it is before it."""
    header, lines = iter_trace(written(path, records))
    at = Replay(header.scheduler_config, header.kv_cache_config)
    for line, record in lines:
        if isinstance(record, ScheduleRecord) and record.output.phase is not None:
            yield line - 1, at
        at.apply(record)


def row_of_a_held_victim(records: Records, path: Path) -> int:
    """A victim that is to drain gets another row."""
    for i, at in moments(records, path):
        output = records[i]["output"]
        refused = attempt(at.cfg, at.state, {"prefill": 1, "decode": 2}[output["phase"]]).refused
        held = [name for name, n in at.numbers.items() if refused.get(n) == "held"]
        if held:
            for field in ROW_FIELDS:
                output[field].append(output[field][0])
            output["request_ids"][-1] = held[0]
            return i
    raise AssertionError("nobody was held")


def block_in_flight(records: Records, path: Path) -> int:
    """A row is given a block that a dispatch in flight may still write for a request that has ended."""
    for i, at in moments(records, path):
        slots, output = at.view.slots, records[i]["output"]
        gone = {*output["preempted_request_ids"], *output["finished_request_ids"]}
        fenced = [
            b for _, rows in at.view.flight for x in rows for b, past in x.writes.items()
            if past > x.first and (x.name in gone or x.name not in slots or slots[x.name].epoch != x.epoch)
        ]  # fmt: skip
        for ids in records[i]["output"]["new_block_ids"]:
            for group, new in ids.items():
                pool = at.view.groups[at.view.names.index(group)].pool
                free = [block for p, block in fenced if p == pool and block not in new]
                if new and free:
                    ids[group] = [free[0], *new[1:]]
                    return i
    raise AssertionError("nothing was fenced while blocks were handed out")


def pipeline_overfull(records: Records) -> int:
    """The result of a step is processed one dispatch too late."""
    depth = records[0]["scheduler_config"]["async_depth"]
    flying = 0
    for i, record in enumerate(records):
        flying += record["action"] == "schedule" and record["output"]["phase"] is not None
        flying -= record["action"] == "complete"
        if record["action"] == "complete" and flying == depth - 1:
            j = nth(records, lambda r, i=i: records.index(r) > i and r["action"] == "schedule")
            between = {r["action"] for r in records[i + 1 : j]}
            if records[j]["output"]["phase"] and between.isdisjoint({"complete", "abort"}):
                records.insert(j, records.pop(i))
                return j - 1
    raise AssertionError("the pipeline was never full")


def preemption_unsaid(records: Records) -> int:
    external = {r["request_id"] for r in records if r["action"] == "preempt"}
    i = nth(records, lambda r: r["action"] == "schedule"
            and set(r["output"]["preempted_request_ids"]) - external)  # fmt: skip
    records[i]["output"]["preempted_request_ids"] = []
    return i


def added_twice(records: Records) -> int:
    i = nth(records, lambda r: r["action"] == "add")
    records.insert(i + 1, records[i])
    return i + 1


def unknown_request(records: Records) -> int:
    i = nth(records, lambda r: r["action"] == "preempt")
    records[i]["request_id"] = "nobody"
    return i


def too_long(records: Records) -> int:
    i = nth(records, lambda r: r["action"] == "add")
    records[i]["request"]["prompt_token_ids"] = [1] * 99
    return i


# One edit at least for each property that a trace can show; with the depth of the run that is edited.
EDITS: dict[Callable[..., int], tuple[str, int]] = {
    foreign_row: ("S1 homogeneity", 2),
    results_exchanged: ("S2 no-stale-mutation", 2),
    epoch_of_another: ("S2 no-stale-mutation", 2),
    back_too_early: ("S3 drained-readmission", 3),
    chunk_elsewhere: ("S4 metadata-well-formed", 2),
    wrong_lookahead: ("S4 metadata-well-formed", 2),
    lookahead_unsaid: ("S4 metadata-well-formed", 2),
    nobody_resumes: ("S4 metadata-well-formed", 2),
    block_of_another: ("S5 block-conservation", 2),
    block_from_nowhere: ("S5 block-conservation", 2),
    block_below_the_first: ("S5 block-conservation", 2),
    block_missing: ("S5 block-conservation", 2),
    token_invented: ("S8 token-accounting", 2),
    told_twice: ("S8 token-accounting", 2),
    token_too_many: ("S9 budgets", 2),
    too_long: ("S9 budgets", 2),
    end_without_notice: ("S10 one-terminal-event", 2),
    other_reason: ("S10 one-terminal-event", 2),
    ended_twice: ("S10 one-terminal-event", 2),
    added_twice: ("S10 one-terminal-event", 2),
    unknown_request: ("S10 one-terminal-event", 2),
    other_phase: ("L1 bounded-wait", 1),
    idle: ("L2 work-conservation", 2),
    passed_over: ("L3 row-fairness", 2),
    not_admitted: ("L4 admission", 1),
    preempted_in_vain: ("L3 row-fairness", 2),
    preemption_unsaid: ("L6 minimal-preemption", 2),
    preempted_for_nobody: ("L6 minimal-preemption", 1),
    block_in_flight: ("S6 no-write-after-free", 2),
    row_of_a_held_victim: ("L7 senior-progress", 3),
    pipeline_overfull: ("S9 budgets", 2),
}
WITH_MODEL = {block_in_flight, row_of_a_held_victim}

NOT_SHOWN = {
    "S7 window-history": "a trace records which blocks a row gets, not which a window gives back; one that "
    "is given back too early shows as S5 or S6 as soon as somebody else gets it",
    "L5 completion": "a run that ends early may have been stopped; `hocket verify` shows it on the graph",
}


def test_every_property_has_its_edit() -> None:
    shown = {name.partition(" ")[0] for name, _ in EDITS.values()}
    assert shown.isdisjoint(hidden := {name.partition(" ")[0] for name in NOT_SHOWN})
    assert shown | hidden == {f"S{n}" for n in range(1, 11)} | {f"L{n}" for n in range(1, 8)}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_edit_is_refused_with_line_and_property(
    recorded: dict[int, Records], tmp_path: Path, edit: Callable[..., int]
) -> None:
    name, depth = EDITS[edit]
    records: Records = json.loads(json.dumps(recorded[depth]))
    line = edit(records, *([tmp_path / "before.ndjson"] if edit in WITH_MODEL else [])) + 1
    with pytest.raises(Refusal) as caught:
        check(written(tmp_path / "trace.ndjson", records))
    assert (caught.value.line, caught.value.why.partition(":")[0]) == (line, name)
    assert len(caught.value.before) == min(10, line - 2)


def test_every_rule_has_its_property() -> None:
    assert set(BROKEN) == set(RULES)


def command(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(["trace", "check", *words])
    return status, out.getvalue(), err.getvalue()


def test_command_says_what_it_found(recorded: dict[int, Records], tmp_path: Path) -> None:
    path = written(tmp_path / "trace.ndjson", recorded[2])
    status, said, told = command(str(path))
    assert status == 0
    assert said.startswith(f"conforms: {len(recorded[2]) - 1} steps (")
    assert told.endswith(" events/s of CPU time\n")
    records: Records = json.loads(json.dumps(recorded[2]))
    line = token_invented(records) + 1
    status, said, _ = command(str(written(path, records)))
    assert status == 1
    assert said.startswith(f"{path}:{line}: S8 token-accounting: ")
    assert "add early (3+2)" in said


def test_long_check_shows_progress(
    recorded: dict[int, Records], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_check, "TOLD_AFTER_S", 0.0)
    path = written(tmp_path / "trace.ndjson", recorded[2])
    monkeypatch.setattr(trace_check, "TOLD_EVERY", 50)
    assert "line 100\n" in command(str(path))[2]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda lines: ["{}", *lines[1:]], ":1: ValueError: the first record must be a header"),
        (lambda lines: [*lines[:40], lines[40][:-9]], ":41: JSONDecodeError"),
        (lambda lines: [*lines[:40], "\udcff"], ":41: UnicodeDecodeError"),
        (lambda lines: [lines[0], lines[1].replace('"action"', '"act"', 1)], ":2: ValueError: action must"),
        (lambda lines: [], ": empty, expected a header"),
    ],
    ids=["no header", "cut off", "no text", "other names", "empty"],
)
def test_file_that_is_no_trace_is_status_2_with_its_line(
    recorded: dict[int, Records], tmp_path: Path, spoil: Callable[[list[str]], list[str]], message: str
) -> None:
    path = tmp_path / "trace.ndjson"
    lines = spoil([json.dumps(record) for record in recorded[1]])
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    status, said, told = command(str(path))
    assert (status, said) == (2, "")
    assert told.startswith(f"hocket trace check: error: {path}{message}")


def test_file_that_is_not_there_is_status_2(tmp_path: Path) -> None:
    status, _, told = command(str(tmp_path / "nowhere"))
    assert status == 2
    assert "nowhere" in told


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_ids", [3]), ("epochs", ["1"]), ("num_computed_tokens", [True]), ("num_scheduled_tokens", 4),
        ("samples", [1]), ("lookahead_token_ids", [0.5]), ("new_block_ids", [{"full": ["1"]}]),
        ("num_scheduled_tokens", []), ("preempted_request_ids", [None]), ("step_id", None),
    ],
)  # fmt: skip
def test_output_of_other_types_is_no_trace(
    recorded: dict[int, Records], tmp_path: Path, field: str, value: object
) -> None:
    records: Records = json.loads(json.dumps(recorded[1]))
    i = nth(records, dispatched("prefill"))
    records[i]["output"][field] = value
    status, _, told = command(str(written(tmp_path / "trace.ndjson", records)))
    assert status == 2
    assert f":{i + 1}: " in told
    assert field in told


def test_what_has_ended_is_forgotten(
    recorded: dict[int, Records], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long run does not fill the memory, and it conforms all the same; so do ids that come again."""
    monkeypatch.setattr("hocket_proofs.replay.KEPT", 0)
    for depth in (1, 2, 3):
        header, lines = iter_trace(written(tmp_path / "trace.ndjson", recorded[depth]))
        at = Replay(header.scheduler_config, header.kv_cache_config)
        for _, record in lines:
            at.apply(record)
        assert at.state.requests == ()
        assert max(map(len, (at.numbers, at.ids, at.requests, at.epochs))) <= 1


def test_help_says_what_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trace", "check", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "Exit status: 0 it conforms, 1 it does not, 2" in said
    assert "--trace FILE" in said

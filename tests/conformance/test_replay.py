"""Trace replay: recorded runs conform to the model; each kind of edit is refused, with line and property."""

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from hocket.cli.main import main
from hocket_proofs.replay import BROKEN, Refusal, replay
from hocket_spec.actions import RULES
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
    found = replay(written(tmp_path / "trace.ndjson", recorded[depth]))
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


def preemption_unsaid(records: Records) -> int:
    external = {r["request_id"] for r in records if r["action"] == "preempt"}
    i = nth(records, lambda r: r["action"] == "schedule"
            and set(r["output"]["preempted_request_ids"]) - external)  # fmt: skip
    records[i]["output"]["preempted_request_ids"] = []
    return i


def unknown_request(records: Records) -> int:
    i = nth(records, lambda r: r["action"] == "preempt")
    records[i]["request_id"] = "nobody"
    return i


def too_long(records: Records) -> int:
    i = nth(records, lambda r: r["action"] == "add")
    records[i]["request"]["prompt_token_ids"] = [1] * 99
    return i


EDITS: dict[Callable[[Records], int], tuple[str, int]] = {
    foreign_row: ("S1 homogeneity", 2),
    results_exchanged: ("S2 no-stale-mutation", 2),
    epoch_of_another: ("S2 no-stale-mutation", 2),
    back_too_early: ("S3 drained-readmission", 3),
    chunk_elsewhere: ("S4 metadata-well-formed", 2),
    block_of_another: ("S5 block-conservation", 2),
    block_from_nowhere: ("S5 block-conservation", 2),
    block_missing: ("S5 block-conservation", 2),
    token_invented: ("S8 token-accounting", 2),
    told_twice: ("S8 token-accounting", 2),
    token_too_many: ("S9 budgets", 2),
    too_long: ("S9 budgets", 2),
    end_without_notice: ("S10 one-terminal-event", 2),
    other_reason: ("S10 one-terminal-event", 2),
    ended_twice: ("S10 one-terminal-event", 2),
    unknown_request: ("S10 one-terminal-event", 2),
    other_phase: ("L1 bounded-wait", 1),
    idle: ("L2 work-conservation", 2),
    passed_over: ("L3 row-fairness", 2),
    not_admitted: ("L4 admission", 1),
    preempted_in_vain: ("L3 row-fairness", 2),
    preemption_unsaid: ("L6 minimal-preemption", 2),
}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_edit_is_refused_with_line_and_property(
    recorded: dict[int, Records], tmp_path: Path, edit: Callable[[Records], int]
) -> None:
    name, depth = EDITS[edit]
    records: Records = json.loads(json.dumps(recorded[depth]))
    line = edit(records) + 1
    with pytest.raises(Refusal) as caught:
        replay(written(tmp_path / "trace.ndjson", records))
    assert (caught.value.line, caught.value.why.partition(":")[0]) == (line, name)
    assert len(caught.value.before) == min(10, line - 2)


def test_every_rule_has_its_property() -> None:
    assert set(BROKEN) == set(RULES)


def command(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out):
        status = main(["verify", *words])
    return status, out.getvalue()


def test_command_says_what_it_found(
    recorded: dict[int, Records], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "trace.ndjson", recorded[2])
    status, said = command("--trace", str(path))
    assert status == 0
    assert f"conforms: {len(recorded[2]) - 1} records" in said
    records: Records = json.loads(json.dumps(recorded[2]))
    line = token_invented(records) + 1
    status, said = command("--trace", str(written(path, records)))
    assert status == 1
    assert said.startswith(f"{path}:{line}: S8 token-accounting: ")
    assert "add early (3+2)" in said
    path.write_text("{}\n")
    assert command("--trace", str(path))[0] == 2
    assert "the first record must be a header" in capsys.readouterr().err

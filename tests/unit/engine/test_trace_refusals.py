"""A trace that was not written by a trace writer is refused: wrong types, fields that are missing, too many
or there twice. Without any action it is a trace, but nothing that could be checked.
"""

import io
import json
import os
import re

import pytest

from hocket.cli.main import main
from hocket.core.phase import Phase
from hocket.core.records import BlockIdsByGroup, RequestOutput, SchedulerOutput
from hocket.obs.trace import TraceWriter, iter_trace, read_trace
from tests.unit.engine.world import CONFIG, KV, make_engine, request

HEADER, ADD, SCHEDULE, COMPLETE, PREEMPT, ABORT = range(6)


def good():
    """One record of each kind, each a text of its own line."""
    target = io.StringIO()
    trace = TraceWriter(target)
    trace.header(CONFIG, KV, {})
    trace.add(request("a", eos=3))
    blocks = BlockIdsByGroup(("full", "near"), ((1,), (1, 2)))
    trace.schedule(SchedulerOutput(1, Phase.PREFILL, ("a",), (1,), (0,), (3,), (True,), (None,), (blocks,)))
    trace.complete(1, [[7]], [RequestOutput("a", (7,), False)])
    trace.preempt("a")
    trace.abort("a", "abort", RequestOutput("a", (), True, "abort"))
    return target.getvalue().splitlines()


def written(tmp_path, lines):
    path = tmp_path / "trace.ndjson"
    path.write_text("\n".join(lines))
    return path


def test_what_a_writer_writes_is_read(tmp_path):
    assert len(read_trace(written(tmp_path, good())).records) == 5


def at(line, *path):
    """The record of `line`, and the object in it that `path` leads to."""
    record = json.loads(good()[line])
    inner = record
    for step in path:
        inner = inner[step]
    return record, inner


PLACES = {
    "header": (HEADER,),
    "scheduler_config": (HEADER, "scheduler_config"),
    "kv_cache_config": (HEADER, "kv_cache_config"),
    "groups": (HEADER, "kv_cache_config", "groups", 1),
    "add": (ADD,),
    "request": (ADD, "request"),
    "sampling_params": (ADD, "request", "sampling_params"),
    "schedule": (SCHEDULE,),
    "output of a schedule": (SCHEDULE, "output"),
    "complete": (COMPLETE,),
    "output of a complete": (COMPLETE, "outputs", 0),
    "preempt": (PREEMPT,),
    "abort": (ABORT,),
    "output of an abort": (ABORT, "output"),
}


def refused(tmp_path, line, record, field):
    lines = good()
    lines[line] = record if isinstance(record, str) else json.dumps(record)
    path = written(tmp_path, lines)
    with pytest.raises(ValueError) as caught:
        read_trace(path)
    where, said = f"{path}:{line + 1}: ", str(caught.value)
    assert said.startswith(where)
    # As a word of its own: "t" is in any sentence.
    assert re.search(rf"(?<!\w){re.escape(field)}(?!\w)", said.removeprefix(where)), said


@pytest.mark.parametrize("place", PLACES)
def test_every_field_must_be_there(tmp_path, place):
    _, inner = at(*PLACES[place])
    for field in inner:
        record, changed = at(*PLACES[place])
        del changed[field]
        name = "action" if field == "action" else place.partition(" ")[0]
        refused(tmp_path, PLACES[place][0], record, name)
        if field not in ("action", "version"):
            refused(tmp_path, PLACES[place][0], record, f"lacks ['{field}']")


@pytest.mark.parametrize("place", PLACES)
def test_no_other_field_may_be_there(tmp_path, place):
    record, changed = at(*PLACES[place])
    changed["surplus"] = 1
    refused(tmp_path, PLACES[place][0], record, "['surplus'] are none")


@pytest.mark.parametrize("place", [*PLACES, "runner", "pools", "blocks"])
def test_no_field_may_be_there_twice(tmp_path, place):
    where = {
        "runner": (HEADER, "runner"),
        "pools": (HEADER, "kv_cache_config", "pools"),
        "blocks": (SCHEDULE, "output", "new_block_ids", 0),
    } | PLACES
    record, changed = at(*where[place])
    changed["@"] = 1
    key = next(iter(changed)) if len(changed) > 1 else "x"
    changed |= {} if len(changed) > 1 else {key: 1}
    text = json.dumps(record).replace('"@"', json.dumps(key))
    refused(tmp_path, where[place][0], text, f"keys of an object must be unique, got '{key}' twice")


WRONG = {
    "t": ((ADD, "t"), [-1, -1e-9, True, "0", None, [], float("nan"), float("inf"), 10**400]),
    "version": ((HEADER, "version"), [True, 1.0, 2, "1", None]),
    "hocket": ((HEADER, "hocket"), [None, 3, ""]),
    "runner": ((HEADER, "runner"), [None, [], "x", 0]),
    "groups": ((HEADER, "kv_cache_config", "groups"), [None, {}, "", 0, [[]]]),
    "scheduler_config": ((HEADER, "scheduler_config"), [None, [], ""]),
    "action": ((ADD, "action"), [None, 3, [], {}, "ADD", "header"]),
    "request": ((ADD, "request"), [None, [], "a"]),
    "sampling_params": ((ADD, "request", "sampling_params"), [None, [], ""]),
    "output": ((SCHEDULE, "output"), [None, [], ""]),
    "new_block_ids": ((SCHEDULE, "output", "new_block_ids"), [[[]], [0], [""], [None], [False], {}, "", 0]),
    "phase": ((SCHEDULE, "output", "phase"), ["PREFILL", "", 1, True, [], {}]),
    "step_id": ((COMPLETE, "step_id"), [None, True, "1", 1.0, -1]),
    "sampled_token_ids": ((COMPLETE, "sampled_token_ids"), [None, {}, "", 0, [""], [None], [{}], [[True]]]),
    "outputs": ((COMPLETE, "outputs"), [None, {}, "", 0]),
    "finish_reason": ((COMPLETE, "outputs", 0, "finish_reason"), ["stop", "", 0, False, []]),
    "the last finish_reason": ((ABORT, "output", "finish_reason"), [None, "", "Stop", 0, []]),
    "finished": ((COMPLETE, "outputs", 0, "finished"), [None, 0, "no", []]),
    "request_id": ((COMPLETE, "outputs", 0, "request_id"), [None, 0, "", []]),
    "reason": ((ABORT, "reason"), [None, "", "length", 0, [], {}]),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_values_of_other_types_are_refused(tmp_path, case):
    (line, *path, last), values = WRONG[case]
    for value in values:
        record, changed = at(line, *path)
        changed[last] = value
        refused(tmp_path, line, record, case.split()[-1])


# --- Nothing to check -----------------------------------------------------------------------------


def test_a_header_alone_is_a_trace_in_which_there_is_nothing_to_check(tmp_path, capsys):
    path = written(tmp_path, good()[:1])
    assert read_trace(path).records == ()
    _, records = iter_trace(path)
    with pytest.raises(ValueError, match=r"a header alone.*nothing to check"):
        list(records)
    assert main(["trace", "check", str(path)]) == 2
    captured = capsys.readouterr()
    assert f"hocket trace check: error: {path}: a header alone" in captured.err
    assert captured.out == ""


# --- Files that cannot be written -----------------------------------------------------------------

FULL = "/dev/full"
needs_full = pytest.mark.skipif(not os.path.exists(FULL), reason=f"this system has no {FULL}")


@needs_full
def test_a_full_disk_is_told_with_the_name_of_the_file():
    with pytest.raises(OSError, match=f"No space left on device: '{FULL}'"), TraceWriter(FULL) as trace:
        trace.header(CONFIG, KV, {})
    trace = TraceWriter(FULL)
    with pytest.raises(OSError, match=f"No space left on device: '{FULL}'"):
        make_engine(1, trace=trace)
    with pytest.raises(OSError, match=f"No space left on device: '{FULL}'"):
        trace.close()


def test_what_is_no_file_of_the_writers_own_is_not_named():
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError) as caught:
        TraceWriter(Full()).header(CONFIG, KV, {})
    assert caught.value.filename is None

"""Traces: newline-delimited JSON, one record per action of the engine on its scheduler, in the order of the
actions.

A trace holds everything that a replay against the reference model needs. Every record has `action` and, the
header excepted, `t`: seconds since the trace began. Field names are those of the records in `hocket.core`.

    {"action": "header", "version": 1, "hocket": "...", "scheduler_config": {...},
     "kv_cache_config": {"groups": [{...}], "pools": {...}}, "runner": {...}}
    {"action": "add", "t": ..., "request": {"request_id": ..., "prompt_token_ids": [...],
     "sampling_params": {...}, "priority": ..., "eos_token_id": ...}}
    {"action": "schedule", "t": ..., "output": {...}}
    {"action": "complete", "t": ..., "step_id": ..., "sampled_token_ids": [[...], ...],
     "outputs": [{...}, ...]}
    {"action": "preempt", "t": ..., "request_id": ...}
    {"action": "abort", "t": ..., "request_id": ..., "reason": ..., "output": {...} or null}

`schedule` is there for every call, empty ones too; the "phase" of its output is "prefill", "decode" or null,
and its "new_block_ids" leave out groups without any. `preempt` is a preemption from outside: the scheduler's
own are notices of the output in which they happened.

Actions that were refused (a `ValueError` at add, say) changed nothing and are not recorded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from sys import float_info
from types import TracebackType
from typing import Any, NamedTuple, TextIO, TypeAlias, TypeVar, get_args

from hocket._version import __version__
from hocket.core.checks import require_bool, require_int, require_number, require_str, require_unique, shown
from hocket.core.config import KVCacheConfig, KVGroupSpec, SchedulerConfig
from hocket.core.os_errors import naming
from hocket.core.phase import Phase
from hocket.core.records import AbortReason, BlockIdsByGroup, FinishReason, RequestOutput, SchedulerOutput
from hocket.core.request import Request, SamplingParams

TRACE_VERSION = 1

T = TypeVar("T")

_OUTPUT_FIELDS = tuple(f.name for f in fields(SchedulerOutput))
_HEADER_FIELDS = ("action", "version", "hocket", "scheduler_config", "kv_cache_config", "runner")
# Beside "action" and "t".
_RECORD_FIELDS = {
    "add": ("request",),
    "schedule": ("output",),
    "complete": ("step_id", "sampled_token_ids", "outputs"),
    "preempt": ("request_id",),
    "abort": ("request_id", "reason", "output"),
}
_PHASES = {phase.name.lower(): phase for phase in Phase}


class TraceHeader(NamedTuple):
    """First record: what was run."""

    scheduler_config: SchedulerConfig
    kv_cache_config: KVCacheConfig
    hocket_version: str
    runner: Mapping[str, Any]


class AddRecord(NamedTuple):
    """`add_request` accepted a request."""

    t: float
    request: Request


class ScheduleRecord(NamedTuple):
    """`schedule` returned `output`."""

    t: float
    output: SchedulerOutput


class CompleteRecord(NamedTuple):
    """`update_from_output` processed the oldest step's result and returned `outputs`."""

    t: float
    step_id: int
    sampled_token_ids: tuple[tuple[int, ...], ...]
    outputs: tuple[RequestOutput, ...]


class PreemptRecord(NamedTuple):
    """`preempt_request` was called from outside."""

    t: float
    request_id: str


class AbortRecord(NamedTuple):
    """`abort_request` was called and returned `output`."""

    t: float
    request_id: str
    reason: FinishReason
    output: RequestOutput | None


TraceRecord: TypeAlias = AddRecord | ScheduleRecord | CompleteRecord | PreemptRecord | AbortRecord


class Trace(NamedTuple):
    """A whole trace."""

    header: TraceHeader
    records: tuple[TraceRecord, ...]


class TraceWriter:
    """Writes a trace, a line at a time: the trace of an engine that died ends with its last action.

    A path is opened at once, so that a bad one is noticed before anything runs (`OSError`), but what the file
    held is replaced only with the first action: a run that is refused leaves an old trace alone.
    """

    def __init__(self, target: str | Path | TextIO, clock: Callable[[], float] = time.perf_counter) -> None:
        self._path = target if isinstance(target, (str, Path)) else None
        self._file: TextIO
        if isinstance(target, (str, Path)):
            self._file = open(target, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - closed by `close`
        else:
            self._file = target
        self._header: dict[str, Any] | None = None
        self._clock = clock
        self._begin = clock()

    def header(self, config: SchedulerConfig, kv_cache: KVCacheConfig, runner: Mapping[str, Any]) -> None:
        """What is run; call it first and once. Written now if there is nothing to replace, else later."""
        self._header = {
            "action": "header",
            "version": TRACE_VERSION,
            "hocket": __version__,
            "scheduler_config": asdict(config),
            "kv_cache_config": {
                "groups": [asdict(group) for group in kv_cache.groups],
                "pools": dict(kv_cache.pools),
            },
            "runner": dict(runner),
        }
        if not self._holds_something():
            self._begin_file()

    def add(self, request: Request) -> None:
        """A request was accepted."""
        self._record("add", request=asdict(request))

    def schedule(self, output: SchedulerOutput) -> None:
        """`schedule` returned this."""
        self._record("schedule", output=output_to_json(output))

    def complete(
        self, step_id: int, sampled: Sequence[Sequence[int]], outputs: Sequence[RequestOutput]
    ) -> None:
        """A result was processed."""
        self._record(
            "complete",
            step_id=step_id,
            sampled_token_ids=[list(row) for row in sampled],
            outputs=[asdict(output) for output in outputs],
        )

    def preempt(self, request_id: str) -> None:
        """A request was preempted from outside."""
        self._record("preempt", request_id=request_id)

    def abort(self, request_id: str, reason: str, output: RequestOutput | None) -> None:
        """A request was aborted."""
        self._record(
            "abort", request_id=request_id, reason=reason, output=None if output is None else asdict(output)
        )

    def close(self) -> None:
        """Close the file if it was opened here."""
        if self._path is not None:
            with naming(self._path):
                self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _record(self, action: str, **content: Any) -> None:
        self._begin_file()
        self._line({"action": action, "t": round(self._clock() - self._begin, 6), **content})

    def _begin_file(self) -> None:
        """Write the header, unless it is there, over what the file held."""
        if self._header is not None:
            if self._holds_something():
                with naming(self._path):
                    self._file.truncate(0)
            self._line(self._header)
            self._header = None

    def _holds_something(self) -> bool:
        """Whether this is a file that was opened here and is not empty; a pipe or a device is none."""
        return self._path is not None and self._file.seekable() and self._file.tell() > 0

    def _line(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":")) + "\n"
        with naming(self._path):
            self._file.write(line)


def output_to_json(output: SchedulerOutput) -> dict[str, Any]:
    """A `SchedulerOutput` as plain JSON values."""
    content: dict[str, Any] = {name: getattr(output, name) for name in _OUTPUT_FIELDS}
    content["phase"] = None if output.phase is None else output.phase.name.lower()
    content["new_block_ids"] = [
        {group: list(ids) for group, ids in row.items() if ids} for row in output.new_block_ids
    ]
    return content


# Types of what a column of a `SchedulerOutput` holds, one entry per row; a truth value is no number.
_ROWS: dict[str, frozenset[type]] = {
    "request_ids": frozenset({str}),
    "epochs": frozenset({int}),
    "num_computed_tokens": frozenset({int}),
    "num_scheduled_tokens": frozenset({int}),
    "samples": frozenset({bool}),
    "lookahead_token_ids": frozenset({int, type(None)}),
}
_NOTICES = ("preempted_request_ids", "finished_request_ids", "resumed_request_ids")
_STR, _INT = frozenset({str}), frozenset({int})


def _column(name: str, values: Any, kinds: frozenset[type]) -> tuple[Any, ...]:
    """`values` as a tuple; `TypeError` if it is no list or holds something else."""
    if type(values) is not list or not kinds.issuperset(map(type, values)):
        allowed = " or ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"{name} must be a list of {allowed}, got {shown(values)}")
    return tuple(values)


def _list(name: str, values: Any) -> list[Any]:
    """`values`; `TypeError` if it is no list."""
    if type(values) is not list:
        raise TypeError(f"{name} must be a list, got {shown(values)}")
    return values


def _whole(name: str, content: Any, names: Sequence[str]) -> dict[str, Any]:
    """`content`; `TypeError` or `ValueError` if it is no object of exactly these fields."""
    if type(content) is not dict:
        raise TypeError(f"{name} must be an object, got {shown(content)}")
    if set(content) != set(names):
        lacks, more = sorted(set(names) - set(content)), sorted(set(content) - set(names))
        raise ValueError(f"{name} must have the fields {', '.join(names)}: lacks {lacks}, {more} are none")
    return content


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def output_from_json(content: Mapping[str, Any], group_names: tuple[str, ...]) -> SchedulerOutput:
    """The inverse of `output_to_json`. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
    _whole("output", content, _OUTPUT_FIELDS)
    values = {name: _column(name, content[name], kinds) for name, kinds in _ROWS.items()}
    values |= {name: _column(name, content[name], _STR) for name in _NOTICES}
    values["new_block_ids"] = tuple(
        [_blocks(row, group_names) for row in _list("new_block_ids", content["new_block_ids"])]
    )
    rows = len(values["request_ids"])
    for name, column in values.items():
        if name not in _NOTICES and len(column) != rows:
            raise ValueError(f"{name} must have {rows} entries, as request_ids has, got {len(column)}")
    said, step_id = content["phase"], content["step_id"]
    if said is not None and (type(said) is not str or said not in _PHASES):
        raise ValueError(f"phase must be {', '.join(_PHASES)} or null, got {shown(said)}")
    phase = None if said is None else _PHASES[said]
    if type(step_id) is not (type(None) if phase is None else int):
        raise ValueError(f"step_id must be an int, or null without rows, got {shown(step_id)}")
    return SchedulerOutput(step_id=step_id, phase=phase, **values)


def _blocks(row: Any, group_names: tuple[str, ...]) -> BlockIdsByGroup:
    if type(row) is not dict:
        raise TypeError(f"new_block_ids must be a list of objects, got {shown(row)} in it")
    if not row:
        return BlockIdsByGroup(group_names, ((),) * len(group_names))
    if not set(row) <= set(group_names):
        raise ValueError(f"new_block_ids must name groups of {list(group_names)}, got {sorted(row)}")
    ids = [_column("new_block_ids", row[name], _INT) if name in row else () for name in group_names]
    return BlockIdsByGroup(group_names, tuple(ids))


def iter_trace(source: str | Path) -> tuple[TraceHeader, Iterator[tuple[int, TraceRecord]]]:
    """The header, and the records with their lines (the header is line 1), read as they are asked for.

    Raises `OSError`, and `ValueError` that names file, line and what is wrong: of a record in its turn. A
    header alone is refused at the end of its file: nothing was recorded that could be looked at.
    """
    header, records = _read(source)
    return header, _some(source, records)


def _some(source: str | Path, records: Iterator[T]) -> Iterator[T]:
    """The same, of which there must be one."""
    first = next(records, None)
    if first is None:
        raise ValueError(
            f"{source}: a header alone, expected the actions of a run: there is nothing to check"
        )
    yield first
    yield from records


def _read(source: str | Path) -> tuple[TraceHeader, Iterator[tuple[int, TraceRecord]]]:
    """As `iter_trace`, but there may be no records."""
    path = Path(source)
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise ValueError(f"{path}: empty, expected a header")
    header = _parsed(path, *first, _header)
    names = tuple(group.name for group in header.kv_cache_config.groups)

    def record(content: dict[str, Any]) -> TraceRecord:
        return _record(content, names)

    return header, ((number, _parsed(path, number, line, record)) for number, line in lines)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        yield from enumerate(file, 1)


def read_trace(source: str | Path) -> Trace:
    """Read a whole trace file. Raises `OSError`, and `ValueError` that names file, line and what is wrong."""
    header, records = _read(source)
    return Trace(header, tuple(record for _, record in records))


def _parsed(path: Path, number: int, line: bytes, parse: Callable[[dict[str, Any]], Any]) -> Any:
    try:
        content = json.loads(line, object_pairs_hook=_unique)
        if not isinstance(content, dict):
            raise TypeError(f"a record must be an object, got {type(content).__name__}")
        return parse(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}:{number}: {type(error).__name__}: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; `ValueError` for a key that comes twice: readers do not agree on which one counts."""
    content = dict(pairs)
    if len(content) != len(pairs):
        require_unique("keys of an object", [key for key, _ in pairs])
    return content


def _header(content: dict[str, Any]) -> TraceHeader:
    action, version = content.get("action"), content.get("version")
    if action != "header" or type(version) is not int or version != TRACE_VERSION:
        raise ValueError(
            f"the first record must be a header of version {TRACE_VERSION}, got action "
            f"{shown(action)}, version {shown(version)}"
        )
    _whole("header", content, _HEADER_FIELDS)
    cache = _whole("kv_cache_config", content["kv_cache_config"], _names(KVCacheConfig))
    groups = [_whole("groups", group, _names(KVGroupSpec)) for group in _list("groups", cache["groups"])]
    if type(content["runner"]) is not dict:
        raise TypeError(f"runner must be an object, got {shown(content['runner'])}")
    return TraceHeader(
        SchedulerConfig(**_whole("scheduler_config", content["scheduler_config"], _names(SchedulerConfig))),
        KVCacheConfig(tuple(KVGroupSpec(**group) for group in groups), cache["pools"]),
        require_str("hocket", content["hocket"]),
        content["runner"],
    )


def _record(content: dict[str, Any], group_names: tuple[str, ...]) -> TraceRecord:
    action = content.get("action")
    if type(action) is not str or action not in _RECORD_FIELDS:
        raise ValueError(f"action must be add, schedule, complete, preempt or abort, got {shown(action)}")
    _whole(action, content, ("action", "t", *_RECORD_FIELDS[action]))
    require_number("t", content["t"], 0.0, float_info.max)
    t = float(content["t"])
    if action == "add":
        raw = _whole("request", content["request"], _names(Request))
        params = _whole("sampling_params", raw["sampling_params"], _names(SamplingParams))
        return AddRecord(t, Request(**raw | {"sampling_params": SamplingParams(**params)}))
    if action == "schedule":
        return ScheduleRecord(t, output_from_json(content["output"], group_names))
    if action == "complete":
        rows = _list("sampled_token_ids", content["sampled_token_ids"])
        sampled = tuple([_column("sampled_token_ids", row, _INT) for row in rows])
        outputs = tuple([_request_output(output) for output in _list("outputs", content["outputs"])])
        return CompleteRecord(t, require_int("step_id", content["step_id"], 0), sampled, outputs)
    if action == "preempt":
        return PreemptRecord(t, require_str("request_id", content["request_id"]))
    output = content["output"]
    ended = None if output is None else _request_output(output)
    name = require_str("request_id", content["request_id"])
    reason = _one_of("reason", content["reason"], get_args(AbortReason))
    return AbortRecord(t, name, reason, ended)


def _one_of(field: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    """`value`; `ValueError` if it is none of these."""
    if type(value) not in (str, type(None)) or value not in allowed:
        raise ValueError(f"{field} must be one of {', '.join(map(repr, allowed))}, got {shown(value)}")
    return value


def _request_output(content: Any) -> RequestOutput:
    _whole("output", content, _names(RequestOutput))
    require_bool("finished", content["finished"])
    allowed = get_args(FinishReason) if content["finished"] else (None,)
    return RequestOutput(
        require_str("request_id", content["request_id"]),
        _column("new_token_ids", content["new_token_ids"], _INT),
        content["finished"],
        _one_of("finish_reason", content["finish_reason"], allowed),
    )

"""Validator and specification of packed prefill metadata, compared on every pack of a stated family.

The family: two well-formed packs (lists, and arrays), and all that at most two edits of `EDITS` make of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np

from hocket.runner.packed import PackedPrefillError, validate_packed_prefill
from hocket.runner.packed_rules import Code
from hocket_spec.packed import PackedMetadata, first_violation

Pack = dict[str, Any]


def lists() -> Pack:
    """Two requests, two groups; the second request is past its window."""
    return {
        "request_ids": ["a", "b"],
        "chunk_starts": [0, 6],
        "chunk_lens": [2, 3],
        "seq_lens": [2, 9],
        "query_start_loc": [0, 2, 5],
        "token_ids": [3, 4, 5, 6, 7],
        "block_tables": {"full": [[5], [6, 7, 8]], "near": [[1], [0, 2, 3, 4, 9]]},
        "block_sizes": {"full": 4, "near": 2},
        "windows": {"near": 4},
        "vocab_size": 8,
        "computed": [0, 6],
        "embedding_rows": 5,
    }


def arrays() -> Pack:
    """The same as arrays, tables padded with nulls."""
    pack = lists()
    for field in ("chunk_starts", "chunk_lens", "seq_lens", "query_start_loc", "token_ids", "computed"):
        pack[field] = np.array(pack[field])
    pack["block_tables"] = {
        name: np.array([row + [0] * (6 - len(row)) for row in rows], dtype=np.int32)
        for name, rows in pack["block_tables"].items()
    }
    pack["embedding_rows"] = np.zeros((5, 2))
    return pack


def _entry(field: str, row: int, value: Any) -> Callable[[Pack], None]:
    def edit(pack: Pack) -> None:
        values = list(pack[field])
        if row < len(values):
            values[row] = value
        pack[field] = values

    return edit


def _whole(field: str, value: Any) -> Callable[[Pack], None]:
    def edit(pack: Pack) -> None:
        pack[field] = value

    return edit


def _shorter(field: str) -> Callable[[Pack], None]:
    def edit(pack: Pack) -> None:
        pack[field] = pack[field][:-1] if isinstance(pack[field], (list, np.ndarray)) else 4

    return edit


def _longer(field: str) -> Callable[[Pack], None]:
    def edit(pack: Pack) -> None:
        pack[field] = [*pack[field], 5] if isinstance(pack[field], (list, np.ndarray)) else 6

    return edit


def _column(group: str, row: int, column: int, value: Any) -> Callable[[Pack], None]:
    def edit(pack: Pack) -> None:
        tables = dict(pack["block_tables"])
        if group in tables and row < len(tables[group]):
            line = list(tables[group][row])
            line[column : column + 1] = [value]
            tables[group] = [*tables[group][:row], line, *tables[group][row + 1 :]]
            pack["block_tables"] = tables

    return edit


def _group(field: str, group: str, value: Any) -> Callable[[Pack], None]:
    def edit(pack: Pack) -> None:
        pack[field] = {**pack[field], group: value} if isinstance(pack[field], dict) else pack[field]

    return edit


def _ungrouped(field: str, group: str) -> Callable[[Pack], None]:
    def edit(pack: Pack) -> None:
        if isinstance(pack[field], dict):
            pack[field] = {name: value for name, value in pack[field].items() if name != group}

    return edit


EDITS: dict[str, Callable[[Pack], None]] = {
    "no request": _whole("request_ids", []),
    "ids no sequence": _whole("request_ids", "ab"),
    "id no string": _entry("request_ids", 1, 7),
    "id twice": _entry("request_ids", 1, "a"),
    "start negative": _entry("chunk_starts", 1, -1),
    "start later": _entry("chunk_starts", 1, 7),
    "start a bool": _entry("chunk_starts", 0, False),
    "start a float": _entry("chunk_starts", 0, 0.0),
    "starts short": _shorter("chunk_starts"),
    "length zero": _entry("chunk_lens", 1, 0),
    "length more": _entry("chunk_lens", 0, 3),
    "lengths long": _longer("chunk_lens"),
    "seq_len of the prompt": _entry("seq_lens", 1, 12),
    "seq_len of the chunk": _entry("seq_lens", 1, 3),
    "seq_lens deep": _whole("seq_lens", [[2], [9]]),
    "offsets begin late": _entry("query_start_loc", 0, 1),
    "offsets overlap": _entry("query_start_loc", 1, 1),
    "offsets past the end": _entry("query_start_loc", 2, 6),
    "offset too large": _entry("query_start_loc", 2, 2**31),
    "offsets short": _shorter("query_start_loc"),
    "tokens short": _shorter("token_ids"),
    "tokens long": _longer("token_ids"),
    "token outside the vocabulary": _entry("token_ids", 4, 8),
    "token negative": _entry("token_ids", 0, -1),
    "token a string": _entry("token_ids", 1, "4"),
    "table null where it reads": _column("near", 1, 1, 0),
    "table null where it writes": _column("full", 1, 2, 0),
    "table null where a window returned": _column("near", 1, 0, 0),
    "table negative": _column("full", 0, 0, -5),
    "table id too large": _column("full", 1, 0, 2**31),
    "table a bool": _column("full", 1, 1, True),
    "table tail": _column("full", 0, 1, 9),
    "table row no sequence": lambda pack: _group("block_tables", "full", [[5], 6])(pack),
    "table short": lambda pack: _group("block_tables", "near", [[1], [0, 2, 3, 4]])(pack),
    "table rows short": lambda pack: _group("block_tables", "near", [[1]])(pack),
    "table a number": _group("block_tables", "near", 3),
    "tables no mapping": _whole("block_tables", [[5]]),
    "table missing": _ungrouped("block_tables", "near"),
    "size missing": _ungrouped("block_sizes", "near"),
    "size zero": _group("block_sizes", "full", 0),
    "size a bool": _group("block_sizes", "full", True),
    "window unknown": _group("windows", "far", 2),
    "window zero": _group("windows", "near", 0),
    "window wide": _group("windows", "near", 9),
    "windows left out": _whole("windows", None),
    "vocabulary empty": _whole("vocab_size", 0),
    "vocabulary a float": _whole("vocab_size", 8.0),
    "vocabulary left out": _whole("vocab_size", None),
    "computed less": _entry("computed", 1, 5),
    "computed none": _entry("computed", 1, None),
    "computed short": _shorter("computed"),
    "computed left out": _whole("computed", None),
    "embeddings of the prompt": _whole("embedding_rows", 9),
    "embeddings array of the prompt": _whole("embedding_rows", np.zeros((9, 2))),
    "embeddings flat": _whole("embedding_rows", np.zeros(5)),
    "embeddings negative": _whole("embedding_rows", -1),
    "embeddings left out": _whole("embedding_rows", None),
}


def family() -> Iterator[tuple[str, Pack]]:
    """(what was edited, pack), fewest edits first."""
    for base in (lists, arrays):
        for count in (0, 1, 2):
            for names in combinations(EDITS, count):
                pack = base()
                for name in names:
                    EDITS[name](pack)
                yield f"{base.__name__}: {', '.join(names) or 'as it is'}", pack


def verdicts(pack: Pack) -> tuple[tuple[str, int, str], tuple[str, int, str]]:
    """(code, row, message) of the specification and of the validator; ("fine", -1, "") if accepted."""
    violation = first_violation(PackedMetadata(**copy.deepcopy(pack)))
    expected = ("fine", -1, "")
    if violation is not None:
        expected = (violation.code, violation.row, violation.message)
    try:
        validate_packed_prefill(**pack)
        found = ("fine", -1, "")
    except PackedPrefillError as error:
        found = (Code(error.problem.code).name.lower(), error.problem.row, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it raises, it is the wrong thing
        found = (type(error).__name__, -1, str(error))
    return expected, found


def first_difference() -> tuple[int, str]:
    """(packs compared, the first on which the two differ, in words; '' if none does)."""
    count = 0
    for count, (name, pack) in enumerate(family(), start=1):
        expected, found = verdicts(pack)
        if expected != found:
            return count, f"specification says {expected}, validator says {found} | {name}"
    return count, ""

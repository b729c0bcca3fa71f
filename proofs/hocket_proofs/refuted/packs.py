"""Each check of the packed-prefill validator taken out (S4)."""

from __future__ import annotations

from typing import Any

from hocket.runner import packed_check
from hocket.runner.packed_rules import FINE, NULL_BLOCK, Code, Problem
from hocket_proofs.refuted.fault import PACKS, Fault, Patch


def _without(function: str, *codes: Code) -> Any:
    """The rule never reports these codes."""

    def apply(patch: Patch) -> None:
        def make(real: Any) -> Any:
            def rule(*given: Any) -> Problem:
                problem: Problem = real(*given)
                return FINE if problem.code in codes else problem

            return rule

        patch.wrap(packed_check, function, make)

    return apply


def _instead(function: str, value: Any) -> Any:
    return lambda patch: patch.set(packed_check, function, value)


def _accepting(*codes: Code) -> Any:
    """Problems of these codes are found and not raised."""

    def apply(patch: Patch) -> None:
        def make(real: Any) -> Any:
            def refuse(problem: Problem, *words: Any) -> None:
                if problem.code not in codes:
                    real(problem, *words)

            return refuse

        patch.wrap(packed_check, "refuse", make)

    return apply


def only_one_row(patch: Patch) -> None:
    """Rows after the first are taken on trust."""
    patch.wrap(
        packed_check, "row_problem", lambda real: lambda row, *given: FINE if row else real(row, *given)
    )


def last_row_unchecked(patch: Patch) -> None:
    """Block tables of the last request are not looked at."""

    def make(real: Any) -> Any:
        def check(pack: Any, row: int, *given: Any) -> None:
            if row < len(pack.request_ids) - 1 or row == 0:
                real(pack, row, *given)

        return check

    patch.wrap(packed_check, "_check_table", make)


def _column(change: Any) -> Any:
    def apply(patch: Patch) -> None:
        patch.wrap(packed_check, "_table_is_fine", lambda real: lambda *given: False)
        patch.wrap(packed_check, "column_problem", change)

    return apply


def null_is_a_block(real: Any) -> Any:
    """Columns that hold tokens may be null."""
    return lambda row, column, block, returned, needed: real(
        row, column, block or (1 if column < needed else 0), returned, needed
    )


def tail_is_null(real: Any) -> Any:
    """Columns past the end may hold anything."""
    return lambda row, column, block, returned, needed: real(
        row, column, NULL_BLOCK if column >= needed else block, returned, needed
    )


def windows_ignored(patch: Patch) -> None:
    """Returned columns must hold blocks too."""
    patch.set(packed_check, "columns_returned", lambda start, window, size: 0)


def window_off_by_one(patch: Patch) -> None:
    """A column of which one token is still visible may be null."""
    patch.wrap(packed_check, "columns_returned", lambda real: lambda start, window, size: real(
        start + size, window, size))  # fmt: skip


FAULTS = (
    Fault("validator: cardinality unchecked", "a list of another length goes through", PACKS, "count",
          _accepting(Code.COUNT)),
    Fault("validator: rank unchecked", "nested lists go through", PACKS, "shape", _accepting(Code.SHAPE)),
    Fault("validator: groups unchecked", "a cache group without tables", PACKS, "groups",
          _accepting(Code.GROUPS)),
    Fault("validator: an empty pack is fine", "a dispatch of nobody", PACKS, "empty", _accepting(Code.EMPTY)),
    Fault("validator: ids of any type", "an id that no slot has", PACKS, "request_id",
          _accepting(Code.REQUEST_ID)),
    Fault("validator: duplicates unchecked", "one request in two rows", PACKS, "duplicate",
          _accepting(Code.DUPLICATE)),
    Fault("validator: bools are integers", "isinstance(True, int)", PACKS, "type",
          _instead("is_integer", lambda value: isinstance(value, int) or hasattr(value, "dtype"))),
    Fault("validator: floats are integers", "0.0 indexes nothing", PACKS, "type", _accepting(Code.TYPE)),
    Fault("validator: ranges unchecked", "negative starts, empty chunks", PACKS, "range",
          _without("range_problem", Code.RANGE)),
    Fault("validator: row length unchecked", "seq_len of the prompt instead of the chunk end", PACKS,
          "seq_len", _without("row_problem", Code.SEQ_LEN)),
    Fault("validator: offsets unchecked", "rows overlap, or leave a gap", PACKS, "offset",
          _without("row_problem", Code.OFFSET)),
    Fault("validator: progress unchecked", "a chunk that starts elsewhere than the last one ended", PACKS,
          "computed", _without("row_problem", Code.COMPUTED)),
    Fault("validator: only the first row is checked", "the packed case is the rare one", PACKS, "seq_len",
          only_one_row),
    Fault("validator: token extent unchecked", "fewer tokens than the chunks hold", PACKS, "token_extent",
          _without("extent_problem", Code.TOKEN_EXTENT)),
    Fault("validator: embedding extent unchecked", "embeddings of the prompt, ids of the chunk", PACKS,
          "embedding_extent", _without("extent_problem", Code.EMBEDDING_EXTENT)),
    Fault("validator: embedding rank unchecked", "a flat array of embeddings", PACKS, "embedding_rank",
          _accepting(Code.EMBEDDING_RANK)),
    Fault("validator: vocabulary unchecked", "an id past the embedding", PACKS, "range",
          _instead("check_tokens", lambda pack, offsets: None)),
    Fault("validator: short tables", "no block for the end of the chunk", PACKS, "table_short",
          _without("table_problem", Code.TABLE_SHORT)),
    Fault("validator: null blocks", "writes go to the null block", PACKS, "table_null",
          _column(null_is_a_block)),
    Fault("validator: stale table tail", "ids that another request left past the end", PACKS, "table_tail",
          _column(tail_is_null)),
    Fault("validator: last request's tables unchecked", "a loop that ends one early", PACKS, "table",
          last_row_unchecked),
    Fault("validator: windows ignored", "well-formed packs are refused", PACKS, "fine", windows_ignored),
    Fault("validator: window off by one block", "a column that is read may be null", PACKS, "table_null",
          window_off_by_one),
    Fault("validator: healthy at a glance", "the fast pass accepts what the slow one would refuse", PACKS,
          "range", _instead("all_in_range", lambda values, high: True)),
)  # fmt: skip

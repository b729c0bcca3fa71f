"""Packed prefill metadata: the validator finds the specification's first violation and says it in words."""

import ast
import copy
import gc
import inspect
import sys
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.runner import packed_rules
from hocket.runner.packed import PackedPrefill, PackedPrefillError, pack_prefill, validate_packed_prefill
from hocket.runner.packed_rules import Code
from hocket_spec.packed import PackedMetadata, first_violation

Pack = dict[str, Any]


def good_pack() -> Pack:
    """Two requests, two groups: the second request is past its window, and tables differ in width."""
    return {
        "request_ids": ["a", "r7"],
        "chunk_starts": [0, 2048],
        "chunk_lens": [512, 1024],
        "seq_lens": [512, 3072],
        "query_start_loc": [0, 512, 1536],
        "token_ids": list(range(1536)),
        "block_tables": {"full": [[5] * 4, [6] * 24 + [0]], "window": [[1] * 8, [0] * 30 + [2] * 18]},
        "block_sizes": {"full": 128, "window": 64},
        "windows": {"window": 100},
        "vocab_size": 2000,
        "computed": [0, 2048],
        "embedding_rows": 1536,
    }


SMALL_PACK: Pack = {
    "request_ids": ["r7"],
    "chunk_starts": [0],
    "chunk_lens": [2],
    "seq_lens": [2],
    "query_start_loc": [0, 2],
    "token_ids": [1, 2],
    "block_tables": {"g": [[1]]},
    "block_sizes": {"g": 4},
}


def refusal(pack: Pack) -> PackedPrefillError:
    with pytest.raises(ValueError, match=r"^packed prefill: ") as caught:
        validate_packed_prefill(**pack)
    assert isinstance(caught.value, PackedPrefillError)
    return caught.value


def assert_same_verdict(pack: Pack) -> str:
    """Validator and specification agree on code, row and message; returns the code, "fine" if both accept."""
    expected = first_violation(PackedMetadata(**copy.deepcopy(pack)))
    if expected is None:
        validate_packed_prefill(**pack)
        return "fine"
    error = refusal(pack)
    found = (Code(error.problem.code).name.lower(), error.problem.row, str(error))
    assert found == tuple(expected)
    return expected.code


def tables_with(column: int, value: int, dtype: str) -> dict[str, Any]:
    """The good pack's tables as arrays, with one column of the second request's windowed table changed."""
    blocks: list[Any] = [2] * 48
    blocks[column] = value
    rows = [np.array([1] * 8, dtype=np.int32), np.array(blocks, dtype=dtype)]
    return {"full": [np.full(4, 5), np.full(24, 6)], "window": rows}


BAD_PACKS: list[tuple[str, int, str, dict[str, Any]]] = [
    # code, row, a part of the message, the fields that differ from the good pack
    ("empty", -1, "request_ids is empty", {"request_ids": []}),
    ("shape", -1, "request_ids has rank 0", {"request_ids": "ab"}),
    ("shape", -1, "chunk_lens has rank 0", {"chunk_lens": None}),
    ("shape", -1, "token_ids has rank 2", {"token_ids": np.zeros((1, 1536), dtype=np.int64)}),
    ("shape", -1, "token_ids has rank 2", {"token_ids": [list(range(1536))]}),
    ("shape", -1, "token_ids has rank 4", {"token_ids": [[[[[[1]]]]]]}),
    ("shape", -1, "token_ids has rank 4", {"token_ids": [[[[[]]]]]}),
    ("shape", -1, "token_ids has rank 0", {"token_ids": [np.ma.masked_array([1])] * 1536}),
    ("embedding_rank", -1, "embedding_rows has rank 0", {"embedding_rows": [[np.ma.masked]] * 1536}),
    ("shape", -1, "token_ids has rank 5", {"token_ids": [[[[np.ones(1, dtype=np.int64)]]]]}),
    ("shape", -1, "seq_lens has rank 2", {"seq_lens": np.array([[512], [3072]])}),
    ("count", 1, "request 1 ('r7'): chunk_starts has 1 entries, expected 2", {"chunk_starts": [0]}),
    ("count", -1, "chunk_lens has 3 entries, expected 2", {"chunk_lens": [512, 1024, 1]}),
    (
        "count",
        1,
        "request 1 ('r7'): query_start_loc has 2 entries, expected 3",
        {"query_start_loc": [0, 512]},
    ),
    ("count", 0, "request 0 ('a'): query_start_loc has 0 entries", {"query_start_loc": []}),
    ("count", -1, "query_start_loc has 4 entries", {"query_start_loc": [0, 512, 1536, 1536]}),
    ("count", 1, "request 1 ('r7'): computed has 1 entries", {"computed": [0]}),
    ("count", 0, "request 0 ('a'): block_tables['full'] has 0", {"block_tables": {"full": [], "window": []}}),
    ("groups", -1, "block_tables is list", {"block_tables": [[1]]}),
    ("groups", -1, "block_sizes is int", {"block_sizes": 4}),
    ("groups", -1, "windows is int", {"windows": 128}),
    (
        "groups",
        -1,
        "block_tables has no group 'more'",
        {"block_sizes": {"full": 128, "window": 64, "more": 1}},
    ),
    ("groups", -1, "block_tables has unknown group 'window'", {"block_sizes": {"full": 128}}),
    ("groups", -1, "windows has unknown group 'w'", {"windows": {"w": 128}}),
    ("embedding_rank", -1, "embedding_rows has rank 1", {"embedding_rows": np.zeros(1536)}),
    ("embedding_rank", -1, "embedding_rows has rank 3", {"embedding_rows": np.zeros((1, 1536, 8))}),
    ("embedding_rank", -1, "embedding_rows has rank 0", {"embedding_rows": 1536.0}),
    ("request_id", 1, "request 1 (7): request_ids[1] is int", {"request_ids": ["a", 7]}),
    ("duplicate", 1, "request 1 ('a'): request_ids[1] repeats request 0", {"request_ids": ["a", "a"]}),
    ("type", 1, "request 1 ('r7'): chunk_lens[1] True (bool) is not an integer", {"chunk_lens": [512, True]}),
    ("type", 0, "request 0 ('a'): seq_lens[0] 512.0 (float)", {"seq_lens": [512.0, 3072]}),
    (
        "type",
        0,
        "request 0 ('a'): chunk_starts[0] np.float64(0.0)",
        {"chunk_starts": np.array([0.0, 2048.0])},
    ),
    ("type", 1, "query_start_loc[2] '1536' (str)", {"query_start_loc": [0, 512, "1536"]}),
    ("type", 1, "computed[1] None (NoneType)", {"computed": [0, None]}),
    ("type", 1, "token_ids[600] np.True_", {"token_ids": [*range(600), np.True_, *range(935)]}),
    ("type", 0, "token_ids[0] np.float32(0.0)", {"token_ids": np.zeros(1536, dtype=np.float32)}),
    ("type", -1, "vocab_size 2000.0 (float)", {"vocab_size": 2000.0}),
    ("type", -1, "block_sizes['full'] True", {"block_sizes": {"full": True, "window": 64}}),
    ("range", -1, "windows['window'] 0", {"windows": {"window": 0}}),
    ("range", 1, "request 1 ('r7'): chunk_lens[1] 0 is outside [1, 2147483647]", {"chunk_lens": [512, 0]}),
    ("range", 1, "chunk_starts[1] -1 is outside", {"chunk_starts": [0, -1]}),
    ("range", 1, "chunk_starts[1] 2147483648 is outside", {"chunk_starts": [0, 2**31]}),
    ("range", 0, "seq_lens[0] 9223372036854775808", {"seq_lens": np.array([2**63, 1], dtype=np.uint64)}),
    ("range", 1, "token_ids[1535] 2000 is outside [0, 1999]", {"token_ids": [0] * 1535 + [2000]}),
    ("range", 1, "token_ids[1535] 2000 is outside", {"token_ids": np.array([0] * 1535 + [2000])}),
    ("range", 1, "token_ids[512] -1", {"token_ids": np.array([0] * 512 + [-1] * 1024)}),
    ("range", 1, "request 1 ('r7'): embedding_rows -1", {"embedding_rows": -1}),
    (
        "seq_len",
        1,
        "request 1 ('r7'): seq_len 8192 != chunk_start 2048 + chunk_len 1024",
        {"seq_lens": [512, 8192]},
    ),
    ("offset", 0, "query_start_loc[0] 1 != 0", {"query_start_loc": [1, 513, 1537]}),
    (
        "offset",
        1,
        "query_start_loc[2] 1537 != query_start_loc[1] 512 + chunk_len 1024",
        {"query_start_loc": [0, 512, 1537]},
    ),
    ("computed", 1, "request 1 ('r7'): chunk_start 2048 != computed 1024", {"computed": [0, 1024]}),
    (
        "token_extent",
        1,
        "token_ids has 1535 entries, query_start_loc[2] says 1536",
        {"token_ids": [1] * 1535},
    ),
    ("token_extent", 1, "token_ids has 1537 entries", {"token_ids": np.ones(1537, dtype=np.int32)}),
    ("embedding_extent", 1, "embedding_rows 1537 != 1536 token_ids", {"embedding_rows": 1537}),
    ("embedding_extent", 1, "embedding_rows 1535 != 1536", {"embedding_rows": np.zeros((1535, 4))}),
    (
        "table_short",
        1,
        "request 1 ('r7'): block_tables['full'][1] has 23 columns, seq_len 3072 needs 24",
        {"block_tables": {"full": [[5] * 4, [6] * 23], "window": [[1] * 8, [2] * 48]}},
    ),
    (
        "table_null",
        1,
        "request 1 ('r7'): block_tables['window'][1][30] is null block 0, columns 30 to 47",
        {"block_tables": {"full": [[5] * 4, [6] * 24], "window": [[1] * 8, [0] * 31 + [2] * 17]}},
    ),
    (
        "table_tail",
        0,
        "block_tables['full'][0][4] 9 is past the end (4 columns)",
        {"block_tables": {"full": np.array([[5] * 4 + [9] * 20, [6] * 24]), "window": [[1] * 8, [2] * 48]}},
    ),
    (
        "shape",
        1,
        "request 1 ('r7'): block_tables['full'][1] has rank 0",
        {"block_tables": {"full": [[5] * 4, 6], "window": [[1] * 8, [2] * 48]}},
    ),
    (
        "type",
        1,
        "block_tables['full'][1][3] True (bool)",
        {"block_tables": {"full": [[5] * 4, [6, 6, 6, True, *[6] * 20]], "window": [[1] * 8, [2] * 48]}},
    ),
    (
        "range",
        1,
        "block_tables['full'][1][0] -6",
        {"block_tables": {"full": [[5] * 4, [-6] * 24], "window": [[1] * 8, [2] * 48]}},
    ),
    *(
        (
            code,
            1,
            f"block_tables['window'][1][{column}] {text}",
            {"block_tables": tables_with(column, value, dtype)},
        )
        for code, column, value, text, dtype in [
            ("range", 3, -1, "-1 is outside", "int32"),  # in a column that may be null
            ("range", 40, -1, "-1 is outside", "int64"),
            ("range", 40, 2**31, "2147483648 is outside", "int64"),
            ("range", 3, 2**31, "2147483648 is outside", "uint32"),
            ("table_null", 30, 0, "is null block 0", "int32"),
            ("table_null", 47, 0, "is null block 0", "uint32"),
            ("type", 0, 2, "np.float64(2.0)", "float64"),
            ("type", 0, 2, "np.True_", "bool"),
        ]
    ),
]


@pytest.mark.parametrize(
    ("code", "row", "text", "fields"), BAD_PACKS, ids=lambda v: v if type(v) is str else ""
)
def test_each_violation_is_named_with_its_row_and_field(
    code: str, row: int, text: str, fields: dict[str, Any]
) -> None:
    pack = good_pack() | fields
    error = refusal(pack)
    assert (Code(error.problem.code).name.lower(), error.problem.row) == (code, row)
    assert text in str(error)
    assert_same_verdict(pack)


@pytest.mark.parametrize(
    ("fields", "want", "got"),
    [
        ({"request_ids": []}, 1, 0),
        ({"request_ids": "ab"}, 1, 0),
        ({"token_ids": [list(range(1536))]}, 1, 2),
        ({"chunk_starts": [0]}, 2, 1),
        ({"chunk_lens": [512, 1024, 1]}, 2, 3),
        ({"query_start_loc": [0, 512]}, 3, 2),
        ({"block_tables": [[1]]}, 0, 0),
        ({"block_tables": {"full": 5, "window": []}}, 2, 0),
        ({"windows": {"w": 128}}, 0, 0),
        ({"embedding_rows": np.zeros(1536)}, 2, 1),
        ({"request_ids": ["a", 7]}, 0, 0),
        ({"request_ids": ["a", "a"]}, -1, 0),
        ({"seq_lens": [512.0, 3072]}, 0, 0),
        ({"chunk_lens": [512, 0]}, 1, 0),
        ({"chunk_starts": [0, 2**31]}, 2**31 - 1, 2**31),
        ({"seq_lens": [512, 8192]}, 3072, 8192),
        ({"query_start_loc": [0, 512, 1537]}, 1536, 1537),
        ({"computed": [0, 1024]}, 1024, 2048),
        ({"token_ids": [1] * 1535}, 1536, 1535),
        ({"embedding_rows": 1537}, 1536, 1537),
        ({"block_tables": {"full": [[5] * 4, 6], "window": [[1] * 8, [2] * 48]}}, 1, 0),
        ({"block_tables": {"full": [[5] * 4, [6] * 23], "window": [[1] * 8, [2] * 48]}}, 24, 23),
        ({"block_tables": tables_with(30, 0, "int32")}, 1, 0),
        ({"block_tables": tables_with(3, -1, "int32")}, 0, -1),
    ],
)
def test_a_problem_carries_the_numbers_that_were_compared(
    fields: dict[str, Any], want: int, got: int
) -> None:
    problem = refusal(good_pack() | fields).problem
    assert (problem.want, problem.got) == (want, got)
    assert problem.code in set(Code)


def test_every_code_has_an_example() -> None:
    assert {code for code, *_ in BAD_PACKS} == {code.name.lower() for code in Code} - {"fine"}


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda v: np.array(v, dtype=np.int32)])
def test_a_good_pack_of_lists_tuples_or_arrays_is_accepted(kind: Any) -> None:
    pack = good_pack()
    for field in ("chunk_starts", "chunk_lens", "seq_lens", "query_start_loc", "token_ids", "computed"):
        pack[field] = kind(pack[field])
    pack["block_tables"] = {
        group: [kind(row) for row in rows] for group, rows in pack["block_tables"].items()
    }
    assert assert_same_verdict(pack) == "fine"
    pack["embedding_rows"] = np.zeros((1536, 8), dtype=np.float32)
    assert assert_same_verdict(pack) == "fine"


def test_optional_checks_can_be_left_out() -> None:
    pack = good_pack()
    for field in ("windows", "vocab_size", "computed", "embedding_rows"):
        del pack[field]
    assert refusal(pack).problem.code == Code.TABLE_NULL  # without a window nothing can have been returned
    pack["block_tables"]["window"][1] = [2] * 48
    validate_packed_prefill(**pack)


# --- scenarios B16 and B17 ---


def packed_rows(rows: list[tuple[int, int, int]], offsets: list[int], tokens: int) -> Pack:
    """A pack without cache groups: (start, length, seq_len) per row."""
    return {
        "request_ids": [f"r{i}" for i in range(len(rows))],
        "chunk_starts": [start for start, _, _ in rows],
        "chunk_lens": [length for _, length, _ in rows],
        "seq_lens": [seq_len for _, _, seq_len in rows],
        "query_start_loc": offsets,
        "token_ids": np.zeros(tokens, dtype=np.int64),
        "block_tables": {},
        "block_sizes": {},
    }


def test_b16_row_length_of_the_prompt_instead_of_the_chunk_end() -> None:
    error = refusal(packed_rows([(2048, 1024, 8192)], [0, 1024], 1024))
    assert str(error) == "packed prefill: request 0 ('r0'): seq_len 8192 != chunk_start 2048 + chunk_len 1024"
    assert error.problem[:4] == (Code.SEQ_LEN, 0, 3072, 8192)
    error = refusal(packed_rows([(256, 465, 465)], [0, 465], 465))
    assert str(error) == "packed prefill: request 0 ('r0'): seq_len 465 != chunk_start 256 + chunk_len 465"
    validate_packed_prefill(**packed_rows([(2048, 1024, 3072), (0, 512, 512)], [0, 1024, 1536], 1536))


def b17_chunks() -> tuple[list[int], list[int]]:
    return [0] * 66, [125] * 65 + [67]


def test_b17_embeddings_not_cut_to_the_chunk() -> None:
    starts, lens = b17_chunks()
    rows = [(start, length, start + length) for start, length in zip(starts, lens, strict=True)]
    offsets = [*range(0, 65 * 125 + 1, 125), 8192]
    pack = packed_rows(rows, offsets, 8192)
    error = refusal(pack | {"embedding_rows": np.zeros((8250, 2))})
    assert str(error) == "packed prefill: request 65 ('r65'): embedding_rows 8250 != 8192 token_ids"
    for embeddings in (8192, np.zeros((8192, 2))):
        validate_packed_prefill(**pack | {"embedding_rows": embeddings})
    assert refusal(pack | {"embedding_rows": np.zeros(8192)}).problem.code == Code.EMBEDDING_RANK
    assert refusal(pack | {"token_ids": np.zeros((8192, 1), dtype=int)}).problem.code == Code.SHAPE


def test_b17_the_second_step_covers_the_rest_of_the_request() -> None:
    starts, lens = b17_chunks()
    histories = [np.arange(125) + 1000 * row for row in range(66)]
    ids = [f"r{row}" for row in range(66)]
    nothing: Any = {"block_tables": {}, "block_sizes": {}}
    first = pack_prefill(
        request_ids=ids, chunk_starts=starts, chunk_lens=lens, histories=histories, **nothing
    )
    assert first.packed_rows(65) == slice(8125, 8192)
    second = pack_prefill(
        request_ids=["r65"],
        chunk_starts=[67],
        chunk_lens=[58],
        histories=histories[65:],
        computed=[67],
        **nothing,
    )
    assert second.source_rows(0) == slice(67, 125)
    assert second.token_ids.tolist() == list(range(65067, 65125))


# --- the builder ---


def build(**changes: Any) -> PackedPrefill:
    arguments: dict[str, Any] = {
        "request_ids": ["a", "b"],
        "chunk_starts": (4, 0),
        "chunk_lens": (4, 3),
        "histories": [list(range(10, 19)), np.arange(20, 23)],
        "block_tables": {"A": [(0, 7), (3,)]},
        "block_sizes": {"A": 4},
        "windows": {"A": 0 + 4},
        "vocab_size": 100,
        "computed": [4, 0],
    }
    arguments["block_tables"] = {"A": [(5, 7), (3,)]}
    return pack_prefill(**arguments | changes)


def test_the_builder_derives_everything_from_start_and_length() -> None:
    pack = build()
    assert pack.request_ids == ("a", "b")
    assert pack.seq_lens.tolist() == [8, 3]
    assert pack.query_start_loc.tolist() == [0, 4, 7]
    assert pack.token_ids.tolist() == [14, 15, 16, 17, 20, 21, 22]
    assert pack.positions.tolist() == [4, 5, 6, 7, 0, 1, 2]
    assert pack.block_tables["A"].tolist() == [[5, 7], [3, 0]]
    assert pack.num_tokens == 7
    for name in ("chunk_starts", "chunk_lens", "seq_lens", "query_start_loc"):
        assert getattr(pack, name).dtype == np.int32, name
    assert (pack.token_ids.dtype, pack.positions.dtype) == (np.int64, np.int64)
    assert pack.block_tables["A"].dtype == np.int32
    validate_packed_prefill(
        request_ids=pack.request_ids,
        chunk_starts=pack.chunk_starts,
        chunk_lens=pack.chunk_lens,
        seq_lens=pack.seq_lens,
        query_start_loc=pack.query_start_loc,
        token_ids=pack.token_ids,
        block_tables=pack.block_tables,
        block_sizes={"A": 4},
    )


def test_a_pack_is_immutable_and_owns_its_arrays() -> None:
    history = np.arange(20, 23)
    pack = build(histories=[np.arange(10, 19), history])
    history[:] = 0
    assert pack.token_ids.tolist()[4:] == [20, 21, 22]
    for array in (pack.token_ids, pack.positions, pack.query_start_loc, pack.block_tables["A"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        pack.request_ids = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"request_ids": "ab"}, "request_ids has rank 0"),
        ({"request_ids": [], "chunk_starts": [], "chunk_lens": [], "histories": []}, "request_ids is empty"),
        ({"chunk_starts": [4]}, "request 1 ('b'): chunk_starts has 1 entries"),
        ({"chunk_lens": [4]}, "request 1 ('b'): chunk_lens has 1 entries"),
        ({"chunk_lens": [4, 3.0]}, "request 1 ('b'): chunk_lens[1] 3.0 (float)"),
        ({"chunk_starts": ["4", 0]}, "request 0 ('a'): chunk_starts[0] '4' (str)"),
        ({"histories": [list(range(9))]}, "request 1 ('b'): histories has 1 entries"),
        ({"histories": None}, "histories has rank 0"),
        ({"histories": [list(range(9)), 3]}, "request 1 ('b'): histories[1] has rank 0"),
        (
            {"histories": [list(range(9)), [1, 2]]},
            "request 1 ('b'): histories[1] has 2 tokens, seq_len 3 needs",
        ),
        (
            {"histories": [list(range(9)), [1, 2, 100]]},
            "request 1 ('b'): token_ids[6] 100 is outside [0, 99]",
        ),
        ({"histories": [list(range(9)), [1, True, 2]]}, "request 1 ('b'): token_ids[5] True (bool)"),
        ({"histories": [np.zeros(9), np.zeros(3)]}, "request 0 ('a'): token_ids[0] np.float64(0.0)"),
        ({"computed": [8, 0]}, "request 0 ('a'): chunk_start 4 != computed 8"),
        ({"block_tables": {"A": [(5,), (3,)]}}, "request 0 ('a'): block_tables['A'][0] has 1 columns"),
        (
            {"block_tables": {"A": [(5, 7), (3, 4)]}},
            "request 1 ('b'): block_tables['A'][1][1] 4 is past the end",
        ),
        ({"block_tables": {"A": [(0, 7), (3,)]}}, "request 0 ('a'): block_tables['A'][0][0] is null block 0"),
        ({"embedding_rows": 8}, "request 1 ('b'): embedding_rows 8 != 7 token_ids"),
    ],
)
def test_the_builder_refuses_before_it_builds(
    changes: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_early(*_: object) -> None:
        raise AssertionError("an input was built from metadata that is not valid")

    monkeypatch.setattr("hocket.runner.packed._frozen", too_early)
    monkeypatch.setattr("hocket.runner.packed._padded", too_early)
    with pytest.raises(PackedPrefillError) as caught:
        build(**changes)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("history", "code", "want", "got"), [(3, Code.SHAPE, 1, 0), ([1, 2], Code.TOKEN_EXTENT, 3, 2)]
)
def test_a_history_that_is_refused_tells_its_numbers(
    history: object, code: Code, want: int, got: int
) -> None:
    with pytest.raises(PackedPrefillError) as caught:
        build(histories=[list(range(9)), history])
    assert caught.value.problem == (code, 1, want, got)


# --- any pack, mutated in any way ---

ODD_VALUES: list[Any] = [
    True,
    False,
    None,
    "1",
    "",
    0.0,
    1.5,
    float("nan"),
    float("inf"),
    np.float32(1),
    np.float64(3),
    np.True_,
    np.int8(1),
    np.int64(2),
    np.uint64(2**63),
    -1,
    0,
    1,
    2**31 - 1,
    2**31,
    2**32,
    2**63,
    2**70,
    -(2**63),
    [],
    [1],
    (),
    b"1",
]
DTYPES = ["int8", "int32", "int64", "uint64", "float32", "bool", "object"]
ROW_FIELDS = [
    "request_ids",
    "chunk_starts",
    "chunk_lens",
    "seq_lens",
    "query_start_loc",
    "token_ids",
    "computed",
]


@st.composite
def packs(draw: st.DrawFn) -> Pack:
    """Well-formed packs of 1 to 4 requests and 0 to 3 groups, as plain lists."""
    rows = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=4))
    groups = draw(st.lists(st.sampled_from("ABC"), unique=True, max_size=3))
    sizes = {group: draw(st.integers(1, 8)) for group in groups}
    windows = {group: draw(st.none() | st.integers(1, 24)) for group in groups}
    offsets = [0]
    tables: dict[str, Any] = {group: [] for group in groups}
    for start, length in rows:
        offsets.append(offsets[-1] + length)
        for group in groups:
            columns = -(-(start + length) // sizes[group])
            window = windows[group]
            returned = 0 if window is None else max(0, (start - window) // sizes[group])
            nulls = draw(st.integers(0, returned))
            blocks = draw(st.lists(st.integers(1, 99), min_size=columns - nulls, max_size=columns - nulls))
            tables[group].append([0] * nulls + blocks + [0] * draw(st.integers(0, 2)))
    tokens = offsets[-1]
    return {
        "request_ids": [f"r{i}" for i in range(len(rows))],
        "chunk_starts": [start for start, _ in rows],
        "chunk_lens": [length for _, length in rows],
        "seq_lens": [start + length for start, length in rows],
        "query_start_loc": offsets,
        "token_ids": draw(st.lists(st.integers(0, 99), min_size=tokens, max_size=tokens)),
        "block_tables": tables,
        "block_sizes": sizes,
        "windows": draw(st.sampled_from([windows, {g: w for g, w in windows.items() if w is not None}])),
        "vocab_size": draw(st.sampled_from([None, 100])),
        "computed": draw(st.sampled_from([None, [start for start, _ in rows]])),
        "embedding_rows": draw(st.sampled_from([None, tokens, [[0.0]] * tokens, np.zeros((tokens, 2))])),
    }


def mutated_list(draw: st.DrawFn, values: Any) -> Any:
    """One change of a list of ints: an odd entry, an off-by-one, too few, too many, an array, a nest."""
    if not isinstance(values, list):
        return draw(st.sampled_from([*ODD_VALUES, [1]]))
    kind = draw(st.sampled_from(["odd", "shift", "drop", "append", "array", "nest", "whole", "empty"]))
    at = draw(st.integers(0, max(len(values) - 1, 0)))
    if kind == "odd" and values:
        return [*values[:at], draw(st.sampled_from(ODD_VALUES)), *values[at + 1 :]]
    if kind == "shift" and values and type(values[at]) is int:
        return [*values[:at], values[at] + draw(st.sampled_from([-1, 1, 7])), *values[at + 1 :]]
    if kind == "drop":
        return values[:at] + values[at + 1 :]
    if kind == "append":
        return [*values, draw(st.sampled_from([0, 1, *values]))]
    if kind == "array":
        try:
            return np.array(values, dtype=draw(st.sampled_from(DTYPES)))
        except (ValueError, TypeError, OverflowError):
            return values
    return {"nest": [values], "whole": draw(st.sampled_from(ODD_VALUES)), "empty": []}.get(kind, values)


def mutated_mapping(draw: st.DrawFn, field: str, value: Any) -> Any:
    """One change of a mapping by group: a value, a group missing or unknown, or no mapping at all."""
    kind = draw(st.sampled_from(["value", "value", "value", "lose", "gain", "whole"]))
    if kind == "whole" or not isinstance(value, dict):
        return draw(st.sampled_from([*ODD_VALUES, {}]))
    if kind == "gain":
        return value | {draw(st.sampled_from(["A", "B", "Z"])): draw(st.sampled_from([4, [[1]], None]))}
    if not value:
        return value
    group = draw(st.sampled_from(sorted(value)))
    if kind == "lose":
        return {g: v for g, v in value.items() if g != group}
    if field != "block_tables" or not isinstance(value[group], list) or not value[group]:
        return value | {group: draw(st.sampled_from(ODD_VALUES))}
    rows = list(value[group])
    if draw(st.booleans()):
        at = draw(st.integers(0, len(rows) - 1))
        rows[at] = mutated_list(draw, rows[at])
        return value | {group: rows}
    return value | {group: mutated_list(draw, rows)}


@st.composite
def mutated_packs(draw: st.DrawFn) -> Pack:
    pack = draw(packs())
    for _ in range(draw(st.integers(1, 3))):
        field = draw(st.sampled_from(sorted(pack)))
        if field in ("block_tables", "block_sizes", "windows"):
            pack[field] = mutated_mapping(draw, field, pack[field])
        elif field in ROW_FIELDS:
            pack[field] = mutated_list(draw, pack[field])
        else:
            pack[field] = draw(st.sampled_from([*ODD_VALUES, np.zeros((3, 1)), np.zeros(3), 0, 99]))
    return pack


@given(packs())
def test_every_well_formed_pack_is_accepted(pack: Pack) -> None:
    assert assert_same_verdict(pack) == "fine"


def repr_of(number: int) -> str:
    return f"{number.bit_length()} bits"


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, 2**70, -(2**64), 10**5000], ids=repr_of)
def test_a_number_that_is_too_long_to_read_is_told_by_its_size(number: int) -> None:
    pack = {
        "request_ids": ["a"], "chunk_starts": [0], "chunk_lens": [1], "seq_lens": [1],
        "query_start_loc": [0, 1], "token_ids": [5], "block_sizes": {"g": 4},
        "block_tables": {"g": [[1]]}, "embedding_rows": number,
    }  # fmt: skip
    assert assert_same_verdict(pack) == "range"


@settings(max_examples=5 * settings().max_examples)
@given(mutated_packs())
def test_the_first_violation_is_the_specifications(pack: Pack) -> None:
    assert_same_verdict(pack)


@settings(max_examples=3 * settings().max_examples)
@given(packs(), st.data())
def test_one_wrong_table_column_is_found(pack: Pack, data: st.DataObject) -> None:
    """Aimed at tables, where a wrong bound would hide: any one column, in lists and in arrays."""
    for group, rows in pack["block_tables"].items():
        row = data.draw(st.integers(0, len(rows) - 1), label=f"row of {group}")
        column = data.draw(st.integers(0, len(rows[row]) - 1), label="column")
        rows[row][column] = data.draw(st.sampled_from([0, 0, 3, 3, -1, 2**31]), label="block")
        dtype = data.draw(st.sampled_from([None, "int32", "int64", "uint32"]), label="array of")
        small = all(0 <= block < 2**31 for blocks in rows for block in blocks)
        if dtype == "int64" or (dtype is not None and small):
            pack["block_tables"][group] = [np.array(blocks, dtype=dtype) for blocks in rows]
    assert_same_verdict(pack)


# --- cost and purity ---


def python_calls(pack: Pack) -> int:
    """Python and C calls made by one validation: a measure of work that no busy machine disturbs."""
    count = 0

    def profile(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # its callbacks would count
    sys.setprofile(profile)
    try:
        validate_packed_prefill(**pack)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("kind", [list, np.array])
def test_work_does_not_grow_with_the_tokens(kind: Any) -> None:
    def pack(tokens: int) -> Pack:
        """Every value is one that the quick passes are to take: bounds, and what a window has returned."""
        columns = -(-tokens // 4)
        return {
            "request_ids": ["a"],
            "chunk_starts": kind([tokens]),
            "chunk_lens": kind([tokens]),
            "seq_lens": kind([2 * tokens]),
            "query_start_loc": kind([0, tokens]),
            "token_ids": kind([0, 7] * (tokens // 2)),
            "block_tables": {"A": [kind([0] * (columns - 1) + [1, 2**31 - 1] * (columns // 2) + [1, 0])]},
            "block_sizes": {"A": 4},
            "windows": {"A": 1},
            "vocab_size": 8,
        }

    assert python_calls(pack(8192)) == python_calls(pack(16))


def test_the_rules_can_be_executed_symbolically() -> None:
    """A symbolic run is silently wrong on `is`, isinstance and f-strings, loud on containers: none occurs."""
    forbidden = (ast.Is, ast.IsNot, ast.JoinedStr, ast.Dict, ast.Set, ast.In, ast.NotIn, ast.Try, ast.Raise)
    tree = ast.parse(inspect.getsource(packed_rules))
    for node in ast.walk(tree):
        assert not isinstance(node, forbidden), ast.dump(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id == "Problem", f"packed_rules calls {node.func.id}"


class _LooksLikeAnArray:
    ndim = 1


def _endless() -> list[Any]:
    nest: list[Any] = []
    nest.append(nest)
    return nest


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chunk_lens", [np.timedelta64(2, "s")]),
        ("chunk_starts", [np.timedelta64("NaT")]),
        ("chunk_starts", [np.timedelta64(0)]),
        ("chunk_starts", [10**5000]),
        ("token_ids", [1, np.timedelta64(2, "D")]),
        ("token_ids", [1, 10**5000]),
        ("token_ids", _endless()),
        ("token_ids", deque([1, 2])),
        ("token_ids", _LooksLikeAnArray()),
        ("token_ids", np.ma.array([1, 2], mask=[False, True])),
        ("request_ids", deque(["r7"])),
        ("block_tables", {"g": [deque([1])]}),
        ("block_tables", {"g": [np.ma.array([1], mask=[True])]}),
        ("block_tables", {"g": [[np.timedelta64(1, "s")]]}),
    ],
)
def test_things_that_only_look_like_integers_or_lists_are_refused(field: str, value: Any) -> None:
    validate_packed_prefill(**SMALL_PACK)
    with pytest.raises(PackedPrefillError, match=rf"packed prefill: .*{field}"):
        validate_packed_prefill(**(SMALL_PACK | {field: value}))

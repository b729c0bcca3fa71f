"""Block ids: each exactly one of free, owned or fenced, in every pool."""

from __future__ import annotations

import pytest

from hocket.core.config import KVCacheConfig, KVGroupSpec
from hocket.kv.cache import GroupedKVCache
from hocket.kv.pool import BlockPool
from hocket.kv.tables import BlockTable


def two_groups_one_pool() -> GroupedKVCache:
    return GroupedKVCache(
        KVCacheConfig(
            groups=(
                KVGroupSpec("a", 4, pool="main"),
                KVGroupSpec("b", 8, num_blocks=3),
                KVGroupSpec("c", 4, pool="main", window=8),
            ),
            pools={"main": 6},
        )
    )


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(4)
    assert sorted(pool.take(4)) == [1, 2, 3, 4]
    assert pool.take(0) == []
    assert (pool.num_free, pool.num_blocks) == (0, 4)


def test_a_pool_refuses_to_grant_more_than_is_free_and_to_free_twice() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match=r"^the planner granted more blocks than are free"):
        pool.take(3)
    with pytest.raises(AssertionError, match=r"^a block was freed twice"):
        pool.give_back((1,))
    with pytest.raises(AssertionError, match=r"^a block was fenced twice"):
        pool.fence(1, 1)


def test_blocks_of_a_new_pool_ascend_and_those_freed_last_are_handed_out_first() -> None:
    pool = BlockPool(6)
    assert pool.take(3) == [1, 2, 3]
    pool.give_back((2,))
    assert pool.take(2) == [2, 4]


def test_counts_that_the_blocks_contradict_show() -> None:
    pool = BlockPool(4)
    pool.take(2)
    pool._fenced[7] = [1]
    with pytest.raises(AssertionError):
        pool.settle(7)
    pool._free.append(1)
    for action in (lambda: pool.take(1), lambda: pool.give_back((2,))):
        with pytest.raises(AssertionError, match=r"^the free blocks are not as many as are counted"):
            action()


def test_a_fenced_block_is_free_only_when_its_step_is_settled() -> None:
    pool = BlockPool(3)
    one, two = pool.take(2)
    pool.fence(7, one)
    pool.fence(8, two)
    assert (pool.num_free, pool.num_fenced) == (1, 2)
    pool.settle(7)
    assert (pool.num_free, pool.num_fenced) == (2, 1)
    pool.settle(7)
    assert pool.num_free == 2
    pool.settle(8)
    assert sorted(pool.take(3)) == [1, 2, 3]


def test_groups_of_one_pool_share_its_blocks_and_others_do_not() -> None:
    cache = two_groups_one_pool()
    tables = cache.new_tables()
    new = cache.grow(tables, (2, 1, 2))
    assert [len(new[name]) for name in ("a", "b", "c")] == [2, 1, 2]
    assert len({*new["a"], *new["c"]}) == 4
    assert cache.free() == (2, 2)
    assert cache.held(tables) == (4, 1)
    assert cache.pool_of("a") is cache.pool_of("c")
    assert cache.pool_of("b") is not cache.pool_of("a")


def test_a_window_leaves_nulls_and_frees_its_blocks_at_once() -> None:
    cache = two_groups_one_pool()
    tables = cache.new_tables()
    new = cache.grow(tables, (0, 0, 3))
    cache.return_outdated(tables, (0, 0, 2))
    assert tables[2].whole() == (0, 0, new["c"][2])
    assert tables[2].num_columns == 3
    assert cache.free() == (5, 3)
    cache.return_outdated(tables, (0, 0, 2))
    assert cache.free() == (5, 3)


def test_a_window_moves_forward_within_its_table_only() -> None:
    table = BlockTable()
    table.block_ids += [4, 5, 6]
    assert table.drop_leading(0) == []
    assert table.drop_leading(1) == [4]
    for columns in (0, 4):
        with pytest.raises(AssertionError, match=r"^a window moved back, or past the table"):
            table.drop_leading(columns)
    assert (table.drop_leading(3), table.whole()) == ([5, 6], (0, 0, 0))


def test_a_request_without_a_table_for_every_group_is_a_mistake_that_shows() -> None:
    cache = two_groups_one_pool()
    two = cache.new_tables()[:2]
    for action in (
        lambda: cache.held(two),
        lambda: cache.grow(two, (0, 0, 1)),
        lambda: cache.grow(cache.new_tables(), (0, 1)),
        lambda: cache.return_outdated(two, (0, 0, 0)),
        lambda: cache.return_outdated(cache.new_tables(), (0, 0)),
        lambda: cache.release(two, lambda group, column: None),
    ):
        with pytest.raises(ValueError, match="zip"):
            action()


def test_release_fences_by_column_and_frees_the_rest() -> None:
    cache = two_groups_one_pool()
    tables = cache.new_tables()
    cache.grow(tables, (2, 1, 3))
    cache.return_outdated(tables, (0, 0, 1))
    asked: list[tuple[int, int]] = []

    def fencing_step(group: int, column: int) -> int | None:
        asked.append((group, column))
        return 5 if (group, column) in {(0, 1), (2, 2)} else None

    cache.release(tables, fencing_step)
    assert asked == [(0, 0), (0, 1), (1, 0), (2, 1), (2, 2)]
    assert cache.free() == (4, 3)
    assert cache.fenced() == (2, 0)
    assert [table.whole() for table in tables] == [(), (), ()]
    cache.settle(5)
    assert cache.free() == (6, 3)
    assert cache.fenced() == (0, 0)


def test_growing_by_nothing_names_no_block_of_any_group() -> None:
    cache = two_groups_one_pool()
    new = cache.grow(cache.new_tables(), (0, 0, 0))
    assert dict(new) == {"a": (), "b": (), "c": ()}

"""The GPU block pool: free queue, prefix cache, reference counts, and events that tell the truth about them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kvbus.errors import UsageError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvbus.offload.gpu import GpuBlockPool


def store(*hashes: int, group_idx: int = 0) -> BlockStored:
    return BlockStored(list(hashes), None, [1], 1, medium="GPU", group_idx=group_idx)


def cached(pool: GpuBlockPool, *hashes: int, group_idx: int = 0) -> list[int]:
    """Take, fill and cache one block a hash."""
    block_ids = pool.get_new_blocks(len(hashes))
    pool.cache_full_blocks(block_ids, store(*hashes, group_idx=group_idx))
    return block_ids


def test_a_cached_block_is_hit_while_in_use_and_while_free() -> None:
    pool = GpuBlockPool(4)
    block_ids = cached(pool, 11, 12)
    assert block_ids[0] == pool.get_cached_block(11, 0)
    pool.free_blocks(block_ids)
    assert block_ids[0] == pool.get_cached_block(11, 0)
    assert None is pool.get_cached_block(13, 0)
    assert None is pool.get_cached_block(11, 1), "another group's block is another block"


def test_eviction_is_from_the_head_of_the_free_queue_and_is_announced() -> None:
    pool = GpuBlockPool(3)
    pool.free_blocks(reversed(cached(pool, 11, 12, 13)))
    pool.take_events()
    pool.get_new_blocks(2)
    assert [BlockRemoved([13], "GPU", 0), BlockRemoved([12], "GPU", 0)] == pool.take_events()
    assert {0: Counter({11: 1})} == pool.content()


def test_empty_blocks_are_taken_without_an_event() -> None:
    pool = GpuBlockPool(3)
    pool.get_new_blocks(3)
    assert [] == pool.take_events()


def test_touched_blocks_are_not_evicted_and_go_to_the_end_when_freed() -> None:
    pool = GpuBlockPool(3)
    pool.free_blocks(first := cached(pool, 11))
    pool.free_blocks(cached(pool, 12))
    pool.touch(first)
    assert 2 == pool.get_num_free_blocks()
    assert not pool.is_free(first[0])
    pool.free_blocks(first)
    pool.free_blocks(pool.get_new_blocks(2))
    assert {0: Counter({11: 1})} == pool.content(), "12 was evicted before 11, which was used later"


def test_a_block_used_twice_is_free_after_the_second_free() -> None:
    pool = GpuBlockPool(1)
    block_ids = cached(pool, 11)
    pool.touch(block_ids)
    pool.free_blocks(block_ids)
    assert 0 == pool.get_num_free_blocks()
    pool.free_blocks(block_ids)
    assert 1 == pool.get_num_free_blocks()


def test_more_than_free_is_refused_and_changes_nothing() -> None:
    pool = GpuBlockPool(2)
    pool.free_blocks(cached(pool, 11))
    pool.take_events()
    with pytest.raises(UsageError, match="3 blocks wanted, 2 are free"):
        pool.get_new_blocks(3)
    assert ([], 2, {0: Counter({11: 1})}) == (pool.take_events(), pool.get_num_free_blocks(), pool.content())


def test_g26_two_copies_are_two_stores_and_two_removals() -> None:
    pool = GpuBlockPool(2)
    pool.free_blocks(cached(pool, 11))
    second = cached(pool, 11)
    assert {0: Counter({11: 2})} == pool.content()
    pool.free_blocks(second)
    pool.get_new_blocks(1)
    assert second[0] == pool.get_cached_block(11, 0), "the other copy is still there"
    pool.get_new_blocks(1)
    assert [store(11), store(11), BlockRemoved([11], "GPU", 0), BlockRemoved([11], "GPU", 0)] == pool.take_events()


def test_reset_forgets_all_and_is_announced_even_when_empty() -> None:
    pool = GpuBlockPool(2)
    pool.free_blocks(cached(pool, 11, 12))
    pool.take_events()
    assert pool.reset_prefix_cache()
    assert pool.reset_prefix_cache()
    assert [AllBlocksCleared(), AllBlocksCleared()] == pool.take_events()
    assert {} == pool.content()
    pool.get_new_blocks(2)
    assert [] == pool.take_events(), "nothing is left to evict"


def test_reset_is_refused_while_a_block_is_in_use() -> None:
    pool = GpuBlockPool(2)
    cached(pool, 11)
    assert not pool.reset_prefix_cache()
    assert {0: Counter({11: 1})} == pool.content()


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        GpuBlockPool(0)


def test_events_folded_with_counted_references_are_the_content() -> None:
    """Random use, checked after every step against the physical blocks."""
    rng = random.Random(7)
    pool = GpuBlockPool(12)
    in_use: list[list[int]] = []
    folded: dict[int, Counter[int]] = {}
    for _ in range(2000):
        action = rng.random()
        if action < 0.45 and pool.get_num_free_blocks() >= 3:
            hashes = [rng.randrange(20) for _ in range(rng.randint(0, 3))]
            in_use.append(cached(pool, *hashes, group_idx=rng.randrange(2)))
        elif action < 0.6 and (hit := pool.get_cached_block(rng.randrange(20), rng.randrange(2))) is not None:
            pool.touch([hit])
            in_use.append([hit])
        elif action < 0.98 and in_use:
            pool.free_blocks(in_use.pop(rng.randrange(len(in_use))))
        else:
            pool.reset_prefix_cache()
        for event in pool.take_events():
            if isinstance(event, AllBlocksCleared):
                folded.clear()
                continue
            assert isinstance(event, BlockStored | BlockRemoved)
            counts = folded.setdefault(event.group_idx or 0, Counter())
            for block_hash in event.block_hashes:
                counts[block_hash] += 1 if isinstance(event, BlockStored) else -1
                assert counts[block_hash] >= 0
        assert pool.content() == {group: +counts for group, counts in folded.items() if +counts}

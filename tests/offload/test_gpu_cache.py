"""Hits, allocation and caching over the block pool, for one group and for several."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from kvbus.events import BlockRemoved, BlockStored
from kvbus.offload.block_sizes import resolve_kv_cache_block_sizes
from kvbus.offload.gpu import GpuBlockPool
from kvbus.offload.gpu_cache import GpuCache, RequestBlocks
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.hits import HitFinder
from kvbus.offload.prompts import pseudo_tokens

FULL = KVCacheGroup("full_attention", 16)
WINDOW = KVCacheGroup("sliding_window", 4, sliding_window=6)
MAMBA = KVCacheGroup("mamba", 8)


def cache_of(*groups: KVCacheGroup, blocks: int = 1000) -> GpuCache:
    return GpuCache(GpuBlockPool(blocks), HitFinder(groups, *resolve_kv_cache_block_sizes(groups)))


def run(cache: GpuCache, hashes: list[int], tokens: int, *, chunk: int = 1 << 30) -> RequestBlocks:
    """Take a request through its prompt in chunks, from what it hits on."""
    blocks = RequestBlocks(hashes, len(cache.groups))
    computed = cache.get_computed_tokens(blocks, tokens)
    cache.take_computed_blocks(blocks, computed)
    while computed < tokens:
        wanted = min(tokens, computed + chunk)
        assert cache.allocate_slots(blocks, computed, wanted)
        cache.cache_blocks(blocks, wanted)
        computed = wanted
    return blocks


def hit(cache: GpuCache, hashes: list[int], tokens: int) -> int:
    return cache.get_computed_tokens(RequestBlocks(hashes, len(cache.groups)), tokens)


def test_one_group_hits_the_longest_prefix_of_full_blocks() -> None:
    cache = cache_of(FULL)
    cache.free(run(cache, [1, 2, 3], 50))
    assert 48 == hit(cache, [1, 2, 3, 4], 70)
    assert 32 == hit(cache, [1, 2, 9], 60)
    assert 0 == hit(cache, [9, 2, 3], 60)


def test_a_prompt_is_never_hit_in_full() -> None:
    """The last token must be computed for its logits, so a prompt that ends with a block computes that block again."""
    cache = cache_of(FULL)
    cache.free(run(cache, [1, 2, 3], 48))
    assert 32 == hit(cache, [1, 2, 3], 48)
    cache.pool.take_events()
    run(cache, [1, 2, 3], 48)
    assert [[3]] == [event.block_hashes for event in cache.pool.take_events()]
    assert {0: Counter({1: 1, 2: 1, 3: 2})} == cache.pool.content()


def test_the_event_of_a_run_is_the_engines() -> None:
    cache = cache_of(FULL)
    run(cache, [1, 2, 3], 40, chunk=33)
    first, *rest = cache.pool.take_events()
    tokens = pseudo_tokens(1, 16) + pseudo_tokens(2, 16)
    expected = BlockStored(
        [1, 2],
        None,
        tokens,
        16,
        medium="GPU",
        extra_keys=[None, None],
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    assert expected == first
    assert [] == rest, "the third block has no 16 tokens yet"


def test_a_later_run_names_its_parent() -> None:
    cache = cache_of(FULL)
    run(cache, [1, 2, 3], 48, chunk=20)
    events = [(event.block_hashes, event.parent_block_hash) for event in cache.pool.take_events()]
    assert [([1], None), ([2], 1), ([3], 2)] == events


def test_allocation_that_does_not_fit_changes_nothing() -> None:
    cache = cache_of(FULL, blocks=3)
    held = run(cache, [1, 2], 32)
    more = RequestBlocks([3, 4], 1)
    assert not cache.allocate_slots(more, 0, 32)
    assert [[]] == more.tables
    assert 1 == cache.pool.get_num_free_blocks()
    cache.free(held)
    assert cache.allocate_slots(more, 0, 32)


def test_freed_last_block_first() -> None:
    """Of a finished request the tail is evicted before the head, which others may share."""
    cache = cache_of(FULL, blocks=3)
    cache.free(run(cache, [1, 2, 3], 48))
    cache.pool.take_events()
    cache.pool.get_new_blocks(2)
    assert [BlockRemoved([3], "GPU", 0), BlockRemoved([2], "GPU", 0)] == cache.pool.take_events()


def test_a_coarse_group_is_known_by_the_hash_of_its_last_small_block() -> None:
    cache = cache_of(FULL, WINDOW)
    assert (16, 4) == (cache.finder.scheduler_block_size, cache.finder.hash_block_size)
    run(cache, [1, 2, 3, 4, 5, 6], 25)
    events = {event.group_idx: event for event in cache.pool.take_events()}
    assert [4] == events[0].block_hashes
    assert [1, 2, 3, 4, 5, 6] == events[1].block_hashes
    assert events[0].token_ids == (events[1].token_ids or [])[:16], "one content in both groups"
    assert (16, 4, 6) == (events[0].block_size, events[1].block_size, events[1].kv_cache_spec_sliding_window)


def test_a_window_gives_up_what_it_has_left_behind() -> None:
    """After 16 tokens the next sees five more in front of it: tokens 11 to 15, in blocks 2 and 3."""
    cache = cache_of(FULL, WINDOW)
    blocks = run(cache, list(range(1, 9)), 16)
    assert cache.allocate_slots(blocks, 16, 18)
    assert [True, True, False, False, False] == [block_id is None for block_id in blocks.tables[1]]
    assert [False, False] == [block_id is None for block_id in blocks.tables[0]]


def test_a_hit_needs_the_last_window_only() -> None:
    cache = cache_of(FULL, WINDOW, blocks=100)
    hashes = list(range(1, 17))
    cache.free(run(cache, hashes, 64))
    assert 48 == hit(cache, hashes, 64)
    for index in (0, 1, 5, 9):
        evict(cache, 1, hashes[index])
    assert 48 == hit(cache, hashes, 64), "tokens 43 to 47 lie in blocks 10 and 11"
    evict(cache, 1, hashes[10])
    assert 32 == hit(cache, hashes, 64), "blocks 6 and 7 serve the next shorter hit"


def test_all_groups_must_agree() -> None:
    cache = cache_of(FULL, WINDOW, MAMBA, blocks=100)
    hashes = list(range(1, 17))
    cache.free(run(cache, hashes, 64, chunk=16))
    assert 48 == hit(cache, hashes, 64)
    evict(cache, 2, hashes[11])
    assert 32 == hit(cache, hashes, 64)
    evict(cache, 0, hashes[7])
    assert 16 == hit(cache, hashes, 64)
    evict(cache, 1, hashes[3])
    assert 0 == hit(cache, hashes, 64)


def test_groups_outside_prefix_caching_do_not_count() -> None:
    scratch = KVCacheGroup("mamba", 16, prefix_cacheable=False)
    cache = cache_of(FULL, scratch)
    cache.free(run(cache, [1, 2, 3], 48))
    assert {0} == {event.group_idx for event in cache.pool.take_events()}
    assert 32 == hit(cache, [1, 2, 3], 48)
    assert 0 == hit(alone := cache_of(scratch), [1], 16) == len(alone.pool.take_events())


def test_hit_blocks_are_used_and_not_announced_again() -> None:
    cache = cache_of(FULL, WINDOW, blocks=40)
    first = run(cache, list(range(1, 9)), 32)
    cache.pool.take_events()
    second = run(cache, list(range(1, 9)), 32)
    assert first.tables[0][0] == second.tables[0][0]
    announced = Counter(h for event in cache.pool.take_events() for h in event.block_hashes)
    assert Counter({8: 2, 5: 1, 6: 1, 7: 1}) == announced, "the hit is 16 tokens; the rest was computed twice"
    cache.free(first)
    cache.free(second)
    assert 40 == cache.pool.get_num_free_blocks()


def test_blocks_at_most_bounds_what_a_request_holds() -> None:
    rng = random.Random(3)
    for _ in range(100):
        cache = cache_of(FULL, WINDOW, MAMBA)
        tokens, chunk = rng.randint(1, 300), rng.randint(1, 60)
        blocks = RequestBlocks(list(range(tokens // 4)), 3)
        most = 0
        for computed in range(0, tokens, chunk):
            assert cache.allocate_slots(blocks, computed, min(tokens, computed + chunk))
            most = max(most, sum(block_id is not None for table in blocks.tables for block_id in table))
        assert most <= cache.blocks_at_most(tokens, chunk)


@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW), (FULL, WINDOW, MAMBA), (WINDOW,), (MAMBA,)])
def test_hits_against_a_dumb_oracle(groups: tuple[KVCacheGroup, ...]) -> None:
    """Every aligned length is tried from the longest down, each block of each window looked up."""
    rng = random.Random(11)
    cache = cache_of(*groups, blocks=60)
    for _ in range(300):
        length = rng.randint(1, 120)
        family = rng.randrange(3)
        hashes = [family * 1000 + index for index in range(length // cache.finder.hash_block_size)]
        expected = oracle_hit(cache, hashes, length)
        assert expected == hit(cache, hashes, length)
        cache.free(run(cache, hashes, length, chunk=rng.randint(8, 64)))


def oracle_hit(cache: GpuCache, hashes: list[int], tokens: int) -> int:
    limit = min(tokens - 1, len(hashes) * cache.finder.hash_block_size)
    for end in range(limit - limit % cache.finder.scheduler_block_size, 0, -cache.finder.scheduler_block_size):
        if all(serves(cache, hashes, index, group, end) for index, group in enumerate(cache.groups)):
            return end
    return 0


def serves(cache: GpuCache, hashes: list[int], group_idx: int, group: KVCacheGroup, end: int) -> bool:
    count = end // group.block_size
    needed = count if group.tail_block_count is None else group.tail_block_count
    small = group.block_size // cache.finder.hash_block_size
    return all(
        cache.pool.get_cached_block(hashes[(index + 1) * small - 1], group_idx) is not None
        for index in range(max(0, count - needed), count)
    )


def evict(cache: GpuCache, group_idx: int, block_hash: int) -> None:
    """Drop all copies of one block, wherever they stand in the free queue."""
    pool = cache.pool
    for _ in itertools.count():
        block_id = pool.get_cached_block(block_hash, group_idx)
        if block_id is None:
            return
        pool._evict(block_id)

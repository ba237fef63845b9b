"""The longest hit over all groups, on hand-worked cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvbus.offload.block_sizes import resolve_kv_cache_block_sizes
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.hits import HitFinder, attention_window

FULL64 = KVCacheGroup("full_attention", 64)
FULL16 = KVCacheGroup("full_attention", 16)
SLIDING = KVCacheGroup("sliding_window", 16, sliding_window=40)
NARROW = KVCacheGroup("sliding_window", 16, sliding_window=8)
MAMBA = KVCacheGroup("mamba", 32)


def finder(*groups: KVCacheGroup) -> HitFinder:
    return HitFinder(groups, *resolve_kv_cache_block_sizes(groups))


def having(*blocks: range) -> Callable[[int, int], bool]:
    """A place that holds, for each group, the blocks whose last small block is in a range (hashes are 0, 1, 2, …)."""
    return lambda group_idx, block_hash: block_hash in blocks[group_idx]


ALL = range(1000)


def test_windows() -> None:
    """A sliding window sees itself; a state is the token in front."""
    assert [None, 40, 2] == [attention_window(group) for group in (FULL16, SLIDING, MAMBA)]


def test_one_group_is_a_prefix() -> None:
    one = finder(FULL16)
    assert 48 == one.longest_hit(range(10), 1000, having(range(3)))
    assert 0 == one.longest_hit(range(10), 1000, having(range(1, 10)))
    assert 160 == one.longest_hit(range(10), 1000, having(ALL))


def test_a_hit_is_not_longer_than_the_limit_and_ends_at_a_boundary() -> None:
    one = finder(FULL16)
    assert [96, 80] == [one.longest_hit(range(10), limit, having(ALL)) for limit in (96, 95)]
    assert 0 == one.longest_hit(range(10), -1, having(ALL))


def test_blocks_in_front_of_the_start_are_not_asked_for() -> None:
    asked: list[int] = []

    def has_block(group_idx: int, block_hash: int) -> bool:
        asked.append(block_hash)
        return block_hash < 5

    assert 80 == finder(FULL16).longest_hit(range(10), 1000, has_block, 32)
    assert [2, 3, 4, 5] == asked
    assert 32 == finder(FULL16).longest_hit(range(10), 1000, having(range(0)), 32)


def test_coarse_blocks_are_known_by_their_last_small_one() -> None:
    """64 and 16: a coarse block is there if the hash of its fourth small block is."""
    both = finder(FULL64, SLIDING)
    assert (64, 16) == (both.scheduler_block_size, both.hash_block_size)
    assert 128 == both.longest_hit(range(20), 1000, having(range(3, 8, 4), ALL))


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (range(0, 20), 256),
        (range(13, 16), 256),
        (range(14, 16), 0),
        (range(0, 15), 192),
        (range(5, 8), 128),
    ],
)
def test_a_window_larger_than_a_block(held: range, expected: int) -> None:
    """Window 40 over blocks of 16: in front of an end at 256 it reaches back to token 217, in block 13."""
    assert expected == finder(FULL64, SLIDING).longest_hit(range(16), 1000, having(ALL, held))


@pytest.mark.parametrize(("held", "expected"), [(range(15, 16), 256), (range(11, 12), 192), (range(4, 7), 0)])
def test_a_window_smaller_than_a_block(held: range, expected: int) -> None:
    """Window 8 over blocks of 16: the last block is enough."""
    assert expected == finder(FULL64, NARROW).longest_hit(range(16), 1000, having(ALL, held))


def test_a_state_needs_its_last_block() -> None:
    assert 192 == finder(FULL64, MAMBA).longest_hit(range(8), 1000, having(ALL, range(5, 6)))


def test_groups_shorten_each_other_until_none_objects() -> None:
    """The windows allow 256, 128 and 64 in one group, 192 and 64 in the other: only 64 is left."""
    three = finder(FULL64, NARROW, KVCacheGroup("sliding_window", 16, sliding_window=9))
    first, second = (3, 7, 15), (3, 11)
    hit = three.longest_hit(range(16), 1000, lambda group, block: block in (ALL, first, second)[group])
    assert 64 == hit


def test_groups_outside_prefix_caching_do_not_count() -> None:
    scratch = KVCacheGroup("mamba", 16, prefix_cacheable=False)
    assert 32 == finder(FULL16, scratch).longest_hit(range(5), 1000, having(range(2), range(0)))
    assert 0 == finder(scratch).longest_hit(range(5), 1000, having(ALL))

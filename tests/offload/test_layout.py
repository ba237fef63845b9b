"""Which blocks a request has, at which sizes, under which keys."""

import random

from kvbus.offload.block_sizes import resolve_kv_cache_block_sizes
from kvbus.offload.groups import GroupOffloadConfig, KVCacheGroup
from kvbus.offload.keys import make_offload_key
from kvbus.offload.layout import LaidBlock, RequestLayout

HYBRID = [KVCacheGroup("full_attention", 64), KVCacheGroup("sliding_window", 16, 32)]


def layout_of(groups: list[KVCacheGroup]) -> RequestLayout:
    return RequestLayout(groups, *resolve_kv_cache_block_sizes(groups))


def ends(blocks: list[LaidBlock], group_idx: int) -> list[int]:
    return [block.end_token for block in blocks if block.group_idx == group_idx]


def test_a_hit_needs_the_prefix_of_one_group_and_the_window_of_the_other() -> None:
    blocks = layout_of(HYBRID).blocks_of_hit(range(100, 112), 0, 128)
    assert [
        LaidBlock(64, 0, 0, make_offload_key(103, 0)),
        LaidBlock(112, 1, 6, make_offload_key(106, 1)),
        LaidBlock(128, 0, 1, make_offload_key(107, 0)),
        LaidBlock(128, 1, 7, make_offload_key(107, 1)),
    ] == blocks


def test_what_is_computed_is_not_needed_again() -> None:
    blocks = layout_of(HYBRID).blocks_of_hit(range(100, 112), 64, 128)
    assert ([128], [112, 128]) == (ends(blocks, 0), ends(blocks, 1))


def test_a_window_does_not_reach_into_what_is_computed() -> None:
    """A window of 200 tokens before 128 begins at 0; with 64 tokens computed, the pool has to give the rest only."""
    layout = layout_of([KVCacheGroup("full_attention", 64), KVCacheGroup("sliding_window", 16, 200)])
    assert [80, 96, 112, 128] == ends(layout.blocks_of_hit(range(100, 112), 64, 128), 1)


def test_of_a_window_only_what_some_hit_needs_is_worth_storing() -> None:
    blocks = layout_of(HYBRID).blocks_worth_storing(range(100, 112), 0, 192)
    assert ([64, 128, 192], [48, 64, 112, 128, 176, 192]) == (ends(blocks, 0), ends(blocks, 1))


def test_of_a_window_longer_than_a_hit_everything_is_worth_storing() -> None:
    layout = layout_of([KVCacheGroup("full_attention", 64), KVCacheGroup("sliding_window", 16, 81)])
    assert list(range(16, 193, 16)) == ends(layout.blocks_worth_storing(range(100, 112), 0, 192), 1)


def test_two_windows_are_each_asked_for_their_own_blocks() -> None:
    layout = layout_of(
        [KVCacheGroup("sliding_window", 64, 65), KVCacheGroup("sliding_window", 16, 17), KVCacheGroup("mamba", 32)]
    )
    blocks = layout.blocks_worth_storing(range(100, 112), 0, 128)
    assert ([64, 128], [64, 128], [64, 128]) == (ends(blocks, 0), ends(blocks, 1), ends(blocks, 2))


def test_blocks_come_in_the_order_in_which_they_end() -> None:
    blocks = layout_of(HYBRID).blocks_worth_storing(range(100, 112), 64, 192)
    assert sorted(blocks, key=lambda block: block.end_token) == blocks


def test_groups_that_are_not_cacheable_have_no_blocks() -> None:
    layout = layout_of([KVCacheGroup("full_attention", 64), KVCacheGroup("unknown", 8, None, False)])
    assert {0: GroupOffloadConfig(0, 64, 64, 1, "full_attention", None)} == layout.configs
    assert [0] == [block.group_idx for block in layout.blocks_of_hit([5], 0, 64)]


def test_what_a_hit_needs_is_what_attention_reads() -> None:
    """Token by token: the blocks under everything that the next token sees, and no others."""
    rng = random.Random(5)
    for _ in range(200):
        size, window = rng.choice([4, 8, 16]), rng.randint(1, 70)
        layout = layout_of([KVCacheGroup("full_attention", 16), KVCacheGroup("sliding_window", size, window)])
        start, end = sorted(rng.sample(range(0, 161, 16), 2))
        seen_tokens = [token for token in range(start, end) if token > end - window]
        expected = sorted({(token // size + 1) * size for token in seen_tokens})
        hashes = range(100, 100 + 160 // min(size, 16))
        assert expected == ends(layout.blocks_of_hit(hashes, start, end), 1)

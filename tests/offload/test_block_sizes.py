"""The scheduler's block size and the hashes' are two things."""

from typing import Any

import pytest

from kvbus.errors import ConfigError, UsageError
from kvbus.offload.block_sizes import check_block_sizes, resolve_block_hashes, resolve_kv_cache_block_sizes
from kvbus.offload.groups import KVCacheGroup


def full(block_size: int, **more: Any) -> KVCacheGroup:
    return KVCacheGroup("full_attention", block_size, **more)


def window(block_size: int) -> KVCacheGroup:
    return KVCacheGroup("sliding_window", block_size, 128)


@pytest.mark.parametrize(
    ("groups", "options", "expected"),
    [
        ([full(16)], {}, (16, 16)),
        ([full(64)], {"hash_block_size": 16}, (64, 64)),
        ([full(64)], {"enable_prefix_caching": False}, (64, 64)),
        ([full(64), window(16)], {}, (64, 16)),
        ([full(256), window(64), full(4)], {}, (256, 4)),
        ([full(48), window(32)], {}, (96, 16)),
        ([full(16), window(16)], {}, (16, 16)),
        ([full(64), window(32)], {"hash_block_size": 8}, (64, 8)),
        ([full(64), window(16)], {"enable_prefix_caching": False}, (64, 64)),
        ([full(64), window(16)], {"hash_block_size": 4, "enable_prefix_caching": False}, (64, 64)),
        ([full(32), full(8, prefix_cacheable=False)], {}, (32, 32)),
        ([full(32), full(24, prefix_cacheable=False)], {"hash_block_size": 16}, (96, 16)),
        ([full(32, prefix_cacheable=False), full(8, prefix_cacheable=False)], {}, (32, 8)),
    ],
)
def test_both_sizes_follow_from_the_groups(
    groups: list[KVCacheGroup], options: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert expected == resolve_kv_cache_block_sizes(groups, **options)


@pytest.mark.parametrize(
    ("groups", "hash_block_size", "named"),
    [
        ([full(64), window(16)], 32, ["32", "64", "16"]),
        ([full(64), window(16)], 5, ["5", "64", "16"]),
        ([full(64)], 48, ["48", "64"]),
        ([full(64), window(16)], 0, ["0"]),
        ([full(64), window(16)], -16, ["-16"]),
        ([full(64), window(16)], True, ["True"]),
    ],
)
def test_a_configured_size_that_does_not_divide_is_refused_with_the_sizes(
    groups: list[KVCacheGroup], hash_block_size: int, named: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_kv_cache_block_sizes(groups, hash_block_size=hash_block_size)
    assert all(size in str(caught.value) for size in named)


@pytest.mark.parametrize("groups", [[], [full(0)], [full(-16), window(16)]])
def test_groups_without_a_size_are_refused(groups: list[KVCacheGroup]) -> None:
    with pytest.raises(ConfigError):
        resolve_kv_cache_block_sizes(groups)


@pytest.mark.parametrize("sizes", [(64, 16), (128, 16), (64, 8)])
def test_sizes_that_fit_are_accepted(sizes: tuple[int, int]) -> None:
    check_block_sizes([full(64), window(16), full(48, prefix_cacheable=False)], *sizes)


@pytest.mark.parametrize(
    ("sizes", "fields", "named"),
    [
        ((64, 48), ["scheduler_block_size", "hash_block_size", "hash_block_size"], "48"),
        ((32, 16), ["scheduler_block_size"], "64"),
        ((64, 32), ["hash_block_size"], "block size 16"),
        ((0, -1), ["scheduler_block_size", "hash_block_size"], "-1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_sizes(
    sizes: tuple[int, int], fields: list[str], named: str
) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        check_block_sizes([full(64), window(16)], *sizes)
    assert fields == [problem.field for problem in caught.value.problems]


def test_a_coarse_hash_is_the_fine_one_at_its_end() -> None:
    assert [13, 17] == resolve_block_hashes([10, 11, 12, 13, 14, 15, 16, 17, 18], 16, 64)


def test_equal_sizes_need_no_copy() -> None:
    hashes = [1, 2, 3]
    assert resolve_block_hashes(hashes, 16, 16) is hashes


@pytest.mark.parametrize("sizes", [(16, 40), (32, 16), (0, 16), (16, 0), (16, -16)])
def test_sizes_that_are_no_multiple_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match=str(sizes[1])):
        resolve_block_hashes([1, 2], *sizes)

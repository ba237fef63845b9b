"""What the GPU is about to evict."""

from collections.abc import Iterator

import pytest

from kvbus.errors import UsageError
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.keys import OffloadKey, make_offload_key
from kvbus.offload.lazy import GpuBlock, estimate_lazy_target_blocks, keys_about_to_go

GROUPS = [
    KVCacheGroup("full_attention", 64),
    KVCacheGroup("sliding_window", 16, 32),
    KVCacheGroup("unknown", 8, None, False),
]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([KVCacheGroup("full_attention", 16)], 2 * 63),
        ([KVCacheGroup("sliding_window", 16, 33)], 2 * 4),
        ([KVCacheGroup("mamba", 16)], 2 * 2),
        (
            [KVCacheGroup("full_attention", 64), KVCacheGroup("sliding_window", 16, 32), KVCacheGroup("mamba", 64)],
            2 * 21,
        ),
    ],
)
def test_two_steps_are_kept_ahead(groups: list[KVCacheGroup], expected: int) -> None:
    """1 000 tokens a step: ⌈1000/16⌉ = 63 blocks of full attention, a window ⌈w/16⌉ + 1, a state 2."""
    assert expected == estimate_lazy_target_blocks(groups, 1000)


def test_keys_come_in_the_order_of_eviction_without_empty_blocks() -> None:
    first, second = make_offload_key(1), make_offload_key(2, 1)
    queue = [GpuBlock(None, 64), GpuBlock(second, 16), GpuBlock(first, 64)]
    assert [second, first] == keys_about_to_go(queue, 9, GROUPS)


def test_no_more_of_the_queue_is_read_than_the_target() -> None:
    def queue() -> Iterator[GpuBlock]:
        yield GpuBlock(make_offload_key(1), 64)
        yield GpuBlock(None, 64)
        raise AssertionError("read too far")

    assert [make_offload_key(1)] == keys_about_to_go(queue(), 2, GROUPS)


@pytest.mark.parametrize(
    "block",
    [
        GpuBlock(make_offload_key(1, 1), 64),
        GpuBlock(make_offload_key(1, 0), 16),
        GpuBlock(make_offload_key(1, 2), 8),
        GpuBlock(make_offload_key(1, 3), 64),
        GpuBlock(OffloadKey("1", 0), 64),  # type: ignore[arg-type]
        GpuBlock(1, 64),  # type: ignore[arg-type]
    ],
)
def test_a_block_that_is_none_of_the_models_is_refused(block: GpuBlock) -> None:
    """A window's block of 16 tokens under the hash of a 64-token block would be hit for tokens that it does not hold."""
    with pytest.raises(UsageError):
        keys_about_to_go([GpuBlock(make_offload_key(9), 64), block], 9, GROUPS)

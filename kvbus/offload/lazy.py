"""Lazy offloading: store what the GPU is about to evict, and nothing before.

The GPU evicts from the head of its free queue. What the next two steps may take from there has to be in the pool before, so that
much of the queue is kept stored; the second step is there because a copy takes time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from kvbus.errors import UsageError
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.keys import OffloadKey, checked_keys

__all__ = ["GpuBlock", "estimate_lazy_target_blocks", "keys_about_to_go"]


class GpuBlock(NamedTuple):
    """A block in the GPU's free queue.

    Attributes:
        key: What it holds; `None` = nothing that could be hit.
        block_size: Tokens in it.
    """

    key: OffloadKey | None
    block_size: int


def estimate_lazy_target_blocks(groups: Iterable[KVCacheGroup], max_num_batched_tokens: int) -> int:
    """Return how many blocks at the head of the free queue two steps may take.

    Args:
        groups: KV-cache groups, judged.
        max_num_batched_tokens: Tokens that a step computes at most, ≥ 1.

    Convention: vLLM `_estimate_lazy_target_blocks`: a full-attention group takes blocks for all tokens of a step, a window
        its own blocks and one more, a state two.
    """
    count = 0
    for group in groups:
        if group.sliding_window is not None:
            count += -(-group.sliding_window // group.block_size) + 1
        elif group.tail_block_count is not None:
            count += 2
        else:
            count += -(-max_num_batched_tokens // group.block_size)
    return 2 * count


def keys_about_to_go(
    free_queue: Iterable[GpuBlock], target_blocks: int, groups: Sequence[KVCacheGroup]
) -> list[OffloadKey]:
    """Return what the head of the free queue holds, in order.

    Args:
        free_queue: The GPU's free blocks, the next to be evicted first; no more than `target_blocks` are read.
        target_blocks: How many blocks to look at, ≥ 0.
        groups: KV-cache groups, in the order of their `group_idx`.

    Raises:
        UsageError: A block is of no group, of one that is not prefix-cacheable, or of another size than its group's blocks: its
            hash would then stand for other tokens than its group's blocks hold. Or it has no whole key.
    """
    keys: list[OffloadKey] = []
    for key, block_size in islice(free_queue, target_blocks):
        if key is None:
            continue
        checked_keys((key,))
        if key.group_idx >= len(groups) or not groups[key.group_idx].prefix_cacheable:
            raise UsageError(f"group {key.group_idx} is none that takes part in prefix caching")
        expected = groups[key.group_idx].block_size
        if block_size != expected:
            raise UsageError(
                f"a block of {block_size} tokens cannot stand for one of group {key.group_idx}, whose blocks have {expected}"
            )
        keys.append(key)
    return keys

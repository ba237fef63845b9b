"""The GPU's block pool: physical blocks, the prefix cache over them, and the events that tell of it.

Follows vLLM's `BlockPool`. Every block is in use (reference count above zero) or in the free queue. A free block keeps its
content and can be hit again, until it is taken from the head of the queue and its content is evicted; so the queue is
the LRU list. Two requests that compute the same content at the same time cache it in two physical blocks: that is two stores and,
later, two removals of one hash.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from kvbus.errors import UsageError
from kvbus.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event

__all__ = ["GPU_MEDIUM", "GpuBlockPool"]

GPU_MEDIUM = "GPU"

_Key = tuple[int, BlockHash]
"""(KV-cache group, block hash)."""


class GpuBlockPool:
    """A fixed number of blocks, shared by all KV-cache groups.

    Invariant: a block is in the free queue exactly while its reference count is 0; a key maps to the blocks that hold it and to
    nothing else; what the events say, folded with counted references, is `content()`.
    """

    def __init__(self, num_gpu_blocks: int) -> None:
        """Start with every block free and empty.

        Args:
            num_gpu_blocks: Number of blocks, ≥ 1.

        Raises:
            UsageError: num_gpu_blocks below 1.
        """
        if num_gpu_blocks < 1:
            raise UsageError(f"num_gpu_blocks must be at least 1, not {num_gpu_blocks}")
        self.num_gpu_blocks = num_gpu_blocks
        self._references = [0] * num_gpu_blocks
        self._keys: list[_Key | None] = [None] * num_gpu_blocks
        self._cached: dict[_Key, list[int]] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_gpu_blocks))
        self._events: list[Event] = []

    def get_num_free_blocks(self) -> int:
        """Return how many blocks nobody uses, cached ones included."""
        return len(self._free)

    def is_free(self, block_id: int) -> bool:
        """Tell whether nobody uses a block."""
        return block_id in self._free

    def get_cached_block(self, block_hash: BlockHash, group_idx: int) -> int | None:
        """Return a block that holds this content, or `None`.

        Args:
            block_hash: Hash at the group's own block size.
            group_idx: KV-cache group.

        Cost: O(1); of several copies the first that was cached.
        """
        block_ids = self._cached.get((group_idx, block_hash))
        return block_ids[0] if block_ids else None

    def touch(self, block_ids: Iterable[int]) -> None:
        """Use blocks that were hit: they cannot be evicted until they are freed.

        Args:
            block_ids: Cached blocks, free or in use.
        """
        references = self._references
        for block_id in block_ids:
            if references[block_id] == 0:
                del self._free[block_id]
            references[block_id] += 1

    def get_new_blocks(self, count: int) -> list[int]:
        """Take blocks from the head of the free queue and evict what they held.

        Args:
            count: How many, ≥ 0.

        Returns:
            Blocks with a reference count of 1 and without content. One `BlockRemoved` is emitted for each that was cached.

        Raises:
            UsageError: More than there are free; nothing has changed then.
        """
        if count > len(self._free):
            raise UsageError(f"{count} blocks wanted, {len(self._free)} are free")
        block_ids = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block_id in block_ids:
            self._references[block_id] = 1
            self._evict(block_id)
        return block_ids

    def cache_full_blocks(self, block_ids: Sequence[int], store: BlockStored) -> None:
        """Enter blocks into the prefix cache and announce them.

        Args:
            block_ids: Blocks that are now full, in chain order; none of them cached already.
            store: The event, with one hash for each block, at the group's own block size, and the group in `group_idx`.
        """
        group_idx = store.group_idx or 0
        for block_id, block_hash in zip(block_ids, store.block_hashes, strict=True):
            key = (group_idx, block_hash)
            self._keys[block_id] = key
            self._cached.setdefault(key, []).append(block_id)
        self._events.append(store)

    def free_blocks(self, ordered_block_ids: Iterable[int]) -> None:
        """Give up one reference to each block.

        Args:
            ordered_block_ids: In the order in which they should be evicted; a request frees its last block first, so that the
                prefix, which others may share, stays longest.
        """
        references = self._references
        for block_id in ordered_block_ids:
            references[block_id] -= 1
            if references[block_id] == 0:
                self._free[block_id] = None

    def reset_prefix_cache(self) -> bool:
        """Forget all content and announce it as `AllBlocksCleared`.

        Returns:
            Whether it was done: not while any block is in use.
        """
        if len(self._free) != self.num_gpu_blocks:
            return False
        self._cached.clear()
        self._keys = [None] * self.num_gpu_blocks
        self._events.append(AllBlocksCleared())
        return True

    def free_keys(self) -> Iterator[tuple[int, BlockHash] | None]:
        """Yield what the free queue holds, the next to be evicted first: (group, hash), or `None` for an empty block."""
        for block_id in self._free:
            yield self._keys[block_id]

    def take_events(self) -> list[Event]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def content(self) -> dict[int, Counter[BlockHash]]:
        """Return what is cached now: per group, how many copies of each hash. A group without any is absent.

        Cost: O(blocks cached). Read from the physical blocks, not from the events, so that the two can be compared.
        """
        content: dict[int, Counter[BlockHash]] = {}
        for key in self._keys:
            if key is not None:
                content.setdefault(key[0], Counter())[key[1]] += 1
        return content

    def _evict(self, block_id: int) -> None:
        """Drop a block from the prefix cache, if it is in it."""
        key = self._keys[block_id]
        if key is None:
            return
        self._keys[block_id] = None
        holders = self._cached[key]
        holders.remove(block_id)
        if not holders:
            del self._cached[key]
        self._events.append(BlockRemoved([key[1]], GPU_MEDIUM, key[0]))

"""Which of its blocks a request finds in the GPU's prefix cache, and which it gets.

Follows vLLM's `KVCacheManager` and its coordinators. Every KV-cache group has a block table of its own per request, over one
shared pool. A sliding-window group gives up its blocks as the window moves on, a state group all but the last one; `hits` tells
what each needs to go on from a prefix.

Hashes are those of the smallest blocks. A group with larger blocks knows a block by the hash of the last small block in it,
which covers everything in front of it, and so all of the block.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvbus.events import BlockHash, BlockStored
from kvbus.offload.gpu import GPU_MEDIUM, GpuBlockPool
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.hits import HitFinder, attention_window
from kvbus.offload.prompts import pseudo_tokens

__all__ = ["GpuCache", "RequestBlocks"]


class RequestBlocks:
    """The blocks of one request.

    Attributes:
        block_hashes: Hashes of the prompt's full small blocks, in chain order; not to be changed.
        tables: Per group, the physical blocks in order of position; `None` where the request needs none any more.
        cached_counts: Per group, how many leading blocks are in the prefix cache, or were.
    """

    __slots__ = ("block_hashes", "cached_counts", "tables")

    def __init__(self, block_hashes: Sequence[int], group_count: int) -> None:
        """Start without a block.

        Args:
            block_hashes: As in the attribute.
            group_count: Number of KV-cache groups.
        """
        self.block_hashes = block_hashes
        self.tables: list[list[int | None]] = [[] for _ in range(group_count)]
        self.cached_counts = [0] * group_count


class GpuCache:
    """Finds, allocates, caches and frees the blocks of requests."""

    def __init__(self, pool: GpuBlockPool, finder: HitFinder) -> None:
        """Serve a model.

        Args:
            pool: Where blocks come from.
            finder: The model's groups and block sizes.
        """
        self.pool = pool
        self.finder = finder
        self.groups = finder.groups

    def get_computed_tokens(self, blocks: RequestBlocks, input_tokens: int) -> int:
        """Find the longest prefix that is in the cache for every group.

        Args:
            blocks: A request without blocks.
            input_tokens: Length of its prompt; the last token is always computed, so it is never hit in full.

        Returns:
            Tokens, a multiple of the scheduler's block size.

        Cost: O(blocks hit); what is found is neither pinned nor made more recent.
        """
        return self.finder.longest_hit(blocks.block_hashes, input_tokens - 1, self._has_block)

    def count_used_blocks(self, blocks: RequestBlocks, tokens: int) -> int:
        """Return how many blocks of a hit are in use already, so that using them takes no free block.

        Args:
            blocks: A request without blocks.
            tokens: What `get_computed_tokens` returned just now.
        """
        return sum(
            not self.pool.is_free(block_id)
            for group_idx in range(len(self.groups))
            for block_id in self._hit_blocks(blocks, group_idx, tokens)
            if block_id is not None
        )

    def take_computed_blocks(self, blocks: RequestBlocks, tokens: int) -> None:
        """Use the cached blocks of a hit.

        Args:
            blocks: A request without blocks.
            tokens: What `get_computed_tokens` returned just now.
        """
        for group_idx, group in enumerate(self.groups):
            table = self._hit_blocks(blocks, group_idx, tokens)
            self.pool.touch(block_id for block_id in table if block_id is not None)
            blocks.tables[group_idx] = table
            blocks.cached_counts[group_idx] = tokens // group.block_size

    def allocate_slots(self, blocks: RequestBlocks, computed_tokens: int, wanted_tokens: int) -> bool:
        """Give a request the blocks for its next tokens, and take back those out of its windows.

        Args:
            blocks: The request.
            computed_tokens: Tokens that are computed, or will be loaded, in front of the next ones.
            wanted_tokens: Tokens that must have a slot after this.

        Returns:
            Whether there were enough; if not, the request has got nothing, though blocks out of its windows are gone.
        """
        first_needed = []
        missing = []
        for group, table in zip(self.groups, blocks.tables, strict=True):
            first = self.finder.first_needed_block(group, computed_tokens)
            self._free_before(table, first)
            first_needed.append(first)
            missing.append(max(0, -(-wanted_tokens // group.block_size) - max(first, len(table))))
        if sum(missing) > self.pool.get_num_free_blocks():
            return False
        for table, first, count in zip(blocks.tables, first_needed, missing, strict=True):
            table.extend([None] * (first - len(table)))
            table.extend(self.pool.get_new_blocks(count))
        return True

    def cache_blocks(self, blocks: RequestBlocks, computed_tokens: int) -> None:
        """Enter a request's full blocks into the prefix cache; one event a group.

        Args:
            blocks: The request.
            computed_tokens: Tokens that are computed; what of them has a hash is cached.
        """
        hashed_tokens = min(computed_tokens, len(blocks.block_hashes) * self.finder.hash_block_size)
        for group_idx, group in enumerate(self.groups):
            if not group.prefix_cacheable:
                continue
            stop = hashed_tokens // group.block_size
            start = blocks.cached_counts[group_idx]
            if stop <= start:
                continue
            blocks.cached_counts[group_idx] = stop
            self._cache_run(blocks, group_idx, group, start, stop)

    def free(self, blocks: RequestBlocks) -> None:
        """Give up all blocks of a request, the last ones first, so that they are evicted first.

        Args:
            blocks: The request; it has no blocks afterwards.
        """
        for group_idx, table in enumerate(blocks.tables):
            self.pool.free_blocks(block_id for block_id in reversed(table) if block_id is not None)
            blocks.tables[group_idx] = []
            blocks.cached_counts[group_idx] = 0

    def blocks_at_most(self, tokens: int, chunk_tokens: int) -> int:
        """Return how many blocks a request of this length ever holds at once.

        Args:
            tokens: Prompt and answer.
            chunk_tokens: Largest number of tokens that a step adds; a sliding window holds them beside the window.
        """
        total = 0
        for group in self.groups:
            window = attention_window(group)
            held_tokens = tokens if window is None else min(tokens, window + chunk_tokens + group.block_size)
            total += -(-held_tokens // group.block_size)
        return total

    def store_event(self, blocks: RequestBlocks, group_idx: int, start: int, stop: int) -> BlockStored:
        """Describe a run of blocks as the engine announces them.

        Args:
            blocks: The request.
            group_idx: Which group.
            start: First block, at the group's own block size.
            stop: Behind the last block, > start.
        """
        group = self.groups[group_idx]
        small = group.block_size // self.finder.hash_block_size
        hashes: list[BlockHash] = [
            self.finder.block_hash(blocks.block_hashes, group, index) for index in range(start, stop)
        ]
        token_ids: list[int] = []
        for small_hash in blocks.block_hashes[start * small : stop * small]:
            token_ids += pseudo_tokens(small_hash, self.finder.hash_block_size)
        return BlockStored(
            block_hashes=hashes,
            parent_block_hash=self.finder.block_hash(blocks.block_hashes, group, start - 1) if start else None,
            token_ids=token_ids,
            block_size=group.block_size,
            medium=GPU_MEDIUM,
            extra_keys=[None] * len(hashes),
            group_idx=group_idx,
            kv_cache_spec_kind=group.kind,
            kv_cache_spec_sliding_window=group.sliding_window,
        )

    def _cache_run(self, blocks: RequestBlocks, group_idx: int, group: KVCacheGroup, start: int, stop: int) -> None:
        """Cache blocks `[start, stop)` of a group, without those in front that its window has left.

        vLLM announces such a run with the tokens of the missing blocks in it; leaving both out says the same and lets every
        reader put tokens and hashes together.
        """
        table = blocks.tables[group_idx]
        block_ids = [block_id for block_id in table[start:stop] if block_id is not None]
        if block_ids:
            self.pool.cache_full_blocks(block_ids, self.store_event(blocks, group_idx, stop - len(block_ids), stop))

    def _free_before(self, table: list[int | None], first: int) -> None:
        """Give up a table's blocks in front of the first one needed."""
        index = min(first, len(table)) - 1
        given_up = []
        while index >= 0 and (block_id := table[index]) is not None:
            given_up.append(block_id)
            table[index] = None
            index -= 1
        self.pool.free_blocks(given_up)

    def _hit_blocks(self, blocks: RequestBlocks, group_idx: int, tokens: int) -> list[int | None]:
        """Return the blocks of a hit in one group, in order of position; `None` where the group needs none."""
        group = self.groups[group_idx]
        if not group.prefix_cacheable:
            return []
        first = self.finder.first_needed_block(group, tokens)
        table: list[int | None] = [None] * first
        for index in range(first, tokens // group.block_size):
            block_hash = self.finder.block_hash(blocks.block_hashes, group, index)
            table.append(self.pool.get_cached_block(block_hash, group_idx))
        return table

    def _has_block(self, group_idx: int, block_hash: int) -> bool:
        """Tell whether a block is in the prefix cache."""
        return self.pool.get_cached_block(block_hash, group_idx) is not None

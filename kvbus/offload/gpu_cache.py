"""Which of its blocks a request finds in the GPU's prefix cache, and which it gets.

Follows vLLM's `KVCacheManager` and its coordinators. Every KV-cache group has a block table of its own per request, over one
shared pool. A full-attention group needs all blocks of the prefix; a sliding-window group needs those that its window
reaches back to, and gives up the rest as the request moves on; a Mamba group needs the last state only. So a hit is the longest
prefix, at a multiple of the scheduler's block size, of which every group has what it needs.

Hashes are those of the smallest blocks. A group with larger blocks knows a block by the hash of the last small block in it,
which covers everything in front of it, and so all of the block.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvbus.events import BlockHash, BlockStored
from kvbus.offload.gpu import GPU_MEDIUM, GpuBlockPool
from kvbus.offload.groups import KVCacheGroup
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

    def __init__(
        self,
        pool: GpuBlockPool,
        groups: Sequence[KVCacheGroup],
        scheduler_block_size: int,
        hash_block_size: int,
    ) -> None:
        """Serve a model with these groups.

        Args:
            pool: Where blocks come from.
            groups: At least one.
            scheduler_block_size: Hits are a multiple of it.
            hash_block_size: Tokens behind one hash of a request; divides the block size of every group that is cached.
        """
        self.pool = pool
        self.groups = tuple(groups)
        self.scheduler_block_size = scheduler_block_size
        self.hash_block_size = hash_block_size

    def block_hash(self, blocks: RequestBlocks, group: KVCacheGroup, index: int) -> int:
        """Return the hash of a request's block at a group's own block size.

        Args:
            blocks: The request.
            group: The group.
            index: Which block, from 0; must be full.
        """
        return blocks.block_hashes[(index + 1) * group.block_size // self.hash_block_size - 1]

    def get_computed_tokens(self, blocks: RequestBlocks, input_tokens: int) -> int:
        """Find the longest prefix that is in the cache for every group.

        Args:
            blocks: A request without blocks.
            input_tokens: Length of its prompt; the last token is always computed, so it is never hit in full.

        Returns:
            Tokens, a multiple of the scheduler's block size.

        Cost: O(blocks hit); what is found is neither pinned nor made more recent.
        """
        limit = min(input_tokens - 1, len(blocks.block_hashes) * self.hash_block_size)
        hit = max(0, self._aligned(limit))
        cached = [(index, group) for index, group in enumerate(self.groups) if group.prefix_cacheable]
        if not cached:
            return 0
        for group_idx, group in cached:
            if _window(group) is None:
                hit = self._prefix_hit(blocks, group_idx, group, hit)
        previous = -1
        while hit != previous:
            previous = hit
            for group_idx, group in cached:
                if _window(group) is not None:
                    hit = self._window_hit(blocks, group_idx, group, hit)
        return hit

    def take_computed_blocks(self, blocks: RequestBlocks, tokens: int) -> None:
        """Use the cached blocks of a hit.

        Args:
            blocks: A request without blocks.
            tokens: What `get_computed_tokens` returned just now.
        """
        for group_idx, group in enumerate(self.groups):
            if not group.prefix_cacheable:
                continue
            count = tokens // group.block_size
            first = self._first_needed_block(group, tokens)
            table: list[int | None] = [None] * first
            for index in range(first, count):
                table.append(self.pool.get_cached_block(self.block_hash(blocks, group, index), group_idx))
            self.pool.touch(block_id for block_id in table if block_id is not None)
            blocks.tables[group_idx] = table
            blocks.cached_counts[group_idx] = count

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
            first = self._first_needed_block(group, computed_tokens)
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
        hashed_tokens = min(computed_tokens, len(blocks.block_hashes) * self.hash_block_size)
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
            window = _window(group)
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
        small = group.block_size // self.hash_block_size
        hashes: list[BlockHash] = [self.block_hash(blocks, group, index) for index in range(start, stop)]
        token_ids: list[int] = []
        for small_hash in blocks.block_hashes[start * small : stop * small]:
            token_ids += pseudo_tokens(small_hash, self.hash_block_size)
        return BlockStored(
            block_hashes=hashes,
            parent_block_hash=self.block_hash(blocks, group, start - 1) if start else None,
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

    def _first_needed_block(self, group: KVCacheGroup, computed_tokens: int) -> int:
        """Return the first block that the next token of a group attends to."""
        window = _window(group)
        if window is None:
            return 0
        return max(0, computed_tokens - window + 1) // group.block_size

    def _prefix_hit(self, blocks: RequestBlocks, group_idx: int, group: KVCacheGroup, limit: int) -> int:
        """Return the longest aligned prefix up to `limit` of which the group has every block."""
        for index in range(limit // group.block_size):
            if self.pool.get_cached_block(self.block_hash(blocks, group, index), group_idx) is None:
                return self._aligned(index * group.block_size)
        return limit

    def _window_hit(self, blocks: RequestBlocks, group_idx: int, group: KVCacheGroup, limit: int) -> int:
        """Return the longest aligned prefix up to `limit` of which the group has the blocks in its last window."""
        end = limit
        while end > 0:
            first = self._first_needed_block(group, end)
            index = end // group.block_size - 1
            while index >= first and (
                self.pool.get_cached_block(self.block_hash(blocks, group, index), group_idx) is not None
            ):
                index -= 1
            if index < first:
                return end
            end = self._aligned(index * group.block_size)
        return 0

    def _aligned(self, tokens: int) -> int:
        """Round down to the scheduler's block size."""
        return tokens // self.scheduler_block_size * self.scheduler_block_size


def _window(group: KVCacheGroup) -> int | None:
    """Return how many tokens the next token sees, itself included; `None` = all. A state is the token before it."""
    if group.tail_block_count is None:
        return None
    return group.sliding_window or 2

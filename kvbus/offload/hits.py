"""The longest prefix of a prompt that every KV-cache group can go on from.

A hit ends at a multiple of the scheduler's block size. A full-attention group needs every block in front of its end, a
sliding-window group those that the next token's window reaches, a state group the last one. A shorter hit of one group
shortens the others', and may need other blocks of a window, so the groups are asked in turn until none objects; full attention
only once, because what serves a hit serves every shorter one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvbus.offload.groups import KVCacheGroup

__all__ = ["HitFinder", "attention_window"]


def attention_window(group: KVCacheGroup) -> int | None:
    """Return how many tokens the next token of a group sees, itself included; `None` = all. A state is the token before it.

    Args:
        group: The group.
    """
    if group.tail_block_count is None:
        return None
    return group.sliding_window or 2


class HitFinder:
    """Finds hits for one model, in any place where blocks may lie.

    Attributes:
        groups: KV-cache groups in the order of their `group_idx`.
        scheduler_block_size: Tokens between two possible ends of a hit.
        hash_block_size: Tokens behind one hash of a request.
    """

    def __init__(self, groups: Sequence[KVCacheGroup], scheduler_block_size: int, hash_block_size: int) -> None:
        """Serve a model.

        Args:
            groups: At least one.
            scheduler_block_size: As in the attribute; a multiple of every prefix-cacheable group's block size.
            hash_block_size: As in the attribute; divides every prefix-cacheable group's block size.
        """
        self.groups = tuple(groups)
        self.scheduler_block_size = scheduler_block_size
        self.hash_block_size = hash_block_size
        cacheable = [(group_idx, group) for group_idx, group in enumerate(self.groups) if group.prefix_cacheable]
        self._full = [pair for pair in cacheable if attention_window(pair[1]) is None]
        self._windowed = [pair for pair in cacheable if attention_window(pair[1]) is not None]

    def longest_hit(
        self,
        block_hashes: Sequence[int],
        limit_tokens: int,
        has_block: Callable[[int, int], bool],
        start_tokens: int = 0,
    ) -> int:
        """Return the length of the longest hit.

        Args:
            block_hashes: A prompt's hashes, one for each `hash_block_size` tokens.
            limit_tokens: The hit is not longer than this.
            has_block: Tells whether a block is there, by group and hash at the group's own block size.
            start_tokens: Length of a hit that is known already; its blocks are there for every group, and are not asked for.

        Returns:
            Tokens, a multiple of the scheduler's block size, at least `start_tokens`.

        Cost: one question a block, from the front, up to the first that is missing.
        """
        hit = self.aligned(min(limit_tokens, len(block_hashes) * self.hash_block_size))
        if not self._full and not self._windowed:
            return start_tokens
        for group_idx, group in self._full:
            hit = self._prefix_hit(block_hashes, group_idx, group, hit, has_block=has_block, start_tokens=start_tokens)
        previous = -1
        while hit != previous and hit > start_tokens:
            previous = hit
            for group_idx, group in self._windowed:
                hit = self._window_hit(
                    block_hashes, group_idx, group, hit, has_block=has_block, start_tokens=start_tokens
                )
        return max(hit, start_tokens)

    def block_hash(self, block_hashes: Sequence[int], group: KVCacheGroup, index: int) -> int:
        """Return the hash of a prompt's block at a group's own block size.

        Args:
            block_hashes: The prompt's hashes.
            group: The group.
            index: Which block, from 0; must be full.
        """
        return block_hashes[(index + 1) * group.block_size // self.hash_block_size - 1]

    def first_needed_block(self, group: KVCacheGroup, computed_tokens: int) -> int:
        """Return the first block of a group that the token behind the computed ones attends to.

        Args:
            group: The group.
            computed_tokens: Tokens in front of it.
        """
        window = attention_window(group)
        if window is None:
            return 0
        return max(0, computed_tokens - window + 1) // group.block_size

    def aligned(self, tokens: int) -> int:
        """Round down to the scheduler's block size; nothing is below 0.

        Args:
            tokens: Any number.
        """
        return max(0, tokens) // self.scheduler_block_size * self.scheduler_block_size

    def _prefix_hit(
        self,
        block_hashes: Sequence[int],
        group_idx: int,
        group: KVCacheGroup,
        limit: int,
        *,
        has_block: Callable[[int, int], bool],
        start_tokens: int,
    ) -> int:
        """Return the longest hit up to `limit` of which the group has every block."""
        step = group.block_size // self.hash_block_size
        for index in range(start_tokens // group.block_size, limit // group.block_size):
            if not has_block(group_idx, block_hashes[(index + 1) * step - 1]):
                return self.aligned(index * group.block_size)
        return limit

    def _window_hit(
        self,
        block_hashes: Sequence[int],
        group_idx: int,
        group: KVCacheGroup,
        limit: int,
        *,
        has_block: Callable[[int, int], bool],
        start_tokens: int,
    ) -> int:
        """Return the longest hit up to `limit` of which the group has the blocks in its last window."""
        end = limit
        while end > start_tokens:
            first = max(self.first_needed_block(group, end), start_tokens // group.block_size)
            index = end // group.block_size - 1
            while index >= first and has_block(group_idx, self.block_hash(block_hashes, group, index)):
                index -= 1
            if index < first:
                return end
            end = self.aligned(index * group.block_size)
        return start_tokens

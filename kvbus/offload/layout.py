"""Which blocks a request has in each KV-cache group, under which keys, and which of them are worth having.

Within a request, token boundaries are what all groups share; blocks are numbered per group at the group's own size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from kvbus.events import BlockHash
from kvbus.offload.groups import GroupOffloadConfig, KVCacheGroup
from kvbus.offload.hits import HitFinder
from kvbus.offload.keys import OffloadKey

__all__ = ["LaidBlock", "RequestLayout"]


class LaidBlock(NamedTuple):
    """One block of a request. Sorted by where it ends: what comes first is worth most.

    Attributes:
        end_token: Behind its last token.
        group_idx: Its group.
        chunk_idx: Which block of the group, from 0.
        key: Its key: the hash at its end, and the group.
    """

    end_token: int
    group_idx: int
    chunk_idx: int
    key: OffloadKey


class RequestLayout:
    """Finds blocks of requests for one model.

    Attributes:
        groups: KV-cache groups, in the order of their `group_idx`.
        configs: How each prefix-cacheable group is offloaded, by `group_idx`.
    """

    def __init__(self, groups: Sequence[KVCacheGroup], scheduler_block_size: int, hash_block_size: int) -> None:
        """Serve a model.

        Args:
            groups: As in the attribute, judged.
            scheduler_block_size: Tokens between two possible ends of a hit; fits the groups.
            hash_block_size: Tokens per hash of a request; fits the groups.
        """
        self.groups = tuple(groups)
        self.configs = {
            group_idx: GroupOffloadConfig.of(group, group_idx, hash_block_size=hash_block_size)
            for group_idx, group in enumerate(self.groups)
            if group.prefix_cacheable
        }
        self._scheduler_block_size = scheduler_block_size
        self._hash_block_size = hash_block_size
        self._finder = HitFinder(self.groups, scheduler_block_size, hash_block_size)

    def aligned(self, tokens: int) -> int:
        """Round down to a place where a hit may end.

        Args:
            tokens: Any number; nothing is below 0.
        """
        return self._finder.aligned(tokens)

    def longest_hit(
        self, hashes: Sequence[BlockHash], start: int, limit: int, has_block: Callable[[OffloadKey], bool]
    ) -> int:
        """Return where the longest hit behind `start` ends; `start` itself if there is none.

        Args:
            hashes: One per hash block, from the start of the request.
            start: Tokens that are there already, a place where a hit may end.
            limit: The hit ends here at the latest.
            has_block: Tells whether a block can be had.

        Cost: As `HitFinder.longest_hit`.
        """
        # The finder hands our hashes back to us and does nothing else with them, so digests will do as well as numbers.
        numbers = cast("Sequence[int]", hashes)
        return self._finder.longest_hit(
            numbers, limit, lambda group, number: has_block(OffloadKey(number, group)), start
        )

    def blocks_of_hit(self, hashes: Sequence[BlockHash], start: int, end: int) -> list[LaidBlock]:
        """Return the blocks of the tokens `[start, end)` that a hit ending at `end` needs, in the order of their ends.

        Args:
            hashes: As in `longest_hit`.
            start: A place where a hit may end.
            end: Another, not before it, with hashes up to there.
        """
        return self._laid(hashes, {group_idx: self._needed(group_idx, start, end) for group_idx in self.configs})

    def blocks_worth_storing(self, hashes: Sequence[BlockHash], start: int, stop: int) -> list[LaidBlock]:
        """Return the blocks of the tokens `[start, stop)` that some hit needs, in the order of their ends.

        Args:
            hashes: As in `longest_hit`.
            start: A place where a hit may end.
            stop: Another, not before it, with hashes up to there.
        """
        step = self._scheduler_block_size
        indices: dict[int, Iterable[int]] = {}
        for group_idx in self.configs:
            if self.groups[group_idx].tail_block_count is None:
                indices[group_idx] = self._needed(group_idx, start, stop)
            else:
                # Between two places where a hit may end, one that ends later needs no block that the second does not.
                ends = range(start + step, stop + 1, step)
                indices[group_idx] = [index for end in ends for index in self._needed(group_idx, end - step, end)]
        return self._laid(hashes, indices)

    def first_needed_block(self, group_idx: int, computed_tokens: int) -> int:
        """Return the first block of a group that the token behind the computed ones attends to.

        Args:
            group_idx: The group.
            computed_tokens: Tokens in front of it.
        """
        return self._finder.first_needed_block(self.groups[group_idx], computed_tokens)

    def _needed(self, group_idx: int, start: int, end: int) -> range:
        """Return which blocks of a group lie in `[start, end)` and are needed by a hit that ends at `end`."""
        size = self.groups[group_idx].block_size
        return range(max(start // size, self.first_needed_block(group_idx, end)), end // size)

    def _laid(self, hashes: Sequence[BlockHash], indices: Mapping[int, Iterable[int]]) -> list[LaidBlock]:
        """Return the blocks with these numbers per group, each under the hash at its end, in the order of their ends."""
        blocks: list[LaidBlock] = []
        for group_idx, group_indices in indices.items():
            size = self.groups[group_idx].block_size
            per_block = size // self._hash_block_size
            blocks += [
                LaidBlock(
                    (index + 1) * size, group_idx, index, OffloadKey(hashes[(index + 1) * per_block - 1], group_idx)
                )
                for index in group_indices
            ]
        if len(indices) > 1:
            blocks.sort()
        return blocks

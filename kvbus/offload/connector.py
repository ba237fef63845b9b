"""The engine's side of offloading: what is stored, loaded and promoted, and how long it takes.

Follows vLLM's offloading connector. Every full block that a request has computed, or hit, on the GPU is offered to the CPU
tier; what a new request does not hit on the GPU is looked for there, and behind it in the secondary tiers. Copies take time:
blocks are pinned at both ends meanwhile, a stored block can be loaded only when it has arrived, and its event comes then.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from kvbus.events import BlockHash, Event
from kvbus.offload.engine_options import EngineOptions
from kvbus.offload.gpu import GpuBlockPool
from kvbus.offload.groups import GroupOffloadConfig
from kvbus.offload.hits import HitFinder
from kvbus.offload.keys import OffloadKey
from kvbus.offload.manager import CPUOffloadingManager, LookupResult
from kvbus.offload.running import RunningRequest
from kvbus.offload.tiering import TieringOffloadingManager, TierJob
from kvbus.offload.trace import NANOSECONDS_PER_SECOND
from kvbus.offload.tracker import OffloadingEventsTracker

__all__ = ["OffloadConnector", "TierKey"]


class TierKey(NamedTuple):
    """What a block's residency is counted under.

    Attributes:
        medium: Where it lies.
        ownership: Whose tier that is; `None` = the engine's own.
        group_idx: KV-cache group.
    """

    medium: str
    ownership: str | None
    group_idx: int


class _Load(NamedTuple):
    """Blocks on their way from the CPU tier to the GPU, for one request."""

    request: RunningRequest
    keys: list[OffloadKey]


class _Store(NamedTuple):
    """Blocks on their way from the GPU to the CPU tier."""

    keys: list[OffloadKey]
    gpu_block_ids: list[int]


class OffloadConnector:
    """The CPU tier and those behind it, as one engine uses them.

    Attributes:
        tiers: Managers of the tiers.
        tracker: Turns their events into the wire's.
        stores_refused_count: Offers to the CPU tier that it had no room for.
    """

    def __init__(self, options: EngineOptions, finder: HitFinder, pool: GpuBlockPool) -> None:
        """Start with empty tiers.

        Args:
            options: The engine's; `cpu_blocks` is not 0.
            finder: The model's groups and block sizes.
            pool: Where GPU blocks are pinned during a store.

        Raises:
            ConfigError: A tier's size or policy cannot work.
        """
        primary = CPUOffloadingManager(
            options.cpu_blocks,
            options.cache_policy,
            enable_events=True,
            medium=options.cpu_medium,
            ownership=options.ownership,
            locality=options.locality,
        )
        secondary = [
            CPUOffloadingManager(
                tier.blocks,
                options.cache_policy,
                enable_events=True,
                medium=tier.medium,
                ownership=tier.ownership,
                locality=options.locality,
            )
            for tier in options.tiers
        ]
        self.tiers = TieringOffloadingManager(primary, secondary)
        self.tracker = OffloadingEventsTracker(options.self_describing)
        self.stores_refused_count = 0
        self._finder = finder
        self._pool = pool
        self._configs = {
            group_idx: GroupOffloadConfig.of(group, group_idx, hash_block_size=finder.hash_block_size)
            for group_idx, group in enumerate(finder.groups)
            if group.prefix_cacheable
        }
        self._cpu_ns_per_token = NANOSECONDS_PER_SECOND / options.cpu_tokens_per_second
        self._tier_ns_per_token = NANOSECONDS_PER_SECOND / options.tier_tokens_per_second
        self._copies: list[tuple[int, int, _Load | _Store | TierJob]] = []
        self._copy_count = 0

    @property
    def next_done_ns(self) -> int | None:
        """When the next copy ends; `None` = none is under way."""
        return self._copies[0][0] if self._copies else None

    def get_num_new_matched_tokens(self, request: RunningRequest, num_computed_tokens: int, now_ns: int) -> int | None:
        """Find how far the tiers can continue what the GPU has of a prompt.

        What only a secondary tier has is promoted first, once for a request.

        Args:
            request: A request that waits.
            num_computed_tokens: Tokens that it hits on the GPU.
            now_ns: The time.

        Returns:
            Tokens beyond those, a multiple of the scheduler's block size; `None` = blocks are on their way into the CPU
            tier, ask again when the next copy has ended.

        Convention: vLLM `get_num_new_matched_tokens`, whose `None` means the same.
        """
        limit = request.input_tokens - 1
        hashes = request.blocks.block_hashes
        if not request.is_promoted:
            request.is_promoted = True
            wanted = self._finder.longest_hit(hashes, limit, self._has_anywhere, num_computed_tokens)
            keys = [key for key, _ in self._keys(request, num_computed_tokens, wanted)]
            request.promoted.update(self.tiers.promote(keys))
            self._begin_tier_jobs(now_ns)
        hit = self._finder.longest_hit(hashes, limit, self._has_or_awaits, num_computed_tokens)
        peek = self.tiers.primary.peek
        if any(peek(key) is LookupResult.HIT_PENDING for key, _ in self._keys(request, num_computed_tokens, hit)):
            return None
        return hit - num_computed_tokens

    def begin_load(self, request: RunningRequest, num_computed_tokens: int, tokens: int, now_ns: int) -> None:
        """Begin to load what was matched; `advance` says when it is there.

        Args:
            request: It has GPU blocks for these tokens.
            num_computed_tokens: Tokens in front of them.
            tokens: As matched just now, > 0.
            now_ns: The time.
        """
        pairs = list(self._keys(request, num_computed_tokens, num_computed_tokens + tokens))
        keys = [key for key, _ in pairs]
        self.tiers.primary.prepare_load(keys)
        for key, index in pairs:
            self.tracker.record_lookup(request.offload, self._configs[key.group_idx], index, key)
        request.loaded_keys = keys
        self._begin(_Load(request, keys), now_ns, self._cpu_ns_per_token * tokens)

    def touch(self, request: RunningRequest) -> None:
        """Mark all blocks of a request's prompt as used, in every tier.

        Args:
            request: A request that is admitted now.
        """
        hashed_tokens = len(request.blocks.block_hashes) * self._finder.hash_block_size
        for group_idx, config in self._configs.items():
            count = hashed_tokens // config.tokens_per_block
            self.tiers.touch([self._key(request, group_idx, index) for index in range(count)])

    def begin_store(self, request: RunningRequest, now_ns: int) -> None:
        """Offer a request's full blocks that were not offered yet, and begin to copy those that are wanted.

        Args:
            request: Its `computed_tokens` are computed at `now_ns`.
            now_ns: When the copy can begin.
        """
        keys: list[OffloadKey] = []
        where: dict[OffloadKey, tuple[int, int]] = {}
        stops = {}
        hashed_tokens = min(request.computed_tokens, len(request.blocks.block_hashes) * self._finder.hash_block_size)
        for group_idx, config in self._configs.items():
            stops[group_idx] = hashed_tokens // config.tokens_per_block
            table = request.blocks.tables[group_idx]
            for index in range(request.offered_counts[group_idx], stops[group_idx]):
                if (block_id := table[index]) is not None:
                    key = self._key(request, group_idx, index)
                    keys.append(key)
                    where[key] = (index, block_id)
        if not keys:
            return
        output = self.tiers.primary.prepare_store(keys)
        if output is None:
            self.stores_refused_count += 1
            return
        for group_idx, stop in stops.items():
            request.offered_counts[group_idx] = max(stop, request.offered_counts[group_idx])
        if not output.keys_to_store:
            return
        block_ids = [where[key][1] for key in output.keys_to_store]
        self._pool.touch(block_ids)
        for key in output.keys_to_store:
            self.tracker.record_store(request.offload, self._configs[key.group_idx], where[key][0], key)
        self._begin(
            _Store(output.keys_to_store, block_ids), now_ns, self._cpu_ns_per_token * self._tokens(output.keys_to_store)
        )

    def advance(self, now_ns: int) -> list[RunningRequest]:
        """End the copies that are due.

        Args:
            now_ns: The time.

        Returns:
            Requests whose load has arrived, in order.
        """
        loaded = []
        while self._copies and self._copies[0][0] <= now_ns:
            done_ns, _, copy = heapq.heappop(self._copies)
            if isinstance(copy, _Load):
                self.tiers.primary.complete_load(copy.keys)
                loaded.append(copy.request)
            elif isinstance(copy, _Store):
                self.tiers.complete_store(copy.keys)
                self._pool.free_blocks(reversed(copy.gpu_block_ids))
            else:
                self.tiers.complete_job(copy)
            self._begin_tier_jobs(done_ns)
        return loaded

    def take_events(self) -> list[Event]:
        """Return what happened in the tiers since the last call, as it goes on the wire."""
        return self.tracker.take_events(self.tiers.take_events())

    def reset(self) -> None:
        """Empty the tiers and drop every copy, with nothing left to announce: the engine's own clear says it all."""
        for _, _, copy in self._copies:
            if isinstance(copy, _Store):
                self._pool.free_blocks(reversed(copy.gpu_block_ids))
        self._copies.clear()
        self.tiers.reset()
        self.tiers.take_events()
        self.tracker.reset()

    def content(self) -> dict[TierKey, Counter[BlockHash]]:
        """Return what can be loaded from each tier now, from the managers' own books. O(blocks held)."""
        content: dict[TierKey, Counter[BlockHash]] = {}
        for tier in (self.tiers.primary, *self.tiers.secondary):
            for key in tier.stored_keys():
                content.setdefault(TierKey(tier.medium, tier.ownership, key.group_idx), Counter())[key.block_hash] += 1
        return content

    def _keys(self, request: RunningRequest, start: int, stop: int) -> Iterator[tuple[OffloadKey, int]]:
        """Yield (key, block index) of what a hit up to token `stop` needs besides the hit up to `start`."""
        for group_idx, config in self._configs.items():
            group = self._finder.groups[group_idx]
            first = max(start // config.tokens_per_block, self._finder.first_needed_block(group, stop))
            for index in range(first, stop // config.tokens_per_block):
                yield self._key(request, group_idx, index), index

    def _key(self, request: RunningRequest, group_idx: int, index: int) -> OffloadKey:
        """Return the key of one block of a request."""
        group = self._finder.groups[group_idx]
        return OffloadKey(self._finder.block_hash(request.blocks.block_hashes, group, index), group_idx)

    def _has_anywhere(self, group_idx: int, block_hash: int) -> bool:
        """Tell whether any tier has a block, or will have it."""
        key = OffloadKey(block_hash, group_idx)
        return self.tiers.primary.peek(key) is not LookupResult.MISS or self.tiers.find_secondary(key) is not None

    def _has_or_awaits(self, group_idx: int, block_hash: int) -> bool:
        """Tell whether the CPU tier has a block, or will have it."""
        return self.tiers.primary.lookup(OffloadKey(block_hash, group_idx)) is not LookupResult.MISS

    def _begin_tier_jobs(self, now_ns: int) -> None:
        """Give every copy between tiers that has begun its duration."""
        for job in self.tiers.take_jobs():
            self._begin(job, now_ns, self._tier_ns_per_token * self._tokens(job.keys))

    def _begin(self, copy: _Load | _Store | TierJob, now_ns: int, duration_ns: float) -> None:
        """Put a copy in line for its end."""
        self._copy_count += 1
        heapq.heappush(self._copies, (now_ns + int(duration_ns), self._copy_count, copy))

    def _tokens(self, keys: list[OffloadKey]) -> int:
        """Return how many tokens lie behind some keys."""
        return sum(self._configs[key.group_idx].tokens_per_block for key in keys)

"""The engine's side of offloading: copies between GPU, CPU tier and secondary tiers, and how long they take.

The scheduler decides what a request takes from the CPU tier and what goes there; behind it stand the secondary tiers. Copies take
time: blocks are pinned at both ends meanwhile, a stored block can be loaded only when it has arrived, and its event comes
then. What only a secondary tier has is first promoted into the CPU tier, once for a request, which waits for it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from kvbus.events import BlockHash, Event
from kvbus.offload.engine_options import EngineOptions
from kvbus.offload.gpu import GpuBlockPool
from kvbus.offload.hits import HitFinder
from kvbus.offload.keys import OffloadKey
from kvbus.offload.lazy import GpuBlock
from kvbus.offload.manager import CPUOffloadingManager
from kvbus.offload.running import RunningRequest
from kvbus.offload.scheduler import OffloadScheduler
from kvbus.offload.tiering import TieringOffloadingManager, TierJob
from kvbus.offload.trace import NANOSECONDS_PER_SECOND
from kvbus.offload.tracker import OffloadingEventsTracker
from kvbus.offload.transfers import LookupResult, StoreJob

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


class _Store(NamedTuple):
    """Blocks on their way from the GPU to the CPU tier."""

    job: StoreJob
    gpu_block_ids: list[int]


class OffloadConnector:
    """The CPU tier and those behind it, as one engine uses them.

    Attributes:
        tiers: Managers of the tiers.
        tracker: Turns their events into the wire's.
        scheduler: Decides what is loaded from the CPU tier and what is stored there.
    """

    def __init__(self, options: EngineOptions, finder: HitFinder, pool: GpuBlockPool) -> None:
        """Start with empty tiers.

        Args:
            options: The engine's; `cpu_blocks` is not 0.
            finder: The model's groups and block sizes.
            pool: The GPU's blocks.

        Raises:
            ConfigError: A tier's size or policy cannot work, or no group takes part in prefix caching.
        """
        places = [
            (options.cpu_blocks, options.cpu_medium, options.ownership),
            *((tier.blocks, tier.medium, tier.ownership) for tier in options.tiers),
        ]
        primary, *secondary = (
            CPUOffloadingManager(
                blocks,
                options.cache_policy,
                enable_events=True,
                medium=medium,
                ownership=ownership,
                locality=options.locality,
            )
            for blocks, medium, ownership in places
        )
        self.tiers = TieringOffloadingManager(primary, secondary)
        self.tracker = OffloadingEventsTracker(options.self_describing)
        self.scheduler = OffloadScheduler(
            primary,
            finder.groups,
            finder.scheduler_block_size,
            finder.hash_block_size,
            lazy_offload=options.lazy_offload,
            max_num_batched_tokens=options.step_tokens_max,
            tracker=self.tracker,
        )
        self._finder = finder
        self._pool = pool
        self._cpu_ns_per_token = NANOSECONDS_PER_SECOND / options.cpu_tokens_per_second
        self._tier_ns_per_token = NANOSECONDS_PER_SECOND / options.tier_tokens_per_second
        self._copies: list[tuple[int, int, _Load | _Store | TierJob]] = []
        self._copy_count = 0

    @property
    def next_done_ns(self) -> int | None:
        """When the next copy ends; `None` = none is under way."""
        return self._copies[0][0] if self._copies else None

    def get_num_new_matched_tokens(self, request: RunningRequest, num_computed_tokens: int, now_ns: int) -> int | None:
        """Find how far the tiers can continue what the GPU has of a prompt, and pin it.

        Args:
            request: A request that waits.
            num_computed_tokens: Tokens that it hits on the GPU.
            now_ns: The time.

        Returns:
            Tokens beyond those, a multiple of the scheduler's block size; `None` = blocks are on their way into the CPU
            tier, ask again when the next copy has ended.
        """
        if self.tiers.secondary and not request.is_promoted:
            request.is_promoted = True
            request.promoted.update(self.tiers.promote(self._wanted_keys(request, num_computed_tokens)))
            self._begin_tier_jobs(now_ns)
        tokens, _ = self.scheduler.get_num_new_matched_tokens(request.offload, num_computed_tokens)
        return tokens

    def begin_load(self, request: RunningRequest, tokens: int, now_ns: int) -> None:
        """Begin to load what was matched, if it was anything; `advance` says when it is there.

        Args:
            request: It has GPU blocks for these tokens.
            tokens: As matched in the last call for it.
            now_ns: The time.
        """
        job = self.scheduler.update_state_after_alloc(request.offload, tokens)
        if job is not None:
            request.loaded_keys = job.keys
            for tier in self.tiers.secondary:
                tier.touch(job.keys)
            self._begin(_Load(request), now_ns, self._cpu_ns_per_token * tokens)

    def begin_eager_store(self, request: RunningRequest, now_ns: int) -> None:
        """Offer the CPU tier what a request has computed since the last call; nothing in lazy mode.

        Args:
            request: Its `computed_tokens` are computed at `now_ns`.
            now_ns: When the copy can begin.
        """
        if not self.scheduler.lazy_offload:
            self._begin_store(self.scheduler.prepare_eager_store(request.offload, request.computed_tokens), now_ns)

    def begin_lazy_store(self, now_ns: int) -> None:
        """Offer the CPU tier what the GPU will evict next; nothing in eager mode.

        Args:
            now_ns: When the copy can begin.
        """
        if self.scheduler.lazy_offload:
            self._begin_store(self.scheduler.prepare_lazy_store(self._free_queue()), now_ns)

    def request_finished(self, request: RunningRequest) -> None:
        """Forget a request that has answered or was preempted.

        Args:
            request: The request; it is not being loaded.
        """
        self.scheduler.request_finished(request.offload.request_id)

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
                self.scheduler.complete_load(copy.request.offload.request_id)
                loaded.append(copy.request)
            elif isinstance(copy, _Store):
                self.scheduler.complete_store(copy.job.job_id)
                self.tiers.copy_on(copy.job.keys)
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
        self.scheduler.reset()
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

    def _wanted_keys(self, request: RunningRequest, start: int) -> list[OffloadKey]:
        """Return the blocks of the longest hit behind `start` that all tiers together could give."""
        hashes = request.blocks.block_hashes
        stop = self._finder.longest_hit(hashes, request.input_tokens - 1, self._has_anywhere, start)
        return [
            OffloadKey(self._finder.block_hash(hashes, group, index), group_idx)
            for group_idx, group in enumerate(self._finder.groups)
            if group.prefix_cacheable
            for index in range(
                max(start // group.block_size, self._finder.first_needed_block(group, stop)), stop // group.block_size
            )
        ]

    def _has_anywhere(self, group_idx: int, block_hash: BlockHash) -> bool:
        """Tell whether any tier has a block, or will have it."""
        key = OffloadKey(block_hash, group_idx)
        return self.tiers.primary.peek(key) is not LookupResult.MISS or self.tiers.find_secondary(key) is not None

    def _free_queue(self) -> Iterator[GpuBlock]:
        """Yield what the GPU's free queue holds, the next to be evicted first."""
        for key in self._pool.free_keys():
            if key is None:
                yield GpuBlock(None, 0)
            else:
                group_idx, block_hash = key
                yield GpuBlock(OffloadKey(block_hash, group_idx), self._finder.groups[group_idx].block_size)

    def _begin_store(self, job: StoreJob | None, now_ns: int) -> None:
        """Pin the GPU's blocks of a store and put it in line."""
        if job is None:
            return
        cached = (self._pool.get_cached_block(key.block_hash, key.group_idx) for key in job.keys)
        block_ids = [block_id for block_id in cached if block_id is not None]
        self._pool.touch(block_ids)
        self._begin(_Store(job, block_ids), now_ns, self._cpu_ns_per_token * self._tokens(job.keys))

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
        groups = self._finder.groups
        return sum(groups[key.group_idx].block_size for key in keys)

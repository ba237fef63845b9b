"""Tiers behind the CPU pool: what is copied where, and when a block counts as being there.

Follows vLLM's tiering manager. The CPU pool is the primary tier: every load comes from it. What it has stored is copied on to
each secondary tier, and what only a secondary tier still has is promoted into the pool when a request asks for it. Each tier is a
manager of its own, with its own medium, owner and evictions; copies take time, so they are jobs: begun here, given a duration by
whoever knows the time, and ended here.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from kvbus.offload.events import OffloadingEvent
from kvbus.offload.keys import OffloadKey
from kvbus.offload.manager import CPUOffloadingManager
from kvbus.offload.transfers import LookupResult

__all__ = ["JobKind", "TierJob", "TieringOffloadingManager"]


class JobKind(Enum):
    """Which way a copy goes."""

    STORE = "store"
    """From the primary tier to a secondary one."""
    PROMOTION = "promotion"
    """From a secondary tier to the primary one."""


class TierJob(NamedTuple):
    """A copy between the primary and a secondary tier.

    Attributes:
        kind: Which way.
        tier_index: Which secondary tier, from 0.
        keys: What is copied; never empty.
    """

    kind: JobKind
    tier_index: int
    keys: list[OffloadKey]


class TieringOffloadingManager:
    """The primary tier's manager, with secondary tiers behind it.

    Attributes:
        primary: The pool that loads come from.
        secondary: Tiers behind it, the nearest first; may be empty.
        stores_refused_count: Copies to a secondary tier left out because nothing in it could be evicted.
    """

    def __init__(self, primary: CPUOffloadingManager, secondary: Sequence[CPUOffloadingManager] = ()) -> None:
        """Join tiers that hold nothing yet.

        Args:
            primary: As in the attribute.
            secondary: As in the attribute.
        """
        self.primary = primary
        self.secondary = tuple(secondary)
        self.stores_refused_count = 0
        self._begun: list[TierJob] = []

    def copy_on(self, keys: Sequence[OffloadKey]) -> None:
        """Begin to copy what has arrived in the primary tier to every secondary tier that does not have it.

        Args:
            keys: Blocks whose store to the primary tier has just succeeded.
        """
        for tier_index, tier in enumerate(self.secondary):
            output = tier.prepare_store(keys)
            if output is None:
                self.stores_refused_count += len(keys)
            elif output.keys_to_store:
                self.primary.prepare_load(output.keys_to_store)
                self._begun.append(TierJob(JobKind.STORE, tier_index, output.keys_to_store))

    def find_secondary(self, key: OffloadKey) -> int | None:
        """Return the nearest secondary tier from which a block could be promoted; `None` = there is none.

        Args:
            key: The block.
        """
        for tier_index, tier in enumerate(self.secondary):
            if tier.peek(key) is LookupResult.HIT:
                return tier_index
        return None

    def promote(self, keys: Sequence[OffloadKey]) -> dict[OffloadKey, int]:
        """Begin to copy into the primary tier what only secondary tiers have.

        Args:
            keys: Blocks that a request wants, in prefix order, those in the primary tier included, which are then not evicted
                for the others.

        Returns:
            Each block on its way and the secondary tier that it comes from; empty where the primary tier has no room.
        """
        sources: dict[OffloadKey, int] = {}
        wanted: list[OffloadKey] = []
        for key in keys:
            if self.primary.peek(key) is not LookupResult.MISS:
                wanted.append(key)
            elif (tier_index := self.find_secondary(key)) is not None:
                wanted.append(key)
                sources[key] = tier_index
        if not sources or (output := self.primary.prepare_store(wanted)) is None:
            return {}
        begun = {key: sources[key] for key in output.keys_to_store}
        for tier_index, tier in enumerate(self.secondary):
            tier_keys = [key for key, source_index in begun.items() if source_index == tier_index]
            if tier_keys:
                tier.prepare_load(tier_keys)
                self._begun.append(TierJob(JobKind.PROMOTION, tier_index, tier_keys))
        return begun

    def take_jobs(self) -> list[TierJob]:
        """Return the copies begun since the last call, in order. Each has to be ended with `complete_job`."""
        jobs, self._begun = self._begun, []
        return jobs

    def complete_job(self, job: TierJob) -> None:
        """End a copy: its blocks are in the target tier now, and free to be evicted in the source.

        Args:
            job: From `take_jobs`, ended once.

        Raises:
            UsageError: It was not begun, has ended, or a reset has voided it.
        """
        tier = self.secondary[job.tier_index]
        if job.kind is JobKind.STORE:
            tier.complete_store(job.keys)
            self.primary.complete_load(job.keys)
        else:
            tier.complete_load(job.keys)
            self.primary.complete_store(job.keys)
            self.copy_on(job.keys)

    def take_events(self) -> list[OffloadingEvent]:
        """Return what happened in every tier since the last call, the primary's first."""
        events = self.primary.take_events()
        for tier in self.secondary:
            events += tier.take_events()
        return events

    def reset(self) -> None:
        """Empty every tier. Copies under way are void and must not be ended."""
        self._begun.clear()
        for tier in (self.primary, *self.secondary):
            tier.reset()

"""Least recently used: one list, the oldest goes first.

An unfinished or pinned block keeps its place in the list and counts towards the pool; it is passed over when a victim is wanted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from kvbus.offload.keys import OffloadKey
from kvbus.offload.policies import CachePolicy, first_evictable

__all__ = ["LRUCachePolicy"]


class LRUCachePolicy(CachePolicy):
    """Least recently used (vLLM `LRUCachePolicy`)."""

    def __init__(self) -> None:
        """Start empty."""
        # Least recent first.
        self._order: OrderedDict[OffloadKey, None] = OrderedDict()

    def admit(
        self, keys: Sequence[OffloadKey], evict_count: int, may_evict: Callable[[OffloadKey], bool]
    ) -> list[OffloadKey]:
        """Enter the keys as most recent, in order; the least recent that may go are driven out.

        Args:
            keys: As in `CachePolicy.admit`.
            evict_count: As in `CachePolicy.admit`.
            may_evict: As in `CachePolicy.admit`.

        Returns:
            The keys driven out, least recent first.

        Cost: O(len(keys) + the keys passed over).
        """
        victims = first_evictable(self._order, evict_count, may_evict)
        for victim in victims:
            del self._order[victim]
        for key in keys:
            self._order[key] = None
        return victims

    def settle(self, key: OffloadKey) -> None:
        """Do nothing: the key took its place when it was admitted."""

    def withdraw(self, key: OffloadKey) -> None:
        """Forget the key."""
        del self._order[key]

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """Make the keys the most recent, the first of them last; an unfinished key too."""
        for key in reversed(keys):
            if key in self._order:
                self._order.move_to_end(key)

    def clear(self) -> None:
        """Forget everything."""
        self._order.clear()

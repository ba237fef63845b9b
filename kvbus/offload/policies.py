"""The interface between the offloading manager and an eviction policy.

The manager owns the blocks: which exist, which are in transfer, which slot each has. A policy owns the order: it is told what
came, what was used and what went, and names the victims. It never sees a block, only keys, and learns through `may_evict` which
of them may go: not those in transfer, not those of the call that asks.

The manager asks for victims only when it has counted that enough may go, so a policy never fails half way and needs no undo.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from kvbus.offload.keys import OffloadKey

__all__ = ["CachePolicy", "first_evictable"]


class CachePolicy(ABC):
    """Order of the blocks of one pool, and the choice of what to evict (the role of vLLM's `CachePolicy`).

    Life of a key: `admit` (its store begins, it is *unfinished*) → `settle` (it can be loaded) or `withdraw` (the store failed)
    → `touch` any number of times → chosen by a later `admit`.
    """

    @abstractmethod
    def admit(
        self, keys: Sequence[OffloadKey], evict_count: int, may_evict: Callable[[OffloadKey], bool]
    ) -> list[OffloadKey]:
        """Enter new keys one after the other; the last `evict_count` of them each drive one key out.

        Args:
            keys: Distinct keys that are not in the pool, in the order in which they are stored.
            evict_count: How many have no free slot, in [0, len(keys)].
            may_evict: Tells whether a key of the pool may go. At least `evict_count` keys may.

        Returns:
            The keys driven out, in order; exactly `evict_count`.
        """

    @abstractmethod
    def settle(self, key: OffloadKey) -> None:
        """Take note that the store of an unfinished key succeeded."""

    @abstractmethod
    def withdraw(self, key: OffloadKey) -> None:
        """Forget an unfinished key, whose store failed, as if it had not been admitted; what it drove out stays out."""

    @abstractmethod
    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """Mark keys as used. From the last to the first, so that the first ends as the most recent.

        Keys come in prefix order, and a prefix is worth more than what follows it: without its start nothing after it can be
        loaded. Keys that are not in the pool are ignored.

        Convention: vLLM `CachePolicy.touch`.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, what was learnt included."""


def first_evictable(
    order: Iterable[OffloadKey], count: int, may_evict: Callable[[OffloadKey], bool]
) -> list[OffloadKey]:
    """Return the first keys of an order that may go.

    Args:
        order: Keys, the first to go in front.
        count: How many are wanted, ≥ 0.
        may_evict: As in `CachePolicy.admit`.

    Returns:
        At most `count` keys, in order.

    Cost: O(count + the keys in front of them that may not go).
    """
    return list(islice(filter(may_evict, order), count))

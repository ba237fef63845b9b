"""ARC, the adaptive replacement cache of Megiddo and Modha (FAST 2003), for a pool whose blocks come and go in transfers.

Four lists, each with its least recent key first:

* T1 holds blocks used once, T2 blocks used more than once: together the pool.
* B1 and B2 hold the keys, without blocks, that were evicted from T1 and T2: the ghosts. A ghost that is stored again says which
  list was too small, and the target p for the size of T1 moves towards it.

`admit` is the paper's figure 4 for a key that is not in the pool (cases II, III and IV), `touch` is case I, and the names of the
lists and of p are the paper's. Three things the paper does not have, and how they count:

* **An unfinished block**, whose store has not ended, is in the list in which it will stay and counts in its size, since it has
  taken its slot. It cannot be evicted. Using it makes it recent but is no second use: the engine touches a prefix right
  after it began to store it. If the store fails, the key is taken out and, if it came from a ghost list, put back there as
  the most recent; p and what was evicted for it stay, because the request for it did happen.
* **A pinned block** counts and keeps its place, and is passed over. Where the list that REPLACE names has nothing that may go,
  the other one gives.
* **Free slots.** The paper's cache is full whenever it has ghosts; here a failed store can leave slots free. Then ghosts and p
  move as in the paper, and nothing is evicted.

Invariants, the paper's: |T1| + |B1| ≤ c and |T1| + |T2| + |B1| + |B2| ≤ 2c, c being the slots; 0 ≤ p ≤ c.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from kvbus.offload.keys import OffloadKey
from kvbus.offload.policies import CachePolicy, first_evictable

__all__ = ["ARCCachePolicy"]


class ARCCachePolicy(CachePolicy):
    """Adaptive replacement cache (vLLM `ARCCachePolicy`)."""

    def __init__(self, num_blocks: int) -> None:
        """Start empty, with p = 0.

        Args:
            num_blocks: Slots of the pool, the paper's c; ≥ 1.
        """
        self._c = num_blocks
        self._p = 0.0
        self._t1: OrderedDict[OffloadKey, None] = OrderedDict()
        self._t2: OrderedDict[OffloadKey, None] = OrderedDict()
        self._b1: OrderedDict[OffloadKey, None] = OrderedDict()
        self._b2: OrderedDict[OffloadKey, None] = OrderedDict()
        # Unfinished keys, each with the ghost list that it came from.
        self._unfinished: dict[OffloadKey, OrderedDict[OffloadKey, None] | None] = {}

    @property
    def target_t1_size(self) -> float:
        """The paper's p, in [0, num_blocks]: how many blocks used once the pool should hold (vLLM `target_t1_size`)."""
        return self._p

    def admit(
        self, keys: Sequence[OffloadKey], evict_count: int, may_evict: Callable[[OffloadKey], bool]
    ) -> list[OffloadKey]:
        """Request keys that are not in the pool, one after the other.

        Args:
            keys: As in `CachePolicy.admit`.
            evict_count: As in `CachePolicy.admit`.
            may_evict: As in `CachePolicy.admit`.

        Returns:
            The keys driven out, in order.

        Cost: O(len(keys) + the keys passed over).
        Convention: Megiddo and Modha 2003, figure 4.
        """
        # Who may go does not change within a call, and what comes in may not, so the candidates are sought once.
        candidates_t1 = deque(first_evictable(self._t1, evict_count, may_evict))
        candidates_t2 = deque(first_evictable(self._t2, evict_count, may_evict))
        free_count = len(keys) - evict_count
        evicted: list[OffloadKey] = []
        for index, key in enumerate(keys):
            is_full = index >= free_count
            origin = self._adapt(key)
            is_ghost_kept = True
            if origin is None:
                is_ghost_kept = self._trim_ghosts()
            if is_full:
                evicted.append(self._replace(candidates_t1, candidates_t2, origin, is_ghost_kept))
            if origin is None:
                self._t1[key] = None
            else:
                del origin[key]
                self._t2[key] = None
            self._unfinished[key] = origin
        return evicted

    def settle(self, key: OffloadKey) -> None:
        """Let the key be used like any other; it is where it belongs."""
        del self._unfinished[key]

    def withdraw(self, key: OffloadKey) -> None:
        """Take an unfinished key out and put it back among the ghosts, if it was one."""
        origin = self._unfinished.pop(key)
        if origin is None:
            del self._t1[key]
            return
        del self._t2[key]
        origin[key] = None
        # Others may have come since; the bounds of the lists go before the memory of one key.
        if len(self._t1) + len(self._b1) > self._c:
            self._b1.popitem(last=False)

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """Use keys of the pool again: they become the most recent of T2, the first of them last.

        Ghosts are left alone: a request for one is told by its store, and p must not move twice for it.

        Convention: Megiddo and Modha 2003, figure 4, case I.
        """
        for key in reversed(keys):
            if key in self._t2:
                self._t2.move_to_end(key)
            elif key in self._t1:
                if key in self._unfinished:
                    self._t1.move_to_end(key)
                else:
                    del self._t1[key]
                    self._t2[key] = None

    def clear(self) -> None:
        """Forget everything, p included."""
        self._p = 0.0
        for keys in (self._t1, self._t2, self._b1, self._b2, self._unfinished):
            keys.clear()

    def _adapt(self, key: OffloadKey) -> OrderedDict[OffloadKey, None] | None:
        """Move p if the key is a ghost, and return the list that it haunts."""
        if key in self._b1:
            self._p = min(self._p + max(1.0, len(self._b2) / len(self._b1)), float(self._c))
            return self._b1
        if key in self._b2:
            self._p = max(self._p - max(1.0, len(self._b1) / len(self._b2)), 0.0)
            return self._b2
        return None

    def _trim_ghosts(self) -> bool:
        """Make room in the lists for a key that is new (case IV); tell whether what T1 loses may become a ghost."""
        if len(self._t1) + len(self._b1) >= self._c:
            if not self._b1:
                return False
            self._b1.popitem(last=False)
        elif len(self._t1) + len(self._t2) + len(self._b1) + len(self._b2) >= 2 * self._c:
            self._b2.popitem(last=False)
        return True

    def _replace(
        self,
        candidates_t1: deque[OffloadKey],
        candidates_t2: deque[OffloadKey],
        origin: OrderedDict[OffloadKey, None] | None,
        is_ghost_kept: bool,
    ) -> OffloadKey:
        """Evict one key: the paper's REPLACE, and the eviction without a ghost where T1 fills L1 alone."""
        size = len(self._t1)
        wants_t1 = not is_ghost_kept or (size >= 1 and (size > self._p or (origin is self._b2 and size == self._p)))
        if candidates_t1 and (wants_t1 or not candidates_t2):
            victim = candidates_t1.popleft()
            del self._t1[victim]
            if is_ghost_kept:
                self._b1[victim] = None
        else:
            victim = candidates_t2.popleft()
            del self._t2[victim]
            self._b2[victim] = None
        return victim

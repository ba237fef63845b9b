"""The offloading manager: a bounded pool of blocks, without the blocks.

A block goes through three states. `ref_count` tells which, as in vLLM:

```
 absent ──prepare_store──> unfinished (−1) ──complete_store(True)──> loadable (0) <──prepare_load, complete_load──> pinned (n)
    ^                          │                                        │
    └──complete_store(False)───┘                                        └──evicted by a later prepare_store──> absent
```

Only a loadable block that nobody has pinned may be evicted, and never for a call that names it. A call either does all of what
it says or raises and has changed nothing: everything is judged before anything is touched.

Events say what a loader could see: *stored* when a block becomes loadable, *removed* when it no longer is.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from kvbus.errors import ConfigError, Problem, UsageError
from kvbus.offload.arc import ARCCachePolicy
from kvbus.offload.events import OffloadingEvent
from kvbus.offload.keys import OffloadKey, checked_keys
from kvbus.offload.lru import LRUCachePolicy
from kvbus.offload.policies import CachePolicy
from kvbus.offload.transfers import CPULoadStoreSpec, LookupResult, PrepareStoreOutput

__all__ = ["CPULoadStoreSpec", "CPUOffloadingManager", "LookupResult", "PrepareStoreOutput"]

_POLICIES: dict[str, Callable[[int], CachePolicy]] = {
    "lru": lambda _num_blocks: LRUCachePolicy(),
    "arc": ARCCachePolicy,
}


class _Block:
    """One block of the pool.

    Attributes:
        block_id: Its slot.
        ref_count: −1 unfinished, 0 loadable, n > 0 pinned by n loads.
    """

    __slots__ = ("block_id", "ref_count")

    def __init__(self, block_id: int) -> None:
        """Start unfinished in this slot."""
        self.block_id = block_id
        self.ref_count = -1


class CPUOffloadingManager:
    """A bounded pool of offloaded blocks with an eviction policy (vLLM `CPUOffloadingManager`).

    Serves any tier, not only the CPU one: give it another medium and an owner.

    Attributes:
        num_blocks: Slots in the pool.
        medium: Named in events.
        ownership: Named in events.
        locality: Named in events.
        store_threshold: As given.
    """

    def __init__(  # noqa: PLR0917 - the order of vLLM's constructor and then of the event's fields
        self,
        num_blocks: int,
        cache_policy: str = "lru",
        enable_events: bool = False,
        medium: str = "CPU",
        ownership: str | None = None,
        locality: str | None = None,
        store_threshold: int = 1,
        *,
        max_tracker_size: int = 64_000,
    ) -> None:
        """Start with an empty pool.

        Args:
            num_blocks: Slots, ≥ 1. A slot holds one block of any group, whatever its size in tokens.
            cache_policy: `lru` or `arc`.
            enable_events: Whether to keep events for `take_events`. Whoever asks for them has to take them: they are not dropped.
            medium: Medium of the events.
            ownership: Owner of the events; `None` = the engine itself.
            locality: Locality of the events.
            store_threshold: A key is stored only once it was looked up this often, ≥ 0; 0 and 1 store everything. Spares
                copies of what is never asked for again.
            max_tracker_size: Keys whose look-ups are counted, ≥ 1; the one looked up longest ago is forgotten first. vLLM's
                figure.

        Raises:
            ConfigError: A size is out of range, the policy is unknown or a name is no text; all problems at once.
        """
        _check_options(
            num_blocks=num_blocks,
            cache_policy=cache_policy,
            store_threshold=store_threshold,
            max_tracker_size=max_tracker_size,
            medium=medium,
            ownership=ownership,
            locality=locality,
        )
        self.num_blocks = num_blocks
        self.medium = medium
        self.ownership = ownership
        self.locality = locality
        self.store_threshold = store_threshold
        self._policy = _POLICIES[cache_policy](num_blocks)
        self._blocks: dict[OffloadKey, _Block] = {}
        # Slots never used are counted, not listed, so that a large pool costs nothing until it fills.
        self._used_slot_count = 0
        self._free_slots: list[int] = []
        self._evictable_count = 0
        self._events: list[OffloadingEvent] | None = [] if enable_events else None
        self._max_tracker_size = max_tracker_size
        self._lookup_counts: OrderedDict[OffloadKey, int] | None = OrderedDict() if store_threshold > 1 else None
        self._stores_skipped_count = 0

    @property
    def free_count(self) -> int:
        """Slots that hold nothing."""
        return self.num_blocks - len(self._blocks)

    @property
    def evictable_count(self) -> int:
        """Blocks that may be evicted now: loadable and not pinned."""
        return self._evictable_count

    @property
    def stores_skipped_count(self) -> int:
        """Keys that `prepare_store` left out so far because they were looked up too seldom."""
        return self._stores_skipped_count

    def stored_keys(self) -> list[OffloadKey]:
        """Return what can be loaded, pinned or not, in the order in which the stores began.

        Cost: O(blocks in the pool).
        """
        return [key for key, block in self._blocks.items() if block.ref_count >= 0]

    def lookup(self, key: OffloadKey) -> LookupResult:
        """Tell whether a block is in the pool, and count that it was asked for. Does not make it more recent: `touch` does.

        Args:
            key: The block.

        Raises:
            UsageError: Not a whole key.

        Cost: O(1).
        """
        checked_keys((key,))
        counts = self._lookup_counts
        if counts is not None:
            if key not in counts and len(counts) >= self._max_tracker_size:
                counts.popitem(last=False)
            counts[key] = counts.get(key, 0) + 1
            counts.move_to_end(key)
        return self.peek(key)

    def peek(self, key: OffloadKey) -> LookupResult:
        """Tell the same as `lookup` without counting it. What is no key is not there.

        Args:
            key: The block.

        Cost: O(1), some 0.1 µs.
        """
        block = self._blocks.get(key)
        if block is None:
            return LookupResult.MISS
        return LookupResult.HIT_PENDING if block.ref_count < 0 else LookupResult.HIT

    def prepare_load(self, keys: Iterable[OffloadKey]) -> CPULoadStoreSpec:
        """Pin blocks, so that they stay until `complete_load`.

        Args:
            keys: Loadable blocks. One named twice is pinned twice.

        Returns:
            Their slots, one a key, in order.

        Raises:
            UsageError: One is absent or unfinished, or is no whole key. Nothing is pinned then.

        Cost: O(n).
        """
        wanted = checked_keys(keys)
        for key in wanted:
            if self.peek(key) is not LookupResult.HIT:
                raise UsageError(f"cannot load {_name(key)}: {_why_not_loadable(self.peek(key))}")
        blocks = [self._blocks[key] for key in wanted]
        for block in blocks:
            if block.ref_count == 0:
                self._evictable_count -= 1
            block.ref_count += 1
        return CPULoadStoreSpec([block.block_id for block in blocks])

    def complete_load(self, keys: Iterable[OffloadKey]) -> None:
        """Release blocks that `prepare_load` pinned.

        Args:
            keys: Pinned blocks, each at most as often as it is pinned.

        Raises:
            UsageError: One is not pinned that often, or is no whole key. Nothing is released then.

        Cost: O(n).
        """
        wanted = checked_keys(keys)
        for key, count in Counter(wanted).items():
            block = self._blocks.get(key)
            if block is None or block.ref_count < count:
                raise UsageError(f"cannot end {count} load(s) of {_name(key)}: not that many are under way")
        for key in wanted:
            block = self._blocks[key]
            block.ref_count -= 1
            if block.ref_count == 0:
                self._evictable_count += 1

    def prepare_store(self, keys: Iterable[OffloadKey]) -> PrepareStoreOutput | None:
        """Make room for blocks that are about to be copied in.

        Keys already in the pool, loadable or unfinished, are left out, and so are those below the store threshold and
        repetitions. No key of this call is evicted for it, those left out included.

        Args:
            keys: Blocks in prefix order; may be empty.

        Returns:
            What to copy where, and what was evicted for it; `None` if free and evictable blocks do not suffice, and then
            nothing has changed.

        Raises:
            UsageError: One is no whole key. Nothing has changed then.

        Cost: O(n + blocks that the policy passes over).
        """
        wanted = dict.fromkeys(checked_keys(keys))
        absent = [key for key in wanted if key not in self._blocks]
        to_store = [key for key in absent if self._is_worth_storing(key)]
        evict_count = max(0, len(to_store) - self.free_count)
        if evict_count:
            protected = sum(1 for key in wanted if (block := self._blocks.get(key)) and block.ref_count == 0)
            if evict_count > self._evictable_count - protected:
                return None
        self._stores_skipped_count += len(absent) - len(to_store)
        blocks = self._blocks
        evicted = self._policy.admit(
            to_store, evict_count, lambda key: blocks[key].ref_count == 0 and key not in wanted
        )
        for key in evicted:
            self._free_slots.append(blocks.pop(key).block_id)
        self._evictable_count -= len(evicted)
        self._record(evicted, removed=True)
        for key in to_store:
            blocks[key] = _Block(self._take_slot())
        return PrepareStoreOutput(to_store, CPULoadStoreSpec([blocks[key].block_id for key in to_store]), evicted)

    def fitting(self, keys: Iterable[OffloadKey]) -> list[OffloadKey]:
        """Return the longest leading part of some keys that `prepare_store` would not refuse now.

        Args:
            keys: As for `prepare_store`.

        Raises:
            UsageError: One is no whole key.

        Cost: O(n).
        """
        wanted = dict.fromkeys(checked_keys(keys))
        room_count = self.free_count + self._evictable_count
        result: list[OffloadKey] = []
        for key in wanted:
            block = self._blocks.get(key)
            # What is there already takes no slot, but neither may it go: both leave less to evict.
            is_stored = block is None and self._is_worth_storing(key)
            is_protected = block is not None and block.ref_count == 0
            room_count -= is_stored or is_protected
            if room_count < 0:
                break
            result.append(key)
        return result

    def complete_store(self, keys: Iterable[OffloadKey], success: bool = True) -> None:
        """End stores that `prepare_store` began.

        Args:
            keys: Unfinished blocks, each once: what `keys_to_store` named, in any portions.
            success: True makes them loadable; False forgets them and frees their slots without a trace, though what they
                drove out stays out.

        Raises:
            UsageError: One is not unfinished, is named twice, or is no whole key. Nothing has changed then.

        Cost: O(n).
        """
        done = checked_keys(keys)
        if len(set(done)) != len(done):
            raise UsageError("cannot end a store twice: a key is repeated")
        for key in done:
            if self.peek(key) is not LookupResult.HIT_PENDING:
                raise UsageError(f"cannot end the store of {_name(key)}: none is under way")
        if not success:
            for key in done:
                self._policy.withdraw(key)
                self._free_slots.append(self._blocks.pop(key).block_id)
            return
        for key in done:
            self._policy.settle(key)
            self._blocks[key].ref_count = 0
        self._evictable_count += len(done)
        self._record(done, removed=False)

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """Mark blocks as used; the first ends as the most recent. Keys that are not in the pool are ignored.

        Args:
            keys: Blocks in prefix order.

        Raises:
            UsageError: One is no whole key. Nothing has changed then.

        Cost: O(n).
        """
        self._policy.touch(checked_keys(keys))

    def take_events(self) -> list[OffloadingEvent]:
        """Return what happened since the last call, in order, and forget it; empty unless events are enabled."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    def reset(self) -> None:
        """Empty the pool, blocks in transfer included, and forget look-ups and what the policy learnt.

        One event says what can no longer be loaded. Transfers that were under way are void: ending one now is a `UsageError`
        like any other that was not prepared, so let them end first or forget them.

        Convention: vLLM `reset_cache`, which leaves the event to the engine's `AllBlocksCleared`.
        """
        self._record(self.stored_keys(), removed=True)
        self._policy.clear()
        self._blocks.clear()
        self._used_slot_count = 0
        self._free_slots.clear()
        self._evictable_count = 0
        if self._lookup_counts is not None:
            self._lookup_counts.clear()

    def _is_worth_storing(self, key: OffloadKey) -> bool:
        """Tell whether a key was looked up often enough."""
        return self._lookup_counts is None or self._lookup_counts.get(key, 0) >= self.store_threshold

    def _take_slot(self) -> int:
        """Return a slot that holds nothing: one never used first, then the one freed last."""
        if self._used_slot_count < self.num_blocks:
            self._used_slot_count += 1
            return self._used_slot_count - 1
        return self._free_slots.pop()

    def _record(self, keys: list[OffloadKey], removed: bool) -> None:
        """Keep one event, unless it would be empty or nobody wants any."""
        if keys and self._events is not None:
            self._events.append(OffloadingEvent(list(keys), self.medium, removed, self.locality, self.ownership))


def _check_options(
    *,
    num_blocks: object,
    cache_policy: object,
    store_threshold: object,
    max_tracker_size: object,
    medium: object,
    ownership: object,
    locality: object,
) -> None:
    """Raise with every option that cannot work."""
    problems: list[Problem] = []
    sizes = (
        ("num_blocks", num_blocks, 1),
        ("store_threshold", store_threshold, 0),
        ("max_tracker_size", max_tracker_size, 1),
    )
    for field, value, least in sizes:
        if type(value) is not int or value < least:
            problems.append(Problem(field, str(value), f"must be a whole number of at least {least}"))
    if not isinstance(cache_policy, str) or cache_policy not in _POLICIES:
        problems.append(Problem("cache_policy", str(cache_policy), f"must be one of {', '.join(_POLICIES)}"))
    if not isinstance(medium, str) or not medium:
        problems.append(Problem("medium", str(medium), "must be a name"))
    for field, value in (("ownership", ownership), ("locality", locality)):
        if value is not None and (not isinstance(value, str) or not value):
            problems.append(Problem(field, str(value), "must be a name or None"))
    if problems:
        raise ConfigError(problems)


def _name(key: OffloadKey) -> str:
    """Return a key as an error may show it."""
    block_hash = key.block_hash
    return f"block {block_hash.hex() if isinstance(block_hash, bytes) else block_hash} of group {key.group_idx}"


def _why_not_loadable(state: LookupResult) -> str:
    """Say why a block in this state cannot be loaded."""
    return "its store has not ended" if state is LookupResult.HIT_PENDING else "it is not in the pool"

"""The scheduler's side of offloading: what a request can take from the pool, and what of it goes there.

For each request:

```
 get_num_new_matched_tokens ──(0)──> update_state_after_alloc(0)
   │     ↑        └──(None: a block is still being stored)──> ask again later
   │     └── asked again: the earlier pin is dropped
   └──(n tokens, their blocks pinned)──> update_state_after_alloc(n) ──LoadJob──> complete_load
 prepare_eager_store after every step ──StoreJob──> complete_store
 request_finished: a pin that was not used is dropped; jobs under way end as usual
```

Two block sizes are kept apart (see `block_sizes`). A hit begins and ends where every group has a block boundary; within it, each
group is asked for blocks of its own size, under the hash at which such a block ends. The rule before hybrid models had one
block size for everything: hashes to skip, blocks to look up, tokens to report. With groups of 64 and 16 tokens it skips
a quarter of the hashes that it should, and looks for blocks under the hashes of others.

*Eager* mode stores what a request has computed, as it computes it. *Lazy* mode stores what the GPU is about to evict.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kvbus.errors import ConfigError, Problem, UsageError
from kvbus.events import Event
from kvbus.offload.block_sizes import check_block_sizes
from kvbus.offload.groups import KVCacheGroup, check_groups, is_size
from kvbus.offload.keys import OffloadKey
from kvbus.offload.layout import LaidBlock, RequestLayout
from kvbus.offload.lazy import GpuBlock, estimate_lazy_target_blocks, keys_about_to_go
from kvbus.offload.manager import CPUOffloadingManager
from kvbus.offload.request import OffloadRequest
from kvbus.offload.tracker import OffloadingEventsTracker
from kvbus.offload.transfers import LoadJob, LookupResult, StoreJob

__all__ = ["OffloadScheduler"]


class _State:
    """What is known of one request.

    Attributes:
        computed_tokens: As it said when it last asked.
        pin: Keys pinned for it, and the tokens of the hit; `None` = none.
        load: Keys being loaded for it; `None` = none.
        stored_tokens: What lies before has been stored or left out; a place where a hit may end.
        seen_tokens: What lies before was on the GPU at the last call; of a window, the GPU may have kept only the last one.
        is_counted: Whether its look-ups have been counted.
        is_finished: Whether only a load keeps it.
    """

    __slots__ = ("computed_tokens", "is_counted", "is_finished", "load", "pin", "seen_tokens", "stored_tokens")

    def __init__(self) -> None:
        """Know nothing."""
        self.computed_tokens = 0
        self.pin: tuple[list[OffloadKey], int] | None = None
        self.load: list[OffloadKey] | None = None
        self.stored_tokens = 0
        self.seen_tokens = 0
        self.is_counted = False
        self.is_finished = False


class _Store(NamedTuple):
    """A store under way.

    Attributes:
        keys: Its blocks.
        request_id: As in `StoreJob`.
        start_tokens: Where the request's unstored tokens began.
    """

    keys: list[OffloadKey]
    request_id: str | None
    start_tokens: int


class OffloadScheduler:
    """Matches prefixes against a pool and fills it (the role of vLLM's `SimpleCPUOffloadScheduler`).

    Invariant: a block that a pin, a load or a store names stays in the pool until that ends.

    Attributes:
        manager: The pool.
        tracker: Describes blocks and makes the wire's events.
        groups: KV-cache groups, in the order of their `group_idx`.
        block_size: The scheduler's block size.
        hash_block_size: Tokens per hash of a request.
        lazy_offload: As given.
        lazy_target_blocks: In lazy mode, how many blocks at the head of the GPU's free queue are kept stored.
    """

    def __init__(
        self,
        manager: CPUOffloadingManager,
        groups: Iterable[KVCacheGroup],
        scheduler_block_size: int,
        hash_block_size: int,
        *,
        lazy_offload: bool = False,
        max_num_batched_tokens: int = 8192,
        tracker: OffloadingEventsTracker | None = None,
    ) -> None:
        """Serve a model.

        Args:
            manager: The pool. Others may have transfers of their own in it, and end them themselves.
            groups: KV-cache groups; at least one takes part in prefix caching.
            scheduler_block_size: Tokens between two possible ends of a hit, a multiple of the hash size and of every
                prefix-cacheable group's block size. `resolve_kv_cache_block_sizes` gives both.
            hash_block_size: Tokens per hash of a request; divides every prefix-cacheable group's block size.
            lazy_offload: Store when the GPU is about to evict, not as blocks are computed.
            max_num_batched_tokens: Tokens that a step computes at most, ≥ 1; lazy mode keeps two steps ahead of the evictions.
                The default is vLLM's for servers.
            tracker: For events that describe themselves; without one they are placeholders.

        Raises:
            ConfigError: The groups or sizes cannot work together; the sizes are named.
        """
        self.groups = tuple(check_groups(groups))
        if not any(group.prefix_cacheable for group in self.groups):
            kinds = ", ".join(group.kind for group in self.groups)
            raise ConfigError([Problem("groups", kinds, "at least one must take part in prefix caching")])
        check_block_sizes(self.groups, scheduler_block_size, hash_block_size)
        if not is_size(max_num_batched_tokens):
            reason = "must be a whole number of tokens above 0"
            raise ConfigError([Problem("max_num_batched_tokens", str(max_num_batched_tokens), reason)])
        self.manager = manager
        self.tracker = OffloadingEventsTracker(False) if tracker is None else tracker
        self.block_size = scheduler_block_size
        self.hash_block_size = hash_block_size
        self.lazy_offload = lazy_offload
        self.lazy_target_blocks = estimate_lazy_target_blocks(self.groups, max_num_batched_tokens)
        self._layout = RequestLayout(self.groups, scheduler_block_size, hash_block_size)
        self._states: dict[str, _State] = {}
        self._stores: dict[int, _Store] = {}
        self._next_job_id = 0

    def get_num_new_matched_tokens(self, request: OffloadRequest, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Find how many tokens behind the computed ones a request can take from the pool, and pin their blocks.

        A pin of an earlier call for the request is dropped. A hit is never the whole request: its last token is always
        computed, so that there is something to sample from.

        Args:
            request: With the hashes of its full blocks, and, if events describe themselves, its tokens.
            num_computed_tokens: Tokens that it has, ≥ 0. Not a multiple of the scheduler's block size: no hit.

        Returns:
            (tokens, is_async). Tokens are a multiple of the scheduler's block size, and are loaded between steps (True) unless
            there are none; `None` = a block of the longest hit is still being stored: ask again.

        Raises:
            UsageError: A load for the request is under way, or num_computed_tokens is negative, or the request lacks tokens, or
                one of its hashes is none. Nothing has changed then.

        Cost: one look at each block of each full-attention group up to the first that is missing, and at the windows.
        Convention: vLLM `SimpleCPUOffloadScheduler.get_num_new_matched_tokens`; `None` as in `OffloadingConnectorScheduler`.
        """
        _check_count("num_computed_tokens", num_computed_tokens)
        _check_hashes(request, num_computed_tokens // self.hash_block_size)
        known = self._states.get(request.request_id)
        if known is not None and known.load is not None:
            raise UsageError(f"a load for request {request.request_id!r} is under way")
        hit_end, blocks = self._find_hit(request, num_computed_tokens)
        is_pending = any(self.manager.peek(block.key) is LookupResult.HIT_PENDING for block in blocks)
        if blocks and not is_pending:
            self._check_tokens(request, hit_end)
        state = self._states.setdefault(request.request_id, _State())
        self._drop_pin(state)
        self._count_lookups(request, state)
        state.computed_tokens = state.seen_tokens = num_computed_tokens
        state.stored_tokens = 0
        if is_pending:
            return None, False
        if not blocks:
            return 0, False
        keys = [block.key for block in blocks]
        self.manager.prepare_load(keys)
        state.pin = (keys, hit_end - num_computed_tokens)
        for block in blocks:
            self.tracker.record_lookup(request, self._layout.configs[block.group_idx], block.chunk_idx, block.key)
        return hit_end - num_computed_tokens, True

    def update_state_after_alloc(self, request: OffloadRequest, num_external_tokens: int) -> LoadJob | None:
        """Take note that a request got its GPU blocks: turn its pin into a load, and mark its prefix as used.

        Args:
            request: The request.
            num_external_tokens: Tokens to take from the pool: what was found, or less, in multiples of the scheduler's block
                size; 0 drops the pin.

        Returns:
            What to load, to be ended with `complete_load`; `None` if nothing is. The latter also where fewer tokens are wanted
            than found and a window before the nearer end is not in the pool: those tokens have to be computed.

        Raises:
            UsageError: More than was found, not a multiple, negative, or a load is under way. Nothing has changed then.
        """
        _check_count("num_external_tokens", num_external_tokens)
        state = self._states.get(request.request_id)
        if state is not None and state.load is not None:
            raise UsageError(f"a load for request {request.request_id!r} is under way")
        if num_external_tokens % self.block_size:
            raise UsageError(f"num_external_tokens {num_external_tokens} is no multiple of {self.block_size}")
        found_tokens = state.pin[1] if state is not None and state.pin is not None else 0
        if num_external_tokens > found_tokens:
            raise UsageError(f"{num_external_tokens} tokens are to be loaded, but {found_tokens} were found")
        if state is None:
            return None
        load: LoadJob | None = None
        start, end = state.computed_tokens, state.computed_tokens + num_external_tokens
        if num_external_tokens:
            # A nearer end has windows of its own. What it needs is pinned before the old pin goes.
            keys = [block.key for block in self._layout.blocks_of_hit(request.block_hashes, start, end)]
            if all(self.manager.peek(key) is LookupResult.HIT for key in keys):
                load = LoadJob(request.request_id, keys, self.manager.prepare_load(keys), num_external_tokens)
                state.load = keys
            else:
                end = start
        self._drop_pin(state)
        state.seen_tokens = end
        hashed_tokens = len(request.block_hashes) * self.hash_block_size
        prefix = self._layout.blocks_of_hit(request.block_hashes, 0, self._layout.aligned(min(end, hashed_tokens)))
        self.manager.touch([block.key for block in prefix])
        return load

    def complete_load(self, request_id: str) -> None:
        """End the load of a request; its blocks may be evicted again.

        Args:
            request_id: From the job.

        Raises:
            UsageError: None is under way. Nothing has changed then.
        """
        state = self._states.get(request_id)
        if state is None or state.load is None:
            raise UsageError(f"no load for request {request_id!r} is under way")
        self.manager.complete_load(state.load)
        state.load = None
        if state.is_finished:
            del self._states[request_id]

    def prepare_eager_store(self, request: OffloadRequest, num_computed_tokens: int) -> StoreJob | None:
        """Store what a request has computed since the last call.

        Call it after each step, before the GPU gives up blocks that have left a window, and so once more before the request
        finishes. Stored are full blocks up to the last place where a hit could end, in the order of their ends, so that what
        fits makes a hit; of a window only blocks that some hit needs. What does not fit is tried again with the next call, as
        far as the GPU still has it.

        Args:
            request: With the hashes of its full blocks, and, if events describe themselves, its tokens.
            num_computed_tokens: Tokens whose KV data is complete on the GPU, ≥ 0.

        Returns:
            What to copy, to be ended with `complete_store`; `None` if there is nothing, or no room.

        Raises:
            UsageError: Lazy mode, a negative number, or the request lacks tokens or has a hash that is none. Nothing has changed
                then.

        Cost: O(blocks since the last call).
        """
        if self.lazy_offload:
            raise UsageError("prepare_eager_store in lazy mode: prepare_lazy_store is its store")
        _check_count("num_computed_tokens", num_computed_tokens)
        state = self._states.get(request.request_id) or _State()
        start = state.stored_tokens
        hashes = request.block_hashes
        stop = self._layout.aligned(min(num_computed_tokens, len(hashes) * self.hash_block_size))
        if stop <= start:
            return None
        self._check_tokens(request, stop)
        blocks = [
            block for block in self._layout.blocks_worth_storing(hashes, start, stop) if self._is_on_gpu(block, state)
        ]
        fitting = self.manager.fitting([block.key for block in blocks])
        self._states.setdefault(request.request_id, state)
        is_all = len(fitting) == len(blocks)
        state.stored_tokens = stop if is_all else self._layout.aligned(blocks[len(fitting)].end_token - 1)
        state.seen_tokens = num_computed_tokens
        job = self._begin_store(fitting, request.request_id, start)
        stored = set(job.keys) if job is not None else set()
        for block in blocks:
            if block.key in stored:
                self.tracker.record_store(request, self._layout.configs[block.group_idx], block.chunk_idx, block.key)
        return job

    def prepare_lazy_store(self, free_queue: Iterable[GpuBlock]) -> StoreJob | None:
        """Store what the GPU would evict next and the pool has not got.

        Args:
            free_queue: The GPU's free blocks, the next to be evicted first; the first `lazy_target_blocks` are read. The GPU has
                to keep those of the job until it ends.

        Returns:
            As in `prepare_eager_store`. Descriptions are the caller's to give to the tracker; without them events are
            placeholders.

        Raises:
            UsageError: Eager mode, or a block that is none of this model's, by its group or size. Nothing has changed then.

        Cost: O(lazy_target_blocks).
        """
        if not self.lazy_offload:
            raise UsageError("prepare_lazy_store in eager mode: prepare_eager_store is its store")
        keys = keys_about_to_go(free_queue, self.lazy_target_blocks, self.groups)
        return self._begin_store(self.manager.fitting(keys), None, 0)

    def complete_store(self, job_id: int, success: bool = True) -> None:
        """End a store: its blocks can be hit from now on or, if it failed, are forgotten and tried again with the next call.

        Args:
            job_id: From the job.
            success: Whether every block was copied.

        Raises:
            UsageError: No such store is under way. Nothing has changed then.
        """
        store = self._stores.pop(job_id, None)
        if store is None:
            raise UsageError(f"no store {job_id!r} is under way")
        self.manager.complete_store(store.keys, success)
        if success:
            return
        for key in store.keys:
            self.tracker.record_failed_store(key)
        state = self._states.get(store.request_id) if store.request_id is not None else None
        if state is not None:
            state.stored_tokens = min(state.stored_tokens, store.start_tokens)

    def request_finished(self, request_id: str) -> None:
        """Forget a request: it ended, or was aborted. Jobs under way end as usual.

        Args:
            request_id: The request; one that is not known is ignored.
        """
        state = self._states.get(request_id)
        if state is None:
            return
        self._drop_pin(state)
        if state.load is None:
            del self._states[request_id]
        else:
            state.is_finished = True

    def has_pending_stores(self) -> bool:
        """Tell whether a store is under way.

        Convention: vLLM `has_pending_stores`.
        """
        return bool(self._stores)

    def take_events(self) -> list[Event]:
        """Return what happened in the pool since the last call, as the wire's events, in order."""
        return self.tracker.take_events(self.manager.take_events())

    def reset(self) -> None:
        """Empty the pool and forget every request. Pins are gone and jobs under way are void: ending one is a `UsageError`."""
        for store in self._stores.values():
            for key in store.keys:
                self.tracker.record_failed_store(key)
        self._stores.clear()
        self._states.clear()
        self.manager.reset()

    def _find_hit(self, request: OffloadRequest, start: int) -> tuple[int, list[LaidBlock]]:
        """Return where the longest hit ends and which blocks it needs, those still being stored included; none: no blocks."""
        if start % self.block_size:
            return start, []
        peek = self.manager.peek
        hashes = request.block_hashes
        end = self._layout.longest_hit(
            hashes, start, request.num_tokens - 1, lambda key: peek(key) is not LookupResult.MISS
        )
        return end, self._layout.blocks_of_hit(hashes, start, end)

    def _is_on_gpu(self, block: LaidBlock, state: _State) -> bool:
        """Tell whether the GPU still has a block: computed since the last call, or in front of that and not out of its window."""
        is_new = block.end_token > state.seen_tokens
        return is_new or block.chunk_idx >= self._layout.first_needed_block(block.group_idx, state.seen_tokens)

    def _begin_store(self, keys: list[OffloadKey], request_id: str | None, start_tokens: int) -> StoreJob | None:
        """Begin to store what of these keys is not there; they are known to fit."""
        output = self.manager.prepare_store(keys)
        if output is None or not output.keys_to_store:
            return None
        # They came in prefix order, so the first is the oldest now; but the first is worth most.
        self.manager.touch(output.keys_to_store)
        job = StoreJob(self._next_job_id, output.keys_to_store, output.store_spec, output.evicted_keys, request_id)
        self._next_job_id += 1
        self._stores[job.job_id] = _Store(job.keys, request_id, start_tokens)
        return job

    def _count_lookups(self, request: OffloadRequest, state: _State) -> None:
        """Count, once per request, that its blocks were asked for, those behind the first missing one included.

        Otherwise a block could reach the store threshold only after all in front of it are stored.
        """
        if state.is_counted or self.manager.store_threshold <= 1:
            return
        state.is_counted = True
        stop = self._layout.aligned(len(request.block_hashes) * self.hash_block_size)
        for block in self._layout.blocks_worth_storing(request.block_hashes, 0, stop):
            self.manager.lookup(block.key)

    def _drop_pin(self, state: _State) -> None:
        """Release what was pinned for a request and not used."""
        if state.pin is not None:
            self.manager.complete_load(state.pin[0])
            state.pin = None

    def _check_tokens(self, request: OffloadRequest, stop: int) -> None:
        """Raise if events describe themselves and the tokens up to `stop` are not there to describe them with."""
        known_count = len(request.all_token_ids)
        if self.tracker.self_describing_enabled and known_count < stop:
            raise UsageError(f"request {request.request_id!r} has {known_count} token ids, but {stop} are needed")


def _check_count(name: str, value: object) -> None:
    """Raise unless this is a whole number of at least 0."""
    if type(value) is not int or value < 0:
        raise UsageError(f"{name} must be a whole number of at least 0, not {value!r}")


def _check_hashes(request: OffloadRequest, first: int) -> None:
    """Raise unless the hashes from the first one on are of a type that a hash can have; O(n), some 30 ns a hash."""
    strangers = set(map(type, request.block_hashes[first:])) - {int, bytes}
    if strangers:
        names = ", ".join(sorted(stranger.__name__ for stranger in strangers))
        raise UsageError(f"block hashes of request {request.request_id!r} must be int or bytes, not {names}")

"""From a manager's events to the wire's: which hashes, tokens and parent stand behind a key.

A manager knows keys only. The tokens are at hand while a request is being stored or loaded, so the tracker writes them down then
(`record_store`, `record_lookup`) and uses them when the manager's event comes, which is later, and again when other tiers store
or drop the block.

**What was announced is what must be withdrawn.** A key stands for a chunk of one or more blocks. Described, its store names
every hash of the chunk; as a placeholder, only the last one. Consumers count references, so a removal has to name the same
hashes as the store did. Therefore the tracker counts, per key and residency (medium, ownership), how often it announced the key
in which form; a description that arrives in between changes later stores but not how an earlier one is withdrawn.

**How long a payload is kept.** Until its last residency is gone, and while a store is awaited, that is from `record_store` to the
event or to `record_failed_store`. What a removal leaves without either is forgotten at the end of the call, not at once: a
block evicted and stored again within one call keeps its payload whatever the order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from kvbus.errors import ConfigError, Problem, UsageError
from kvbus.events import BlockHash, BlockRemoved, BlockStored, Event
from kvbus.offload.block_sizes import resolve_block_hashes
from kvbus.offload.events import OffloadingEvent
from kvbus.offload.groups import GroupOffloadConfig, is_size
from kvbus.offload.keys import OffloadKey, checked_keys
from kvbus.offload.request import OffloadRequest

__all__ = ["OffloadingEventsTracker"]

_Residency: TypeAlias = tuple[str, str | None]
"""(medium, ownership)."""

_STORE_WARNING = (
    "a block was stored that was never described, so its event is a placeholder without tokens; expected for groups "
    "without full attention and for blocks that a secondary tier brought in"
)
_REMOVAL_WARNING = (
    "a block was removed that was never described, so only its own hash is withdrawn; expected where its store was "
    "a placeholder"
)


class _Payload(NamedTuple):
    """What is known of a chunk, without anything that depends on where it lies.

    Attributes: as in `BlockStored`.
    """

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    lora_name: str | None
    group: GroupOffloadConfig


class _Tracked:
    """What is known of one key.

    Attributes:
        payload: Its description, or `None` if it has none so far.
        described: Per residency, stores announced with the description and not withdrawn; counts ≥ 1.
        placeholders: Per residency, stores announced without; counts ≥ 1.
        is_awaited: Whether a recorded store has neither been announced nor failed.
    """

    __slots__ = ("described", "is_awaited", "payload", "placeholders")

    def __init__(self) -> None:
        """Know nothing."""
        self.payload: _Payload | None = None
        self.described: dict[_Residency, int] = {}
        self.placeholders: dict[_Residency, int] = {}
        self.is_awaited = False

    @property
    def is_resident(self) -> bool:
        """Whether any store of it has not been withdrawn."""
        return bool(self.described or self.placeholders)


class OffloadingEventsTracker:
    """Turns offloading events into `BlockStored` and `BlockRemoved` (vLLM `OffloadingEventsTracker`).

    Attributes:
        self_describing_enabled: Whether stores carry tokens where they are known. Without it every store is a placeholder,
            nothing is remembered, and the recording methods do nothing.
        keys_max: As given.
        placeholder_count: Stores announced without tokens although they should describe themselves.
        untracked_count: Keys that were not remembered because `keys_max` was reached; their events are placeholders.
    """

    def __init__(self, self_describing_kv_events: bool = True, *, keys_max: int = 1_000_000) -> None:
        """Start without memory.

        Args:
            self_describing_kv_events: As `self_describing_enabled`.
            keys_max: Keys remembered at once, ≥ 1; one takes some 0.9 KB beside its token ids. Beyond it new keys are announced
                as placeholders, which is poorer but true.

        Raises:
            ConfigError: keys_max is not above 0.
        """
        if not is_size(keys_max):
            raise ConfigError([Problem("keys_max", str(keys_max), "must be a whole number above 0")])
        self.self_describing_enabled = self_describing_kv_events
        self.keys_max = keys_max
        self.placeholder_count = 0
        self.untracked_count = 0
        self._tracked: dict[OffloadKey, _Tracked] = {}
        # Keys without a residency, the oldest first; what is forgotten when room is wanted.
        self._idle: dict[OffloadKey, None] = {}
        self._warnings: dict[str, bool] = {}

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self._tracked)

    def record_store(
        self, req: OffloadRequest, group_config: GroupOffloadConfig, chunk_idx: int, offload_key: OffloadKey
    ) -> None:
        """Write down what a chunk holds whose store to the primary tier begins.

        What other residencies announced stays announced. Nothing happens unless events describe themselves and the group is one
        that is described.

        Args:
            req: The request; its first `(chunk_idx + 1)` chunks are hashed and have tokens.
            group_config: The chunk's group.
            chunk_idx: Which chunk of the request, from 0.
            offload_key: Its key: the hash at the chunk's end, and the group.

        Raises:
            UsageError: The request has no such chunk, or the key is another's. Nothing is written down then.

        Cost: O(tokens of the chunk).
        """
        if self.self_describing_enabled and group_config.is_described:
            payload = _payload(req, group_config, chunk_idx, offload_key)
            if (tracked := self._track(offload_key)) is not None:
                # A payload that was announced is kept: it says what has to be withdrawn.
                if not tracked.described:
                    tracked.payload = payload
                tracked.is_awaited = True

    def record_failed_store(self, offload_key: OffloadKey) -> None:
        """Stop waiting for a store that failed, and forget its payload unless the block lies elsewhere.

        Args:
            offload_key: As given to `record_store`; one never recorded is ignored.

        Raises:
            UsageError: Not a whole key.
        """
        checked_keys((offload_key,))
        tracked = self._tracked.get(offload_key)
        if tracked is not None:
            tracked.is_awaited = False
            self._forget_if_gone(offload_key, tracked)

    def record_lookup(
        self, req: OffloadRequest, group_config: GroupOffloadConfig, chunk_idx: int, offload_key: OffloadKey
    ) -> None:
        """Write down what a chunk holds that a look-up found ready, unless it is known.

        A block brought in by a secondary tier gets its description this way.

        Args:
            req: As in `record_store`.
            group_config: As in `record_store`.
            chunk_idx: As in `record_store`.
            offload_key: As in `record_store`.

        Raises:
            UsageError: As in `record_store`.

        Cost: O(1) where it is known, else O(tokens of the chunk).
        """
        if self.self_describing_enabled and group_config.is_described:
            known = self._tracked.get(offload_key)
            if known is not None and known.payload is not None:
                return
            payload = _payload(req, group_config, chunk_idx, offload_key)
            if (tracked := self._track(offload_key)) is not None:
                tracked.payload = payload

    def take_events(self, events: Iterable[OffloadingEvent]) -> list[Event]:
        """Translate a manager's events.

        Args:
            events: In the order in which they happened; of any managers together.

        Returns:
            A `BlockStored` per stored key, a `BlockRemoved` per removal event and KV-cache group, in order; groups in the order
            of their first key. Medium, locality and ownership are the event's own.

        Raises:
            UsageError: Something is no event or has something in it that is no whole key. Nothing has changed then.

        Cost: O(keys + tokens of described stores).
        """
        judged = list(events)
        for event in judged:
            if not isinstance(event, OffloadingEvent):
                raise UsageError(f"an OffloadingEvent is wanted, not {type(event).__name__}")
            checked_keys(event.keys)
        result: list[Event] = []
        removed_keys: dict[OffloadKey, None] = {}
        for event in judged:
            if event.removed:
                result += self._removed(event)
                removed_keys.update(dict.fromkeys(event.keys))
            else:
                result += [self._stored(event, key) for key in event.keys]
        for key in removed_keys:
            if (tracked := self._tracked.get(key)) is not None:
                self._forget_if_gone(key, tracked)
        return result

    def take_warnings(self) -> list[str]:
        """Return what an operator should hear of; each sentence once in the life of the tracker, however often it happens."""
        fresh = [text for text, is_taken in self._warnings.items() if not is_taken]
        self._warnings.update(dict.fromkeys(fresh, True))
        return fresh

    def reset(self) -> None:
        """Forget every key.

        A manager's reset event has to be translated before: afterwards nobody knows which hashes stand behind its keys.
        """
        self._tracked.clear()
        self._idle.clear()

    def _stored(self, event: OffloadingEvent, key: OffloadKey) -> BlockStored:
        """Announce one key and count it."""
        if not self.self_describing_enabled:
            return _placeholder(event, key)
        residency = (event.medium, event.ownership)
        tracked = self._track(key)
        if tracked is not None:
            tracked.is_awaited = False
            self._idle.pop(key, None)
            counts = tracked.placeholders if tracked.payload is None else tracked.described
            counts[residency] = counts.get(residency, 0) + 1
            if tracked.payload is not None:
                return _described(event, tracked.payload)
        self.placeholder_count += 1
        self._warnings.setdefault(_STORE_WARNING, False)
        return _placeholder(event, key)

    def _removed(self, event: OffloadingEvent) -> list[BlockRemoved]:
        """Withdraw the keys of one event, one removal a group."""
        by_group: dict[int, list[BlockHash]] = {}
        for key in event.keys:
            by_group.setdefault(key.group_idx, []).extend(self._withdrawn(key, (event.medium, event.ownership)))
        return [
            BlockRemoved(
                hashes, medium=event.medium, group_idx=group_idx, locality=event.locality, ownership=event.ownership
            )
            for group_idx, hashes in by_group.items()
        ]

    def _withdrawn(self, key: OffloadKey, residency: _Residency) -> tuple[BlockHash, ...]:
        """Return the hashes to withdraw for one key, and count down."""
        tracked = self._tracked.get(key)
        if tracked is None or tracked.payload is None:
            if self.self_describing_enabled:
                self._warnings.setdefault(_REMOVAL_WARNING, False)
            if tracked is not None:
                self._count_down(key, tracked, tracked.placeholders, residency)
            return (key.block_hash,)
        if residency in tracked.described:
            self._count_down(key, tracked, tracked.described, residency)
            return tracked.payload.block_hashes
        if residency in tracked.placeholders:
            self._count_down(key, tracked, tracked.placeholders, residency)
            return (key.block_hash,)
        # We never saw it stored there. If some keys were not remembered, it may have been announced as a placeholder.
        return (key.block_hash,) if self.untracked_count else tracked.payload.block_hashes

    def _count_down(
        self, key: OffloadKey, tracked: _Tracked, counts: dict[_Residency, int], residency: _Residency
    ) -> None:
        """Take back one announcement, if there is one."""
        count = counts.pop(residency, 0)
        if count > 1:
            counts[residency] = count - 1
        if not tracked.is_resident:
            self._idle[key] = None

    def _track(self, key: OffloadKey) -> _Tracked | None:
        """Return what is known of a key, making room for it; `None` if all room is taken by resident keys."""
        tracked = self._tracked.get(key)
        if tracked is None:
            if len(self._tracked) >= self.keys_max:
                if not self._idle:
                    self.untracked_count += 1
                    return None
                oldest = next(iter(self._idle))
                del self._idle[oldest], self._tracked[oldest]
            tracked = self._tracked[key] = _Tracked()
        if not tracked.is_resident:
            self._idle.setdefault(key)
        return tracked

    def _forget_if_gone(self, key: OffloadKey, tracked: _Tracked) -> None:
        """Forget a key that lies nowhere and is not awaited."""
        if not tracked.is_resident and not tracked.is_awaited:
            del self._tracked[key]
            self._idle.pop(key, None)


def _payload(req: OffloadRequest, group: GroupOffloadConfig, chunk_idx: int, key: OffloadKey) -> _Payload:
    """Describe one chunk, once it has been judged."""
    checked_keys((key,))
    hash_start = chunk_idx * group.hashes_per_chunk
    hash_stop = hash_start + group.hashes_per_chunk
    token_start = chunk_idx * group.tokens_per_chunk
    token_stop = token_start + group.tokens_per_chunk
    hashes = req.block_hashes
    if type(chunk_idx) is not int or chunk_idx < 0 or hash_stop > len(hashes) or token_stop > len(req.all_token_ids):
        raise UsageError(
            f"request has no chunk {chunk_idx} of {group.tokens_per_chunk} tokens: "
            f"{len(hashes)} hashes and {len(req.all_token_ids)} tokens are known"
        )
    if key != (hashes[hash_stop - 1], group.group_idx):
        raise UsageError(f"key is not that of chunk {chunk_idx} in group {group.group_idx}")
    tokens_per_hash = group.tokens_per_chunk // group.hashes_per_chunk
    return _Payload(
        tuple(resolve_block_hashes(hashes[hash_start:hash_stop], tokens_per_hash, group.tokens_per_block)),
        hashes[hash_start - 1] if hash_start else None,
        tuple(req.all_token_ids[token_start:token_stop]),
        group.tokens_per_block,
        req.lora_id,
        req.lora_name,
        group,
    )


def _described(event: OffloadingEvent, payload: _Payload) -> BlockStored:
    """Return a store with everything in it."""
    return BlockStored(
        list(payload.block_hashes),
        payload.parent_block_hash,
        list(payload.token_ids),
        payload.block_size,
        payload.lora_id,
        event.medium,
        payload.lora_name,
        group_idx=payload.group.group_idx,
        kv_cache_spec_kind=payload.group.kv_cache_spec_kind,
        kv_cache_spec_sliding_window=payload.group.kv_cache_spec_sliding_window,
        locality=event.locality,
        ownership=event.ownership,
    )


def _placeholder(event: OffloadingEvent, key: OffloadKey) -> BlockStored:
    """Return a store that says no more than that this hash is there."""
    return BlockStored(
        [key.block_hash],
        None,
        [],
        0,
        medium=event.medium,
        group_idx=key.group_idx,
        locality=event.locality,
        ownership=event.ownership,
    )

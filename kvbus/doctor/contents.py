"""What a publisher's batches hold, folded into facts: counts and sets, never tokens."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

import msgspec

from kvbus.doctor.traits import Look, Shape, Trait, look_at
from kvbus.errors import DecodeError
from kvbus.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event
from kvbus.wire.codec import decode_batch

__all__ = ["Contents", "Tier"]

REMEMBERED_MAX = 20_000
"""Blocks, and events, that are remembered of one publisher: some megabytes."""

KINDS_MAX = 64
"""Distinct media, types, reasons and looks kept; what a publisher makes up beyond that is counted no more."""

MILLISECONDS_FROM = 1e11
"""A `ts` from here on cannot be seconds: it would be the year 5138."""


K = TypeVar("K")


class Tier(msgspec.Struct, frozen=True):
    """Where blocks are, and whose they are, as the publisher writes it.

    Attributes:
        medium: `None` = absent.
        ownership: `None` = the engine itself.
    """

    medium: str | None
    ownership: str | None

    def __str__(self) -> str:
        """Return it as a person would call it."""
        owner = "" if self.ownership is None else " of " + (self.ownership or '""')
        return ("no medium" if self.medium is None else self.medium or '""') + owner


class Contents:
    """Facts about the batches of one publisher.

    Attributes:
        batches: Batches that could be read.
        batches_unreadable: Batches that could not, by reason.
        events: Events read, by type.
        events_rejected: Events that could not be read, by reason.
        traits: Ways of writing, with the number of batches that have them.
        ranks: Data-parallel ranks, with their batches; `None` = absent or nil.
        stores: Stores by tier.
        placeholders: Stores without tokens by tier.
        media: Media of stores and removals; `None` = absent.
        block_sizes: Sizes of described blocks, in tokens, by KV-cache group.
        payload_bytes_max: Bytes of the largest batch.
        skew_s: Smallest time between a batch's `ts` and its arrival that was seen, seconds; negative = its clock is ahead. `None`
            before the first live batch.
        has_millisecond_ts: Whether `ts` counts milliseconds.
        described: Blocks that came with their tokens.
        undescribed: Blocks that came without.
        identities: Of each event, a hash of its value by which equal events of two publishers are known.
        by_tokens: First block of a sequence, by a hash of what it holds.
    """

    def __init__(self) -> None:
        """Nothing has come yet."""
        self.batches = 0
        self.batches_unreadable: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.events_rejected: Counter[str] = Counter()
        self.traits: Counter[Trait] = Counter()
        self.ranks: Counter[int | None] = Counter()
        self.stores: Counter[Tier] = Counter()
        self.placeholders: Counter[Tier] = Counter()
        self.media: Counter[str | None] = Counter()
        self.block_sizes: dict[int | None, set[int]] = {}
        self.payload_bytes_max = 0
        self.skew_s: float | None = None
        self.has_millisecond_ts = False
        self.described: set[BlockHash] = set()
        self.undescribed: set[BlockHash] = set()
        self.identities: set[int] = set()
        self.by_tokens: dict[int, BlockHash] = {}
        self._looks: dict[tuple[tuple[Trait, ...], tuple[Shape, ...], bool, bool], Look] = {}

    @property
    def looks(self) -> list[Look]:
        """Distinct looks of its batches, for telling whose they are."""
        return list(self._looks.values())

    def take(self, payload: bytes, arrived_s: float | None = None) -> int | None:
        """Read one batch.

        Args:
            payload: Its bytes.
            arrived_s: Wall clock at its arrival, seconds since the epoch; `None` for a replayed one, whose age says nothing.

        Returns:
            Its data-parallel rank; `None` where it has none or cannot be read.
        """
        self.payload_bytes_max = max(self.payload_bytes_max, len(payload))
        try:
            batch = decode_batch(payload)
            look = look_at(payload)
        except DecodeError as error:
            _count(self.batches_unreadable, str(error))
            return None
        self.batches += 1
        for trait in look.traits:
            self.traits[trait] += 1
        if len(self._looks) < KINDS_MAX:
            self._looks[look.traits, look.shapes, look.has_negative_hash, look.has_wide_integer] = look
        _count(self.ranks, batch.data_parallel_rank)
        self._take_time(float(batch.ts), arrived_s)
        for rejected in batch.rejected:
            _count(self.events_rejected, rejected.reason)
        for event in batch.events:
            self._take_event(event)
        return batch.data_parallel_rank

    def _take_time(self, ts: float, arrived_s: float | None) -> None:
        """Compare clocks."""
        self.has_millisecond_ts |= ts >= MILLISECONDS_FROM
        if arrived_s is not None:
            age_s = arrived_s - (ts / 1000 if ts >= MILLISECONDS_FROM else ts)
            self.skew_s = age_s if self.skew_s is None else min(self.skew_s, age_s)

    def _take_event(self, event: Event) -> None:
        """Fold one event."""
        if isinstance(event, BlockStored):
            _count(self.events, "BlockStored")
            _count(self.media, event.medium)
            self._take_store(event, Tier(event.medium, event.ownership))
        elif isinstance(event, BlockRemoved):
            _count(self.events, "BlockRemoved")
            _count(self.media, event.medium)
        else:
            _count(self.events, "AllBlocksCleared" if isinstance(event, AllBlocksCleared) else event.type)
        if len(self.identities) < REMEMBERED_MAX:
            self.identities.add(hash(event))

    def _take_store(self, event: BlockStored, tier: Tier) -> None:
        """Fold a store."""
        _count(self.stores, tier)
        if event.is_placeholder:
            _count(self.placeholders, tier)
            if len(self.undescribed) < REMEMBERED_MAX:
                self.undescribed.update(event.block_hashes)
            return
        if event.block_size and len(self.block_sizes) < KINDS_MAX:
            sizes = self.block_sizes.setdefault(event.group_idx, set())
            if len(sizes) < KINDS_MAX:
                sizes.add(event.block_size)
        if len(self.described) < REMEMBERED_MAX:
            self.described.update(event.block_hashes)
        # Without a parent equal tokens mean equal blocks, whoever hashes them.
        if event.block_hashes and event.parent_block_hash is None and len(self.by_tokens) < REMEMBERED_MAX:
            # The first block alone: two workers may cut their stores differently.
            tokens, keys = (event.token_ids or [])[: event.block_size], (event.extra_keys or [])[:1]
            content = (str(tokens), event.block_size, event.lora_name, event.group_idx, str(keys))
            self.by_tokens[hash(content)] = event.block_hashes[0]


def _count(counter: Counter[K], key: K) -> None:
    """Count under a key, unless there are too many kinds."""
    if key in counter or len(counter) < KINDS_MAX:
        counter[key] += 1

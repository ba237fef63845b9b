"""What a view has announced, put together by a client from one replay.

The client knows neither worker groups nor the view's options: it has topics, data-parallel ranks and numbers. So what it ends
with is only as complete as what it was given, and this says how complete that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvbus.errors import DecodeError
from kvbus.events import BlockHash, BlockStored, EventKind
from kvbus.views.filters import EventFilter
from kvbus.views.residency import Origin, Place, Residency
from kvbus.wire.envelope import split_batch
from kvbus.wire.head import read_head
from kvbus.wire.reading import decode_event

__all__ = ["Holding", "StateBlock", "ViewState"]

_UNBOUNDED = 1 << 62
"""The view that is asked has bounds of its own."""


class Holding(NamedTuple):
    """What one rank holds in one place.

    Attributes:
        topic: Topic that said so.
        data_parallel_rank: Rank.
        place: Medium, owner, locality and KV-cache group.
        blocks: Blocks, each once.
        references: Blocks, each as often as it was stored and not removed.
        described: Blocks whose tokens were told; the others are placeholders.
    """

    topic: bytes
    data_parallel_rank: int | None
    place: Place
    blocks: int
    references: int
    described: int


class StateBlock(NamedTuple):
    """One block.

    Attributes:
        topic: Topic that said so.
        data_parallel_rank: Rank.
        place: Where.
        block_hash: Which.
        parent_block_hash: In front of it; `None` = the start of a sequence, or not told.
        block_size: Tokens in it; `None` or 0 = not told.
        references: How often it was stored and not removed.
    """

    topic: bytes
    data_parallel_rank: int | None
    place: Place
    block_hash: BlockHash
    parent_block_hash: BlockHash | None
    block_size: int | None
    references: int


class ViewState:
    """Folds the batches of a replay.

    Attributes:
        first_seq: Number of the first batch; `None` = none has come.
        next_seq: The number after the last one.
        batches: Batches taken.
        payload_bytes: Their bytes.
        missing: Numbers that were left out between the first and the last.
        unreadable: Batches and events that could not be read.
        begins_midway: Whether something was announced before the first batch that nobody has told since: it neither is the
            publisher's first nor begins with a clear.
    """

    def __init__(self) -> None:
        """Know nothing."""
        self.first_seq: int | None = None
        self.next_seq = 0
        self.batches = 0
        self.payload_bytes = 0
        self.missing = 0
        self.unreadable = 0
        self._ranks: dict[tuple[bytes, int | None], Residency] = {}
        self.begins_midway = False

    def take(self, topic: bytes, seq: int, payload: bytes) -> None:
        """Take one batch, in order.

        Args:
            topic: Its topic; empty where the reply had none.
            seq: Its number.
            payload: The batch.
        """
        if self.first_seq is None:
            self.first_seq = seq
        else:
            self.missing += max(0, seq - self.next_seq)
        self.next_seq = seq + 1
        self.batches += 1
        self.payload_bytes += len(payload)
        try:
            envelope = split_batch(payload)
        except DecodeError:
            self.unreadable += 1
            return
        events, heads = [], []
        for event in envelope.events:
            try:
                heads.append(read_head(event))
                events.append(event)
            except DecodeError:
                self.unreadable += 1
        if not heads:
            return
        rank = envelope.data_parallel_rank
        residency = self._ranks.get((topic, rank))
        if residency is None:
            residency = Residency("", rank, blocks_max=_UNBOUNDED, bytes_max=_UNBOUNDED)
            self._ranks[topic, rank] = residency
            is_clear = heads[0].facets.kind is EventKind.CLEARED and not heads[0].is_scoped_clear
            # Engines number from 0, llm-d's filesystem backend from 1.
            self.begins_midway |= self.first_seq > 1 and not is_clear
        residency.fold(events, heads, float(envelope.ts))

    def holdings(self, wanted: EventFilter) -> list[Holding]:
        """Return what is held, by rank and place.

        Args:
            wanted: Which blocks to look at.

        Returns:
            One a rank and place with blocks; by topic, rank and first use.
        """
        rows = []
        for topic, residency in self._sorted():
            for shelf in residency.freeze(wanted).shelves:
                references = len(shelf.blocks) + sum(
                    shelf.copies[name] - 1 for name in shelf.copies if name in shelf.blocks
                )
                described = sum(origin.is_described for origin in shelf.blocks.values())
                rank = residency.data_parallel_rank
                rows.append(Holding(topic, rank, shelf.place, len(shelf.blocks), references, described))
        return rows

    def blocks(self, wanted: EventFilter) -> Iterator[StateBlock]:
        """Return every block, in the order of `holdings`, within a place by the age of its store.

        Args:
            wanted: Which blocks to look at.
        """
        for topic, residency in self._sorted():
            for shelf in residency.freeze(wanted).shelves:
                sizes: dict[Origin, int | None] = {}
                for block_hash, origin in shelf.blocks.items():
                    if origin not in sizes:
                        sizes[origin] = _block_size(origin)
                    yield StateBlock(
                        topic,
                        residency.data_parallel_rank,
                        shelf.place,
                        block_hash,
                        origin.parent_of(origin.hashes.index(block_hash)),
                        sizes[origin],
                        shelf.copies.get(block_hash, 1),
                    )

    def _sorted(self) -> list[tuple[bytes, Residency]]:
        """Return the residencies by topic and rank."""
        keys = sorted(self._ranks, key=lambda key: (key[0], -1 if key[1] is None else key[1]))
        return [(key[0], self._ranks[key]) for key in keys]


def _block_size(origin: Origin) -> int | None:
    """Return the size of an event's blocks, as far as it can be read."""
    try:
        event = decode_event(origin.raw)
    except DecodeError:
        return None
    return event.block_size if isinstance(event, BlockStored) else None

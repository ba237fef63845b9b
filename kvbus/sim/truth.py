"""The oracle: what every worker really holds and has said, and what a stream of events leads a reader to believe.

Dumb on purpose. It keeps everything, counts in the plainest way, and shares no code with the rules that it judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from kvbus.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event
from kvbus.views.filters import EventFilter

__all__ = ["Belief", "Block", "PublisherTruth", "Sieve", "blocks_of"]


class Block(NamedTuple):
    """One block somewhere: the key of residency.

    Attributes:
        data_parallel_rank: Rank.
        medium: As on the wire.
        ownership: As on the wire.
        locality: As on the wire.
        group_idx: KV-cache group.
        block_hash: Which.
    """

    data_parallel_rank: int | None
    medium: str | None
    ownership: str | None
    locality: str | None
    group_idx: int | None
    block_hash: BlockHash


def blocks_of(event: BlockStored | BlockRemoved, rank: int | None) -> Iterator[Block]:
    """Yield the blocks that an event is about.

    Args:
        event: A store or removal.
        rank: Data-parallel rank of its batch.
    """
    for block_hash in event.block_hashes:
        yield Block(rank, event.medium, event.ownership, event.locality, event.group_idx, block_hash)


class Belief:
    """Who follows events believes this: how many copies of which block.

    Attributes:
        copies: Copies by block; none is 0.
    """

    def __init__(self) -> None:
        """Believe in nothing."""
        self.copies: dict[Block, int] = {}

    def hear(self, events: Iterable[Event], rank: int | None) -> None:
        """Apply events.

        Args:
            events: In order.
            rank: Data-parallel rank of their batch.
        """
        for event in events:
            if isinstance(event, BlockStored):
                for block in blocks_of(event, rank):
                    self.copies[block] = self.copies.get(block, 0) + 1
            elif isinstance(event, BlockRemoved):
                for block in blocks_of(event, rank):
                    if self.copies.get(block, 0) > 1:
                        self.copies[block] -= 1
                    else:
                        self.copies.pop(block, None)
            elif isinstance(event, AllBlocksCleared) and not event.is_scoped:
                self.copies = {block: n for block, n in self.copies.items() if block.data_parallel_rank != rank}

    def excess_over(self, other: Belief) -> list[Block]:
        """Return blocks of which this believes in more copies."""
        return [block for block, n in self.copies.items() if n > other.copies.get(block, 0)]


class Sieve:
    """What a filter takes, told in the plainest way. A removal names no kind of attention: its KV-cache group does."""

    def __init__(self, wanted: EventFilter) -> None:
        """Take what a filter wants.

        Args:
            wanted: A filter on ownership, medium and kind of attention.
        """
        assert wanted.events is None
        assert wanted.group_idxs is None
        assert wanted.localities is None
        self._wanted = wanted
        self._kinds: dict[tuple[Hashable, int | None], set[str | None]] = {}

    def take(self, events: Iterable[Event], scope: Hashable) -> list[Event]:
        """Return the events that pass, in order.

        Args:
            events: In order, all that there are.
            scope: Whose kinds of attention these are: group and data-parallel rank.
        """
        return [event for event in events if self.judge(event, scope) is not False]

    def judge(self, event: Event, scope: Hashable) -> bool | None:
        """Tell whether an event passes.

        Args:
            event: The next one.
            scope: As in `take`.

        Returns:
            `None` = it may pass or not: a removal of a KV-cache group whose stores have not named a wanted kind of attention
            so far. What it removes was never stored in such a view, so it does no harm.
        """
        if not isinstance(event, BlockStored | BlockRemoved):
            return True
        wanted = self._wanted
        if wanted.owners is not None and event.ownership not in wanted.owners:
            is_wanted = False
        else:
            is_wanted = wanted.media is None or event.medium in wanted.media
        if wanted.spec_kinds is None:
            return is_wanted
        kinds = self._kinds.setdefault((scope, event.group_idx), set())
        if isinstance(event, BlockStored):
            kinds.add(event.kv_cache_spec_kind)
            return is_wanted and event.kv_cache_spec_kind in wanted.spec_kinds
        if is_wanted and kinds.isdisjoint(wanted.spec_kinds):
            return None
        return is_wanted


class PublisherTruth:
    """One publisher: what it has said and what it holds.

    Attributes:
        content: What it holds in its present life.
        said: How often it has said each event, in all lives.
        said_count: Events said, in all lives.
        life_of: Its life by payload; no two payloads of a run are equal.
        events_of: How many events it has put under each number of its present life.
        next_seq: Number of its next batch.
        sent_stop: The number after the last batch that was really sent; one that was skipped leaves no trace.
        life: Its present life.
    """

    def __init__(self) -> None:
        """Nothing said, nothing held."""
        self.content = Belief()
        self.said: Counter[bytes] = Counter()
        self.said_count = 0
        self.life_of: dict[bytes, int] = {}
        self.events_of: dict[int, int] = {}
        self.next_seq = 0
        self.sent_stop = 0
        self.life = 0

    def begin_life(self, first_seq: int) -> None:
        """Begin anew with nothing held.

        Args:
            first_seq: Number of its first batch.
        """
        self.content = Belief()
        self.events_of = {}
        self.next_seq = self.sent_stop = first_seq
        self.life += 1

    def say(self, events: list[Event], rank: int | None) -> int:
        """Note what has happened to its blocks, whether or not anybody can hear it.

        Args:
            events: In order.
            rank: Data-parallel rank.

        Returns:
            The number for their batch.
        """
        self.content.hear(events, rank)
        self.said.update(event.identity() for event in events)
        self.said_count += len(events)
        seq = self.next_seq
        self.next_seq += 1
        self.events_of[seq] = len(events)
        return seq

"""A dumb fold of events into what lies where: counted references, and a clear is about everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kvbus.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event
from kvbus.offload.connector import TierKey

Content = dict[TierKey, Counter[BlockHash]]


def fold(content: Content, events: Iterable[Event]) -> None:
    """Apply events in place; what has no block left is absent. A removal of what is not there fails the test."""
    for event in events:
        if isinstance(event, AllBlocksCleared):
            content.clear()
            continue
        assert isinstance(event, BlockStored | BlockRemoved)
        assert event.medium is not None
        assert event.group_idx is not None
        key = TierKey(event.medium, event.ownership, event.group_idx)
        held = content.setdefault(key, Counter())
        for block_hash in event.block_hashes:
            if isinstance(event, BlockStored):
                held[block_hash] += 1
                continue
            assert held[block_hash] > 0, f"{key} withdrew what it had not announced"
            held[block_hash] -= 1
            if not held[block_hash]:
                del held[block_hash]
        if not held:
            del content[key]

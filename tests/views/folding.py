"""A dumb fold of decoded events into who holds what, with the references counted: the oracle of every test about residency."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from kvbus.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event, EventBatch
from kvbus.wire.head import Head, read_head
from kvbus.wire.writing import encode_event

Key = tuple[Any, ...]
"""(data_parallel_rank, medium, ownership, locality, group_idx, hash)."""


def fold(events: Iterable[Event], held: Counter[Key] | None = None, rank: int | None = 0) -> Counter[Key]:
    """Apply events and return references by key; what has none left is absent."""
    held = Counter() if held is None else held
    for event in events:
        if isinstance(event, BlockStored | BlockRemoved):
            place = (rank, event.medium, event.ownership, event.locality, event.group_idx)
            for block_hash in event.block_hashes:
                key = (*place, block_hash)
                if isinstance(event, BlockStored):
                    held[key] += 1
                elif held[key] > 1:
                    held[key] -= 1
                else:
                    del held[key]
        elif isinstance(event, AllBlocksCleared):
            scope = event.extra if event.is_scoped else {}
            for key in list(held):
                if (
                    key[0] == rank
                    and scope.get("medium") in (None, key[1])
                    and scope.get("ownership") in (None, key[2])
                ):
                    del held[key]
    return held


def fold_batches(batches: Iterable[EventBatch]) -> Counter[Key]:
    """Apply batches of any ranks."""
    held: Counter[Key] = Counter()
    for batch in batches:
        fold(batch.events, held, batch.data_parallel_rank)
    return held


class World:
    """Draws events about a small set of blocks in fixed chains, so that they meet each other often.

    What a hash means never changes: its parent, its tokens and its size are computed from it. So an event that says anything else
    about a block has been cut wrongly.
    """

    BLOCK_SIZE = 4

    def __init__(self, rng: random.Random, hashes: int = 40) -> None:
        """A chain tree of so many hashes; every third one is a digest of 32 bytes."""
        self.rng = rng
        self.names: list[BlockHash] = [
            number.to_bytes(32, "big") if number % 3 == 0 else number for number in range(1, hashes + 1)
        ]
        self.parents: dict[BlockHash, BlockHash | None] = {}
        for index, name in enumerate(self.names):
            self.parents[name] = None if index % 11 == 0 else self.names[index - 1]
        self.places = [
            ("GPU", None, None, 0),
            ("GPU", None, None, 1),
            ("CPU", None, "LOCAL", 0),
            ("CPU", "kvcr", None, 0),
        ]

    def tokens(self, name: BlockHash) -> list[int]:
        """Tokens of a block."""
        number = name if isinstance(name, int) else int.from_bytes(name, "big")
        return [number * 10 + offset for offset in range(self.BLOCK_SIZE)]

    def chain(self) -> list[BlockHash]:
        """Draw a piece of a chain."""
        start = self.rng.randrange(len(self.names))
        names = [self.names[start]]
        for name in self.names[start + 1 : start + self.rng.choice([1, 1, 2, 5, 14])]:
            if self.parents[name] != names[-1]:
                break
            names.append(name)
        return names

    def store(self) -> BlockStored:
        """Draw a store; some are placeholders."""
        medium, ownership, locality, group_idx = self.rng.choice(self.places)
        where = {"medium": medium, "ownership": ownership, "locality": locality, "group_idx": group_idx}
        names = self.chain()
        if self.rng.random() < 0.2:
            return BlockStored(names[:1], None, [], 0, **where)
        tokens = [token for name in names for token in self.tokens(name)]
        more: dict[str, Any] = {}
        if self.rng.random() < 0.5:
            more["extra_keys"] = [[f"key-{name!r}"] for name in names]
        if self.rng.random() < 0.3:
            more["lookahead_token_ids"] = [[token + 1 for token in self.tokens(name)] for name in names]
        return BlockStored(names, self.parents[names[0]], tokens, self.BLOCK_SIZE, **where, **more)

    def removal(self) -> BlockRemoved:
        """Draw a removal of anything, held or not."""
        medium, ownership, locality, group_idx = self.rng.choice(self.places)
        names = self.rng.sample(self.names, self.rng.choice([1, 2, 5]))
        return BlockRemoved(names, medium, group_idx, locality, ownership)

    def event(self) -> Event:
        """Draw any event."""
        dice = self.rng.random()
        if dice < 0.01:
            return AllBlocksCleared()
        if dice < 0.02:
            return AllBlocksCleared({"medium": "CPU", "ownership": self.rng.choice([None, "kvcr"])})
        return self.store() if dice < 0.55 else self.removal()

    def check_store(self, event: BlockStored) -> None:
        """Assert that a store says of each of its blocks what it always says."""
        if event.is_placeholder:
            return
        names = event.block_hashes
        assert [self.parents[name] for name in names] == [event.parent_block_hash, *names[:-1]]
        assert [token for name in names for token in self.tokens(name)] == event.token_ids
        assert event.extra_keys in (None, [[f"key-{name!r}"] for name in names])
        ahead = [[token + 1 for token in self.tokens(name)] for name in names]
        assert event.lookahead_token_ids in (None, ahead)


def encoded(events: Iterable[Event], encoding: Any = "map") -> tuple[list[bytes], list[Head]]:
    """Encode events and read their heads."""
    raws = [encode_event(event, encoding) for event in events]
    return raws, [read_head(raw) for raw in raws]

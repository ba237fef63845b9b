"""A residency as plain values, in pieces: what is written down so that another process can go on with it.

A residency of a million blocks takes a second to write, so a moment of it is copied at once, which is cheap because stores are
shared and never change, and written piece by piece later. Order is kept (age of stores, order of blocks in a place), so that the
one restored forgets, and tells in a snapshot, just what the other would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from kvbus.events import BlockHash

__all__ = ["PIECE_ITEMS", "PlaceCopy", "ResidencyCopy", "ResidencyPiece", "ResidencyState"]

PIECE_ITEMS = 2_000
"""Stores or blocks in a piece: 1 MB or 1 ms, so that live input hardly waits while one is written."""


class ResidencyState(msgspec.Struct, frozen=True, array_like=True):
    """What there is besides stores and blocks.

    Attributes:
        ts: Newest engine time folded, seconds since the epoch.
        form: Form of the newest event folded.
        unknown_removals: Removals of blocks that were not held.
        forgotten_blocks: Blocks withdrawn at the bound.
        places: Medium, ownership, locality and KV-cache group of each place, empty ones included, in the order of first use.
    """

    ts: float
    form: str
    unknown_removals: int
    forgotten_blocks: int
    places: list[tuple[str | None, str | None, str | None, int | None]]


class ResidencyPiece(msgspec.Struct, frozen=True, array_like=True):
    """Some stores, or some blocks of one place. All stores come before all blocks.

    Attributes:
        stores: Store events, oldest first.
        place: Index into `ResidencyState.places`, for the blocks.
        blocks: Hash, and the index of the store that describes it among all stores of all pieces; oldest first.
        copies: References by hash, where there is more than one.
    """

    stores: list[bytes] = []
    place: int = 0
    blocks: list[tuple[BlockHash, int]] = []
    copies: dict[BlockHash, int] = {}


class PlaceCopy(msgspec.Struct, frozen=True):
    """The blocks of one place at one moment.

    Attributes:
        blocks: Number of the describing store by hash, as its identity says; oldest first.
        copies: As in `ResidencyPiece`.
    """

    blocks: dict[BlockHash, object]
    copies: dict[BlockHash, int]


class ResidencyCopy(msgspec.Struct, frozen=True):
    """One moment of a residency, which goes on changing meanwhile.

    Attributes:
        state: What there is besides stores and blocks.
        stores: The stores as objects and as bytes, oldest first.
        places: Blocks by place, in the order of `state.places`.
    """

    state: ResidencyState
    stores: list[tuple[object, bytes]]
    places: list[PlaceCopy]

    def pieces(self) -> Iterator[ResidencyPiece]:
        """Yield it in pieces of at most `PIECE_ITEMS`.

        Cost: 0.3 µs a block or store.
        """
        number_of = {id(store): number for number, (store, _) in enumerate(self.stores)}
        for start in range(0, len(self.stores), PIECE_ITEMS):
            yield ResidencyPiece(stores=[raw for _, raw in self.stores[start : start + PIECE_ITEMS]])
        for index, place in enumerate(self.places):
            blocks = iter(place.blocks.items())
            while taken := list(islice(blocks, PIECE_ITEMS)):
                yield ResidencyPiece(
                    place=index, blocks=[(block_hash, number_of[id(store)]) for block_hash, store in taken]
                )
            copies = iter(place.copies.items())
            while more := dict(islice(copies, PIECE_ITEMS)):
                yield ResidencyPiece(place=index, copies=more)

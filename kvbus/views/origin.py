"""What a residency keeps of a block: where it is, and the store event that announced it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvbus.events import BlockHash, Facets
from kvbus.views.cutting import has_tokens

__all__ = ["Origin", "Place"]


class Place(NamedTuple):
    """Where a block is and who says so: the key of residency but for the hash.

    Attributes:
        medium: As on the wire.
        ownership: `None` = the engine itself.
        locality: As on the wire.
        group_idx: KV-cache group; `None` is not 0.
    """

    medium: str | None
    ownership: str | None
    locality: str | None
    group_idx: int | None


class Origin(msgspec.Struct, eq=False, gc=False):
    """A store event of which at least one block is held. What is in it never changes, except for the count.

    Neither it nor a dictionary of its kind is looked at by the garbage collector, which would otherwise stop a broker with a
    million blocks for a tenth of a second now and then.

    Attributes:
        raw: The event, as it was released, or cut down.
        hashes: Its blocks, in order.
        parent_block_hash: In front of the first.
        facets: Of the event; the spec kind of its blocks is in here.
        live_count: How many of its blocks are held and described by it.
    """

    raw: bytes
    hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    facets: Facets
    live_count: int = 0
    _has_tokens: bool | None = None

    @property
    def is_described(self) -> bool:
        """Whether it has tokens; a placeholder gives way to an event that has. Looked up when first asked."""
        if self._has_tokens is None:
            self._has_tokens = has_tokens(self.raw)
        return self._has_tokens

    def parent_of(self, index: int) -> BlockHash | None:
        """Return the parent of one of its blocks; `None` = the start of a sequence, or not known."""
        return self.hashes[index - 1] if index else self.parent_block_hash

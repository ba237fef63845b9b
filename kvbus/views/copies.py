"""What a view that counts copies announces of an event: the first store and the last removal of each block (rule V8).

An engine keeps a block as often as it has physical copies of it, and says so each time. A consumer that keeps a set would drop
the block with the first copy that goes; one that counts, but only so far, with the last that it counted. Told only when the first
comes and the last goes, both hold what the engine holds.

Which blocks of an event these are, the residency says (`Residency.fold`). An event with some of them is cut: each run of a store
keeps its own tokens and parent, and a removal only loses hashes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvbus.errors import DecodeError, UsageError
from kvbus.events import BlockRemoved, EventKind
from kvbus.views.cutting import StoreCutter, encoding_of, removal_of, runs_of, write_event
from kvbus.wire.head import Head
from kvbus.wire.reading import decode_event

__all__ = ["counted_pieces"]


def counted_pieces(raw: bytes, head: Head, firsts: list[bool]) -> tuple[bytes, ...]:
    """Return what is left of an event of which not all blocks are announced.

    Args:
        raw: A store or removal.
        head: Its head.
        firsts: One per block: whether it is announced.

    Returns:
        Events in order, in the form of the whole one: a store for each run of blocks, or one removal; empty when nothing is left.

    Cost: 5 µs for an event of 500 bytes, only where some but not all are left.
    """
    if all(firsts):
        return (raw,)
    if not any(firsts):
        return ()
    if head.facets.kind is EventKind.STORED:
        cutter = StoreCutter(raw)
        return tuple(cutter.cut(start, stop) for start, stop in runs_of(firsts))
    return (_thinned(raw, head, firsts),)


def _thinned(raw: bytes, head: Head, firsts: list[bool]) -> bytes:
    """Return a removal of some of its blocks; a field of another engine that is one per block is thinned with them."""

    def left(values: list[Any]) -> list[Any]:
        return [value for value, is_left in zip(values, firsts, strict=True) if is_left]

    try:
        event = decode_event(raw)
        assert isinstance(event, BlockRemoved)
        extra = {
            name: left(value) if isinstance(value, list) and len(value) == len(firsts) else value
            for name, value in event.extra.items()
        }
        thinned = msgspec.structs.replace(event, block_hashes=left(event.block_hashes), extra=extra)
        return write_event(thinned, head.form, encoding_of(raw))
    except (DecodeError, UsageError):
        return removal_of(left(head.block_hashes), head.facets, head.form)

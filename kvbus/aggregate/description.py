"""What the aggregator must know of an event: what it does, where look-alikes are found, and how large it is.

The aggregator itself never looks into an event. Whoever feeds it says how to describe one: the broker reads a few fields of
the raw bytes, `describe_event` below does it for values of `kvbus.events`.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import NamedTuple

from kvbus.errors import DecodeError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, UnknownEvent

__all__ = ["Description", "Kind", "describe_event"]


class Kind(Enum):
    """What an event does to residency, as far as counting depends on it."""

    STORE = "store"
    """Announces blocks. May go out only when everybody agrees."""

    REMOVAL = "removal"
    """Takes announced blocks back, and nothing else: `BlockRemoved`, and a clear with a scope of its own. To say it too early
    costs a router a hit; to say it too late is a lie. So a removal that is given up goes out alone."""

    CLEAR = "clear"
    """A clear of everything: closes the segment of the worker that emits it."""

    OTHER = "other"
    """Nobody knows. Treated like a store, since it may announce something."""

    @property
    def is_safe_alone(self) -> bool:
        """Whether it may go out without agreement: true of what only takes away."""
        return self is Kind.REMOVAL or self is Kind.CLEAR


class Description(NamedTuple):
    """What one event is to the aggregator.

    Attributes:
        kind: What it does.
        bucket: Equal for all spellings of one event, and cheap, for example type and first hash. Only events in one bucket are
            compared in full. `None` = this event has no other spelling.
        size_bytes: What it adds to the pending bytes, ≥ 0.
    """

    kind: Kind
    bucket: Hashable = None
    size_bytes: int = 0


def describe_event(event: Event) -> Description:
    """Describe a value of `kvbus.events`.

    These compare by value, whatever encoding they came in, so no bucket is needed.

    Args:
        event: An event.

    Returns:
        Its description; the size is that of its canonical bytes.

    Raises:
        DecodeError: It is no event, or holds what msgpack cannot carry.
    """
    if isinstance(event, BlockStored):
        kind = Kind.STORE
    elif isinstance(event, BlockRemoved):
        kind = Kind.REMOVAL
    elif isinstance(event, AllBlocksCleared):
        kind = Kind.REMOVAL if event.is_scoped else Kind.CLEAR
    elif isinstance(event, UnknownEvent):
        kind = Kind.OTHER
    else:
        raise DecodeError("$", f"{type(event).__name__} is no event")
    try:
        return Description(kind, None, len(event.identity()))
    except (TypeError, OverflowError) as error:
        raise DecodeError("$", "an event with a value that msgpack cannot carry") from error

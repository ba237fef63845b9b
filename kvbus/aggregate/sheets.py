"""What a lane is made of: sheets of events, places of workers in it, and spans of what was released."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple

import msgspec

from kvbus.aggregate.description import Description
from kvbus.aggregate.membership import Worker
from kvbus.aggregate.occurrence import E, Occurrence

__all__ = ["Place", "Sheet", "Span"]


class Sheet(msgspec.Struct, Generic[E], eq=False, gc=False):
    """Some events in order, none of them a clear, all of them readable; as a rule one batch. The caller says how it keeps them.

    Attributes:
        count: How many, ≥ 1.
        size_bytes: Sum of their sizes, as `describe` tells them.
        number: Number of the first one in the lane. Set by the lane, and so are the others.
        at_ns: When they came first.
        serial: Its place among the sheets of the lane.
    """

    count: int
    size_bytes: int
    number: int = 0
    at_ns: int = 0
    serial: int = 0

    def events(self) -> Sequence[E]:
        """Return them; nothing in this class, which says nothing about how they are kept."""
        return ()

    def buckets(self, describe: Callable[[E], Description]) -> Sequence[Hashable]:
        """Return the bucket of each.

        Args:
            describe: Describes an event.

        Raises:
            WireError: One cannot be described.
        """
        return [describe(event).bucket for event in self.events()]

    def size_of(self, start: int, stop: int) -> int:
        """Return the size of the events of some indices.

        Args:
            start: First index.
            stop: Index after the last.
        """
        return self.size_bytes * (stop - start) // self.count


class Span(NamedTuple):
    """Events of one sheet that have been released.

    Attributes:
        sheet: The sheet.
        start: Index of the first.
        stop: Index after the last.
    """

    sheet: Sheet[Any]
    start: int
    stop: int

    def occurrences(self, describe: Callable[[Any], Description]) -> list[Occurrence[Any]]:
        """Return them one by one, settled.

        Args:
            describe: Describes an event.
        """
        events, at_ns = self.sheet.events()[self.start : self.stop], self.sheet.at_ns
        return [Occurrence(event, 0, at_ns, *describe(event)) for event in events]


class Place(Generic[E]):
    """Where one worker stands in the lane.

    Attributes:
        worker: Who.
        number: Number of the next event.
        sheet: The sheet that it is in; `None` = it has passed all, and what it sends is new.
        index: Index of the next event there.
    """

    __slots__ = ("index", "number", "sheet", "worker")

    def __init__(self, worker: Worker, number: int) -> None:
        """Stand at the end of an empty lane."""
        self.worker = worker
        self.number = number
        self.sheet: Sheet[E] | None = None
        self.index = 0

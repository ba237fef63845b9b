"""One pending (event, occurrence): the key of the Counter, with the set of workers that it counts.

The set is an integer with one bit per worker: union, membership and «is it everybody» are one machine operation each, and a
million of them cost no memory of their own, because Python shares small integers.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from kvbus.aggregate.description import Kind

if TYPE_CHECKING:
    from kvbus.aggregate.membership import Worker

__all__ = ["E", "Occurrence", "Repeats", "Voter"]

E = TypeVar("E", bound=Hashable)
"""The event as it is fed in: a value, or raw bytes. It is its own key."""


class Occurrence(msgspec.Struct, Generic[E], eq=False, gc=False):
    """The *i*-th emission of an event in a segment, for which some workers have voted and others not yet.

    Attributes:
        event: The first copy that came.
        voters: Bits of the workers that have emitted the event at least so often; 0 = no longer pending. Structures that list
            occurrences in some order keep settled ones until they are swept, and know them by this.
        at_ns: When the first vote came; no other vote is older.
        kind: What the event does.
        bucket: Where other spellings of the event are found.
        size_bytes: Size of the event.

    Not tracked by the garbage collector: it holds keys and numbers, which refer to nothing.
    """

    event: E
    voters: int
    at_ns: int
    kind: Kind
    bucket: Hashable
    size_bytes: int


class Repeats(Generic[E]):
    """Occurrences of one event behind the one that is first in line.

    A worker votes for an event's occurrences in order, so the voters of each are among the voters of the one before. Hence
    only the first can ever be complete, and a worker's next vote is found from a number, without a walk.

    Attributes:
        front: Number of the occurrence that is first in line (which is not in `later`).
        later: Occurrences by number, without a gap, from `front + 1`; not empty.
        next_of: By worker bit, the number that its next vote is for. A number up to `front` is out of date and means
            `front + 1` for a worker that has voted for the first in line.
    """

    __slots__ = ("front", "later", "next_of")

    def __init__(self) -> None:
        """Start behind occurrence 0."""
        self.front = 0
        self.later: dict[int, Occurrence[E]] = {}
        self.next_of: dict[int, int] = {}

    def take_number(self, bit: int) -> int:
        """Return the number that the next vote of a worker is for, and move the worker on.

        Args:
            bit: A worker that has voted for the first in line.
        """
        number = max(self.next_of.get(bit, 0), self.front + 1)
        self.next_of[bit] = number + 1
        return number

    def take_front(self) -> Occurrence[E]:
        """Return the occurrence that is first in line now that the one before it is settled."""
        self.front += 1
        return self.later.pop(self.front)

    def drop_last(self) -> Occurrence[E]:
        """Take away the last occurrence, which has no voter left, and return it."""
        return self.later.pop(self.front + len(self.later))


class Voter(Generic[E]):
    """What one worker has done in a segment.

    Attributes:
        worker: Who.
        log: Its votes for occurrences that were not complete with them, in order; settled ones linger until swept.
        cast: All its votes.
        given_up: How many of them were given up.
    """

    __slots__ = ("cast", "given_up", "log", "worker")

    def __init__(self, worker: Worker) -> None:
        """Begin with no vote.

        Args:
            worker: Who.
        """
        self.worker = worker
        self.log: list[Occurrence[E]] = []
        self.cast = 0
        self.given_up = 0

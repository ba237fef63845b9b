"""All that an aggregator knows, as plain values: what is written down before a process dies, and what the next begins with.

Each part of the aggregator captures and restores its own share. Events are in here as they are; everything that can be found out
by describing an event again is left out. Times are the `now_ns` of the calls; whoever restores says how far the clock has moved,
because a monotonic clock means nothing to another life of the machine.

Sets of voters are written as bytes, because a group may have more workers than a 64-bit number has bits.
"""

from __future__ import annotations

from typing import Generic

import msgspec

from kvbus.aggregate.accounts import Totals
from kvbus.aggregate.occurrence import E

__all__ = [
    "AggregatorState",
    "OutletState",
    "PendingState",
    "QueuedState",
    "RosterState",
    "SegmentState",
    "VoterState",
    "WorkerState",
    "bits_of",
    "bytes_of",
]


class PendingState(msgspec.Struct, Generic[E], frozen=True, array_like=True):
    """One pending (event, occurrence).

    Attributes:
        event: The first copy.
        voters: Who has voted, as `bytes_of`.
        at_ns: When the first vote came.
        line: Its place in the line of occurrences of this event; 0 = the first.
    """

    event: E
    voters: bytes
    at_ns: int
    line: int = 0


class VoterState(msgspec.Struct, frozen=True, array_like=True):
    """What one worker has pending in one segment.

    Attributes:
        bit: The worker's, as `bytes_of`.
        log: Its pending votes in the order in which it cast them, as indices into `SegmentState.pending`.
    """

    bit: bytes
    log: list[int]


class SegmentState(msgspec.Struct, Generic[E], frozen=True, array_like=True):
    """One open segment.

    Attributes:
        pending: In order of their first votes; the occurrences of one event in line.
        voters: By worker.
        closing: The clear that closes it, if one has come.
    """

    pending: list[PendingState[E]]
    voters: list[VoterState]
    closing: PendingState[E] | None


class WorkerState(msgspec.Struct, frozen=True, array_like=True):
    """One worker and its account; the fields are those of `Worker`."""

    worker_id: str
    bit: bytes
    position: int
    is_heard: bool
    is_away: bool
    quiet_at_ns: int
    received: int
    void: int
    given_up: int
    rejected: int
    released_before: int
    released_at_join: int
    losses_at_ns: list[int]
    life_from: int | None = None


class RosterState(msgspec.Struct, frozen=True, array_like=True):
    """All workers, in their order.

    Attributes:
        members: Those that must agree.
        aside: Those set aside.
        departed: Those that have left.
    """

    members: list[WorkerState]
    aside: list[WorkerState]
    departed: list[WorkerState]


class QueuedState(msgspec.Struct, Generic[E], frozen=True, array_like=True):
    """One event that waits for the way out to open.

    Attributes:
        pending: The event; it has no voters.
        is_agreed: Whether the quorum has agreed on it.
    """

    pending: PendingState[E]
    is_agreed: bool


class OutletState(msgspec.Struct, Generic[E], frozen=True, array_like=True):
    """The way out.

    Attributes:
        is_shut: Whether it is shut.
        window_until_ns: End of the loss window.
        queue: What waits, in order.
    """

    is_shut: bool
    window_until_ns: int
    queue: list[QueuedState[E]]


class AggregatorState(msgspec.Struct, Generic[E], frozen=True, array_like=True):
    """One aggregator.

    Attributes:
        now_ns: Its clock.
        totals: What has gone out.
        roster: Its workers.
        segments: The open segments, in order.
        outlet: The way out.
    """

    now_ns: int
    totals: Totals
    roster: RosterState
    segments: list[SegmentState[E]]
    outlet: OutletState[E]


def bytes_of(bits: int) -> bytes:
    """Write a set of voters down.

    Args:
        bits: One bit a worker, ≥ 0.
    """
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def bits_of(written: bytes) -> int:
    """Read a set of voters that `bytes_of` has written."""
    return int.from_bytes(written, "little")

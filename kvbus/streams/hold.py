"""Batches that have come too early, held until the hole in front of them is filled or given up."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

__all__ = ["Held", "HoldBuffer", "Span"]


class Span(NamedTuple):
    """A half-open range of numbers.

    Attributes:
        start_seq: First number in it.
        stop_seq: The number after the last one in it.
    """

    start_seq: int
    stop_seq: int


class Held(NamedTuple):
    """One batch that waits.

    Attributes:
        payload: Its bytes, or `None` for one that has come but cannot be read.
        replayed: Whether a replay brought it.
    """

    payload: bytes | None
    replayed: bool


class HoldBuffer:
    """Batches by number, bounded by count and bytes; knows since when the oldest waits.

    Attributes:
        batches_max: Most batches held.
        bytes_max: Most payload bytes held.
        held_bytes: Payload bytes held now.

    Invariant: `len(hold) <= batches_max`, `held_bytes <= bytes_max`.
    """

    __slots__ = ("_arrivals", "_held", "batches_max", "bytes_max", "held_bytes")

    def __init__(self, batches_max: int, bytes_max: int) -> None:
        """Start empty.

        Args:
            batches_max: Most batches to hold.
            bytes_max: Most payload bytes to hold.
        """
        self.batches_max = batches_max
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._held: dict[int, Held] = {}
        # In order of arrival; entries that are held no longer are dropped when they reach the front.
        self._arrivals: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        """Return how many batches are held."""
        return len(self._held)

    def __contains__(self, seq: int) -> bool:
        """Tell whether a number is held."""
        return seq in self._held

    @property
    def oldest_at_ns(self) -> int | None:
        """When the batch that waits longest came; `None` when none waits. Cost: amortised O(1)."""
        arrivals = self._arrivals
        while arrivals and arrivals[0][1] not in self._held:
            arrivals.popleft()
        return arrivals[0][0] if arrivals else None

    def put(self, seq: int, held: Held, now_ns: int) -> bool:
        """Hold one batch.

        Args:
            seq: Its number; not held yet.
            held: The batch.
            now_ns: Monotonic time of arrival, nanoseconds.

        Returns:
            False when a bound leaves no room, and then nothing has changed.
        """
        assert seq not in self._held
        size = len(held.payload or b"")
        if len(self._held) >= self.batches_max or self.held_bytes + size > self.bytes_max:
            return False
        self._held[seq] = held
        self.held_bytes += size
        self._arrivals.append((now_ns, seq))
        return True

    def get(self, seq: int) -> Held | None:
        """Return what is held under a number, or `None`."""
        return self._held.get(seq)

    def live(self) -> list[tuple[int, bytes]]:
        """Return number and bytes of those that came live and can be read, in order of arrival."""
        return [(seq, held.payload) for seq, held in self._held.items() if held.payload and not held.replayed]

    def pop(self, seq: int) -> Held | None:
        """Take out what is held under a number, or return `None`."""
        held = self._held.pop(seq, None)
        if held is not None:
            self.held_bytes -= len(held.payload or b"")
            if not self._held:
                self._arrivals.clear()
        return held

    def clear(self) -> list[int]:
        """Throw everything away.

        Returns:
            The numbers that were held, in order of arrival.
        """
        seqs = list(self._held)
        self._held.clear()
        self._arrivals.clear()
        self.held_bytes = 0
        return seqs

    def holes(self, start_seq: int, stop_seq: int) -> list[Span]:
        """Return the ranges within `[start_seq, stop_seq)` of which nothing is held.

        Args:
            start_seq: First number to look at.
            stop_seq: The number after the last one to look at.

        Returns:
            Ranges in ascending order, none empty.

        Cost: O(held · log held), whatever the width of the range.
        """
        found: list[Span] = []
        cursor = start_seq
        for seq in sorted(seq for seq in self._held if start_seq <= seq < stop_seq):
            if seq > cursor:
                found.append(Span(cursor, seq))
            cursor = seq + 1
        if cursor < stop_seq:
            found.append(Span(cursor, stop_seq))
        return found

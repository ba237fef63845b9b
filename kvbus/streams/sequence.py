"""What one number proves: next, ahead, a duplicate, or a number that went back.

**One number is not enough.** A subscriber past its high-water mark, a replay that runs ahead of the live socket, an engine that
restarted and a second publisher on the same topic all show up as a number that is not the one wanted. Three things tell them
apart:

* `position`, the next number wanted. What is above it is *ahead*: a gap lies between.
* `live_seq`, the highest number that the live socket has brought. ZeroMQ keeps order within a connection and sends nothing
  twice, so within one life of a publisher the live numbers ascend. One that does not has *gone back*: a restart, a second
  publisher, or a second path. A number below `position` but above `live_seq` was merely delivered by a replay first.
* the last payloads. The same number with the same bytes is a duplicate, whatever path it took. With other bytes it is another
  life of the publisher or another publisher.

Numbers alone cannot see a restart whose first new numbers were lost and which has counted past `position` again. For that the
*witness* is asked for again: the last batch that was delivered. See `receiver`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from kvbus.wire.frames import END_SEQ

__all__ = ["REMEMBERED", "Place", "Watermark", "Witness"]

REMEMBERED = 64
"""Payloads remembered: more than lie between the two sockets of a worker in ordinary running. A power of two."""

KEPT_WHOLE_BYTES = 64 * 1024
"""Up to here, twice a batch of 64 events, a payload is remembered by reference, which costs nothing and compares exactly; a
larger one by length and hash, which costs 0.4 µs a KiB. So a stream remembers at most 4 MiB."""

_Print = bytes | tuple[int, int]


class Place(Enum):
    """Where a batch stands in its stream."""

    NEXT = auto()
    """The number wanted."""
    AHEAD = auto()
    """Above the number wanted: `[position, seq)` has not been seen."""
    DUPLICATE = auto()
    """Seen before, or delivered by a replay that was faster."""
    BACK = auto()
    """A number that one life of one publisher cannot bring here: it restarted, or there are two."""


class Witness(NamedTuple):
    """The last batch delivered in this epoch, to be compared with what a replay says now.

    Attributes:
        seq: Its number.
        print: Its payload, or length and hash of a large one.
    """

    seq: int
    print: _Print


def print_of(payload: bytes) -> _Print:
    """Return what is remembered of a payload: the payload itself, or length and hash of one above `KEPT_WHOLE_BYTES`."""
    return payload if len(payload) <= KEPT_WHOLE_BYTES else (len(payload), hash(payload))


class Watermark:
    """Position of one stream and what it remembers. Knows no time and decides nothing.

    Attributes:
        position: Next number wanted, 0 to `END_SEQ`; `None` until a stream that is joined where it stands has shown a number.
        live_seq: Highest number seen live in this epoch; −1 before the first.
        is_fresh: Whether nothing of this epoch has been delivered yet.

    Invariant: position never moves backwards within an epoch.
    """

    __slots__ = ("_prints", "_witness", "is_fresh", "live_seq", "position")

    def __init__(self, position: int | None) -> None:
        """Begin at a number.

        Args:
            position: First number wanted, or `None` to join wherever the stream stands.
        """
        self.position = position
        self.live_seq = -1
        self.is_fresh = True
        # Slot `seq & 63` is about the number in [position − 64, position) that falls there; None = not delivered.
        self._prints: list[_Print | None] = [None] * REMEMBERED
        self._witness: Witness | None = None

    @property
    def witness(self) -> Witness | None:
        """The last batch delivered in this epoch, or `None` before the first."""
        position = self.position
        if not position:
            return self._witness
        newest = self._prints[(position - 1) % REMEMBERED]
        return self._witness if newest is None else Witness(position - 1, newest)

    def is_same(self, seq: int, payload: bytes) -> bool | None:
        """Compare a payload with what was delivered under a number.

        Args:
            seq: The number.
            payload: The bytes it has now.

        Returns:
            Whether the bytes are the same, or `None` when they are not remembered.
        """
        position = self.position
        if position is not None and position - REMEMBERED <= seq < position:
            remembered = self._prints[seq % REMEMBERED]
            if remembered is not None:
                return remembered == print_of(payload)
        if self._witness is not None and self._witness.seq == seq:
            return self._witness.print == print_of(payload)
        return None

    def place_live(self, seq: int, payload: bytes) -> Place:
        """Say where a live batch stands. Changes nothing.

        Args:
            seq: Its number.
            payload: Its bytes, needed only for a number below `position`.

        Returns:
            Its place. A number below `position` that is not remembered is a duplicate if a replay can have been faster.
        """
        position = self.position
        assert position is not None
        if seq >= position:
            if seq <= self.live_seq:
                return Place.BACK
            return Place.NEXT if seq == position else Place.AHEAD
        is_same = self.is_same(seq, payload)
        if is_same or (is_same is None and seq > self.live_seq):
            return Place.DUPLICATE
        return Place.BACK

    def place_replayed(self, seq: int, payload: bytes) -> Place:
        """Say where a batch of a replay stands. Changes nothing.

        Args:
            seq: Its number.
            payload: Its bytes.

        Returns:
            Its place; `BACK` only for a number whose remembered bytes differ.
        """
        position = self.position
        assert position is not None
        if seq >= position:
            return Place.NEXT if seq == position else Place.AHEAD
        return Place.BACK if self.is_same(seq, payload) is False else Place.DUPLICATE

    def take(self, payload: bytes) -> None:
        """Move past the batch at `position`, which is being delivered, and remember it.

        Args:
            payload: Its bytes.

        Cost: O(1), no allocation for payloads up to `KEPT_WHOLE_BYTES`.
        """
        position = self.position
        assert position is not None
        assert position < END_SEQ
        self._prints[position % REMEMBERED] = payload if len(payload) <= KEPT_WHOLE_BYTES else print_of(payload)
        self.position = position + 1
        self.is_fresh = False

    def take_all(self, payloads: Sequence[bytes]) -> None:
        """Move past several batches, as `take` would one after the other.

        Args:
            payloads: Their bytes, in order; not empty.

        Cost: 0.1 µs for each of the last `REMEMBERED`.
        """
        position = self.position
        assert position is not None
        self.position = stop_seq = position + len(payloads)
        assert stop_seq <= END_SEQ
        prints = self._prints
        for seq, payload in enumerate(payloads[-REMEMBERED:], max(position, stop_seq - REMEMBERED)):
            prints[seq % REMEMBERED] = payload if len(payload) <= KEPT_WHOLE_BYTES else print_of(payload)
        self.is_fresh = False

    def skip(self, stop_seq: int) -> None:
        """Move past numbers that are not going to be delivered; the witness stays.

        Args:
            stop_seq: New position, not below the present one.

        Cost: O(1), however far.
        """
        position = self.position
        assert position is not None
        assert position <= stop_seq <= END_SEQ
        self._witness = self.witness
        if stop_seq - position >= REMEMBERED:
            self._prints = [None] * REMEMBERED
        else:
            for seq in range(position, stop_seq):
                self._prints[seq % REMEMBERED] = None
        self.position = stop_seq

    def resume(self, position: int, seq: int, payload: bytes) -> None:
        """Stand where another process stood.

        Args:
            position: Next number wanted.
            seq: Number of the last batch that was delivered in this epoch, below `position`.
            payload: Its bytes.
        """
        self.begin_epoch(position)
        self.is_fresh = False
        self._witness = Witness(seq, print_of(payload))

    def begin_epoch(self, position: int) -> None:
        """Forget everything: another life of the publisher.

        Args:
            position: First number wanted of it.
        """
        self.position = position
        self.live_seq = -1
        self.is_fresh = True
        self._prints = [None] * REMEMBERED
        self._witness = None

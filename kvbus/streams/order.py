"""The tiling of one stream: what is delivered, what is held, what is declared lost. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

from kvbus.streams.hold import Held, HoldBuffer
from kvbus.streams.outputs import Deliver, Dropped, Lost, LostReason, StreamOutput
from kvbus.streams.sequence import Watermark

__all__ = ["OrderedStream"]


class OrderedStream:
    """Watermark and held batches of one stream, and the three moves that there are: deliver, skip, begin anew.

    Attributes:
        mark: Position and memory.
        hold: Batches that have come too early.
        seen_stop: The number after the highest one known to exist in this epoch; below the position when nothing is missing.
        is_blocked: Whether nothing held may be delivered now, because it may be of another life of the publisher.
        first_seq: Position at which this epoch was begun; `None` for a stream joined where it stands.
        last_live_ns: When the live socket last brought a batch of this epoch; `None` before the first.

    Invariant: within an epoch, `Deliver` and `Lost` tile the numbers up to the position, each once, in order.
    """

    __slots__ = ("first_seq", "hold", "is_blocked", "last_live_ns", "mark", "seen_stop")

    def __init__(self, position: int | None, hold: HoldBuffer) -> None:
        """Begin at a number.

        Args:
            position: First number wanted, or `None` to join wherever the stream stands.
            hold: Bounded room for batches that come too early.
        """
        self.mark = Watermark(position)
        self.hold = hold
        self.first_seq = position
        self.seen_stop = 0
        self.is_blocked = False
        self.last_live_ns: int | None = None

    @property
    def position(self) -> int:
        """The number wanted next, of a stream that has one."""
        position = self.mark.position
        assert position is not None
        return position

    @property
    def has_holes(self) -> bool:
        """Whether a number known to exist has not been delivered."""
        position = self.mark.position
        return position is not None and position < self.seen_stop

    def note_seen(self, seq: int) -> None:
        """Note that a number exists.

        Args:
            seq: The number.
        """
        self.seen_stop = max(self.seen_stop, seq + 1)

    def deliver(self, payload: bytes | None, replayed: bool, out: list[StreamOutput]) -> None:
        """Hand over the batch at the position.

        Args:
            payload: Its bytes; `None` for one that cannot be read, which is a declared loss.
            replayed: Whether a replay brought it.
            out: Takes `Deliver` or `Lost`.
        """
        seq = self.position
        if payload is None:
            self.lose(seq + 1, "unreadable", out)
        else:
            out.append(Deliver(seq, payload, replayed))
            self.mark.take(payload)

    def flush(self, out: list[StreamOutput]) -> None:
        """Deliver what is held from the position on, unless that is blocked.

        Args:
            out: Takes `Deliver` and `Lost`.
        """
        if self.is_blocked:
            return
        while (held := self.hold.pop(self.position)) is not None:
            self.deliver(held.payload, held.replayed, out)

    def lose(self, stop_seq: int, reason: LostReason, out: list[StreamOutput]) -> None:
        """Declare the numbers from the position on lost.

        Args:
            stop_seq: The number after the last one lost; the position itself when no number is missing.
            reason: Why.
            out: Takes `Lost`.
        """
        out.append(Lost(self.position, stop_seq, reason, self.mark.is_fresh))
        self.mark.skip(stop_seq)

    def skip_to(self, stop_seq: int, reason: LostReason, out: list[StreamOutput]) -> None:
        """Declare lost what is missing below a number, delivering what is held in between and right after.

        Args:
            stop_seq: The number after the last one that may be lost; nothing happens if it is not above the position.
            reason: Why.
            out: Takes `Lost` and `Deliver`.
        """
        assert not self.is_blocked
        position = self.position
        for hole in self.hold.holes(position, stop_seq) if position < stop_seq else ():
            self.flush(out)
            assert hole.start_seq == self.mark.position
            self.lose(hole.stop_seq, reason, out)
        self.flush(out)

    def put_aside(self, seq: int, payload: bytes | None, replayed: bool, now_ns: int, out: list[StreamOutput]) -> bool:
        """Hold a batch until its turn.

        Args:
            seq: Its number; not held yet.
            payload: Its bytes; `None` for one that cannot be read.
            replayed: Whether a replay brought it.
            now_ns: Monotonic time, nanoseconds.
            out: Takes `Dropped` when there is no room.

        Returns:
            Whether there was room.
        """
        is_held = self.hold.put(seq, Held(payload, replayed), now_ns)
        if not is_held:
            out.append(Dropped("hold_full", seq))
        return is_held

    def put_all_aside(self, batches: Iterable[tuple[int, bytes]], now_ns: int, out: list[StreamOutput]) -> None:
        """Hold what came live until its turn, as far as it is wanted and not held yet.

        Args:
            batches: Number and bytes of each.
            now_ns: Monotonic time, nanoseconds.
            out: Takes `Dropped` for each for which there is no room.
        """
        for seq, payload in batches:
            if seq >= self.position and seq not in self.hold:
                self.note_seen(seq)
                self.put_aside(seq, payload, False, now_ns, out)

    def drop_held(self, out: list[StreamOutput]) -> list[tuple[int, bytes]]:
        """Throw away what is held, since it is not known whose life it belongs to, and forget what was known to exist.

        Args:
            out: Takes `Dropped`.

        Returns:
            Number and bytes of what came live, in order of arrival.
        """
        live = self.hold.live()
        out.extend(Dropped("unproven", seq) for seq in self.hold.clear())
        self.seen_stop = 0
        return live

    def begin_epoch(self) -> None:
        """Begin anew at 0, with nothing held."""
        assert not len(self.hold)
        self.mark.begin_epoch(0)
        self.first_seq = 0
        self.seen_stop = 0
        self.is_blocked = False

"""One incoming stream, kept in order: every batch once, every jump declared, every restart noticed (rules S1 to S5).

**Normal running.** The shell compares the sequence frame with `expected` and calls `accept_expected`; nothing else runs. Whatever
is not that goes through `receive`, and the rest follows from what comes back:

```
for output in receiver.receive(seq, payload, now_ns):
    match output:
        case Deliver(): …                      # the next batch
        case Lost() | NewEpoch(): …            # a declared loss (S5), always before the Deliver that it is about
        case AskReplay(): …                    # open a DEALER, send replay_request(output.start_seq); or say `deferred`
        case CancelReplay(): …                 # close that DEALER
        case Conflict() | Dropped(): …         # count, log
```

Replies go to `receive_replay` and `receive_end` with the number of their request. Between messages the shell sleeps until
`deadline_ns` and then calls `on_time`. It says `disconnected` and `reconnected` when the socket monitor does, before it reads
what the socket has brought since.

What makes it hard is told where it is done: `recovery` with a replay endpoint, `unaided` without one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from kvbus.errors import UsageError
from kvbus.streams.asking import ReceiverLimits
from kvbus.streams.hold import HoldBuffer
from kvbus.streams.order import OrderedStream
from kvbus.streams.outputs import Dropped, Lost, StreamOutput
from kvbus.streams.recovery import ReplayRules
from kvbus.streams.unaided import UnaidedRules
from kvbus.wire.frames import END_SEQ

__all__ = ["ReceiverLimits", "StreamReceiver"]


class StreamReceiver:
    """Keeps one stream in order. Pure: batches and time in, outputs and a next deadline out.

    Attributes:
        expected: The sequence frame (8 bytes, big-endian) of the one number that needs no thought, or empty when every message
            must go through `receive`. Changes with every call.
        can_replay: Whether there is a replay endpoint.
        limits: The bounds.

    Invariants: `Deliver` and `Lost` of one epoch tile the numbers from its first to `position`, each once, in order; a stream
        whose replay begins at 1 starts there. What is held never passes its three bounds. At most one request is open.
    """

    __slots__ = ("_aided", "_order", "_rules", "_unaided", "can_replay", "expected", "limits")

    def __init__(
        self,
        *,
        can_replay: bool,
        limits: ReceiverLimits | None = None,
        rng: random.Random,
        first_contact: Literal["replay", "live"] = "replay",
        start_seq: int = 0,
    ) -> None:
        """Begin to follow a stream.

        Args:
            can_replay: Whether there is a replay endpoint.
            limits: Bounds; default `ReceiverLimits()`.
            rng: Source of jitter.
            first_contact: `"replay"`: everything from `start_seq` is wanted, and a first number above it is a gap. `"live"`:
                begin at the first number that shows up, without loss; a restart later on is followed from its beginning.
            start_seq: First number wanted with `"replay"`.

        Raises:
            UsageError: `start_seq` is no batch number.
        """
        _check_seq(start_seq)
        self.can_replay = can_replay
        self.limits = limits or ReceiverLimits()
        hold = HoldBuffer(self.limits.hold_batches, self.limits.hold_bytes)
        self._order = OrderedStream(None if first_contact == "live" else start_seq, hold)
        self._aided = ReplayRules(self._order, self.limits, rng) if can_replay else None
        self._unaided = None if can_replay else UnaidedRules(self._order, self.limits)
        rules = self._aided or self._unaided
        assert rules is not None
        self._rules: ReplayRules | UnaidedRules = rules
        self.expected = b""
        self._refresh()

    @property
    def position(self) -> int | None:
        """The next number wanted; `None` only before the first batch of a stream joined live."""
        return self._order.mark.position

    @property
    def is_recovering(self) -> bool:
        """Whether something is missing or in doubt, so that live batches are being held."""
        return self._rules.is_recovering

    @property
    def has_gap(self) -> bool:
        """Whether a batch that is known to exist has neither been delivered nor given up."""
        return self._order.has_holes

    @property
    def is_asking(self) -> bool:
        """Whether a replay request is open."""
        return self._aided is not None and self._aided.asking.open is not None

    @property
    def held_count(self) -> int:
        """Batches held now; not counted are those that will be used only once a replay has vouched for one of them."""
        return len(self._order.hold) + (self._unaided.kept_aside[0] if self._unaided else 0)

    @property
    def held_bytes(self) -> int:
        """Payload bytes held now."""
        return self._order.hold.held_bytes + (self._unaided.kept_aside[1] if self._unaided else 0)

    @property
    def is_disconnected(self) -> bool:
        """Whether the live connection is down, and what comes next may be another life that can be asked for."""
        return self._aided is not None and self._aided.is_disconnected

    @property
    def is_sated(self) -> bool:
        """Whether it had better be given no live batch for now: an answer is awaited, and half of what may be held is.

        What is left in the socket meanwhile is taken later, in order; what there is no room for has to be asked for again.
        """
        if self._aided is None or not self._aided.is_recovering:
            return False
        batches, size_bytes = self._aided.kept
        return 2 * batches >= self.limits.hold_batches or 2 * size_bytes >= self.limits.hold_bytes

    @property
    def silent_since_ns(self) -> int | None:
        """When the first replay request was asked since which the endpoint has not said a word; `None` while it answers (A6)."""
        return self._aided.asking.silent_since_ns if self._aided else None

    @property
    def last_live_ns(self) -> int | None:
        """When the live socket last brought a batch of the life that is followed; `None` before the first."""
        return self._order.last_live_ns

    @property
    def deadline_ns(self) -> int | None:
        """When `on_time` has something to do; `None` = not before the next message. Cost: O(1)."""
        return self._rules.deadline_ns

    def accept_expected(self, payload: bytes, now_ns: int) -> None:
        """Take a live batch whose sequence frame equals `expected`. It counts as delivered.

        Args:
            payload: Its bytes.
            now_ns: Monotonic time, nanoseconds.

        Cost: O(1), half a microsecond.
        """
        self.accept_all_expected((payload,), now_ns)

    def accept_all_expected(self, payloads: Sequence[bytes], now_ns: int) -> None:
        """Take live batches; the first has the sequence frame `expected`, the others those behind it. All count as delivered.

        Args:
            payloads: The bytes of each, at least one.
            now_ns: Monotonic time, nanoseconds.

        Cost: half a microsecond, and 0.1 µs a batch.
        """
        order = self._order
        mark = order.mark
        mark.take_all(payloads)
        seq = mark.position
        assert seq is not None
        mark.live_seq = seq - 1
        order.last_live_ns = now_ns
        self.expected = seq.to_bytes(8, "big") if seq < END_SEQ else b""

    def receive(self, seq: int, payload: bytes, now_ns: int) -> list[StreamOutput]:
        """Take any live batch.

        Args:
            seq: Its number, 0 to `END_SEQ` − 1.
            payload: Its bytes.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            What follows from it, in order.

        Raises:
            UsageError: `seq` is no batch number.
        """
        _check_seq(seq)
        out: list[StreamOutput] = []
        self._rules.live(seq, payload, now_ns, out)
        return self._done(out)

    def receive_replay(
        self, seq: int, payload: bytes | None, now_ns: int, request: int | None = None
    ) -> list[StreamOutput]:
        """Take one batch of a replay.

        Args:
            seq: Its number, 0 to `END_SEQ` − 1.
            payload: Its bytes; `None` = it came and its envelope cannot be read, which is a declared hole (W3).
            now_ns: Monotonic time, nanoseconds.
            request: Which request it answers, or `None` where the caller keeps no connection per request. Without it a late
                reply of an abandoned request passes for one of the open request: never an error in order, perhaps a needless
                loss.

        Returns:
            What follows from it, in order.

        Raises:
            UsageError: `seq` is no batch number.
        """
        _check_seq(seq)
        out: list[StreamOutput] = []
        if self._aided is None:
            out.append(Dropped("stale_replay", seq))
        else:
            self._aided.replayed(seq, payload, now_ns, request, out)
        return self._done(out)

    def receive_end(self, now_ns: int, request: int | None = None) -> list[StreamOutput]:
        """Take the end mark of a replay.

        Args:
            now_ns: Monotonic time, nanoseconds.
            request: As in `receive_replay`.

        Returns:
            What follows from it, in order.
        """
        out: list[StreamOutput] = []
        if self._aided is not None:
            self._aided.ended(now_ns, request, out)
        return self._done(out)

    def unreadable(self, seq: int, now_ns: int) -> list[StreamOutput]:
        """Say that a batch has come whose envelope cannot be read: a declared hole, not asked for again (W3).

        Either about a batch that was delivered and then turned out to be unreadable, or in place of `receive` and
        `accept_expected`.

        Args:
            seq: Its number, 0 to `END_SEQ` − 1.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            For a batch that was delivered `[Lost(seq, seq + 1, "unreadable")]`, else what follows from it.

        Raises:
            UsageError: `seq` is no batch number.
        """
        _check_seq(seq)
        position = self.position
        if position is not None and seq < position:
            return [Lost(seq, seq + 1, "unreadable", self._order.mark.is_fresh)]
        out: list[StreamOutput] = []
        self._rules.live(seq, None, now_ns, out)
        return self._done(out)

    def resume(self, position: int, witness: tuple[int, bytes] | None) -> None:
        """Go on where another process ended, which may be long ago; to be called before anything else.

        As after `disconnected`: what comes live waits until the next `reconnected` has found out whose it is.

        Args:
            position: The next number wanted.
            witness: Number and bytes of the last batch that was delivered in this epoch; `None` = nothing was.

        Raises:
            UsageError: There is no replay endpoint, so nobody can tell what was missed: declare a loss and begin live.
        """
        if self._aided is None:
            raise UsageError("a stream without a replay endpoint cannot be resumed")
        if witness is not None:
            self._order.mark.resume(position, *witness)
        else:
            self._order.mark.begin_epoch(position)
        self._aided.resumed()
        self._refresh()

    def disconnected(self, now_ns: int) -> list[StreamOutput]:
        """Say that the live connection is down: what comes after the next `reconnected` may be another life of the publisher.

        Optional. With it, even a restart whose next live number happens to be the one wanted is noticed in time.

        Args:
            now_ns: Monotonic time, nanoseconds.

        Returns:
            What follows from it, in order.
        """
        out: list[StreamOutput] = []
        if self._aided is not None:
            self._aided.disconnected(out)
        elif self._unaided is not None:
            self._unaided.connection_changed()
        return self._done(out)

    def reconnected(self, now_ns: int) -> list[StreamOutput]:
        """Say that the live connection is up, for the first time or again: what was missed and the witness are asked for (S4).

        Args:
            now_ns: Monotonic time, nanoseconds.

        Returns:
            What follows from it, in order; nothing without a replay endpoint.
        """
        out: list[StreamOutput] = []
        if self._aided is not None:
            self._aided.reconnected(now_ns, out)
        elif self._unaided is not None:
            self._unaided.connection_changed()
        return self._done(out)

    def deferred(self, now_ns: int) -> None:
        """Say that the request just asked for could not be sent now; it is asked for again shortly.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        if self._aided is not None and self._aided.asking.open is not None:
            self._aided.asking.defer(now_ns)

    def on_time(self, now_ns: int) -> list[StreamOutput]:
        """Do what is due: time-outs, retries, giving up, probes.

        Args:
            now_ns: Monotonic time, nanoseconds.

        Returns:
            What follows, in order; usually nothing.
        """
        out: list[StreamOutput] = []
        self._rules.on_time(now_ns, out)
        return self._done(out)

    def _done(self, out: list[StreamOutput]) -> list[StreamOutput]:
        """Return the outputs of a call, with `expected` up to date."""
        self._refresh()
        return out

    def _refresh(self) -> None:
        """Work out `expected` anew."""
        position = self.position
        if position is not None and position < END_SEQ and self._rules.is_plain:
            self.expected = position.to_bytes(8, "big")
        else:
            self.expected = b""


def _check_seq(seq: int) -> None:
    """Refuse what is no batch number.

    Raises:
        UsageError: Negative, or `END_SEQ` and above.
    """
    if not 0 <= seq < END_SEQ:
        raise UsageError(f"a sequence number is 0 to 2**64 - 2, got {seq}")

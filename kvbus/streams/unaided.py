"""The rules of a stream without a replay endpoint: a gap is a loss, and a number that goes back is a question.

A restarted publisher and a second publisher on the same topic look alike at first: a number that was used before, with other
bytes. They differ in what follows. After a restart the old run of numbers is never continued; with two publishers it is. So for
a short while (`contest_ns` after the last word of the publisher that is followed) the newcomer's batches are kept aside:

* the run of numbers goes on: there are two. The newcomer's batches are refused. That is a declared loss, because the newcomer may
  have slipped a batch in between, under a number that happened to be wanted, and then the one refused is the right one.
* it does not: it was a restart. A new epoch begins, and the batches kept aside are its first.

A publisher that had been silent for that long already, or whose connection went down, is taken to have restarted at once.

What cannot be seen from here: a restart whose first new numbers were lost and which has counted past the position again.
"""

from __future__ import annotations

from kvbus.streams.asking import ReceiverLimits
from kvbus.streams.order import OrderedStream
from kvbus.streams.outputs import Conflict, Dropped, NewEpoch, StreamOutput
from kvbus.streams.sequence import Place

__all__ = ["Contest", "UnaidedRules"]


class Contest:
    """The batches of a newcomer, kept aside until it is known who it is.

    Attributes:
        ends_at_ns: When silence of the followed publisher proves a restart.
        run: The newcomer's batches, ascending; never empty after the first `add`.
        run_bytes: Their payload bytes.
        is_told: Whether the alarm has been raised.
    """

    __slots__ = ("ends_at_ns", "is_told", "run", "run_bytes")

    def __init__(self, ends_at_ns: int) -> None:
        """Open a contest.

        Args:
            ends_at_ns: When silence of the followed publisher proves a restart.
        """
        self.ends_at_ns = ends_at_ns
        self.run: list[tuple[int, bytes | None]] = []
        self.run_bytes = 0
        self.is_told = False

    @property
    def next_seq(self) -> int:
        """The number with which the newcomer goes on."""
        return self.run[-1][0] + 1

    def add(self, seq: int, payload: bytes | None) -> list[int]:
        """Keep one batch aside.

        Args:
            seq: Its number.
            payload: Its bytes; `None` for one that cannot be read.

        Returns:
            Numbers that are refused at once: earlier batches of the run, if this one went back once more.
        """
        refused: list[int] = []
        if self.run and seq < self.next_seq:
            refused = [number for number, _ in self.run]
            self.run.clear()
            self.run_bytes = 0
        self.run.append((seq, payload))
        self.run_bytes += len(payload or b"")
        return refused


class UnaidedRules:
    """What happens to live batches when nobody can be asked."""

    __slots__ = ("_contest", "_is_reconnected", "_limits", "_order")

    def __init__(self, order: OrderedStream, limits: ReceiverLimits) -> None:
        """Rule over a stream.

        Args:
            order: The stream.
            limits: Its bounds.
        """
        self._order = order
        self._limits = limits
        self._contest: Contest | None = None
        self._is_reconnected = False  # since the last number that went back: the next such number is a restart

    @property
    def is_recovering(self) -> bool:
        """Whether it is open who is speaking."""
        return self._contest is not None

    @property
    def is_plain(self) -> bool:
        """Whether the next number needs no thought."""
        return self._contest is None

    @property
    def kept_aside(self) -> tuple[int, int]:
        """Batches and payload bytes kept aside."""
        return (len(self._contest.run), self._contest.run_bytes) if self._contest else (0, 0)

    @property
    def deadline_ns(self) -> int | None:
        """When an open contest ends."""
        return self._contest.ends_at_ns if self._contest else None

    def live(self, seq: int, payload: bytes | None, now_ns: int, out: list[StreamOutput]) -> None:
        """Place a live batch.

        Args:
            seq: Its number.
            payload: Its bytes; `None` for one that cannot be read.
            now_ns: Monotonic time, nanoseconds.
            out: Takes what follows.
        """
        order = self._order
        mark = order.mark
        if mark.position is None:
            mark.begin_epoch(seq)
        self.on_time(now_ns, out)
        if self._contest is not None and seq == self._contest.next_seq:
            self._keep_aside(seq, payload, now_ns, out)
            return
        place = mark.place_live(seq, payload or b"")
        if place is Place.BACK:
            self._went_back(seq, payload, now_ns, out)
            return
        order.last_live_ns = now_ns
        if self._contest is not None:
            self._end_as_conflict(out)
        if place is Place.DUPLICATE:
            out.append(Dropped("duplicate", seq))
            return
        self._take(seq, payload, out)

    def connection_changed(self) -> None:
        """Note that the live connection went down or came up."""
        self._is_reconnected = True

    def on_time(self, now_ns: int, out: list[StreamOutput]) -> None:
        """End a contest whose time is up.

        Args:
            now_ns: Monotonic time, nanoseconds.
            out: Takes what follows.
        """
        if self._contest is not None and now_ns >= self._contest.ends_at_ns:
            self._end_as_restart(now_ns, out)

    def _take(self, seq: int, payload: bytes | None, out: list[StreamOutput]) -> None:
        """Deliver a batch at or ahead of the position; a gap in front of it is lost."""
        order = self._order
        order.skip_to(seq, "joined_late" if order.mark.is_fresh else "no_replay", out)
        order.mark.live_seq = seq
        order.deliver(payload, False, out)

    def _went_back(self, seq: int, payload: bytes | None, now_ns: int, out: list[StreamOutput]) -> None:
        """Take a number that went back for a restart if the publisher had been silent, else open a contest."""
        order = self._order
        if self._contest is None:
            followed_ns = now_ns if order.last_live_ns is None else order.last_live_ns
            is_restart = self._is_reconnected or now_ns >= followed_ns + self._limits.contest_ns
            self._contest = Contest(now_ns if is_restart else followed_ns + self._limits.contest_ns)
            if not is_restart and payload is not None and order.mark.is_same(seq, payload) is False:
                self._contest.is_told = True
                out.append(Conflict(seq))
        self._keep_aside(seq, payload, now_ns, out)

    def _keep_aside(self, seq: int, payload: bytes | None, now_ns: int, out: list[StreamOutput]) -> None:
        """Keep a newcomer's batch aside. When there is no room for more, take it for a restart, which is safe."""
        contest = self._contest
        assert contest is not None
        out.extend(Dropped("conflict", refused) for refused in contest.add(seq, payload))
        is_full = len(contest.run) >= self._limits.hold_batches or contest.run_bytes >= self._limits.hold_bytes
        if is_full or now_ns >= contest.ends_at_ns:
            self._end_as_restart(now_ns, out)

    def _end_as_restart(self, now_ns: int, out: list[StreamOutput]) -> None:
        """The publisher that was followed has fallen silent: the newcomer is its next life."""
        contest, self._contest = self._contest, None
        assert contest is not None
        out.append(NewEpoch(self._order.position, "went_back"))
        self._is_reconnected = False
        self._order.last_live_ns = now_ns
        self._order.begin_epoch()
        for seq, payload in contest.run:
            self._take(seq, payload, out)

    def _end_as_conflict(self, out: list[StreamOutput]) -> None:
        """The run that is followed goes on: the newcomer is another publisher, and its batches are refused."""
        contest, self._contest = self._contest, None
        assert contest is not None
        if not contest.is_told:
            out.append(Conflict(contest.run[0][0]))
        out.extend(Dropped("conflict", seq) for seq, _ in contest.run)
        self._order.lose(self._order.position, "conflict", out)

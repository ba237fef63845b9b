"""The way out: open as a rule, shut while nothing may be said.

It is shut during a loss window, so that further losses within it need no clear of their own, and while the seat of a worker is
held. What becomes ready meanwhile queues up in order. When the way opens, it goes out; when another loss comes first, it is
void, and since nothing had gone out, no one has to be told.

What waits here ages as everything pending does. The oldest in the queue is given up first: a store is dropped, a removal or
clear goes out alone. Only the front of the queue is ever taken, so that a removal never overtakes an earlier store of the
same block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic

from kvbus.aggregate.accounts import Totals
from kvbus.aggregate.membership import Roster
from kvbus.aggregate.occurrence import E, Occurrence
from kvbus.aggregate.state import OutletState, PendingState, QueuedState

__all__ = ["Outlet"]


class Outlet(Generic[E]):
    """Sends what is agreed or given up, now or later, and books it. Its queue is empty as long as the way is open.

    Methods append what goes out to the `out` that they are given.

    Attributes:
        is_shut: Whether what is released queues up; opened by the first call that finds it possible.
        window_until_ns: End of the loss window; in the past when there is none.
        agreed_count: Entries of the queue on which the quorum has agreed, each one pending vote of every worker. The others are
            removals that were given up already.
        size_bytes: Size of all entries.
    """

    __slots__ = ("_age_ns", "_queue", "_roster", "_totals", "agreed_count", "is_shut", "size_bytes", "window_until_ns")

    def __init__(self, roster: Roster, totals: Totals, age_ns: int) -> None:
        """Begin open.

        Args:
            roster: The workers, whose votes are booked here.
            totals: Where events are booked.
            age_ns: How old a vote may be and still count.
        """
        self.window_until_ns = 0
        self.agreed_count = 0
        self.size_bytes = 0
        self._roster = roster
        self._totals = totals
        self._age_ns = age_ns
        self.is_shut = False
        self._queue: deque[tuple[Occurrence[E], bool]] = deque()

    def __len__(self) -> int:
        """Return how many events wait."""
        return len(self._queue)

    @property
    def oldest_at_ns(self) -> int | None:
        """When the first vote for the entry at the front was cast."""
        return self._queue[0][0].at_ns if self._queue else None

    @property
    def first_votes_ns(self) -> list[int]:
        """When the first vote for the entry at the front was cast; empty when nothing waits."""
        return [self._queue[0][0].at_ns] if self._queue else []

    @property
    def due_ns(self) -> int | None:
        """When something will happen here by itself: the window ends, or the front becomes too old; `None` = nothing waits."""
        if not self._queue:
            return None
        too_old_ns = self._queue[0][0].at_ns + self._age_ns
        return too_old_ns if self._roster.is_any_away() else min(too_old_ns, self.window_until_ns)

    def shut(self) -> None:
        """Let nothing out until the loss window has ended and every worker is there."""
        self.is_shut = True

    def try_open(self, now_ns: int, out: list[E]) -> None:
        """Let everything out, if neither a loss window nor an absent worker forbids it; stores that are too old are dropped."""
        if self.is_shut and now_ns >= self.window_until_ns and not self._roster.is_any_away():
            self.is_shut = False
            taken = list(self._queue)
            self._queue.clear()
            self._send(taken, now_ns - self._age_ns, out)

    def release(self, agreed: list[Occurrence[E]], now_ns: int, out: list[E]) -> None:
        """Send what the quorum has agreed on, or queue it."""
        if self.is_shut:
            self.try_open(now_ns, out)
        if self.is_shut:
            self._put(agreed, True)
            return
        self._totals.released += len(agreed)
        out.extend([occurrence.event for occurrence in agreed])

    def give_up(self, occurrence: Occurrence[E], out: list[E]) -> None:
        """Drop an occurrence on which there was no agreement, or send it alone if it is a removal.

        Args:
            occurrence: Given up; its votes are booked already.
            out: Where it goes if it goes out.
        """
        if not occurrence.kind.is_safe_alone:
            self._totals.dropped += 1
        elif self._queue:  # behind what waits, or it would overtake an earlier store of the same block
            self._put([occurrence], False)
        else:
            self._totals.removals_alone += 1
            out.append(occurrence.event)

    def expire(self, now_ns: int, out: list[E]) -> None:
        """Give up from the front what is too old."""
        too_old_at_ns = now_ns - self._age_ns
        taken = []
        while self._queue and self._queue[0][0].at_ns <= too_old_at_ns:
            taken.append(self._queue.popleft())
        self._send(taken, too_old_at_ns, out)

    def give_up_front(self, out: list[E]) -> None:
        """Give up the entry at the front, of which there must be one."""
        front = self._queue.popleft()
        self._send([front], front[0].at_ns, out)

    def void(self) -> None:
        """Make everything that waits void."""
        for worker in self._roster:
            worker.void += self.agreed_count
        self._queue.clear()
        self.agreed_count = 0
        self.size_bytes = 0

    def capture(self) -> OutletState[E]:
        """Return what waits and what it waits for, as plain values."""
        queue = [
            QueuedState(PendingState(occurrence.event, b"", occurrence.at_ns), is_agreed)
            for occurrence, is_agreed in self._queue
        ]
        return OutletState(self.is_shut, self.window_until_ns, queue)

    def restore(
        self, state: OutletState[E], shift_ns: int, occurrence_of: Callable[[PendingState[E], int], Occurrence[E]]
    ) -> None:
        """Become what was captured; to be called before anything else.

        Args:
            state: From `capture`.
            shift_ns: How far the clock has moved since; added to every time.
            occurrence_of: Makes an occurrence of one that was written down.
        """
        self.is_shut = state.is_shut
        self.window_until_ns = state.window_until_ns + shift_ns
        for each in state.queue:
            self._put([occurrence_of(each.pending, shift_ns)], each.is_agreed)

    def _put(self, occurrences: Iterable[Occurrence[E]], is_agreed: bool) -> None:
        for occurrence in occurrences:
            self._queue.append((occurrence, is_agreed))
            self.agreed_count += is_agreed
            self.size_bytes += occurrence.size_bytes

    def _send(self, taken: list[tuple[Occurrence[E], bool]], too_old_at_ns: int, out: list[E]) -> None:
        """Send entries taken from the queue, but drop stores whose first vote was cast at `too_old_at_ns` or earlier."""
        released = given_up = 0
        for occurrence, is_agreed in taken:
            self.agreed_count -= is_agreed
            self.size_bytes -= occurrence.size_bytes
            if occurrence.kind.is_safe_alone or occurrence.at_ns > too_old_at_ns:
                out.append(occurrence.event)
                released += is_agreed
            else:
                given_up += is_agreed
        self._totals.released += released
        self._totals.removals_alone += len(taken) - given_up - released
        self._totals.dropped += given_up
        for worker in self._roster:
            worker.given_up += given_up

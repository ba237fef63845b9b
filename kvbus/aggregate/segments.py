"""All segments that are open at once, and where each worker stands in them (rule A4).

A worker's clear takes it to the next segment. The first segment is the one that the slowest worker is in. The *n*-th clear of
the worker that emitted it first waits in the segment that it closes, until all have followed or the aggregator lets it out
alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic

from kvbus.aggregate.description import Description
from kvbus.aggregate.membership import Roster, Worker
from kvbus.aggregate.occurrence import E, Occurrence
from kvbus.aggregate.remains import Remains
from kvbus.aggregate.segment import Segment
from kvbus.aggregate.state import SegmentState

__all__ = ["Segments"]


class Segments(Generic[E]):
    """The open segments, from the slowest worker's to the fastest's; never empty.

    Attributes:
        open: The segments. To be changed here only.
        remains: Takes what has become void; `None` = that is freed at once, which takes half a second a million events.

    Invariant: every segment but the last has a clear that closes it, emitted by at least one worker and not by all.
    """

    __slots__ = ("_describe", "_roster", "_same", "open", "remains")

    def __init__(
        self, roster: Roster, describe: Callable[[E], Description], same: Callable[[E, E], bool] | None
    ) -> None:
        """Begin with all workers in one empty segment.

        Args:
            roster: The workers; their positions are kept here.
            describe: As in `Segment`.
            same: As in `Segment`.
        """
        self._roster = roster
        self._describe = describe
        self._same = same
        self.remains: Remains | None = None
        self.open: deque[Segment[E]] = deque([Segment(describe, same)])

    def __len__(self) -> int:
        """Return how many are open, ≥ 1."""
        return len(self.open)

    @property
    def front(self) -> Segment[E]:
        """The segment that the slowest worker is in."""
        return self.open[0]

    @property
    def count(self) -> int:
        """Pending occurrences and clears."""
        return sum(segment.count for segment in self.open) + len(self.open) - 1

    @property
    def size_bytes(self) -> int:
        """Size of the pending occurrences and clears."""
        return sum(segment.size_bytes for segment in self.open)

    @property
    def first_votes_ns(self) -> list[int]:
        """When the first votes for the oldest occurrence and for the clear of each open segment were cast.

        Cost: O(open segments), amortised.
        """
        return [each.at_ns for segment in self.open for each in (segment.oldest, segment.closing) if each is not None]

    def lag(self, worker: Worker) -> int:
        """Return how many clears a worker is behind the fastest one."""
        return len(self.open) - 1 - worker.position

    def pending_votes(self, worker: Worker) -> int:
        """Return how many votes of a worker are pending, clears included.

        Cost: O(open segments).
        """
        return sum(segment.pending_votes(worker.bit) for segment in self.open) + worker.position

    def take_clear(self, worker: Worker, clear: Occurrence[E]) -> None:
        """Close a worker's segment and move it to the next.

        Args:
            worker: Who emitted the clear.
            clear: The clear, without voters. The first copy is kept.
        """
        segment = self.open[worker.position]
        if segment.closing is None:
            segment.closing = clear
            segment.size_bytes += clear.size_bytes
            self.open.append(Segment(self._describe, self._same))
        segment.closing.voters |= worker.bit
        worker.position += 1

    def is_front_closed(self) -> bool:
        """Tell whether every worker has emitted the clear that closes the first segment."""
        closing = self.open[0].closing
        return closing is not None and closing.voters == self._roster.quorum

    def close_front(self) -> Occurrence[E]:
        """Take away the first segment, which every worker has left; what is pending in it is void.

        Returns:
            The clear that closes it.
        """
        segment = self.open.popleft()
        assert segment.closing is not None
        for worker in self._roster:
            worker.void += segment.pending_votes(worker.bit)
            worker.position -= 1
        self._bury(segment)
        return segment.closing

    def take_clear_alone(self) -> Occurrence[E]:
        """Take the clear that closes the first segment without waiting for the other workers, and make everything else void.

        Returns:
            The clear; there must be one.
        """
        closing = self.open[0].closing
        assert closing is not None
        for worker in self._roster:
            if closing.voters & worker.bit:
                worker.given_up += 1
                worker.position -= 1
        self.void()
        return closing

    def void(self, restarted: Worker | None = None) -> None:
        """Make every pending vote of every worker void, and start all in one fresh segment.

        When workers restart together, their new lives are noticed one after the other. What those have said that are noticed
        first is kept as long as all of it is pending: it counts from the beginning of their lives, as with all that follow.
        Without that, what an engine says first, which is what most prompts begin with, would be lost for as long as it stays.

        Args:
            restarted: A worker whose new life has been noticed now, within a loss window. `None` = nothing is kept.
        """
        others = [] if restarted is None else [worker for worker in self._roster if worker is not restarted]
        kept = [worker for worker in others if worker.has_all_pending(self.pending_votes(worker))]
        for worker in self._roster:
            if worker not in kept:
                worker.void += self.pending_votes(worker)
                worker.position = 0
        if not kept:
            self._bury(*self.open)
        self.open = deque([self._front_of(kept) if kept else Segment(self._describe, self._same)])

    def _bury(self, *segments: Segment[E]) -> None:
        """Let what is in segments be freed little by little; it has been left by all, and accounted for."""
        if self.remains is not None:
            for segment in segments:
                self.remains.take(*segment.containers)

    def _front_of(self, kept: list[Worker]) -> Segment[E]:
        """Return the first segment with the votes of some workers only, and open."""
        front = self.front
        for worker in self._roster:
            if worker not in kept:
                front.withdraw(worker.bit)
        if front.closing is not None:
            front.size_bytes -= front.closing.size_bytes
            front.closing = None
        return front

    def withdraw(self, bit: int) -> None:
        """Take away the votes of a worker that has left, and the segments that only it had reached.

        Args:
            bit: The bit that it had.
        """
        reached = []
        for segment in self.open:
            reached.append(segment)
            segment.withdraw(bit)
            closing = segment.closing
            if closing is not None:
                closing.voters &= ~bit
                if not closing.voters:
                    segment.closing = None
                    segment.size_bytes -= closing.size_bytes
                    break
        self.open = deque(reached)

    def capture(self) -> list[SegmentState[E]]:
        """Return everything pending in every segment, as plain values."""
        return [segment.capture() for segment in self.open]

    def restore(self, states: list[SegmentState[E]], shift_ns: int) -> None:
        """Become what was captured, when the roster has been restored.

        Args:
            states: From `capture`.
            shift_ns: How far the clock has moved since; added to every time.

        Raises:
            WireError: An event cannot be read any more.
        """
        workers = {worker.bit: worker for worker in self._roster}
        self.open = deque(Segment(self._describe, self._same) for _ in states)
        for segment, state in zip(self.open, states, strict=True):
            segment.restore(state, shift_ns, workers)

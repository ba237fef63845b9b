"""One output of the broker: which events it carries, and its numbers.

A view numbers its own batches densely, after they are encoded, so that a filtered view shows no false gap (rule V2). It neither
sends nor keeps them: that is its owner's part.
"""

from __future__ import annotations

from typing import NamedTuple

from kvbus.views.filters import EventFilter
from kvbus.views.run import Run

__all__ = ["View", "ViewCounts"]


class ViewCounts(NamedTuple):
    """A view's accounting (rule E1): `released == sent + filtered`, all of them events but `batches`.

    Attributes:
        released: Events that were offered to the view.
        sent: Events handed out in batches.
        filtered: Events that its filter does not take.
        batches: Numbers used, empty batches and those of a new epoch included.
    """

    released: int
    sent: int
    filtered: int
    batches: int


class View:
    """Filter and numbers of one output.

    Attributes:
        name: Name in logs and metrics.
        wanted: Which events it carries.
        next_seq: Number that its next batch will have.
    """

    def __init__(self, name: str, wanted: EventFilter, first_seq: int = 0) -> None:
        """Begin a view.

        Args:
            name: Name in logs and metrics.
            wanted: Which events it carries.
            first_seq: Its first number.
        """
        self.name = name
        self.wanted = wanted
        self.next_seq = first_seq
        self._sent_events = 0
        self._filtered_events = 0
        self._batches = 0

    def offer(self, run: Run) -> bytes | None:
        """Take what this view wants of a run.

        Args:
            run: Released events, complete; it is not changed.

        Returns:
            The payload to publish, or `None` when the filter takes none of it.
        """
        count, _, _, payload = run.select(self.wanted)
        self._filtered_events += len(run.events) - count
        self._sent_events += count
        return payload if count else None

    def take_number(self) -> int:
        """Use up a number, for a batch that is encoded already.

        Invariant: numbers of an epoch are dense.
        """
        seq = self.next_seq
        self.next_seq += 1
        self._batches += 1
        return seq

    def begin_epoch(self) -> None:
        """Number from 0 again."""
        self.next_seq = 0

    def counts(self) -> ViewCounts:
        """Return what went in and out so far."""
        return ViewCounts(
            released=self._sent_events + self._filtered_events,
            sent=self._sent_events,
            filtered=self._filtered_events,
            batches=self._batches,
        )

"""The last half hour of a broker in a few numbers, so that whoever opens the page sees what led to what is."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

import msgspec

from kvbus.ops.report import Report

__all__ = ["PERIOD_S", "Held", "History", "Sample"]

PERIOD_S = 5.0
"""Time between two samples: fine enough for a line across a page, and nothing that a loop would feel."""

SAMPLES_MAX = 360
"""Half an hour; what is older is in Prometheus."""

PLACES_MAX = 32
"""Places kept of a sample, the fullest ones; systems have a handful, and past it a peer is making them up."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """How many blocks are held in one place, by all groups together.

    Attributes:
        ownership: As on the wire; `None` = the engine itself.
        medium: As on the wire.
        blocks: How many.
    """

    ownership: str | None
    medium: str | None
    blocks: int


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One moment.

    Attributes:
        at_s: When, seconds since the epoch.
        released: Events released so far; `None` = the broker did not answer.
        held: Who held how much.
    """

    at_s: float
    released: int | None
    held: list[Held]

    @classmethod
    def of(cls, report: Report) -> Sample:
        """Return what is kept of a report."""
        if report.status is None:
            return cls(at_s=report.at_s, released=None, held=[])
        places: dict[tuple[str | None, str | None], int] = {}
        for row in report.status.blocks:
            place = (row.ownership, row.medium)
            places[place] = places.get(place, 0) + row.blocks
        fullest = sorted(places.items(), key=lambda each: -each[1])[:PLACES_MAX]
        return cls(
            at_s=report.at_s,
            released=sum(group.released for group in report.status.groups),
            held=[Held(ownership, medium, blocks) for (ownership, medium), blocks in fullest],
        )


class History:
    """Takes a sample every few seconds, on a thread of its own, until it is closed."""

    def __init__(self, take: Callable[[], Report], period_s: float = PERIOD_S) -> None:
        """Begin.

        Args:
            take: Takes a report; must not raise.
            period_s: Time between two.
        """
        self._take = take
        self._period_s = period_s
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="kvbus-history", daemon=True)
        self._thread.start()

    def samples(self) -> list[Sample]:
        """Return what there is, oldest first."""
        return list(self._samples)

    def close(self) -> None:
        """End. Twice is harmless."""
        self._closing.set()
        self._thread.join()

    def _sample(self) -> None:
        """Be the thread."""
        while not self._closing.wait(self._period_s):
            self._samples.append(Sample.of(self._take()))

    def __enter__(self) -> History:
        """Return itself; it samples already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self.close()

"""What changes between reports of a broker: rates, quantiles, and how many blocks there were."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvbus.broker.status import BrokerStatus, HistogramStatus
from kvbus.ops.report import Report

__all__ = ["Place", "Trend"]

RATE_S = 5.0
"""Time over which rates are taken: long enough for a number that can be read."""

QUANTILE_S = 60.0
"""Time over which quantiles are taken: long enough for a hundredth part to be something."""

SAMPLES_MAX = 240
"""Block counts kept."""

Place = tuple[str, str]
"""Owner and medium, absent ones spelt as in filters."""


class Trend:
    """Reports of the last minute, and block counts of some more.

    Attributes:
        last: The newest report of a broker that answers; `None` before the first.
        blocks: Block counts, oldest first.
    """

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.last: Report | None = None
        self.blocks: deque[dict[Place, int]] = deque(maxlen=SAMPLES_MAX)
        self._reports: deque[tuple[float, BrokerStatus]] = deque()

    def note(self, report: Report) -> None:
        """Take a report.

        Args:
            report: A later one than the last. One of another life of the broker, or after its clock went back, begins anew.
        """
        status = report.status
        if status is None:
            return
        last = self.last
        if last is not None and (report.started_s != last.started_s or report.at_s < last.at_s):
            self._reports.clear()
            self.blocks.clear()
        self.last = report
        self._reports.append((report.at_s, status))
        while report.at_s - self._reports[0][0] > QUANTILE_S + 1:
            self._reports.popleft()
        self.blocks.append(blocks_of(status))

    def rate(self, read: Callable[[BrokerStatus], int | None]) -> float | None:
        """Return how much a count has grown a second.

        Args:
            read: The count; `None` = not there.

        Returns:
            `None` before there are two reports, or where the count was not there or went back.
        """
        if not self._reports:
            return None
        (then_s, before), (now_s, after) = self._from(RATE_S), self._reports[-1]
        then, now = read(before), read(after)
        if now_s <= then_s or then is None or now is None or now < then:
            return None
        return (now - then) / (now_s - then_s)

    def quantile(self, read: Callable[[BrokerStatus], list[HistogramStatus]], share: float) -> float | None:
        """Return below what a share of the numbers was, of the last minute and of all series together.

        Args:
            read: Histograms with the same bounds.
            share: Above 0, up to 1.

        Returns:
            An estimate within the bucket, infinity above the last bound; `None` = there were no numbers.
        """
        if not self._reports:
            return None
        before = {each.name: each.counts for each in read(self._from(QUANTILE_S)[1])}
        counts: list[int] = []
        bounds: tuple[float, ...] = ()
        for each in read(self._reports[-1][1]):
            bounds = each.bounds
            old = before.get(each.name, [0] * len(each.counts)) if len(self._reports) > 1 else [0] * len(each.counts)
            counts = counts or [0] * len(each.counts)
            counts = [sum(three) for three in zip(counts, each.counts, (-n for n in old), strict=True)]
        wanted, below, low = sum(counts) * share, 0, 0.0
        if wanted <= 0:
            return None
        for bound, count in zip(bounds, counts, strict=False):
            if below + count >= wanted:
                return low + (bound - low) * (wanted - below) / count
            below, low = below + count, bound
        return float("inf")

    def _from(self, seconds: float) -> tuple[float, BrokerStatus]:
        """Return the oldest report of so many seconds."""
        now_s = self._reports[-1][0]
        return next(each for each in self._reports if now_s - each[0] <= seconds + 0.5)


def blocks_of(status: BrokerStatus) -> dict[Place, int]:
    """Add up blocks by owner and medium, over all groups."""
    blocks: dict[Place, int] = {}
    for row in status.blocks:
        place = ("primary" if row.ownership is None else row.ownership, "none" if row.medium is None else row.medium)
        blocks[place] = blocks.get(place, 0) + row.blocks
    return dict(sorted(blocks.items()))

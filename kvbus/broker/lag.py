"""How far behind a stream is taken here, by the engine's own times.

A worker's clock may be wrong by hours, and what a batch takes on its way is not known. But the least that ever lay between a
batch's time and its arrival here, by whatever clocks, is what an idle way and both clocks' difference make; what is more than
that has been spent waiting.
"""

from __future__ import annotations

__all__ = ["Lag"]

WINDOW_NS = 60_000_000_000
"""The least is that of one to two such windows, so that a clock that is set, or drifts, is believed again after a while."""


class Lag:
    """The lag of one stream.

    Attributes:
        ts: Engine time of the newest batch that was taken, seconds since the epoch; `None` before the first.
        at_ns: When it was taken, monotonic nanoseconds.
    """

    __slots__ = ("_least_ns", "_previous_ns", "_until_ns", "at_ns", "ts")

    def __init__(self) -> None:
        """Begin before the first batch."""
        self.ts: float | None = None
        self.at_ns = 0
        self._until_ns = 0
        self._least_ns = self._previous_ns = 0.0

    def see(self, ts: float, now_ns: int) -> None:
        """Take note of a batch.

        Args:
            ts: Its time, as it came: any finite number.
            now_ns: When it is taken, monotonic nanoseconds.
        """
        delay_ns = now_ns - ts * 1e9
        if now_ns >= self._until_ns:
            self._previous_ns = delay_ns if self.ts is None else self._least_ns
            self._least_ns = delay_ns
            self._until_ns = now_ns + WINDOW_NS
        elif delay_ns < self._least_ns:
            self._least_ns = delay_ns
        self.ts, self.at_ns = ts, now_ns

    def behind_ns(self, now_ns: int) -> float:
        """Return by how much its newest batch is older than it would be without waiting; 0 before the first.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        if self.ts is None:
            return 0.0
        return now_ns - self.ts * 1e9 - min(self._least_ns, self._previous_ns)

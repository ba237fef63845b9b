"""Virtual time: what is due happens in order of time, and in order of asking at one time."""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["MS", "SECOND", "Clock"]

MS = 1_000_000
SECOND = 1_000_000_000


class Clock:
    """Time and what is due.

    Attributes:
        now_ns: Virtual time, nanoseconds since the beginning of the run.
    """

    def __init__(self) -> None:
        """Begin at one second, so that no time is 0."""
        self.now_ns = SECOND
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._ties = 0

    def at(self, when_ns: int, action: Callable[[], None]) -> int:
        """Plan an action.

        Args:
            when_ns: When; a time that is over means now, behind what is due already.
            action: What to do.

        Returns:
            When it will be done.
        """
        when_ns = max(when_ns, self.now_ns)
        self._ties += 1
        heapq.heappush(self._due, (when_ns, self._ties, action))
        return when_ns

    def after(self, delay_ns: int, action: Callable[[], None]) -> int:
        """Plan an action for some time from now; as `at`."""
        return self.at(self.now_ns + delay_ns, action)

    def run_next(self, until_ns: int) -> bool:
        """Do the next action.

        Args:
            until_ns: Last time at which an action may be due.

        Returns:
            False when nothing is due until then; the time is `until_ns` now.
        """
        if not self._due or self._due[0][0] > until_ns:
            self.now_ns = max(self.now_ns, until_ns)
            return False
        when_ns, _, action = heapq.heappop(self._due)
        self.now_ns = when_ns
        action()
        return True

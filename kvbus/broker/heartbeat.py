"""When a view that has nothing to say shows that it is alive (rule V5)."""

from __future__ import annotations

__all__ = ["Heartbeat"]

LONGEST_NS = 600_000_000_000
"""Longest wait: an idle view of a day uses 150 numbers, and a lost tail is found within ten minutes."""


class Heartbeat:
    """Doubling waits from the last batch on.

    Attributes:
        due_ns: When the next empty batch is due, monotonic nanoseconds; `None` = never, or not before a batch has been sent.
    """

    __slots__ = ("_first_ns", "_wait_ns", "due_ns")

    def __init__(self, first_ns: int) -> None:
        """Wait for the first batch.

        Args:
            first_ns: Silence before the first heartbeat, nanoseconds; 0 = never send one.
        """
        self._first_ns = first_ns
        self._wait_ns = first_ns
        self.due_ns: int | None = None

    def sent(self, now_ns: int) -> None:
        """Note that a batch has gone out.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        if self._first_ns:
            self._wait_ns = self._first_ns
            self.due_ns = now_ns + self._first_ns

    def beat(self, now_ns: int) -> bool:
        """Tell whether an empty batch is due, and plan the next.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        if self.due_ns is None or now_ns < self.due_ns:
            return False
        self._wait_ns = min(self._wait_ns * 2, LONGEST_NS)
        self.due_ns = now_ns + self._wait_ns
        return True

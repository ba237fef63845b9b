"""How a command that runs until it is told to stop hears signals: SIGTERM, Ctrl-C, and SIGHUP, which asks to read files again.

Without a race and without a traceback: a handler only takes note, and the waiting main thread acts.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopSignal"]

TURN_S = 0.25
"""How often a waiting command looks whether what it waits for has ended by itself."""


class StopSignal:
    """Remembers the first SIGTERM or SIGINT while it is active, and every SIGHUP where asked to; the main thread only."""

    def __init__(self, on_hangup: Callable[[], None] | None = None) -> None:
        """Not active yet.

        Args:
            on_hangup: What `wait` does after a SIGHUP, once for several that come together; `None` = SIGHUP is left alone.
        """
        self._told = threading.Event()
        self._has_hung_up = False
        self._on_hangup = on_hangup
        self._before: dict[int, Any] = {}

    @property
    def is_told(self) -> bool:
        """Whether a signal has come."""
        return self._told.is_set()

    def wait(self, seconds: float | None, has_ended: Callable[[float], bool]) -> None:
        """Wait for a signal to stop, for the time limit, or for something else to end.

        Args:
            seconds: Time limit; `None` = none.
            has_ended: Waits up to so many seconds and says whether it has ended.

        Raises:
            BaseException: What `has_ended` raises, or what a SIGHUP has led to.
        """
        left = float("inf") if seconds is None else seconds
        while left > 0 and not self._told.is_set():
            turn = min(TURN_S, left)
            if has_ended(turn):
                return
            left -= turn
            if self._has_hung_up and self._on_hangup is not None:
                self._has_hung_up = False
                self._on_hangup()

    def _hear_hangup(self, number: int, frame: FrameType | None) -> None:
        self._has_hung_up = True

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._told.set()

    def __enter__(self) -> StopSignal:
        """Begin to listen."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._hear)
        if self._on_hangup is not None:
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._hear_hangup)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

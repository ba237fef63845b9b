"""Where log lines go and how they look.

Log events are fixed snake_case phrases with keys, at edges only (start, gap opened, gap closed, restart), never one a batch, and
never with token ids. They go to stderr, because stdout belongs to data: JSON lines, or readable ones on a terminal.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, TextIO

from kvbus.broker.notices import Notice

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = ["LEVELS", "NoticeLog", "open_log"]

MINUTE_S = 60.0

LINES_MAX = 50
"""Lines of one kind about one worker in a minute: enough to see that it flaps, and how."""

LINES_OF_ALL_MAX = 200
"""Lines of one kind about all workers in a minute: a rack that goes is told in full."""

QUEUE_MAX = 1_000
"""Lines that wait to be written; more only where nobody takes them."""

CLOSE_S = 1.0

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def open_log(level: str = "info", stream: TextIO | None = None) -> FilteringBoundLogger:
    """Return a logger that writes one line an event.

    structlog is imported here and not at the top, because it costs a tenth of a second that most commands need not pay.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        stream: Where to write; default stderr as it is at the time of the call.

    Returns:
        A logger whose methods `debug`, `info`, `warning` and `error` take an event name and keys.

    Raises:
        KeyError: An unknown level.
    """
    import structlog

    target = sys.stderr if stream is None else stream
    render: structlog.typing.Processor
    render = structlog.dev.ConsoleRenderer() if target.isatty() else structlog.processors.JSONRenderer()
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(target),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        cache_logger_on_first_use=True,
    )
    return logger


class NoticeLog:
    """Writes a broker's notices without being in its way: a context manager, and a function of one notice for any thread.

    Whoever tells it something never waits: lines are written by a thread, and where that cannot keep up (nobody reads stderr)
    they are left out. So are lines of a kind beyond so many a minute, as flapping connections make them; how many, of which
    kinds, is a line itself, at the end of the minute.
    """

    def __init__(self, log: FilteringBoundLogger, now_s: Callable[[], float] = time.monotonic) -> None:
        """Not active yet.

        Args:
            log: Where to write.
            now_s: Clock, seconds.
        """
        self._log = log
        self._now_s = now_s
        self._minute_ends_s = now_s() + MINUTE_S
        self._lock = threading.Lock()
        self._told: Counter[tuple[str, str | None]] = Counter()
        self._left_out: Counter[str] = Counter()
        self._lines: SimpleQueue[Notice | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="kvbus-log", daemon=True)

    def __call__(self, notice: Notice) -> None:
        """Take a notice. Never blocks, never raises.

        Args:
            notice: What to write.
        """
        now_s = self._now_s()
        about, everybody = (notice.name, str(notice.fields.get("worker", ""))), (notice.name, None)
        with self._lock:
            if now_s >= self._minute_ends_s:
                self._minute_ends_s = now_s + MINUTE_S
                self._sum_up()
            is_too_much = self._told[about] >= LINES_MAX or self._told[everybody] >= LINES_OF_ALL_MAX
            if is_too_much or self._lines.qsize() >= QUEUE_MAX:
                self._left_out[notice.name] += 1
                return
            self._told[about] += 1
            self._told[everybody] += 1
            self._lines.put(notice)

    def _sum_up(self) -> None:
        """Say what was left out, and begin to count anew."""
        if self._left_out:
            self._lines.put(Notice("warning", "log_lines_left_out", {"lines": dict(self._left_out)}))
        self._told.clear()
        self._left_out.clear()

    def _write(self) -> None:
        """Be the thread."""
        while (notice := self._lines.get()) is not None:
            with suppress(OSError, ValueError):  # stderr is closed or full, and there is nowhere to say so
                getattr(self._log, notice.level)(notice.name, **notice.fields)

    def __enter__(self) -> NoticeLog:
        """Begin to write."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is left, if that does not take long."""
        with self._lock:
            self._sum_up()
        self._lines.put(None)
        self._thread.join(CLOSE_S)

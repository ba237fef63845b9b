"""Where log lines go and how they look.

Log events are fixed snake_case phrases with keys, at edges only (start, gap opened, gap closed, restart), never one a batch, and
never with token ids. They go to stderr, because stdout belongs to data: JSON lines, or readable ones on a terminal.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

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

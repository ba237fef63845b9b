"""Waiting for what another thread or process does, without sleeping and without a guess how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import zmq

__all__ = ["wait_until"]

PATIENCE_S = 60.0
"""Longest wait for what must happen; a failing test is the only one that waits so long."""


def wait_until(is_so: Callable[[], object], what: str = "it did not happen") -> None:
    """Look again and again until something is so: figures follow what they count by a moment.

    Args:
        is_so: Looks.
        what: Said where it never is.
    """
    pause = zmq.Poller()  # polls nothing: waits without being in anybody's way
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s, what
        pause.poll(5)

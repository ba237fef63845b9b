"""Whether a worker is there: connected, never seen, or departed (rule A6).

* **Not seen yet.** Nothing has connected. The worker counts in the quorum all the same, for as long as it takes: a group of four
  is four, and what three of them hold is not what the group holds. It shows as `no_peer`, and the log says so after seconds,
  because the usual reason is that both ends connect and nobody binds.
* **Departed.** Its connection has been down for `worker_timeout_s`, or its replay endpoint has left every question unanswered for
  as long, with nothing live meanwhile. Silence alone is neither: idle engines are silent.
* **Back.** It is connected again, or says something while its connection is up.

`inproc` sockets have no connections to watch: there a worker is present once it has been heard.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["Presence", "WorkerState"]

WorkerState: TypeAlias = Literal["no_peer", "quiet", "live", "down", "unclear", "departed", "set_aside"]
"""How it stands with a worker, as people see it:

* `no_peer`: never connected. `quiet`: connected, but nothing has come. `live`: batches come. `down`: its connection has ended.
* `unclear`: one of several workers of which one has gone, and nobody knows which (`seats`).
* `departed`: for so long that the others go on without it, or wait for it under the policy `hold`.
* `set_aside`: it has lost too much lately, and is not waited for until a quiet minute has passed.
"""

LATE_NS = 3_000_000_000
"""A worker that nothing was heard of for so long is worth a line: sockets connect in milliseconds, and an operator who has just
started something is still looking."""

LATE_NS_MAX = 600_000_000_000
"""Each further line waits twice as long, up to ten minutes: enough to be found in the log, too little to fill it."""


class Presence:
    """What is known of one socket's connections, and since when.

    Attributes:
        connections: Peers connected now.
        has_been_up: Whether there ever was one.
        down_since_ns: When the last one ended; `None` while one is up, and before the first.
        departed_at_ns: When it was declared departed; `None` while it counts as being there.
        late_at_ns: When to say that nothing has come yet; `None` = not yet waited for, or not any more.
        is_awaited: Whether the wait for a first batch has begun, over or not.
    """

    __slots__ = (
        "_late_ns",
        "connections",
        "departed_at_ns",
        "down_since_ns",
        "has_been_up",
        "is_awaited",
        "late_at_ns",
    )

    def __init__(self) -> None:
        """Nobody is there."""
        self.connections = 0
        self.has_been_up = False
        self.down_since_ns: int | None = None
        self.departed_at_ns: int | None = None
        self.late_at_ns: int | None = None
        self.is_awaited = False
        self._late_ns = 0

    def connected(self) -> None:
        """Note that a connection has come up."""
        self.connections += 1
        self.has_been_up = True
        self.down_since_ns = None

    def disconnected(self, now_ns: int) -> None:
        """Note that a connection has ended.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        self.connections = max(0, self.connections - 1)
        if not self.connections:
            self.down_since_ns = now_ns

    def gone_since_ns(self, unanswered_since_ns: int | None) -> int | None:
        """Return since when the worker has been gone, or `None` while it is there or was never seen.

        Args:
            unanswered_since_ns: Since when its replay endpoint has left questions unanswered and nothing has come live.
        """
        times = [at_ns for at_ns in (self.down_since_ns, unanswered_since_ns) if at_ns is not None]
        return min(times, default=None)

    def await_first(self, now_ns: int) -> None:
        """Begin to wait for the first batch.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        self.is_awaited = True
        self._late_ns = LATE_NS
        self.late_at_ns = now_ns + LATE_NS

    def is_late(self, now_ns: int) -> bool:
        """Tell whether it is time to say that nothing has come yet, and plan the next time.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        if self.late_at_ns is None or now_ns < self.late_at_ns:
            return False
        self._late_ns = min(2 * self._late_ns, LATE_NS_MAX)
        self.late_at_ns = now_ns + self._late_ns
        return True

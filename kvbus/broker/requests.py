"""Replay requests to workers: which are open, and for whom."""

from __future__ import annotations

from typing import NamedTuple

from kvbus.broker.intake import Source, Stream
from kvbus.wire.frames import replay_request

__all__ = ["ASKS_MAX", "Ask", "Requests", "UpstreamRequest"]

ASKS_MAX = 16
"""Replay requests open at once, over all streams: a broker that starts under load asks all workers, and their answers share
its one thread. A request that waits for its turn loses nothing."""

DISCOVERY_NS = 5_000_000_000
"""How often a worker from which nothing has come is asked again what it has published."""


class UpstreamRequest(NamedTuple):
    """One message to a worker's replay ROUTER, on a DEALER of its own, or the end of one.

    Attributes:
        source_index: Whose replay endpoint.
        key: Names the request; to be passed in with its replies.
        frames: `[empty, start:8 BE]`; empty list = the request is over, close its DEALER.
    """

    source_index: int
    key: int
    frames: list[bytes]


class Ask(NamedTuple):
    """One open replay request.

    Attributes:
        source_index: Whom it went to.
        stream: Whose it is; `None` = to find out what streams there are.
        request: The stream's own name for it.
    """

    source_index: int
    stream: Stream | None
    request: int


class Requests:
    """The open replay requests of a broker, at most `ASKS_MAX`."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: dict[int, Ask] = {}
        self._count = 0
        self._messages: list[UpstreamRequest] = []

    def get(self, key: int) -> Ask | None:
        """Return the request of that key; `None` = it is over."""
        return self._open.get(key)

    def take(self) -> list[UpstreamRequest]:
        """Return what is to be sent, in order, and forget it."""
        messages, self._messages = self._messages, []
        return messages

    def ask(self, source: Source, stream: Stream | None, start_seq: int, request: int, now_ns: int) -> None:
        """Send a request on a connection of its own, or put it off while too many are open.

        Args:
            source: Whom to ask.
            stream: Who asks; `None` = to find out what streams there are.
            start_seq: First number wanted.
            request: The stream's own name for it.
            now_ns: Monotonic time, nanoseconds.
        """
        if len(self._open) >= ASKS_MAX:
            if stream is not None:
                stream.receiver.deferred(now_ns)
            return
        self._count += 1
        self._open[self._count] = Ask(source.index, stream, request)
        self._messages.append(UpstreamRequest(source.index, self._count, replay_request(start_seq)))

    def cancel(self, stream: Stream, request: int) -> None:
        """Give up a request of a stream, if it is open.

        Args:
            stream: Whose.
            request: The stream's own name for it.
        """
        for key, ask in self._open.items():
            if ask.stream is stream and ask.request == request:
                self.end(key)
                return

    def end(self, key: int) -> None:
        """Close the connection of a request that is over.

        Args:
            key: One that is open.
        """
        ask = self._open.pop(key)
        self._messages.append(UpstreamRequest(ask.source_index, key, []))

    def end_all_of(self, source: Source, *, only_discovery: bool = False) -> None:
        """Close the connections of all requests to one source.

        Args:
            source: Which.
            only_discovery: Leave alone those that a stream has asked.
        """
        for key, ask in list(self._open.items()):
            if ask.source_index == source.index and not (only_discovery and ask.stream is not None):
                self.end(key)

    def discover(self, source: Source, now_ns: int) -> None:
        """Ask a worker from which nothing has come what it published before we were there, and plan to ask again.

        Args:
            source: Where nothing has come.
            now_ns: Monotonic time, nanoseconds.
        """
        self.end_all_of(source, only_discovery=True)
        source.discover_at_ns = None
        if not source.streams:
            source.discover_at_ns = now_ns + DISCOVERY_NS
            self.ask(source, None, 0, 0, now_ns)

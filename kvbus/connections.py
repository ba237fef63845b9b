"""Says when the connections of a socket come and go, and which never came to be.

ZeroMQ reconnects by itself and tells nobody, while a subscriber has to know: after a reconnect the publisher may be another life
of itself. And it refuses peers, or is refused, in silence. ZeroMQ's socket monitor knows; this reads it.

**Which connection ended.** The monitor names a connection by its file descriptor when it begins and when it ends, but not when
the handshake succeeds or fails. With one handshake at a time there is no doubt. A handshake that fails of itself is ended by the
very next event; only one that was denied (ZAP) lingers. So an end is taken for that of a denied one only if it is not known to
be of a connection that was up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import TypeAlias

import zmq
import zmq.backend
from zmq.utils.monitor import parse_monitor_message

from kvbus.security.refusals import PEER_REFUSALS, PeerRefusal

__all__ = ["ConnectionChange", "ConnectionWatch", "ZmqSocket", "is_readable"]

ZmqSocket: TypeAlias = "zmq.Socket[bytes]"

# Plain numbers and the bare method: members of the enumerations cost as much again as the call.
_SOCKET_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
_get: Callable[[ZmqSocket, int], int] = zmq.backend.Socket.get  # type: ignore[assignment]

_OPENED = int(zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED)
_FAILED = int(
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_EVENTS = _OPENED | _FAILED | int(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)

_PROTOCOL_REASONS: dict[int, PeerRefusal] = {
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): "wrong_key",
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): "mechanism",
}
_TEMPORARY = 300
"""Answer of a gate to a peer that may come again later (ZeroMQ RFC 27)."""

EVENTS_MAX = 1024
"""Events taken at a time, so that a peer which connects without end cannot keep the thread."""


_numbers = itertools.count()
"""Names of watches: ZeroMQ gives a name back some time after its monitor has ended, so none may be used twice."""


def is_readable(socket: ZmqSocket) -> bool:
    """Tell whether a message waits in a socket, without waiting.

    Args:
        socket: A socket of this thread.

    Raises:
        zmq.ZMQError: The socket or its context is closed.

    Cost: 1.5 µs; `Socket.poll` builds a poller for it, 6 µs.
    """
    return _get(socket, _SOCKET_EVENTS) & _POLLIN != 0


class ConnectionChange(Enum):
    """One connection came or went."""

    UP = "up"
    """A peer finished the handshake: messages can flow."""
    DOWN = "down"
    """A connection that was up has ended."""


class ConnectionWatch:
    """The connections of one socket. Belongs to the socket's thread; `inproc` has no connections to watch.

    Attributes:
        socket: Poll it together with the watched socket; readable = `take_changes` has something.
        connections_count: Peers connected now, as far as changes have been taken.
        ups_count: Connections that have come so far.
        refusals: Peers that did not get in, or that did not let us in, by reason; every reason is there.
        has_news: Whether `refusals` has grown; whoever reads it sets it back.
        is_cut_off: Whether the last attempt to connect ended in a way after which ZeroMQ does not try again.
    """

    def __init__(self, watched: ZmqSocket, binds: bool = False) -> None:
        """Begin to watch; before bind or connect, or the first connection may be missed.

        Args:
            watched: The socket.
            binds: Whether it will bind.

        Raises:
            zmq.ZMQError: No more sockets or files in this process.
        """
        self._watched = watched
        self._binds = binds
        self.connections_count = 0
        self.ups_count = 0
        self.refusals: dict[PeerRefusal, int] = dict.fromkeys(PEER_REFUSALS, 0)
        self.has_news = False
        self.is_cut_off = False
        self.socket: ZmqSocket = watched.get_monitor_socket(_EVENTS, f"inproc://kvbus-watch-{next(_numbers)}")
        self._opening: set[int] = set()
        self._up: set[int] = set()
        self._up_unknown_count = 0
        self._denied_count = 0
        self._is_failing = False

    def take_changes(self) -> list[ConnectionChange]:
        """Take what has happened since the last call, without waiting.

        Returns:
            Changes in order; empty when nothing happened. A connection that never finished its handshake is not reported, but
            counted in `refusals`.
        """
        changes: list[ConnectionChange] = []
        for _ in range(EVENTS_MAX):
            if not is_readable(self.socket):
                break
            message = parse_monitor_message(self.socket.recv_multipart())
            event, value = int(message["event"]), int(message["value"])
            if event & _OPENED:
                self._opening.add(value)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._up_unknown_count += 1
                self.connections_count += 1
                self.ups_count += 1
                self.is_cut_off = False
                changes.append(ConnectionChange.UP)
            elif event & _FAILED:
                self._fail(event, value)
            elif self._end(value):
                self.connections_count -= 1
                changes.append(ConnectionChange.DOWN)
            self._place()
        return changes

    def redialled(self) -> None:
        """Note that a connection which was cut off has been asked for again."""
        self.is_cut_off = False

    def close(self) -> None:
        """Stop watching; before the watched socket is closed. Twice is harmless."""
        if not self.socket.closed:
            # In a context that is being terminated the monitor ends by itself.
            with suppress(zmq.ContextTerminated):
                if not self._watched.closed:
                    self._watched.disable_monitor()
            self.socket.close(0)

    def _fail(self, event: int, value: int) -> None:
        """Count a handshake that failed; its end comes as an event of its own."""
        reason: PeerRefusal = "handshake"
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._denied_count += 1
            reason = ("connections_max" if value == _TEMPORARY else "unknown_key") if self._binds else "refused"
        else:
            self._is_failing = True
            if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                reason = _PROTOCOL_REASONS.get(value, "handshake")
        # A failure that ZeroMQ takes for one of the protocol ends the attempts; other ones are repeated.
        self.is_cut_off = not self._binds and event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self.refusals[reason] += 1
        self.has_news = True

    def _end(self, descriptor: int) -> bool:
        """Tell whether what ended was up."""
        self._opening.discard(descriptor)
        if self._is_failing:
            self._is_failing = False
            return False
        if descriptor in self._up:
            self._up.discard(descriptor)
            return True
        if self._denied_count:
            self._denied_count -= 1
            return False
        self._up_unknown_count = max(0, self._up_unknown_count - 1)
        return True

    def _place(self) -> None:
        """Find out which connections are up, as soon as there is only one answer."""
        if self._up_unknown_count >= len(self._opening):
            self._up |= self._opening
            self._opening.clear()
            self._up_unknown_count = 0
        if not self._opening:
            self._denied_count = 0

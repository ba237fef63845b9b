"""Says when the connections of a socket come and go.

ZeroMQ reconnects by itself and tells nobody, while a subscriber has to know: after a reconnect the publisher may be another life
of itself. ZeroMQ's socket monitor knows; this reads it.
"""

from __future__ import annotations

import itertools
from enum import Enum
from typing import TypeAlias

import zmq
from zmq.utils.monitor import parse_monitor_message

__all__ = ["ConnectionChange", "ConnectionWatch", "ZmqSocket"]

ZmqSocket: TypeAlias = "zmq.Socket[bytes]"

_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)


_numbers = itertools.count()
"""Names of watches: ZeroMQ gives a name back some time after its monitor has ended, so none may be used twice."""


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
    """

    def __init__(self, watched: ZmqSocket) -> None:
        """Begin to watch; before bind or connect, or the first connection may be missed.

        Args:
            watched: The socket.

        Raises:
            zmq.ZMQError: No more sockets or files in this process.
        """
        self._watched = watched
        self.connections_count = 0
        self.socket: ZmqSocket = watched.get_monitor_socket(_EVENTS, f"inproc://kvbus-watch-{next(_numbers)}")
        self._is_failing = False

    def take_changes(self) -> list[ConnectionChange]:
        """Take what has happened since the last call, without waiting.

        Returns:
            Changes in order; empty when nothing happened. A connection that never finished its handshake is not reported.
        """
        changes: list[ConnectionChange] = []
        while self.socket.poll(0):
            event = parse_monitor_message(self.socket.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connections_count += 1
                changes.append(ConnectionChange.UP)
            elif event != zmq.EVENT_DISCONNECTED:
                # A failed handshake is followed by a «disconnected» of its own, which ends nothing that was up.
                self._is_failing = True
            elif self._is_failing:
                self._is_failing = False
            else:
                self.connections_count -= 1
                changes.append(ConnectionChange.DOWN)
        return changes

    def close(self) -> None:
        """Stop watching; before the watched socket is closed. Twice is harmless."""
        if not self.socket.closed:
            if not self._watched.closed:
                self._watched.disable_monitor()
            self.socket.close(0)

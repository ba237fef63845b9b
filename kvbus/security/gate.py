"""The gate that ZeroMQ asks before it lets a peer in (ZAP, ZeroMQ RFC 27), answered by the thread that has the sockets.

pyzmq has a ready gate in a thread of its own (`zmq.auth.thread`). It is not used: every handshake would wake a second Python
thread beside the hot one, its lists could be changed and its decisions be learned through pipes only, and one more thread would
have to be ended. ZeroMQ asks while its own I/O thread goes on with other peers, and waits for the answer for as long as the
handshake may take; so the loop answers between two turns, milliseconds later at most.

There is one gate in a context. It is asked for encrypted and plain peers alike, so it also bounds how many may be connected.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import zmq

from kvbus.connections import ConnectionWatch, ZmqSocket
from kvbus.errors import ConfigError, Problem
from kvbus.security.keys import key_text

__all__ = ["DOMAIN_BYTES_MAX", "Denied", "Gate"]

_ADDRESS = "inproc://zeromq.zap.01"

_ALLOWED, _LATER, _DENIED = b"200", b"300", b"400"
"""Answers. ZeroMQ tells a denied peer so, and does not answer one that may come again, which tries anew after the handshake's
time limit: that keeps a crowd of peers that are one too many from hammering the socket."""

ANSWERS_MAX = 256
"""Questions answered at a time."""

ON_THE_WAY_NS = 10 * 10**9
"""How long a peer that was let in may take until its connection shows: the time limit of the handshake."""

DOMAIN_BYTES_MAX = 255
"""ZeroMQ's own limit."""


class Denied(NamedTuple):
    """A peer that was turned away.

    Attributes:
        address: Its IP address; empty where it has none.
        public_key: Its public key, Z85; empty for a plain peer.
    """

    address: str
    public_key: str


class _Door:
    """What holds for one socket, and who has been let in there."""

    def __init__(self, watch: ConnectionWatch, allowed: frozenset[bytes] | None, connections_max: int) -> None:
        self.allowed = allowed
        self._watch = watch
        self._connections_max = connections_max
        self._ups_seen = watch.ups_count
        self._granted_at_ns: deque[int] = deque()

    def take_place(self, now_ns: int) -> bool:
        """Let one more in, if there is room.

        Who has been let in is on the way for a moment before its connection shows; or it gave up, and never shows.
        """
        if not self._connections_max:
            return True
        granted = self._granted_at_ns
        for _ in range(self._watch.ups_count - self._ups_seen):
            if granted:
                granted.popleft()
        self._ups_seen = self._watch.ups_count
        while granted and granted[0] < now_ns - ON_THE_WAY_NS:
            granted.popleft()
        if self._watch.connections_count + len(granted) >= self._connections_max:
            return False
        granted.append(now_ns)
        return True


class Gate:
    """Decides for the bound sockets of one context. Opened, used and closed by their thread.

    Attributes:
        socket: Poll it; readable = call `answer`.
        denied: Who was turned away last, by domain.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Take the place of the context's gate.

        Args:
            context: The context.

        Raises:
            ConfigError: It has a gate already.
        """
        self.denied: dict[str, Denied] = {}
        self._doors: dict[bytes, _Door] = {}
        self.socket: ZmqSocket = context.socket(zmq.ROUTER)
        try:
            self.socket.setsockopt(zmq.LINGER, 0)
            self.socket.bind(_ADDRESS)
        except BaseException as error:
            self.socket.close(0)
            if isinstance(error, zmq.ZMQError) and error.errno == zmq.EADDRINUSE:
                reason = "has a gate already (ZAP), and can have one only; give this one a context of its own"
                raise ConfigError([Problem("context", "", reason)]) from None
            raise

    def admit(
        self, domain: str, watch: ConnectionWatch, *, allowed: frozenset[bytes] | None, connections_max: int
    ) -> None:
        """Say who may come in at a socket, from now on; who is in stays.

        Args:
            domain: Of the socket, as in its options.
            watch: Its connections.
            allowed: Public keys, 32 bytes each; `None` = anybody, plain peers included.
            connections_max: Peers at once; 0 = no limit.
        """
        self._doors[domain.encode()] = _Door(watch, allowed, connections_max)

    def allow(self, domain: str, allowed: frozenset[bytes] | None) -> None:
        """Let others in at a socket from now on; who is in stays. A socket that is not known is no matter.

        Args:
            domain: Of the socket.
            allowed: As for `admit`.
        """
        door = self._doors.get(domain.encode())
        if door is not None:
            door.allowed = allowed

    def dismiss(self, domain: str) -> None:
        """Let nobody in any more at a socket; one that is not known is no matter.

        Args:
            domain: Of the socket.
        """
        self._doors.pop(domain.encode(), None)
        self.denied.pop(domain, None)

    def answer(self, now_ns: int) -> None:
        """Answer what has been asked, without waiting.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        for _ in range(ANSWERS_MAX):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            # [identity, "", version, request id, domain, address, identity of the peer, mechanism, credentials...]
            if len(frames) < 8:
                continue
            identity, empty, version, request_id, domain, address = frames[:6]
            status = self._decide(domain, address, frames[7], frames[8:], now_ns)
            text = b"" if status == _ALLOWED else b"not allowed"
            self.socket.send_multipart([identity, empty, version, request_id, status, text, b"", b""], zmq.NOBLOCK)

    def close(self) -> None:
        """Close the gate: from now on nobody is let in. Twice is harmless."""
        if not self.socket.closed:
            self.socket.close(0)

    def _decide(self, domain: bytes, address: bytes, mechanism: bytes, credentials: list[bytes], now_ns: int) -> bytes:
        """Return the answer about one peer."""
        door = self._doors.get(domain)
        if door is None:
            return _DENIED
        key = credentials[0] if mechanism == b"CURVE" and len(credentials) == 1 else b""
        status = _ALLOWED
        if door.allowed is not None and key not in door.allowed:
            status = _DENIED
        elif not door.take_place(now_ns):
            status = _LATER
        if status != _ALLOWED:
            shown = key_text(key) if len(key) == 32 else ""
            self.denied[domain.decode(errors="replace")] = Denied(address.decode(errors="replace")[:64], shown)
        return status

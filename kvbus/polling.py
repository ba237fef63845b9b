"""Finds which sockets of a thread have messages, at a cost that grows with those that have some and not with all that there are.

`zmq.Poller` asks every socket at every turn, 0.8 µs each: with a socket and a monitor per worker that is half of what a turn of a
broker with eight workers costs, and nearly all of it with a hundred. ZeroMQ gives each socket a descriptor that becomes readable
when something has happened to it (`ZMQ_FD`), so the system can be asked instead. That descriptor tells of changes, not of
messages: whoever uses the socket in any way takes the news away, and what is left unread then makes no news. So here a socket is
asked again, at every turn, from when it was found ready until it is found empty; and so is, always, one that is also sent to.
"""

from __future__ import annotations

import selectors

import zmq

from kvbus.connections import ZmqSocket, is_readable

__all__ = ["SocketPoller"]

_POLLIN = int(zmq.POLLIN)

_ONLY_RECEIVE = (int(zmq.SUB), int(zmq.PULL), int(zmq.PAIR))
"""Kinds that are not sent to here; of PAIR sockets, monitors are meant."""


class SocketPoller:
    """Sockets and descriptors of one thread that may have something to read; a `zmq.Poller` for `POLLIN` only.

    Invariant: of a socket that is in neither `_warm` nor `_two_way` everything had been read when it was last used, so what comes
        next makes its descriptor readable.
    """

    def __init__(self) -> None:
        """Begin with nothing to watch.

        Raises:
            OSError: No more files in this process.
        """
        self._selector = selectors.DefaultSelector()
        self._descriptors: dict[ZmqSocket, int] = {}
        self._two_way: list[ZmqSocket] = []
        self._warm: dict[ZmqSocket, None] = {}

    @property
    def sockets(self) -> list[ZmqSocket]:
        """The registered sockets, in order."""
        return list(self._descriptors)

    def register(self, what: ZmqSocket | int, flags: int = _POLLIN) -> None:
        """Watch a socket, or a descriptor of something else.

        Args:
            what: A ZeroMQ socket of this thread, or a descriptor; not registered yet. To be unregistered before it is closed.
            flags: `zmq.POLLIN`, as for a `zmq.Poller`.

        Raises:
            ValueError: Other flags.
            KeyError: It is registered.
            zmq.ZMQError: The socket or its context is closed.
        """
        if int(flags) != _POLLIN:
            raise ValueError("only POLLIN can be watched")
        if isinstance(what, int):
            self._selector.register(what, selectors.EVENT_READ)
            return
        descriptor = int(what.getsockopt(zmq.FD))
        self._selector.register(descriptor, selectors.EVENT_READ, what)
        self._descriptors[what] = descriptor
        if what.getsockopt(zmq.TYPE) in _ONLY_RECEIVE:
            self._warm[what] = None  # something may have come before
        else:
            self._two_way.append(what)

    def unregister(self, what: ZmqSocket | int) -> None:
        """Watch it no more.

        Args:
            what: As registered.

        Raises:
            KeyError: It is not registered.
        """
        if isinstance(what, int):
            self._selector.unregister(what)
            return
        self._selector.unregister(self._descriptors.pop(what))
        self._warm.pop(what, None)
        if what in self._two_way:
            self._two_way.remove(what)

    def touched(self, socket: ZmqSocket) -> None:
        """Say that a socket was read from without having been found ready, so that it is asked again.

        Args:
            socket: A registered one.
        """
        self._warm[socket] = None

    def poll(self, timeout_ms: int | None = None) -> list[ZmqSocket | int]:
        """Wait until something can be read.

        Args:
            timeout_ms: Longest wait, milliseconds; `None` or negative = no limit.

        Returns:
            What is ready: sockets and descriptors as they were registered, each once. Empty when the time is up, or when news
            came that is no message.

        Raises:
            zmq.ZMQError: A socket or its context is closed.

        Cost: 3 µs, 1.5 µs for each socket that is ready or is also sent to, whatever the number of others.
        """
        ready: dict[ZmqSocket | int, None] = {}
        for socket in self._two_way:
            if is_readable(socket):
                ready[socket] = None
        for socket in tuple(self._warm):
            if is_readable(socket):
                ready[socket] = None
            else:
                del self._warm[socket]
        if ready:
            timeout_s: float | None = 0.0
        else:
            timeout_s = None if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1000
        for key, _ in self._selector.select(timeout_s):
            socket = key.data
            if socket is None:
                ready[key.fd] = None
            elif socket not in ready and is_readable(socket):
                ready[socket] = None
                if socket not in self._two_way:
                    self._warm[socket] = None
        return list(ready)

    def close(self) -> None:
        """Watch nothing any more; what was registered stays open. Twice is harmless."""
        self._selector.close()
        self._descriptors.clear()
        self._two_way.clear()
        self._warm.clear()

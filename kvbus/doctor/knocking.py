"""Knocks at endpoints with plain sockets: is somebody there, and who? One of the two shells of this room.

Many at a time, in one thread, within a time limit. A peer sees a connection that comes, greets and goes; nothing is subscribed.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from kvbus.doctor.evidence import Contact, Knock
from kvbus.doctor.zmtp import Greeting, Handshake, Stage
from kvbus.endpoints import Endpoint

__all__ = ["knock_at"]

_READ_BYTES = 4_096

LATE_LOOKS_MAX = 3
"""Looks once the time is over, at what has come by then: connected, greeted, answered. A machine that stood still for a moment
would else make an unreachable peer of one that has long answered."""

_WEB = b"GET / HTTP/1.0\r\n\r\n"
_WEB_S = 1.0
"""How long a web server may take to answer what it cannot."""


def knock_at(endpoints: Sequence[Endpoint], seconds: float) -> list[Knock]:
    """Try to reach each of several endpoints.

    Args:
        endpoints: `tcp` or `ipc`, to be connected to.
        seconds: How long to wait for an answer, > 0. Names are resolved before, which the system may take longer for.

    Returns:
        What came of it, in the same order.
    """
    visits = [_Visit(endpoint) for endpoint in endpoints]
    _go(visits, seconds)
    # Who says nothing may be a web server, which waits for a whole line.
    again = {index: _Visit(endpoints[index], _WEB) for index, visit in enumerate(visits) if visit.has_heard_nothing}
    _go(list(again.values()), min(seconds, _WEB_S))
    for index, visit in again.items():
        if visit.knock.greeting is not None and visit.knock.greeting.stage is Stage.FOREIGN:
            visits[index] = visit
    return [visit.knock for visit in visits]


def _go(visits: Sequence[_Visit], seconds: float) -> None:
    """Pay visits, all at once."""
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for visit in visits:
            if visit.begin():
                selector.register(visit.socket, selectors.EVENT_WRITE, visit)
        late_looks = 0
        while selector.get_map() and late_looks < LATE_LOOKS_MAX:
            left_s = until - time.monotonic()
            late_looks += left_s <= 0
            for key, _ in selector.select(max(0.0, left_s)):
                visit = key.data
                if visit.go_on():
                    selector.modify(visit.socket, selectors.EVENT_READ, visit)
                else:
                    selector.unregister(visit.socket)
                    visit.socket.close()
    for visit in visits:
        visit.socket.close()


class _Visit:
    """One connection.

    Attributes:
        socket: Its socket.
        knock: What has come of it so far.
    """

    def __init__(self, endpoint: Endpoint, says: bytes = b"") -> None:
        self._endpoint = endpoint
        self._handshake = Handshake()
        if says:
            self._handshake.to_send = says
        self._has_heard = False
        self._is_connected = False
        self.socket = socket.socket()
        self.knock = Knock(Contact.UNREACHABLE, detail="no answer in time")

    @property
    def has_heard_nothing(self) -> bool:
        """Whether somebody took the connection and has not said a byte."""
        return self.knock.contact is Contact.SILENT and not self._has_heard

    def begin(self) -> bool:
        """Begin to connect; false if it is over already."""
        try:
            family, address = _address_of(self._endpoint)
        except (OSError, UnicodeError) as error:
            self.knock = Knock(Contact.UNRESOLVED, detail=_words(error))
            return False
        if family != self.socket.family:
            self.socket.close()
            self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        try:
            code = self.socket.connect_ex(address)
        except OSError as error:
            self.knock = Knock(Contact.UNREACHABLE, detail=_words(error))
            return False
        return code in (0, errno.EINPROGRESS, errno.EAGAIN) or self._fail(code)

    def go_on(self) -> bool:
        """Take what has happened; false if it is over."""
        if not self._is_connected:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                return self._fail(code)
            self._is_connected = True
            self.knock = Knock(Contact.SILENT)
        try:
            if self.knock.greeting is None:
                self.knock = Knock(Contact.SILENT, Greeting(Stage.BEGUN))
                self._send()
                return True
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            self.knock = Knock(Contact.CLOSED, detail=_words(error))
            return False
        if not data:
            self.knock = Knock(Contact.CLOSED, self.knock.greeting)
            return False
        self._has_heard = True
        greeting = self._handshake.receive(data)
        is_over = greeting.stage is not Stage.BEGUN
        self.knock = Knock(Contact.GREETED if is_over else Contact.SILENT, greeting)
        with suppress(OSError):  # it may have gone, which is told by what comes next, if anything has to
            self._send()
        return not is_over

    def _send(self) -> None:
        """Say what is to be said; some dozen bytes, for which a new connection has room."""
        if self._handshake.to_send:
            self.socket.send(self._handshake.to_send)
            self._handshake.to_send = b""

    def _fail(self, code: int) -> bool:
        """Note why there is no connection."""
        gone = (errno.ECONNREFUSED, errno.ENOENT)
        self.knock = Knock(Contact.REFUSED if code in gone else Contact.UNREACHABLE, detail=os.strerror(code).lower())
        return False


def _address_of(endpoint: Endpoint) -> tuple[socket.AddressFamily, tuple[str, int] | str]:
    """Return where to connect; IPv4 first, as ZeroMQ does.

    Raises:
        OSError: The name does not resolve.
        UnicodeError: It is no name that could.
    """
    if endpoint.transport == "ipc":
        path = endpoint.path
        return socket.AF_UNIX, f"\0{path[1:]}" if path.startswith("@") else path
    found = socket.getaddrinfo(endpoint.host.strip("[]"), endpoint.port, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _words(error: Exception) -> str:
    """Return what the system says, without its number."""
    return (getattr(error, "strerror", None) or str(error)).lower()

"""The greeting of the ZMTP protocol, read by hand: what kind of socket is at the other end, and which security it asks for.

ZeroMQ itself retries in silence whatever is wrong: a port where a web server listens, a publisher that wants CURVE, a ROUTER in
place of a PUB. So before a ZeroMQ socket is opened, the first bytes of a connection are exchanged here. We listen to who they
are, say who we are where that ends the handshake well, and leave: the peer sees a connection that came and went, and has nothing
to complain about.

```
greeting   FF 00×7 01 7F | 03 minor | mechanism, 20 bytes | as-server | 00×31
READY      04 size | 05 READY | (name size, name, value size:4 BE, value)…
```

Convention: ZeroMQ RFC 37 (ZMTP 3.1); 23 (ZMTP 3.0) is the same as far as it is read here.
"""

from __future__ import annotations

from enum import Enum

import msgspec

__all__ = ["OPENING", "Greeting", "Handshake", "Stage"]

_GREETING_BYTES = 64
_SIGNATURE_BYTES = 10
_COMMAND, _LONG_COMMAND = 0x04, 0x06

OPENING = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03\x00"
"""What we say first: that we speak ZMTP 3.0. The peer then says which security it wants; told ours before, a libzmq that wants
another one hangs up without a word."""

_REST = b"NULL".ljust(20, b"\0") + bytes(32)
"""What we say to a peer without security."""

_OPPOSITES = {"PUB": b"SUB", "XPUB": b"SUB", "ROUTER": b"DEALER"}
"""What we say that we are, to a peer that serves many and does not mind one that leaves. To others we say nothing, and just go: a
SUB that counts its publishers would miss us."""

_READ_MAX = 4_096
"""Bytes of a handshake that are looked at: libzmq's takes about a hundred."""


class Stage(Enum):
    """How far a handshake has come."""

    BEGUN = "begun"
    """Not enough has arrived."""
    FOREIGN = "foreign"
    """The first bytes are not ZMTP's."""
    OLD = "old"
    """ZMTP, of a version before 3.0, which tells nothing more."""
    SECURED = "secured"
    """The peer asks for a mechanism other than NULL, and says no more to us."""
    KNOWN = "known"
    """The peer has said what kind of socket it is."""
    REFUSED = "refused"
    """The peer has answered with an error, or with what is no READY."""


class Greeting(msgspec.Struct, frozen=True):
    """Who the peer says that it is.

    Attributes:
        stage: How far it came.
        mechanism: `NULL`, `PLAIN`, `CURVE`, …; empty where it was not said.
        socket_type: `PUB`, `XPUB`, `ROUTER`, …; empty where it was not said.
        opening: The first bytes of what is not ZMTP, as printable text; for an HTTP server its status line.
    """

    stage: Stage
    mechanism: str = ""
    socket_type: str = ""
    opening: str = ""


class Handshake:
    """Reads what a peer sends, as it comes.

    Attributes:
        to_send: What is to be said next; whoever sends it empties it.
    """

    def __init__(self) -> None:
        """Nothing has come yet."""
        self.to_send = OPENING
        self._data = b""
        self._has_answered = False
        self._has_said_goodbye = False

    def receive(self, data: bytes) -> Greeting:
        """Take further bytes.

        Args:
            data: As they came, in any portions.

        Returns:
            What is known now; final unless its stage is `BEGUN`.
        """
        self._data = (self._data + data)[:_READ_MAX]
        seen = self._data
        if not _may_be_signature(seen[:_SIGNATURE_BYTES]):
            return Greeting(Stage.FOREIGN, opening=_printable(seen))
        if len(seen) > _SIGNATURE_BYTES and seen[_SIGNATURE_BYTES] < 3:
            return Greeting(Stage.OLD)
        if len(seen) < _GREETING_BYTES:
            return Greeting(Stage.BEGUN)
        mechanism = seen[12:32].rstrip(b"\0").decode("ascii", "replace")
        if mechanism != "NULL":
            return Greeting(Stage.SECURED, mechanism)
        if not self._has_answered:
            self._has_answered = True
            self.to_send += _REST
        greeting = _ready(seen[_GREETING_BYTES:], mechanism)
        opposite = _OPPOSITES.get(greeting.socket_type)
        if opposite is not None and not self._has_said_goodbye:
            self._has_said_goodbye = True
            self.to_send += _ready_of(opposite)
        return greeting


def _may_be_signature(start: bytes) -> bool:
    """Whether the first bytes are those of ZMTP, as far as they have come: FF, eight of anything, then a set lowest bit."""
    return (not start or start[0] == 0xFF) and (len(start) < _SIGNATURE_BYTES or bool(start[9] & 1))


def _ready(data: bytes, mechanism: str) -> Greeting:
    """Read the first command behind the greeting."""
    begun = Greeting(Stage.BEGUN, mechanism)
    refused = Greeting(Stage.REFUSED, mechanism)
    if len(data) < 2:
        return begun
    if data[0] == _COMMAND:
        start, size = 2, data[1]
    elif data[0] == _LONG_COMMAND:
        start, size = 9, int.from_bytes(data[1:9], "big")
    else:
        return refused
    if size > _READ_MAX - _GREETING_BYTES - start:
        return refused
    if len(data) < start + size:
        return begun
    body = data[start : start + size]
    if body[:6] != b"\x05READY":
        return refused
    properties = _properties(body[6:])
    socket_type = properties.get("socket-type", b"").decode("ascii", "replace")
    return Greeting(Stage.KNOWN, mechanism, socket_type) if socket_type else refused


def _ready_of(socket_type: bytes) -> bytes:
    """Write the command by which we say what we are."""
    body = b"\x05READY" + b"\x0bSocket-Type" + len(socket_type).to_bytes(4, "big") + socket_type
    body += b"\x08Identity" + bytes(4)
    return bytes((_COMMAND, len(body))) + body


def _properties(data: bytes) -> dict[str, bytes]:
    """Read the metadata of a READY; names are without case. What is cut off is left out."""
    found: dict[str, bytes] = {}
    while data:
        name_stop = 1 + data[0]
        value_start = name_stop + 4
        value_stop = value_start + int.from_bytes(data[name_stop:value_start], "big")
        if value_stop > len(data):
            break
        found[data[1:name_stop].decode("ascii", "replace").lower()] = data[value_start:value_stop]
        data = data[value_stop:]
    return found


def _printable(data: bytes) -> str:
    """Return the first line of foreign bytes as text that can be shown."""
    return ascii(data.split(b"\r\n")[0][:40].decode("latin-1"))[1:-1]

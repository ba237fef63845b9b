"""What was observed of one target: everything that a diagnosis may be built on."""

from __future__ import annotations

from enum import Enum

import msgspec

from kvbus.doctor.answers import Answers
from kvbus.doctor.heard import Heard
from kvbus.doctor.targets import Target
from kvbus.doctor.zmtp import Greeting
from kvbus.endpoints import Endpoint

__all__ = ["PUBLISHING", "Contact", "Evidence", "Knock"]

PUBLISHING = ("PUB", "XPUB")
"""Kinds of sockets that publish."""


class Contact(Enum):
    """What came of knocking at an endpoint."""

    GREETED = "greeted"
    """Somebody answered; the greeting says who."""
    UNRESOLVED = "unresolved"
    """The name is not known."""
    REFUSED = "refused"
    """Nobody listens there."""
    UNREACHABLE = "unreachable"
    """No answer, or no way there."""
    CLOSED = "closed"
    """The connection was taken and closed before a greeting."""
    SILENT = "silent"
    """The connection was taken, and then nothing was said."""


class Knock(msgspec.Struct, frozen=True):
    """One attempt to reach an endpoint.

    Attributes:
        contact: What came of it.
        greeting: Who answered, where somebody did.
        detail: The system's own words where it failed.
    """

    contact: Contact
    greeting: Greeting | None = None
    detail: str = ""

    @property
    def socket_type(self) -> str:
        """The kind of socket that answered; empty where none did or it did not say."""
        return "" if self.greeting is None else self.greeting.socket_type


class Evidence(msgspec.Struct):
    """What was seen of one target.

    Attributes:
        target: What was looked at.
        heard: What came.
        seconds: How long it was listened to.
        knock: What came of knocking at its endpoint; `None` where the listening side binds and could.
        bind_error: Why it could not be bound, where it should be; empty = it could.
        connections: Times that a peer was connected to the listening socket.
        disconnections: Times that one went.
        refusals: Handshakes that failed at the listening socket, by reason.
        callers: Peers that connected while the doctor listened where nobody did; `None` = it did not.
        replay_knock: What came of knocking at its replay endpoint; `None` where none is known.
        answers: What its replay endpoint said.
        replay_nearby: Where a replay endpoint was found that nobody named.
        publisher_nearby: Where a publisher was found, when nobody listens at the endpoint.
    """

    target: Target
    heard: Heard
    seconds: float = 0.0
    knock: Knock | None = None
    bind_error: str = ""
    connections: int = 0
    disconnections: int = 0
    refusals: dict[str, int] = msgspec.field(default_factory=dict)
    callers: int | None = None
    replay_knock: Knock | None = None
    answers: Answers = msgspec.field(default_factory=Answers)
    replay_nearby: Endpoint | None = None
    publisher_nearby: Endpoint | None = None

    @property
    def is_reached(self) -> bool:
        """Whether messages can come: a peer has been connected."""
        return self.connections > 0

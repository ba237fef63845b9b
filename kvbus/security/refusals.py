"""Why a peer did not get in, in words from a closed set, and when to say so.

ZeroMQ says nothing by itself: a peer that is refused waits in silence, or tries again for ever. Its socket monitor knows, as far
as the two sides have found out: a server that cannot read what a client sends closes the connection, and the client then knows
only that it was closed. So what a client says names every cause that looks like that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec

__all__ = ["PEER_REFUSALS", "PeerRefusal", "RefusalNews", "RefusalTeller", "Refused", "SocketStatus", "meaning_of"]

PeerRefusal: TypeAlias = Literal[
    "unknown_key",  # we bind: its key is not among those that are let in
    "connections_max",  # we bind: there are as many peers as may be
    "wrong_key",  # what was encrypted for one key met another one
    "refused",  # we connect: the other side does not let us in
    "mechanism",  # one side uses CURVE and the other does not
    "handshake",  # the connection ended before it was one
]
"""Why a peer did not get in."""

PEER_REFUSALS: tuple[PeerRefusal, ...] = get_args(PeerRefusal)

TELL_AGAIN_NS = 60 * 10**9
"""Silence after the first line about a refusal; doubled with each further one."""

TELL_AGAIN_NS_MAX = 3600 * 10**9

_BOUND = {
    "unknown_key": "its key is not in the list of those that are let in",
    "connections_max": "as many peers are connected as may be",
    "wrong_key": "it was given another public key than ours",
    "refused": "it does not let us in",
    "mechanism": "one side uses CURVE and the other does not",
    "handshake": "it went before the handshake was over: a port check, or it uses CURVE and we do not, or the other way round",
}
_CONNECTED = {
    **_BOUND,
    "refused": "it does not let us in: our public key is not in its list",
    "wrong_key": "the server key that we were given is not its own",
    "handshake": "it closes the connection: the server key is another one, or only one side uses CURVE, or it is no ZeroMQ peer",
}


def meaning_of(reason: PeerRefusal, *, binds: bool) -> str:
    """Say what a refusal means, and so what to look at.

    Args:
        reason: Why.
        binds: Whether it is our side that binds.
    """
    return (_BOUND if binds else _CONNECTED)[reason]


class SocketStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One socket and its peers.

    Attributes:
        name: What it is for, as `pub:all`, `replay:all`, `ingest` or `worker:w0`; unique among the sockets of its owner.
        endpoint: Where it is bound or connected.
        is_bound: Whether it is bound.
        is_encrypted: Whether it speaks CURVE.
        connections: Peers connected now.
        refused: Peers that did not get in, or attempts of ours to get in that failed, by reason; every reason is there.
    """

    name: str
    endpoint: str
    is_bound: bool
    is_encrypted: bool
    connections: int
    refused: dict[str, int]


class Refused(NamedTuple):
    """One line about peers that did not get in, or about us.

    Attributes:
        socket: Name of the socket.
        endpoint: Where it is.
        reason: Why.
        meaning: What that means, in words.
        peers_count: How many, since the last line about it.
        address: IP address of the last one, where that is known, else empty.
        public_key: Its public key, likewise.
    """

    socket: str
    endpoint: str
    reason: PeerRefusal
    meaning: str
    peers_count: int
    address: str = ""
    public_key: str = ""

    def fields(self) -> dict[str, Any]:
        """Return what belongs into a line of the log."""
        return {name: value for name, value in self._asdict().items() if value != ""}


class RefusalNews(NamedTuple):
    """One line for the log.

    Attributes:
        reason: Why peers were refused.
        peers_count: How many, since the last line about it.
    """

    reason: PeerRefusal
    peers_count: int


class RefusalTeller:
    """Decides for one socket when a refusal is worth a line: the first, and then at growing intervals while it goes on.

    A peer that is refused comes again every few seconds, for days; a hostile one a thousand times a second.
    """

    def __init__(self) -> None:
        """Begin with nothing told."""
        self._told: dict[PeerRefusal, int] = {}
        self._again_at_ns: dict[PeerRefusal, int] = {}
        self._pause_ns: dict[PeerRefusal, int] = {}

    def take_news(self, counts: Mapping[PeerRefusal, int], now_ns: int) -> list[RefusalNews]:
        """Return what is worth a line now.

        Args:
            counts: Refusals so far, by reason.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            At most one for each reason, in the order of the reasons.
        """
        news = []
        for reason in PEER_REFUSALS:
            count = counts.get(reason, 0) - self._told.get(reason, 0)
            if count <= 0 or now_ns < self._again_at_ns.get(reason, now_ns):
                continue
            pause_ns = self._pause_ns.get(reason, TELL_AGAIN_NS)
            self._told[reason] = counts[reason]
            self._again_at_ns[reason] = now_ns + pause_ns
            self._pause_ns[reason] = min(2 * pause_ns, TELL_AGAIN_NS_MAX)
            news.append(RefusalNews(reason, count))
        return news

"""The watched sockets of one loop: opens them with their keys and their gate, and says who did not get in.

A loop opens its sockets here, polls what is registered for it, and hands back what is ready. It keeps the sockets and closes
them; the gate is closed here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import zmq

from kvbus.connections import ZmqSocket
from kvbus.endpoints import Endpoint
from kvbus.security.gate import DOMAIN_BYTES_MAX, Gate
from kvbus.security.keys import CurveServer
from kvbus.security.refusals import PEER_REFUSALS, PeerRefusal, RefusalTeller, Refused, SocketStatus, meaning_of
from kvbus.sockets import BoundSocket, SocketOptions, ZmqContext, open_socket, will_bind

__all__ = ["CONNECTIONS_MAX", "Doors"]

CONNECTIONS_MAX = 1024
"""Most peers of one bound socket, by default: as many files as a process may usually have open."""

BRIEFS_MAX = 4096
"""Purposes of short-lived sockets that are remembered, only of those that were refused: one a worker."""


class Registry(Protocol):
    """What a poller has to offer here."""

    def register(self, socket: Any, flags: int, /) -> None:
        """Watch a socket for messages."""

    def unregister(self, socket: Any, /) -> None:
        """Watch it no more."""


class _Brief:
    """What came of all short-lived sockets of one purpose."""

    def __init__(self, name: str, url: str, is_encrypted: bool) -> None:
        self.name = name
        self.url = url
        self.is_bound = False
        self.is_encrypted = is_encrypted
        self.connections_count = 0
        self.refusals: dict[PeerRefusal, int] = dict.fromkeys(PEER_REFUSALS, 0)
        self.teller = RefusalTeller()


class _Door:
    """One watched socket."""

    def __init__(self, name: str, bound: BoundSocket, is_encrypted: bool, redial_ns: int) -> None:
        self.name = name
        self.bound = bound
        self.is_encrypted = is_encrypted
        self.redial_ns = redial_ns
        self.redial_at_ns = 0
        self.teller = RefusalTeller()
        assert bound.watch is not None
        self.watch = bound.watch
        self.refusals = bound.watch.refusals

    @property
    def url(self) -> str:
        return self.bound.url

    @property
    def is_bound(self) -> bool:
        return self.bound.is_bound

    @property
    def connections_count(self) -> int:
        return self.watch.connections_count


class Doors:
    """Everything in one loop that has to do with who connects. Used by the loop's thread, but for `status`.

    Attributes:
        exposed: Names of sockets that are bound without encryption where other machines can reach them.
    """

    def __init__(self, context: ZmqContext, poller: Registry, tell: Callable[[Refused], None]) -> None:
        """Begin without any socket.

        Args:
            context: The loop's.
            poller: The loop's; gate and watches are registered with it, the sockets themselves are not.
            tell: Takes what is worth a line in the log; must not block.
        """
        self.exposed: list[str] = []
        self._context = context
        self._poller = poller
        self._tell = tell
        self._gate: Gate | None = None
        self._doors: dict[str, _Door] = {}
        self._briefs: dict[str, _Brief] = {}
        self._of_watch: dict[ZmqSocket, _Door] = {}
        self._cut_off: dict[str, _Door] = {}

    def open(
        self,
        name: str,
        kind: int,
        endpoint: Endpoint,
        options: SocketOptions,
        *,
        binds_by_default: bool | None = None,
        connections_max: int = 0,
        reads_watch: bool = True,
    ) -> BoundSocket:
        """Open a socket and watch who connects.

        Args:
            name: Of the socket, unique here.
            kind: As for `open_socket`.
            endpoint: Likewise.
            options: Likewise, with its keys.
            binds_by_default: Likewise.
            connections_max: Most peers at once where it binds; 0 = no limit.
            reads_watch: Whether its watch is read here; if not, the loop reads it, and calls `look` afterwards.

        Returns:
            The socket; call `forget` before it is closed early.

        Raises:
            ConfigError: As `open_socket`; or there has to be a gate, and somebody else has it.
        """
        binds = will_bind(kind, endpoint, binds_by_default) and endpoint.transport != "inproc"
        allowed = options.curve.allowed if isinstance(options.curve, CurveServer) else None
        has_gate = binds and (allowed is not None or connections_max > 0)
        if has_gate:
            options = msgspec.structs.replace(options, gate_domain=_domain_of(name))
            self._open_gate()
        bound = open_socket(self._context, kind, endpoint, options, binds_by_default=binds_by_default, watches=True)
        is_encrypted = options.curve is not None and endpoint.transport != "inproc"
        door = _Door(name, bound, is_encrypted, options.reconnect_max_ms * 1_000_000)
        self._doors[name] = door
        if self._gate is not None and has_gate:
            self._gate.admit(options.gate_domain, door.watch, allowed=allowed, connections_max=connections_max)
        if binds and options.curve is None and not endpoint.is_local:
            self.exposed.append(name)
        if reads_watch:
            self._of_watch[door.watch.socket] = door
            self._poller.register(door.watch.socket, zmq.POLLIN)
        return bound

    def forget(self, name: str) -> None:
        """Let go of a socket that is about to be closed. Twice is harmless.

        Args:
            name: Of the socket.
        """
        door = self._doors.pop(name, None)
        self._cut_off.pop(name, None)
        if door is not None and self._of_watch.pop(door.watch.socket, None) is not None:
            self._poller.unregister(door.watch.socket)
        if door is not None and self._gate is not None:
            self._gate.dismiss(_domain_of(name))

    def allow(self, name: str, allowed: frozenset[bytes] | None) -> None:
        """Let others in from now on, at a socket that has a list; nothing happens where there is no such socket.

        Args:
            name: Of the socket.
            allowed: Public keys, 32 bytes each; `None` = anybody.
        """
        if self._gate is not None:
            self._gate.allow(_domain_of(name), allowed)

    def take(self, socket: object, now_ns: int) -> bool:
        """Do what there is to do for something that the poller found ready.

        Args:
            socket: What it found.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            Whether it was one of ours.
        """
        if self._gate is not None and socket is self._gate.socket:
            self._gate.answer(now_ns)
            return True
        door = self._of_watch.get(socket)  # type: ignore[call-overload]
        if door is None:
            return False
        door.watch.take_changes()
        self._look(door, now_ns)
        return True

    def look(self, name: str, now_ns: int) -> None:
        """Say what is new at a socket whose watch the loop has just read.

        Args:
            name: Of the socket.
            now_ns: Monotonic time, nanoseconds.
        """
        self._look(self._doors[name], now_ns)

    def finish(self, name: str, bound: BoundSocket, now_ns: int) -> None:
        """Take what a short-lived socket that was not opened here has to say, before it is closed.

        Args:
            name: What it was for; all of that name are counted together.
            bound: The socket, connected and watched.
            now_ns: Monotonic time, nanoseconds.
        """
        assert bound.watch is not None
        bound.watch.take_changes()
        if not bound.watch.has_news:
            return
        brief = self._briefs.get(name)
        if brief is None:
            if len(self._briefs) >= BRIEFS_MAX:
                return
            is_encrypted = bound.socket.getsockopt(zmq.MECHANISM) == zmq.CURVE
            brief = self._briefs[name] = _Brief(name, bound.url, is_encrypted)
        for reason, count in bound.watch.refusals.items():
            brief.refusals[reason] += count
        self._tell_news(brief, now_ns)

    @property
    def deadline_ns(self) -> int | None:
        """When `on_time` has something to do; `None` = never."""
        return min((door.redial_at_ns for door in self._cut_off.values()), default=None)

    def on_time(self, now_ns: int) -> None:
        """Connect anew where we were refused, some seconds later.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        if not self._cut_off:
            return
        for name, door in list(self._cut_off.items()):
            if not door.watch.is_cut_off:
                del self._cut_off[name]
            elif door.redial_at_ns <= now_ns:
                del self._cut_off[name]
                door.bound.redial()

    def status(self) -> list[SocketStatus]:
        """Describe every socket, and what short-lived ones met with. Any thread."""
        doors: list[_Door | _Brief] = [*list(self._doors.values()), *list(self._briefs.values())]
        return [
            SocketStatus(
                name=door.name,
                endpoint=door.url,
                is_bound=door.is_bound,
                is_encrypted=door.is_encrypted,
                connections=door.connections_count,
                refused={str(reason): count for reason, count in door.refusals.items()},
            )
            for door in doors
        ]

    def close(self) -> None:
        """Close the gate. Twice is harmless."""
        if self._gate is not None:
            self._gate.close()

    def _open_gate(self) -> None:
        if self._gate is None:
            self._gate = Gate(self._context)
            self._poller.register(self._gate.socket, zmq.POLLIN)

    def _look(self, door: _Door, now_ns: int) -> None:
        """Tell what is worth a line, and remember who has to be asked anew."""
        watch = door.watch
        if watch.is_cut_off and door.name not in self._cut_off:
            door.redial_at_ns = now_ns + door.redial_ns
            self._cut_off[door.name] = door
        if not watch.has_news:
            return
        watch.has_news = False
        self._tell_news(door, now_ns)

    def _tell_news(self, door: _Door | _Brief, now_ns: int) -> None:
        """Tell what is worth a line."""
        for news in door.teller.take_news(door.refusals, now_ns):
            meaning = meaning_of(news.reason, binds=door.is_bound)
            refused = Refused(door.name, door.url, news.reason, meaning, news.peers_count)
            if self._gate is not None and news.reason in ("unknown_key", "connections_max"):
                denied = self._gate.denied.get(_domain_of(door.name))
                if denied is not None:
                    refused = refused._replace(address=denied.address, public_key=denied.public_key)
            self._tell(refused)


def _domain_of(name: str) -> str:
    """Return what the gate calls a socket: its name, as far as ZeroMQ takes it."""
    return name.encode()[:DOMAIN_BYTES_MAX].decode(errors="ignore")

"""Sockets and connections that do what ZeroMQ's do, and nothing that they do not.

* A connection keeps order. Two connections do not keep it between them: live and replay race.
* PUB drops in silence for a subscriber that is full. ROUTER refuses (mandatory). A DEALER's messages wait for its connection,
  also for another life of its peer.
* A connection that ends forgets what is under way; what has arrived stays readable. Both ends hear of it, each in its own time,
  and the connecting one tries again.
* Whoever joins late has missed what went out before its subscription arrived. After a reconnect a SUB subscribes again only when
  its process looks at it: one that stands still misses everything until then, though its connection is up.
* A socket hears of a connection before it gets anything through it, and of its end after the last message of it.

`tests/contract` holds this against ZeroMQ.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Literal, TypeAlias

from kvbus.sim.clock import MS, SECOND, Clock
from kvbus.sim.pipe import Frames, Inbox, LinkOptions, Pipe

__all__ = ["Change", "Connection", "Network", "Routed", "Socket"]

Change: TypeAlias = Literal["up", "down"]
"""A connection came or went."""

Routed: TypeAlias = Literal["sent", "full", "gone"]
"""What became of a message to one peer of a ROUTER."""

Kind: TypeAlias = Literal["pub", "sub", "router", "dealer"]

RECONNECT_NS_MIN = 100 * MS
RECONNECT_NS_MAX = 5 * SECOND
"""As in our own sockets: waits double in between."""


class Connection:
    """Two sockets that talk.

    Attributes:
        connector: The socket that connected.
        listener: The socket that bound.
        identity: How a ROUTER names the other end.
        is_alive: Whether it still carries anything.
    """

    def __init__(self, connector: Socket, listener: Socket, identity: bytes, pipes: dict[int, Pipe]) -> None:
        """Tie two sockets together.

        Args:
            connector: The socket that connected.
            listener: The socket that bound.
            identity: How a ROUTER names the other end.
            pipes: By the number of a socket, the pipe that leads to it.
        """
        self.connector = connector
        self.listener = listener
        self.identity = identity
        self.is_alive = True
        self._pipes = pipes

    def pipe_to(self, socket: Socket) -> Pipe:
        """Return the pipe that leads to one of its ends."""
        return self._pipes[socket.number]

    def peer_of(self, socket: Socket) -> Socket:
        """Return the other end."""
        return self.listener if socket is self.connector else self.connector


class Socket:
    """A socket of one process. `Network.open` makes them.

    Attributes:
        number: Its number in the network.
        kind: What it is.
        name: Endpoint that it is bound or connected to.
        inbox: What has arrived.
        changes: Connections that came and went, for the process to take.
        connections: Those that it knows to be up, oldest first.
        is_open: Whether its process still has it.
        hwm: Messages queued at its end of each connection; 0 = no bound.
        prefix: What a SUB subscribes to.
        subscribed: What a PUB has been told to send, by connection.
        outbox: What a DEALER has to send once it is connected.
        has_subscribed: Whether a SUB has been connected before: its first subscription is on its way before it connects.
        unsubscribed: Connections through which a SUB has yet to subscribe again.
        reconnect_ns: How long it waits before the next attempt.
    """

    def __init__(
        self, number: int, kind: Kind, name: str, *, hwm: int, wake: Callable[[], None], prefix: bytes
    ) -> None:
        """Hold what a socket is.

        Args:
            number: Its number in the network.
            kind: What it is.
            name: Its endpoint.
            hwm: Messages queued at this end of each connection; 0 = no bound.
            wake: Called when there is something to read.
            prefix: What a SUB subscribes to.
        """
        self.number = number
        self.kind = kind
        self.name = name
        self.inbox = Inbox(wake)
        self.changes: deque[Change] = deque()
        self.connections: list[Connection] = []
        self.is_open = True
        self.hwm = hwm
        self.prefix = prefix
        self.subscribed: dict[Connection, bytes] = {}
        self.outbox: deque[Frames] = deque()
        self.has_subscribed = False
        self.unsubscribed: list[Connection] = []
        self.reconnect_ns = RECONNECT_NS_MIN

    def take_changes(self) -> list[Change]:
        """Take what has happened to its connections, in order."""
        changes = list(self.changes)
        self.changes.clear()
        return changes


class Network:
    """All sockets and connections of a run.

    Attributes:
        counts: What has happened, by a word.
        connections: Connections that are alive, oldest first.
    """

    def __init__(self, clock: Clock, rng: random.Random, options: LinkOptions) -> None:
        """Begin without sockets.

        Args:
            clock: Time.
            rng: For delays.
            options: Delays of all connections.
        """
        self.counts: Counter[str] = Counter()
        self.connections: list[Connection] = []
        self.options = options
        self._clock = clock
        self._rng = rng
        self._bound: dict[str, Socket] = {}
        self._blocked_until_ns: dict[str, int] = {}
        self._sockets_count = 0
        self._identity = 0

    def open(
        self,
        kind: Kind,
        name: str,
        *,
        binds: bool,
        hwm: int,
        wake: Callable[[], None],
        prefix: bytes = b"",
    ) -> Socket:
        """Open a socket and bind or connect it.

        Args:
            kind: What it is.
            name: Endpoint; of those that are open, one may be bound to it.
            binds: Whether it binds.
            hwm: Messages queued at this end of each connection; 0 = no bound.
            wake: Called when there is something to read.
            prefix: What a SUB subscribes to.
        """
        self._sockets_count += 1
        socket = Socket(self._sockets_count, kind, name, hwm=hwm, wake=wake, prefix=prefix)
        if binds:
            assert name not in self._bound, f"{name} is bound already"
            self._bound[name] = socket
        else:
            self._clock.after(self._moment(), lambda: self._try_connect(socket))
        return socket

    def close(self, socket: Socket, told_ns: int = 0) -> None:
        """Close a socket; its process ends or no longer needs it.

        Args:
            socket: The socket; closing it twice is harmless.
            told_ns: How much later than usual its peers hear of it.
        """
        if not socket.is_open:
            return
        socket.is_open = False
        if self._bound.get(socket.name) is socket:
            del self._bound[socket.name]
        for connection in [each for each in self.connections if socket in {each.connector, each.listener}]:
            self.sever(connection, told_ns)

    def sever(self, connection: Connection, told_ns: int = 0) -> None:
        """End a connection; what is under way is lost, but for what arrives within a moment.

        Args:
            connection: Which.
            told_ns: How much later than usual its ends hear of it.
        """
        if not connection.is_alive:
            return
        connection.is_alive = False
        self.connections.remove(connection)
        self.counts["severed"] += 1
        for socket in (connection.connector, connection.listener):
            end_ns = self._clock.now_ns + self._moment()
            connection.pipe_to(socket).cut(end_ns)
            if socket.is_open:
                self._clock.at(end_ns + told_ns, lambda socket=socket: self._down(socket, connection))  # type: ignore[misc]

    def block(self, name: str, until_ns: int) -> None:
        """Let nobody connect to an endpoint for a while.

        Args:
            name: The endpoint.
            until_ns: When it ends.
        """
        self._blocked_until_ns[name] = max(until_ns, self._blocked_until_ns.get(name, 0))

    def hold_back(self, connection: Connection, until_ns: int) -> None:
        """Let nothing that is written from now on arrive before a time, in either direction.

        Args:
            connection: Which.
            until_ns: When it ends.
        """
        for socket in (connection.connector, connection.listener):
            pipe = connection.pipe_to(socket)
            pipe.not_before_ns = max(pipe.not_before_ns, until_ns)

    def calm(self) -> None:
        """Let everybody connect again, and nothing be late or too much from now on."""
        self._blocked_until_ns.clear()
        self.options.spike_probability = 0.0
        self.options.is_bounded = False

    def touch(self, socket: Socket) -> None:
        """Let a SUB subscribe again where it has been reconnected; its process looks at it.

        Args:
            socket: Any socket.
        """
        for connection in socket.unsubscribed:
            self._clock.after(self._moment(), lambda connection=connection: self._subscribe(connection, socket))  # type: ignore[misc]
        socket.unsubscribed.clear()

    def publish(self, socket: Socket, frames: Frames) -> None:
        """Send from a PUB: to every subscriber that wants it and has room.

        Args:
            socket: The PUB.
            frames: The message.
        """
        for connection in socket.connections:
            prefix = socket.subscribed.get(connection)
            if prefix is None:
                self.counts["missed by joining late"] += 1
            elif not frames[0].startswith(prefix):
                self.counts["not subscribed to"] += 1
            elif not connection.pipe_to(connection.peer_of(socket)).push(frames):
                self.counts["dropped at the high-water mark"] += 1
        if not socket.connections:
            self.counts["published to nobody"] += 1

    def route(self, socket: Socket, identity: bytes, frames: Frames) -> Routed:
        """Send from a ROUTER to one peer, with mandatory routing and without waiting.

        Args:
            socket: The ROUTER.
            identity: Whom to.
            frames: The message.
        """
        for connection in socket.connections:
            if connection.identity == identity:
                return "sent" if connection.pipe_to(connection.peer_of(socket)).push(frames) else "full"
        return "gone"

    def send(self, socket: Socket, frames: Frames) -> None:
        """Send from a DEALER; without a connection it waits for one.

        Args:
            socket: The DEALER.
            frames: The message.
        """
        if socket.connections:
            connection = socket.connections[0]
            connection.pipe_to(connection.listener).push(frames, [connection.identity])
        else:
            socket.outbox.append(frames)

    def _moment(self) -> int:
        """Draw a short time, up to two milliseconds."""
        return self._rng.randrange(1, 2 * MS)

    def _try_connect(self, socket: Socket) -> None:
        """Connect a socket, or try again later."""
        if not socket.is_open:
            return
        listener = self._bound.get(socket.name)
        if listener is None or self._blocked_until_ns.get(socket.name, 0) > self._clock.now_ns:
            wait_ns = socket.reconnect_ns + self._rng.randrange(socket.reconnect_ns)
            socket.reconnect_ns = min(2 * socket.reconnect_ns, RECONNECT_NS_MAX)
            self._clock.after(wait_ns, lambda: self._try_connect(socket))
            return
        socket.reconnect_ns = RECONNECT_NS_MIN
        self._identity += 1
        hwm = socket.hwm + listener.hwm if socket.hwm and listener.hwm else 0
        pipes = {end.number: Pipe(self._clock, self._rng, end.inbox, hwm, self.options) for end in (socket, listener)}
        connection = Connection(socket, listener, b"\0" + self._identity.to_bytes(4, "big"), pipes)
        self.connections.append(connection)
        # The listener first: nothing that the other end then sends can overtake this.
        up_ns = self._clock.after(self._moment(), lambda: self._up(listener, connection))
        self._clock.at(up_ns + self._moment(), lambda: self._up(socket, connection))

    def _up(self, socket: Socket, connection: Connection) -> None:
        """Tell one end that a connection is up."""
        if not socket.is_open or not connection.is_alive:
            return
        socket.connections.append(connection)
        socket.changes.append("up")
        if socket.kind == "sub" and not socket.has_subscribed:
            socket.has_subscribed = True
            self._clock.after(self._moment(), lambda: self._subscribe(connection, socket))
        elif socket.kind == "sub":
            socket.unsubscribed.append(connection)
        elif socket.kind == "dealer":
            while socket.outbox:
                connection.pipe_to(connection.listener).push(socket.outbox.popleft(), [connection.identity])
        socket.inbox.wake()

    def _subscribe(self, connection: Connection, socket: Socket) -> None:
        """Let a subscription arrive at the PUB."""
        publisher = connection.peer_of(socket)
        if not connection.is_alive or not publisher.is_open:
            return
        if (
            connection not in publisher.connections
        ):  # it has yet to hear of it: the PUB connected, and so is the second to know
            self._clock.after(self._moment(), lambda: self._subscribe(connection, socket))
            return
        publisher.subscribed[connection] = socket.prefix

    def _down(self, socket: Socket, connection: Connection) -> None:
        """Tell one end that a connection has ended; the one that connected tries again."""
        if not socket.is_open:
            return
        socket.subscribed.pop(connection, None)
        if connection in socket.connections:
            socket.connections.remove(connection)
            socket.changes.append("down")
            socket.inbox.wake()
        if socket is connection.connector:
            wait_ns = RECONNECT_NS_MIN + self._rng.randrange(RECONNECT_NS_MIN)
            self._clock.after(wait_ns, lambda: self._try_connect(socket))

"""Opens every ZeroMQ socket of kvbus, with all its options set before it binds or connects.

What ZeroMQ does in silence and we do not want:

* An option set after `bind` or `connect` is ignored. So options are one frozen value, set first; `open_socket` has no other way.
* The default linger waits for ever at exit for a peer that is gone. Ours is bounded.
* A second `bind` of one `ipc` path deletes the first one's file and takes its place. So we bind the file ourselves (`IpcFile`)
  and hand ZeroMQ the listening descriptor (ZMQ_USE_FD): it then never deletes a file, and we delete ours only under the lock.
* A half-open connection is waited on for ever. TCP keepalive ends it from the silent side and ZMQ_TCP_MAXRT from the sending
  side. ZMTP heartbeats would do it too, but libzmq sends PING to every peer, whatever version it announced, and pure
  implementations (zmq.rs) close the connection at a command they do not know. So heartbeats are an option and off.

A socket belongs to the thread that opens it, and a context does not survive a fork.
"""

from __future__ import annotations

import socket as posix_socket
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import TypeAlias

import msgspec
import zmq
from zmq.backend import Socket as _Bare

from kvbus.connections import ConnectionWatch, ZmqSocket
from kvbus.endpoints import Endpoint
from kvbus.ipc import IpcFile, refused
from kvbus.security.keys import Curve, CurveServer

__all__ = [
    "FRAMES_MAX",
    "BoundSocket",
    "Routed",
    "SocketOptions",
    "ZmqContext",
    "ZmqSocket",
    "open_socket",
    "receive_frames",
    "receive_rest",
    "receive_triples",
    "route_frames",
    "send_frames",
    "set_curve",
    "shared_context",
    "will_bind",
]

ZmqContext: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"

FRAMES_MAX = 16
"""Frames kept of one message. No form in use has more than 5; of a longer one the rest is read and thrown away."""

# Plain integers: looking up and joining pyzmq's enums costs more than the call that they are for.
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_RCVMORE = int(zmq.RCVMORE)
_SEQ_BYTES = 8
_send = _Bare.send
_recv = _Bare.recv
_get = _Bare.get

_BINDING_KINDS = frozenset({zmq.PUB, zmq.XPUB, zmq.ROUTER})


class SocketOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is set on a socket before it binds or connects.

    Attributes:
        send_hwm: Messages queued for one peer before PUB and ROUTER drop or refuse; 0 = no limit. ZeroMQ's own 1000 is gone in
            one burst; engines use 100 000.
        receive_hwm: Messages queued from one peer; 0 = no limit.
        linger_ms: How long unsent messages are kept after close; never without end, because a dead peer would then keep the
            process from exiting. A SUB, which has nothing to say, never lingers.
        message_bytes_max: Largest frame taken from a peer, which is disconnected for a larger one; −1 = no limit. 64 MiB is
            far above any batch we know of.
        keepalive: TCP keepalive on or off.
        keepalive_idle_s: Silence before the first keepalive probe, seconds. Three probes then find a dead peer in 15 s.
        keepalive_interval_s: Time between probes, seconds.
        keepalive_count: Probes unanswered before the connection is given up.
        unsent_timeout_ms: A connection whose sent data stays unacknowledged for so long is given up (where the system can;
            Linux). The system's own is about 15 minutes.
        heartbeat_interval_ms: Time between ZMTP PINGs; 0 = none. Only where both ends are libzmq, see above.
        heartbeat_timeout_ms: A peer that answers nothing for so long is disconnected.
        connect_timeout_ms: A connection attempt is given up after so long; a swallowed SYN would take two minutes.
        handshake_timeout_ms: A peer that does not finish the ZMTP handshake is disconnected.
        reconnect_min_ms: First wait before connecting again.
        reconnect_max_ms: Waits double up to it.
        ipv6: Switch IPv6 on; `None` = where the host is a bracketed address, or a name that has IPv6 addresses only.
        subscriptions: SUB only: prefixes subscribed to; set here, the first message after the connect is not missed.
        curve: Keys, for encryption: those of a server where the socket binds, of a client where it connects; `None` = plaintext.
            `inproc` does not leave the process and needs none.
        gate_domain: Name under which the context's `Gate` is asked before a peer is let in; without a gate nobody is. Empty =
            it is not asked.
    """

    send_hwm: int = 100_000
    receive_hwm: int = 100_000
    linger_ms: int = 1_000
    message_bytes_max: int = 64 * 1024 * 1024
    keepalive: bool = True
    keepalive_idle_s: int = 15
    keepalive_interval_s: int = 5
    keepalive_count: int = 3
    unsent_timeout_ms: int = 30_000
    heartbeat_interval_ms: int = 0
    heartbeat_timeout_ms: int = 15_000
    connect_timeout_ms: int = 5_000
    handshake_timeout_ms: int = 10_000
    reconnect_min_ms: int = 100
    reconnect_max_ms: int = 5_000
    ipv6: bool | None = None
    subscriptions: tuple[bytes, ...] = ()
    curve: Curve | None = None
    gate_domain: str = ""


class BoundSocket:
    """A socket that is bound or connected, and what it holds on to. Close it in the thread that opened it.

    Attributes:
        socket: The ZeroMQ socket.
        endpoint: What was asked for.
        url: Where it really is: a bound one's port is the real one where 0 was asked for.
        is_bound: Whether it bound (true) or connected.
        watch: Its connections coming and going, where `open_socket` was asked to watch.
    """

    def __init__(
        self, socket: ZmqSocket, endpoint: Endpoint, is_bound: bool, file: IpcFile | None, watch: ConnectionWatch | None
    ) -> None:
        """Hold a socket; `open_socket` is the way to get one.

        Args:
            socket: The socket, bound or connected.
            endpoint: What was asked for.
            is_bound: Whether it bound.
            file: Its ipc file and lock, removed on close; `None` where there is none.
            watch: Its watch, closed with it.
        """
        self.socket = socket
        self.endpoint = endpoint
        self.url = socket.getsockopt_string(zmq.LAST_ENDPOINT) if is_bound else endpoint.url
        self.is_bound = is_bound
        self.watch = watch
        self._file = file

    def close(self, linger_ms: int | None = None) -> None:
        """Close the socket and free its endpoint. Twice is harmless.

        Args:
            linger_ms: How long unsent messages are kept in the background; `None` = as the socket's options say.

        Returns at once; the port of a bound `tcp` socket is free when ZeroMQ's own thread has followed, a few milliseconds
        later or when the context has terminated. An `ipc` path is free at once.
        """
        if self.watch is not None:
            self.watch.close()
        if not self.socket.closed:
            self.socket.close(linger_ms)
        if self._file is not None:
            self._file.close()
            self._file = None

    def redial(self) -> None:
        """Connect anew, where the other side has refused us in a way after which ZeroMQ does not try again by itself.

        Only for a connected socket that is watched. Messages queued for the peer are gone.
        """
        assert self.watch is not None
        assert not self.is_bound
        with suppress(zmq.ZMQError):  # the endpoint is forgotten already
            self.socket.disconnect(self.url)
        self.socket.connect(self.url)
        self.watch.redialled()

    def __enter__(self) -> BoundSocket:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def shared_context() -> ZmqContext:
    """Return this process's shared context, for `inproc` endpoints, whose two ends need the same one. Nobody ends it."""
    return zmq.Context.instance()


def open_socket(
    context: ZmqContext,
    kind: int,
    endpoint: Endpoint,
    options: SocketOptions | None = None,
    *,
    binds_by_default: bool | None = None,
    watches: bool = False,
) -> BoundSocket:
    """Open a socket, set every option, then bind or connect.

    A ROUTER refuses what it cannot deliver instead of dropping it (ZMQ_ROUTER_MANDATORY), an XPUB reports every subscription and
    its end (ZMQ_XPUB_VERBOSER).

    Args:
        context: The context; for `inproc` both ends need the same one.
        kind: `zmq.PUB`, `zmq.XPUB`, `zmq.SUB`, `zmq.ROUTER`, `zmq.DEALER`, …
        endpoint: Where.
        options: Options; default `SocketOptions()`.
        binds_by_default: Whether it binds where the endpoint does not say; `None` = PUB, XPUB and ROUTER do.
        watches: Whether to watch its connections, from the first one on.

    Returns:
        The socket, to be closed by this thread.

    Raises:
        ConfigError: The endpoint cannot be bound or connected: port or path in use, no permission, no such interface, too many
            sockets; names the endpoint's field. Nothing is left open.
    """
    options = options or SocketOptions()
    binds = will_bind(kind, endpoint, binds_by_default)
    socket: ZmqSocket | None = None
    file: IpcFile | None = None
    watch: ConnectionWatch | None = None
    try:
        socket = context.socket(kind)
        _set_options(socket, kind, endpoint, options)
        if watches:
            watch = ConnectionWatch(socket, binds)
        if not binds:
            socket.connect(endpoint.url)
        else:
            if endpoint.transport == "ipc" and not endpoint.path.startswith("@"):
                file = IpcFile(endpoint)
                socket.setsockopt(zmq.USE_FD, file.take_descriptor())
            socket.bind(endpoint.url)
        return BoundSocket(socket, endpoint, binds, file, watch)
    except BaseException as error:
        if watch is not None:
            watch.close()
        if socket is not None:
            socket.close(0)
        if file is not None:
            file.close()
        if isinstance(error, zmq.ZMQError):
            raise refused(endpoint, binds, error.errno or 0, str(error)) from None
        raise


def will_bind(kind: int, endpoint: Endpoint, binds_by_default: bool | None = None) -> bool:
    """Tell whether a socket will bind, and so be the server where CURVE is used.

    Args:
        kind: As for `open_socket`.
        endpoint: Where.
        binds_by_default: As for `open_socket`.

    Raises:
        ConfigError: It would connect to port 0.
    """
    return endpoint.binds(int(kind) in _BINDING_KINDS if binds_by_default is None else binds_by_default)


def _set_options(socket: ZmqSocket, kind: int, endpoint: Endpoint, options: SocketOptions) -> None:
    """Set everything that must be set before bind or connect."""
    socket.setsockopt(zmq.SNDHWM, options.send_hwm)
    socket.setsockopt(zmq.RCVHWM, options.receive_hwm)
    socket.setsockopt(zmq.LINGER, 0 if kind == zmq.SUB else options.linger_ms)
    socket.setsockopt(zmq.MAXMSGSIZE, options.message_bytes_max)
    socket.setsockopt(zmq.HANDSHAKE_IVL, options.handshake_timeout_ms)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, options.connect_timeout_ms)
    socket.setsockopt(zmq.RECONNECT_IVL, options.reconnect_min_ms)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, options.reconnect_max_ms)
    if options.heartbeat_interval_ms:
        socket.setsockopt(zmq.HEARTBEAT_IVL, options.heartbeat_interval_ms)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, options.heartbeat_timeout_ms)
    if endpoint.transport == "tcp":
        socket.setsockopt(zmq.IPV6, _needs_ipv6(endpoint) if options.ipv6 is None else options.ipv6)
        socket.setsockopt(zmq.TCP_MAXRT, options.unsent_timeout_ms)
        if options.keepalive:
            socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
            socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, options.keepalive_idle_s)
            socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, options.keepalive_interval_s)
            socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, options.keepalive_count)
    if options.curve is not None:
        set_curve(socket, options.curve)
    if options.gate_domain:
        socket.setsockopt_string(zmq.ZAP_DOMAIN, options.gate_domain)
        # Without it a gate that is not there would let everybody in.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    elif kind == zmq.XPUB:
        socket.setsockopt(zmq.XPUB_VERBOSER, 1)
    elif kind == zmq.SUB:
        for prefix in options.subscriptions:
            socket.setsockopt(zmq.SUBSCRIBE, prefix)


def set_curve(socket: ZmqSocket, curve: Curve) -> None:
    """Give a socket its keys; `open_socket` does so by itself.

    Args:
        socket: Neither bound nor connected yet.
        curve: Keys of a server for one that will bind, of a client for one that will connect.

    Raises:
        zmq.ZMQError: This ZeroMQ was built without CURVE.
    """
    if isinstance(curve, CurveServer):
        socket.setsockopt(zmq.CURVE_SERVER, 1)
    else:
        socket.setsockopt(zmq.CURVE_SERVERKEY, curve.server_key)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, curve.public_key)
    socket.setsockopt(zmq.CURVE_SECRETKEY, curve.secret_key)


def _needs_ipv6(endpoint: Endpoint) -> bool:
    """Tell whether the host can be reached by IPv6 only.

    With the option on, ZeroMQ prefers IPv6 for every name, and `localhost` would miss an engine that listens on 127.0.0.1. So a
    name needs it only where it has no other address. A name that cannot be resolved yet is left to ZeroMQ, which tries again.
    """
    if endpoint.is_ipv6 or not endpoint.is_host_name:
        return endpoint.is_ipv6
    try:
        found = posix_socket.getaddrinfo(endpoint.host, endpoint.port, type=posix_socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return {family for family, *_ in found} == {posix_socket.AF_INET6}


def receive_frames(socket: ZmqSocket, limit: int) -> list[list[bytes]]:
    """Take the messages that have arrived, without waiting.

    Args:
        socket: A socket of this thread.
        limit: Most messages to take, at least 1.

    Returns:
        Whole messages in order of arrival, each a list of its frames, whatever their count; of a message with more than
        `FRAMES_MAX` frames the first `FRAMES_MAX + 1` (so that its length shows what it is). Shorter than `limit`
        means that the socket is empty.

    Raises:
        zmq.ZMQError: The socket or its context is closed.

    Cost: 1.7 µs a message of three small frames, half of `recv_multipart`; 3 µs more for finding the socket empty.
    """
    messages: list[list[bytes]] = []
    try:
        while len(messages) < limit:
            part = _recv(socket, _NOBLOCK, False)
            frames = [part.bytes]
            while part.more:
                part = _recv(socket, _NOBLOCK, False)
                if len(frames) <= FRAMES_MAX:
                    frames.append(part.bytes)
            messages.append(frames)
    except zmq.Again:
        pass
    return messages


def receive_triples(socket: ZmqSocket, topic: bytes, limit: int, bytes_max: int) -> tuple[list[list[bytes]], bool]:
    """Take the messages that have arrived, without waiting; fast where most have three frames and one topic.

    Behind the usual topic two frames are read blindly; any other message is read as `receive_frames` does. Only who sends the
    usual topic with another number of frames misleads this: the message behind it may seem to have a frame more or less, is
    refused, and shows as missing by its number. So this is for sockets with one publisher.

    Args:
        socket: A socket of this thread.
        topic: The usual one.
        limit: Most messages to take, at least 1.
        bytes_max: Bytes of third frames at which to stop.

    Returns:
        Messages as `receive_frames`, and whether the socket is empty.

    Raises:
        zmq.ZMQError: The socket or its context is closed.

    Cost: 0.5 µs a message of three small frames; 3 µs for finding the socket empty.
    """
    messages: list[list[bytes]] = []
    frames: list[bytes] = []
    size = 0
    try:
        while len(messages) < limit and size < bytes_max:
            frames = []
            frames = [_recv(socket, _NOBLOCK)]
            if frames[0] == topic:
                frames.append(_recv(socket, _NOBLOCK))
                if len(frames[1]) == _SEQ_BYTES:
                    frames.append(payload := _recv(socket, _NOBLOCK))
                    messages.append(frames)
                    size += len(payload)
                    continue
            receive_rest(socket, frames)
            messages.append(frames)
    except zmq.Again:
        if frames:
            messages.append(frames)  # it has ended before it should
        return messages, True
    return messages, False


def receive_rest(socket: ZmqSocket, frames: list[bytes]) -> None:
    """Take what is left of a message whose first frames were read one by one.

    The cheapest receive reads frames blindly; when they are not what was expected, this finds where the message really ends.

    Args:
        socket: A socket of this thread.
        frames: At least the first frame of a message; the others are added, up to `FRAMES_MAX + 1` in all.

    Raises:
        zmq.ZMQError: The socket or its context is closed.
    """
    while _get(socket, _RCVMORE):
        frame = _recv(socket, _NOBLOCK)
        if len(frames) <= FRAMES_MAX:
            frames.append(frame)


def send_frames(socket: ZmqSocket, frames: Sequence[bytes]) -> bool:
    """Send one message without waiting; not for a ROUTER, see `route_frames`.

    Args:
        socket: A socket of this thread.
        frames: The message, at least one frame.

    Returns:
        Whether ZeroMQ took it; false = no room (or nobody) now, nothing of it was sent. A PUB or XPUB takes everything and
        drops for a subscriber that is full, in silence.

    Raises:
        zmq.ZMQError: The socket or its context is closed.

    Cost: 0.3 µs a small frame, a fifth of `send_multipart`.
    """
    last = len(frames) - 1
    is_taken = True
    for index, frame in enumerate(frames):
        try:
            _send(socket, frame, _NOBLOCK_MORE if index < last else _NOBLOCK)
        except zmq.Again:
            is_taken = False
            # Refused in the middle, the message is rolled back and the rest of it swallowed until its last frame, which has to
            # come or the next message would be swallowed in its place.
            if index == 0:
                break
    return is_taken


class Routed(Enum):
    """What a ROUTER did with a message."""

    SENT = "sent"
    """It was queued for the peer."""
    FULL = "full"
    """The peer has no room now: try again later."""
    GONE = "gone"
    """The peer is not connected (any more)."""


def route_frames(socket: ZmqSocket, identity: bytes, frames: Sequence[bytes]) -> Routed:
    """Send one message to one peer of a ROUTER without waiting.

    Args:
        socket: A ROUTER of this thread, opened by `open_socket`.
        identity: The peer's identity.
        frames: The message behind the identity, at least one frame.

    Returns:
        What became of it; unless `SENT`, nothing of it was sent.

    Raises:
        zmq.ZMQError: The socket or its context is closed.
    """
    try:
        # A ROUTER looks the peer up and asks for room at the identity alone, so no later frame is refused.
        _send(socket, identity, _NOBLOCK_MORE)
    except zmq.Again:
        return Routed.FULL
    except zmq.ZMQError as error:
        if error.errno == zmq.EHOSTUNREACH:
            return Routed.GONE
        raise
    for frame in frames[:-1]:
        _send(socket, frame, _NOBLOCK_MORE)
    _send(socket, frames[-1], _NOBLOCK)
    return Routed.SENT

"""One way to talk to pretend links and to real ones, so that the same tests can hold both to the same contract."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import zmq

from kvbus.connections import ConnectionChange
from kvbus.endpoints import Endpoint
from kvbus.sim.clock import SECOND, Clock
from kvbus.sim.network import Network, Socket
from kvbus.sim.pipe import LinkOptions
from kvbus.sockets import BoundSocket, Routed, SocketOptions, open_socket, receive_frames, route_frames, send_frames

Frames = list[bytes]

WAIT_MS = 60_000
"""Longest wait for what must happen; a failing test is the only one that waits so long."""

TRY_MS = 20
"""How long to look for something before doing something else and looking again."""


class Net(ABC):
    """Sockets of one kind of network. Handles are opaque."""

    @abstractmethod
    def publisher(self, hwm: int = 0) -> Any:
        """Bind a PUB."""

    @abstractmethod
    def subscriber(self, publisher: Any, prefix: bytes = b"", hwm: int = 0) -> Any:
        """Connect a SUB and wait until its subscription has arrived."""

    @abstractmethod
    def publish(self, publisher: Any, frames: Frames) -> None:
        """Send from a PUB; never waits."""

    @abstractmethod
    def read(self, socket: Any) -> list[Frames]:
        """Return what has arrived by now; may be empty."""

    @abstractmethod
    def changes(self, subscriber: Any, count: int) -> list[str]:
        """Return so many changes of a SUB's connection, waiting for them."""

    @abstractmethod
    def end(self, publisher: Any) -> None:
        """Close a PUB, with what it has not sent."""

    @abstractmethod
    def again(self, publisher: Any) -> Any:
        """Bind another PUB where one was."""

    @abstractmethod
    def joined(self, publisher: Any, subscriber: Any) -> None:
        """Let a SUB look at itself, and wait until its subscription has arrived."""

    @abstractmethod
    def dealer(self, hwm: int = 0) -> Any:
        """Connect a DEALER to where the ROUTER is or will be."""

    @abstractmethod
    def router(self, hwm: int = 0) -> Any:
        """Bind the ROUTER."""

    @abstractmethod
    def send(self, dealer: Any, frames: Frames) -> None:
        """Send from a DEALER."""

    @abstractmethod
    def route(self, router: Any, identity: bytes, frames: Frames) -> str:
        """Send from a ROUTER: `sent`, `full` or `gone`."""

    @abstractmethod
    def close(self, dealer: Any) -> None:
        """Close a DEALER."""

    def read_until(self, socket: Any, last: Frames) -> list[Frames]:
        """Read up to a message that must come, and return what came before it."""
        found: list[Frames] = []
        for _ in range(WAIT_MS // TRY_MS):
            found += self.read(socket)
            if last in found:
                return found[: found.index(last)]
        raise AssertionError(f"{last[-1][:40]!r} did not come; {len(found)} others did")

    def read_all(self, publisher: Any, subscriber: Any, topic: bytes = b"") -> list[Frames]:
        """Read everything that has been published and not lost, by publishing more until some of that arrives."""
        found: list[Frames] = []
        for number in range(WAIT_MS // TRY_MS):
            found += self.read(subscriber)
            self.publish(publisher, [topic, b"mark %d" % number])
            found += self.read(subscriber)
            marks = [frames for frames in found if frames[-1].startswith(b"mark")]
            if marks and found[-1] == marks[-1]:
                return [frames for frames in found if frames not in marks]
        raise AssertionError("no mark has come")


class SimNet(Net):
    """The simulator's links."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._network = Network(self._clock, random.Random(1), LinkOptions())
        self._told: dict[int, list[str]] = {}

    def publisher(self, hwm: int = 0) -> Socket:
        return self._open("pub", "pub", hwm=hwm)

    def subscriber(self, publisher: Socket, prefix: bytes = b"", hwm: int = 0) -> Socket:
        socket = self._open("sub", publisher.name, hwm=hwm, prefix=prefix)
        self._run()
        return socket

    def publish(self, publisher: Socket, frames: Frames) -> None:
        self._network.publish(publisher, frames)

    def read(self, socket: Socket) -> list[Frames]:
        self._run()
        return socket.inbox.take(1_000_000)

    def changes(self, subscriber: Socket, count: int) -> list[str]:
        self._run()
        told = self._told.setdefault(subscriber.number, [])
        told += subscriber.take_changes()
        taken, self._told[subscriber.number] = told[:count], told[count:]
        return taken

    def end(self, publisher: Socket) -> None:
        self._network.close(publisher)

    def again(self, publisher: Socket) -> Socket:
        socket = self._open("pub", publisher.name, hwm=publisher.hwm)
        self._run(20)
        return socket

    def joined(self, publisher: Socket, subscriber: Socket) -> None:
        self._network.touch(subscriber)
        self._run()

    def dealer(self, hwm: int = 0) -> Socket:
        return self._open("dealer", "router", hwm=hwm)

    def router(self, hwm: int = 0) -> Socket:
        return self._open("router", "router", hwm=hwm)

    def send(self, dealer: Socket, frames: Frames) -> None:
        self._network.send(dealer, frames)

    def route(self, router: Socket, identity: bytes, frames: Frames) -> str:
        return self._network.route(router, identity, frames)

    def close(self, dealer: Socket) -> None:
        self._network.close(dealer)
        self._run()

    def _open(self, kind: Any, name: str, hwm: int, prefix: bytes = b"") -> Socket:
        binds = kind in {"pub", "router"}
        return self._network.open(kind, name, binds=binds, hwm=hwm, wake=lambda: None, prefix=prefix)

    def _run(self, seconds: int = 1) -> None:
        until_ns = self._clock.now_ns + seconds * SECOND
        while self._clock.run_next(until_ns):
            pass


class ZmqNet(Net):
    """ZeroMQ on this machine, opened as the product opens it; by path, because a path can be bound again at once."""

    def __init__(self, context: zmq.Context[Any], folder: Path) -> None:
        self._context = context
        self._sockets: list[BoundSocket] = []
        self._pub_url = f"ipc://{folder}/pub"
        self._router_url = f"ipc://{folder}/router"

    def publisher(self, hwm: int = 0) -> BoundSocket:
        return self._open(zmq.XPUB, self._pub_url, SocketOptions(send_hwm=hwm, linger_ms=0))

    def subscriber(self, publisher: BoundSocket, prefix: bytes = b"", hwm: int = 0) -> BoundSocket:
        options = SocketOptions(receive_hwm=hwm, subscriptions=(prefix,))
        socket = self._open(zmq.SUB, self._pub_url, options, watches=True)
        self._wait_for_subscription(publisher)
        return socket

    def publish(self, publisher: BoundSocket, frames: Frames) -> None:
        send_frames(publisher.socket, frames)

    def read(self, socket: BoundSocket) -> list[Frames]:
        socket.socket.poll(TRY_MS)
        return receive_frames(socket.socket, 1_000_000)

    def changes(self, subscriber: BoundSocket, count: int) -> list[str]:
        told: list[str] = []
        assert subscriber.watch is not None
        while len(told) < count and subscriber.watch.socket.poll(WAIT_MS):
            told += ["up" if each is ConnectionChange.UP else "down" for each in subscriber.watch.take_changes()]
        return told

    def end(self, publisher: BoundSocket) -> None:
        publisher.close(0)

    def again(self, publisher: BoundSocket) -> BoundSocket:
        return self._open(zmq.XPUB, self._pub_url, SocketOptions(linger_ms=0))

    def joined(self, publisher: BoundSocket, subscriber: BoundSocket) -> None:
        subscriber.socket.poll(0)
        self._wait_for_subscription(publisher)

    def dealer(self, hwm: int = 0) -> BoundSocket:
        return self._open(zmq.DEALER, self._router_url, SocketOptions(receive_hwm=hwm, linger_ms=0))

    def router(self, hwm: int = 0) -> BoundSocket:
        return self._open(zmq.ROUTER, self._router_url, SocketOptions(send_hwm=hwm, linger_ms=0))

    def send(self, dealer: BoundSocket, frames: Frames) -> None:
        send_frames(dealer.socket, frames)

    def route(self, router: BoundSocket, identity: bytes, frames: Frames) -> str:
        names = {Routed.SENT: "sent", Routed.GONE: "gone"}
        return names.get(route_frames(router.socket, identity, frames), "full")

    def close(self, dealer: BoundSocket) -> None:
        dealer.close(0)

    def end_all(self) -> None:
        """Close what is open."""
        for socket in self._sockets:
            socket.close(0)

    def _open(self, kind: int, url: str, options: SocketOptions, watches: bool = False) -> BoundSocket:
        socket = open_socket(self._context, kind, Endpoint.parse(url, "test"), options, watches=watches)
        self._sockets.append(socket)
        return socket

    def _wait_for_subscription(self, publisher: BoundSocket) -> None:
        assert publisher.socket.poll(WAIT_MS)
        assert b"\x01" == publisher.socket.recv()[:1]

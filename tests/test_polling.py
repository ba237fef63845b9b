"""The poller finds what has messages: held against plain counting, through everything that takes the news away."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import zmq

from kvbus.connections import is_readable
from kvbus.polling import SocketPoller
from kvbus.sockets import ZmqContext, ZmqSocket, receive_frames

WAIT_MS = 60_000


class Pairs:
    """Sockets to poll, each with one that sends to it at once, since both are in this process; and how many messages wait."""

    def __init__(self, context: ZmqContext) -> None:
        self._context = context
        self._number = 0
        self.senders: dict[ZmqSocket, ZmqSocket] = {}
        self.waiting: dict[ZmqSocket, int] = {}

    def open(self, kind: int, other: int) -> ZmqSocket:
        """Open a pair; ROUTER and DEALER are sent to as well as read."""
        self._number += 1
        url = f"inproc://pair-{self._number}"
        one, two = self._context.socket(kind), self._context.socket(other)
        for socket in (one, two):
            socket.setsockopt(zmq.LINGER, 0)
        if kind == zmq.SUB:
            one.setsockopt(zmq.SUBSCRIBE, b"")
        one.bind(url)
        two.connect(url)
        if other == zmq.XPUB:
            assert not is_readable(one)  # it looks at its new peer
            two.recv()  # the subscription
        self.senders[one], self.waiting[one] = two, 0
        return one

    def close(self, socket: ZmqSocket) -> None:
        self.senders.pop(socket).close(0)
        del self.waiting[socket]
        socket.close(0)


KINDS = [
    (zmq.SUB, zmq.XPUB),
    (zmq.PAIR, zmq.PAIR),
    (zmq.PULL, zmq.PUSH),
    (zmq.ROUTER, zmq.DEALER),
    (zmq.DEALER, zmq.DEALER),
]


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_just_those_that_have_messages(zmq_context: ZmqContext, seed: int) -> None:
    """After any sequence of sends, partial reads, answers, reads of what was not found ready, comings and goings."""
    rng = random.Random(seed)
    poller, pairs = SocketPoller(), Pairs(zmq_context)
    names: dict[ZmqSocket, bytes] = {}

    def read(socket: ZmqSocket, limit: int) -> None:
        for frames in receive_frames(socket, limit):
            if socket.getsockopt(zmq.TYPE) == zmq.ROUTER:
                names[socket] = frames[0]
            pairs.waiting[socket] -= 1

    def step() -> None:
        sockets = list(pairs.waiting)
        action = rng.choice(["send", "send", "read", "peek", "answer", "open", "close", "empty"])
        if action == "open" and len(sockets) < 8:
            socket = pairs.open(*rng.choice(KINDS))
            if rng.random() < 0.5:
                pairs.senders[socket].send(b"early")
                assert is_readable(socket)  # which takes the news of it away
                pairs.waiting[socket] += 1
            poller.register(socket)
        elif sockets and action == "send":
            socket = rng.choice(sockets)
            for _ in range(rng.randint(1, 4)):
                pairs.senders[socket].send(b"m")
                pairs.waiting[socket] += 1
        elif sockets and action == "close" and rng.random() < 0.3:
            socket = rng.choice(sockets)
            poller.unregister(socket)
            names.pop(socket, None)
            pairs.close(socket)
        elif sockets and action in ("read", "empty"):
            for socket in poller.poll(0):
                assert not isinstance(socket, int)
                read(socket, 100 if action == "empty" else rng.randint(1, 3))
        elif sockets and action == "peek":  # whoever reads unasked says so
            socket = rng.choice(sockets)
            read(socket, rng.randint(1, 2))
            poller.touched(socket)
        elif action == "answer":
            for socket, name in names.items():
                socket.send_multipart([name, b"answer"])
            for socket in sockets:
                if socket.getsockopt(zmq.TYPE) == zmq.DEALER:
                    socket.send(b"answer")

    for _ in range(300):
        step()
        if rng.random() < 0.7:
            found = poller.poll(0)
            assert len(set(found)) == len(found)
            assert {socket for socket, count in pairs.waiting.items() if count} == set(found)
    for socket in list(pairs.waiting):
        poller.unregister(socket)
        pairs.close(socket)
    assert [] == poller.sockets
    poller.close()


def test_it_waits_for_a_message_and_for_a_descriptor(zmq_context: ZmqContext) -> None:
    """And no longer than it was told."""
    poller, pairs = SocketPoller(), Pairs(zmq_context)
    socket = pairs.open(zmq.SUB, zmq.XPUB)
    reader, writer = os.pipe()
    poller.register(socket)
    poller.register(reader)
    assert [] == poller.poll(0)
    assert [] == poller.poll(1)
    os.write(writer, b".")
    assert [reader] == poller.poll(None)
    pairs.senders[socket].send(b"m")
    assert {reader, socket} == set(poller.poll(-1))
    os.read(reader, 1)
    assert [socket] == poller.poll(WAIT_MS)
    poller.unregister(reader)
    poller.close()
    poller.close()
    pairs.close(socket)
    os.close(reader)
    os.close(writer)


def test_a_message_from_afar_ends_the_wait(zmq_context: ZmqContext) -> None:
    """Through ZeroMQ's own thread; what was found empty is found again, message by message."""
    poller = SocketPoller()
    pub, sub = zmq_context.socket(zmq.XPUB), zmq_context.socket(zmq.SUB)
    port = pub.bind_to_random_port("tcp://127.0.0.1")
    sub.setsockopt(zmq.SUBSCRIBE, b"")
    poller.register(sub)
    poller.register(pub)
    sub.connect(f"tcp://127.0.0.1:{port}")

    def until(wanted: ZmqSocket) -> None:
        for _ in range(1000):
            if wanted in poller.poll(WAIT_MS):
                return
        raise AssertionError("it was not found")

    until(pub)
    assert b"\x01" == pub.recv()
    for number in range(500):
        pub.send(b"%d" % number)
        until(sub)
        assert [[b"%d" % number]] == receive_frames(sub, 10)
    poller.unregister(sub)
    poller.unregister(pub)
    poller.close()
    for socket in (pub, sub):
        socket.close(0)


def test_only_reading_is_watched(zmq_context: ZmqContext) -> None:
    """And nothing twice, nor forgotten twice."""
    poller, pairs = SocketPoller(), Pairs(zmq_context)
    socket: Any = pairs.open(zmq.PULL, zmq.PUSH)
    with pytest.raises(ValueError, match="POLLIN"):
        poller.register(socket, zmq.POLLOUT)
    poller.register(socket, zmq.POLLIN)
    with pytest.raises(KeyError):
        poller.register(socket, zmq.POLLIN)
    poller.unregister(socket)
    with pytest.raises(KeyError):
        poller.unregister(socket)
    poller.close()
    pairs.close(socket)

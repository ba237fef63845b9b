"""Connections that come and go are seen."""

from __future__ import annotations

import os
import socket as posix_socket

import pytest
import zmq

from kvbus.connections import ConnectionChange, ConnectionWatch
from kvbus.endpoints import Endpoint
from kvbus.sockets import BoundSocket, SocketOptions, ZmqContext, open_socket

WAIT_MS = 5_000
UP, DOWN = ConnectionChange.UP, ConnectionChange.DOWN


def next_changes(watch: ConnectionWatch, count: int) -> list[ConnectionChange]:
    changes: list[ConnectionChange] = []
    while len(changes) < count and watch.socket.poll(WAIT_MS):
        changes += watch.take_changes()
    return changes


def watched(context: ZmqContext, kind: int, url: str) -> tuple[BoundSocket, ConnectionWatch]:
    bound = open_socket(context, kind, Endpoint.parse(url), SocketOptions(reconnect_min_ms=1), watches=True)
    assert bound.watch is not None
    return bound, bound.watch


def test_a_reconnect_is_seen(zmq_context: ZmqContext) -> None:
    """After a reconnect the publisher may be another life of itself, so the subscriber has to know."""
    publisher = open_socket(zmq_context, zmq.XPUB, Endpoint.parse("tcp://127.0.0.1:0"))
    reader, watch = watched(zmq_context, zmq.SUB, publisher.url)
    with reader:
        assert [UP] == next_changes(watch, 1)
        assert 1 == watch.connections_count
        publisher.close()
        assert [DOWN] == next_changes(watch, 1)
        assert 0 == watch.connections_count
        with open_socket(zmq_context, zmq.XPUB, Endpoint.parse(publisher.url)):
            assert [UP] == next_changes(watch, 1)
            assert [] == watch.take_changes()


def test_every_peer_of_a_bound_socket_is_counted(zmq_context: ZmqContext) -> None:
    server, watch = watched(zmq_context, zmq.XPUB, "tcp://127.0.0.1:0")
    with server:
        peers = [open_socket(zmq_context, zmq.SUB, Endpoint.parse(server.url)) for _ in range(3)]
        assert [UP] * 3 == next_changes(watch, 3)
        peers.pop().close()
        assert [DOWN] == next_changes(watch, 1)
        assert 2 == watch.connections_count
        for peer in peers:
            peer.close()
        assert [DOWN] * 2 == next_changes(watch, 2)


def test_a_failed_handshake_is_no_connection(zmq_context: ZmqContext) -> None:
    server, watch = watched(zmq_context, zmq.XPUB, "tcp://127.0.0.1:0")
    with server:
        for greeting in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03\x00NOSUCH" + bytes(64)):
            with posix_socket.create_connection(("127.0.0.1", Endpoint.parse(server.url).port)) as stranger:
                stranger.sendall(greeting)
        with open_socket(zmq_context, zmq.SUB, Endpoint.parse(server.url)):
            assert [UP] == next_changes(watch, 1)
        assert [DOWN] == next_changes(watch, 1)
        assert 0 == watch.connections_count


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of open files")
@pytest.mark.parametrize("rounds", [200, pytest.param(2_000, marks=pytest.mark.slow)])
def test_g63_watching_leaks_no_descriptors(zmq_context: ZmqContext, rounds: int) -> None:
    with open_socket(zmq_context, zmq.XPUB, Endpoint.parse("tcp://127.0.0.1:0")) as publisher:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(rounds):
            reader, watch = watched(zmq_context, zmq.SUB, publisher.url)
            with reader:
                assert [UP] == next_changes(watch, 1)
        # ZeroMQ closes descriptors from its own thread, a little later; a leak would be at least one a round.
        assert len(os.listdir("/proc/self/fd")) < before + 100

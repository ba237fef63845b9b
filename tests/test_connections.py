"""Connections that come and go are seen."""

from __future__ import annotations

import os
import socket as posix_socket
import threading

import pytest
import zmq

from kvbus.connections import ConnectionChange, ConnectionWatch
from kvbus.endpoints import Endpoint
from kvbus.security.keys import CurveClient
from kvbus.sockets import BoundSocket, SocketOptions, ZmqContext, open_socket
from tests.machine import bind_again

WAIT_MS = 60_000
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
        with bind_again(lambda: open_socket(zmq_context, zmq.XPUB, Endpoint.parse(publisher.url))):
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


def test_a_watch_is_closed_while_its_context_is_being_terminated() -> None:
    """Or the socket would stay open, and whoever terminates the context would wait for ever."""
    context: ZmqContext = zmq.Context()
    bound, watch = watched(context, zmq.XPUB, "tcp://127.0.0.1:0")
    terminator = threading.Thread(target=context.term)
    terminator.start()
    with pytest.raises(zmq.ContextTerminated):
        bound.socket.poll()
    watch.close()
    bound.close()
    terminator.join(WAIT_MS / 1000)
    assert not terminator.is_alive()


def test_failed_handshakes_are_counted_by_reason(zmq_context: ZmqContext) -> None:
    """A peer that does not get in must not be silence: a port check looks otherwise than a peer that speaks another mechanism."""
    server, watch = watched(zmq_context, zmq.XPUB, "tcp://127.0.0.1:0")
    with server:
        for greeting in (b"", b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE".ljust(55, b"\0")):
            with posix_socket.create_connection(("127.0.0.1", Endpoint.parse(server.url).port)) as stranger:
                stranger.sendall(greeting)
                if greeting:
                    stranger.recv(64)
        while watch.refusals["handshake"] + watch.refusals["mechanism"] < 2 and watch.socket.poll(WAIT_MS):
            assert [] == watch.take_changes()
    assert {"handshake": 1, "mechanism": 1} == {reason: count for reason, count in watch.refusals.items() if count}
    assert watch.has_news
    assert not watch.is_cut_off  # one that binds never asks again


def test_a_client_that_is_cut_off_says_so_and_can_ask_again(zmq_context: ZmqContext) -> None:
    """ZeroMQ gives up for good when the other side speaks another mechanism, and a mistake there stays a silence here."""
    public_key, secret_key = zmq.curve_keypair()
    server, _ = watched(zmq_context, zmq.XPUB, "tcp://127.0.0.1:0")
    with server:
        curve = CurveClient(secret_key=secret_key, public_key=public_key, server_key=public_key)
        options = SocketOptions(reconnect_min_ms=1, curve=curve)
        reader = open_socket(zmq_context, zmq.SUB, Endpoint.parse(server.url), options, watches=True)
        watch = reader.watch
        assert watch is not None
        with reader:
            for _ in range(2):
                while not watch.is_cut_off and watch.socket.poll(WAIT_MS):
                    assert [] == watch.take_changes()
                assert watch.is_cut_off
                reader.redial()
                assert not watch.is_cut_off
    assert watch.refusals["mechanism"] >= 2

"""The proxy itself: what it forwards, cuts, delays and swallows."""

from __future__ import annotations

import socket
import time

import pytest

from tests.integration.proxy import SwallowedPort, TcpProxy


def read(end, count):
    """Read so many bytes; a socket with a time limit does not do that by itself."""
    data = b""
    while len(data) < count:
        chunk = end.recv(count - len(data))
        assert chunk
        data += chunk
    return data


class Echo:
    """A peer behind a proxy: what the client sends is read here, and answered by hand."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.proxy = TcpProxy(f"tcp://127.0.0.1:{self.listener.getsockname()[1]}")
        self.client = self.dial()
        self.server = self.accept()

    def dial(self):
        host, _, port = self.proxy.url.removeprefix("tcp://").rpartition(":")
        client = socket.create_connection((host, int(port)), timeout=60)
        client.settimeout(60)
        return client

    def accept(self):
        server, _ = self.listener.accept()
        server.settimeout(60)
        return server

    def close(self):
        self.proxy.close()
        for each in (self.client, self.server, self.listener):
            each.close()


@pytest.fixture
def echo():
    echo = Echo()
    yield echo
    echo.close()


def test_both_directions_are_forwarded_whatever_the_size(echo):
    data = bytes(range(256)) * 4096
    echo.client.sendall(data[:100])
    assert data[:100] == read(echo.server, 100)
    echo.server.sendall(data)
    assert data == read(echo.client, len(data))


def test_a_cut_ends_both_ends_and_the_next_connection_is_taken(echo):
    echo.proxy.cut()
    for end in (echo.client, echo.server):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
        end.close()
    echo.client = echo.dial()
    echo.server = echo.accept()
    echo.client.sendall(b"again")
    assert b"again" == read(echo.server, 5)


def test_what_is_swallowed_is_gone_and_the_sender_does_not_know(echo):
    echo.proxy.swallow()
    echo.client.sendall(b"lost")
    while echo.proxy.swallowed_bytes < 4:
        echo.proxy.delay(0)  # a turn of the proxy
    echo.proxy.swallow(False)
    echo.client.sendall(b"kept")
    assert b"kept" == read(echo.server, 4)


def test_a_stall_holds_what_comes_and_loses_nothing(echo):
    echo.proxy.stall()
    echo.client.sendall(b"later")
    echo.server.settimeout(0.05)
    with pytest.raises(TimeoutError):
        echo.server.recv(1)
    echo.proxy.stall(False)
    echo.server.settimeout(60)
    assert b"later" == read(echo.server, 5)


def test_a_delay_keeps_the_order(echo):
    echo.proxy.delay(0.1)
    began = time.monotonic()
    for number in range(20):
        echo.client.sendall(b"%02d" % number)
    assert b"".join(b"%02d" % number for number in range(20)) == read(echo.server, 40)
    assert time.monotonic() - began >= 0.1


def test_refused_connections_are_reset(echo):
    echo.proxy.refuse()
    with pytest.raises(ConnectionResetError), echo.dial() as refused:
        refused.recv(1)


def test_a_swallowed_port_answers_nothing():
    with SwallowedPort() as port, socket.socket() as client:
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.connect(("127.0.0.1", int(port.url.rpartition(":")[2])))

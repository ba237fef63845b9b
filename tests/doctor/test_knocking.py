"""Knocking at endpoints with plain sockets."""

from __future__ import annotations

import itertools
import socket
import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import zmq

from kvbus.doctor import knocking
from kvbus.doctor.evidence import Contact
from kvbus.doctor.knocking import knock_at
from kvbus.doctor.zmtp import Stage
from kvbus.endpoints import Endpoint
from kvbus.publisher.publisher import Publisher
from kvbus.sockets import open_socket

HOST = "tcp://127.0.0.1:0"


def knock(url: str, seconds: float = 60.0):
    return knock_at([Endpoint.parse(url)], seconds)[0]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(zmq.PUB, "PUB"), (zmq.XPUB, "XPUB"), (zmq.ROUTER, "ROUTER"), (zmq.SUB, "SUB"), (zmq.REP, "REP")],
)
def test_who_is_there(zmq_context, kind, expected):
    with open_socket(zmq_context, kind, Endpoint.parse(HOST), binds_by_default=True) as bound:
        assert expected == knock(bound.url).socket_type


@pytest.mark.parametrize("mechanism", ["PLAIN", "CURVE"])
def test_the_mechanism_is_told_though_ours_is_another(zmq_context, mechanism):
    with zmq_context.socket(zmq.PUB) as publisher:
        publisher.linger = 0
        if mechanism == "PLAIN":
            publisher.plain_server = True
        else:
            publisher.curve_server, (_, publisher.curve_secretkey) = True, zmq.curve_keypair()
        publisher.bind(HOST)
        greeting = knock(publisher.last_endpoint.decode()).greeting
    assert (Stage.SECURED, mechanism) == (greeting.stage, greeting.mechanism)


def test_many_at_once_in_order(zmq_context):
    with open_socket(zmq_context, zmq.PUB, Endpoint.parse(HOST)) as bound, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        urls = [f"tcp://127.0.0.1:{nobody.getsockname()[1]}", bound.url, "tcp://no-such-pod.invalid:1"]
        found = knock_at([Endpoint.parse(url) for url in urls], 60.0)
    assert [Contact.REFUSED, Contact.GREETED, Contact.UNRESOLVED] == [each.contact for each in found]
    assert [] == knock_at([], 1.0)


def test_ipc(zmq_context, tmp_path):
    url = f"ipc://{tmp_path}/kv"
    assert Contact.REFUSED is knock(url).contact
    with open_socket(zmq_context, zmq.ROUTER, Endpoint.parse(url)) as bound:
        assert "ROUTER" == knock(bound.url).socket_type


def test_who_says_nothing_is_left_in_time():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert Contact.SILENT is knock(f"tcp://127.0.0.1:{server.getsockname()[1]}", 0.05).contact


def test_what_has_come_is_seen_though_the_time_is_over(monkeypatch):
    """A machine that stands still for a moment makes nobody unreachable."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        looks = itertools.count()

        def now() -> float:
            look = next(looks)
            if look == 1:
                stack.enter_context(server.accept()[0])
            return 100.0 * look

        monkeypatch.setattr(knocking, "time", SimpleNamespace(monotonic=now))
        assert Contact.SILENT is knock(f"tcp://127.0.0.1:{server.getsockname()[1]}", 0.05).contact


def test_a_web_server_that_waits_for_a_line():
    """It says nothing to a greeting that ends no line; asked in its own way, it is known."""

    def serve() -> None:
        held = []
        for _ in range(2):
            connection, _ = server.accept()
            held.append(connection)
            data = connection.recv(64)
            if b"\r\n\r\n" in data:
                connection.sendall(b"HTTP/1.0 404 Not Found\r\n\r\n")
        for connection in held:
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        greeting = knock(f"tcp://127.0.0.1:{server.getsockname()[1]}", 0.2).greeting
        thread.join()
    assert (Stage.FOREIGN, "HTTP/1.0 404 Not Found") == (greeting.stage, greeting.opening)


def test_who_hangs_up():
    """The backlog takes the connection, and closing the listener resets it."""
    server = socket.create_server(("127.0.0.1", 0))
    url = f"tcp://127.0.0.1:{server.getsockname()[1]}"

    def serve() -> None:
        connection, _ = server.accept()
        connection.recv(64)
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert Contact.CLOSED is knock(url).contact
    thread.join()
    server.close()


def test_the_peer_takes_no_harm(zmq_context):
    """It goes on serving its subscribers, and has refused nobody."""
    with Publisher(HOST, replay_endpoint=HOST) as publisher, zmq_context.socket(zmq.SUB) as reader:
        reader.subscribe(b"")
        reader.connect(str(publisher.endpoint))
        assert publisher.wait_for_subscribers(1, 60)
        for _ in range(20):
            knock_at([Endpoint.parse(str(publisher.endpoint)), Endpoint.parse(str(publisher.replay_endpoint))], 60.0)
        publisher.publish([])
        assert reader.poll(60_000)
        assert [0, 0] == [sum(each.refused.values()) for each in publisher.stats.sockets]

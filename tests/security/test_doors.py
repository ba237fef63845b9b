"""What a loop hands to its doors: gates where needed, a line where it is worth one, another try where we were refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError
from kvbus.security.doors import Doors
from kvbus.security.refusals import Refused
from kvbus.sockets import SocketOptions, ZmqContext
from tests.security.peers import Pair, client_options, server_options

ANY = "tcp://127.0.0.1:0"
PATIENCE_S = 60.0
SERVER, GOOD, OTHER = Pair.new(), Pair.new(), Pair.new()


class Loop:
    """A loop that does nothing but open its doors."""

    def __init__(self, context: ZmqContext) -> None:
        self.told: list[Refused] = []
        self.poller = zmq.Poller()
        self.doors = Doors(context, self.poller, self.told.append)

    def turn(self) -> None:
        for socket, _ in self.poller.poll(20):
            assert self.doors.take(socket, time.monotonic_ns())

    def until(self, is_so: Callable[[], bool], *others: Loop) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end_s
            for loop in (self, *others):
                loop.turn()


@pytest.fixture
def loop(zmq_context: ZmqContext) -> Iterator[Loop]:
    made = Loop(zmq_context)
    yield made
    made.doors.close()


def test_a_loop_without_keys_and_limits_has_no_gate(loop: Loop) -> None:
    """Without CURVE nothing changes."""
    with (
        loop.doors.open("a", zmq.PUB, Endpoint.parse(ANY), SocketOptions()),
        loop.doors.open("b", zmq.PUB, Endpoint.parse("inproc://b"), SocketOptions(), connections_max=5),
    ):
        assert 2 == len(loop.poller.sockets)  # the two watches
        assert [("a", True, False, 0), ("b", True, False, 0)] == [
            (each.name, each.is_bound, each.is_encrypted, each.connections) for each in loop.doors.status()
        ]
        loop.doors.forget("a")
        loop.doors.forget("a")
        assert ["b"] == [each.name for each in loop.doors.status()]
        assert 1 == len(loop.poller.sockets)
        assert not loop.doors.take(object(), 0)


def test_who_is_forgotten_lets_nobody_in(loop: Loop, zmq_context: ZmqContext) -> None:
    """Names as long as anybody likes, in any script."""
    guest, name = Loop(zmq_context), "ü" * 200
    with loop.doors.open(name, zmq.PUB, Endpoint.parse(ANY), server_options(SERVER, GOOD)) as bound:
        options = client_options(GOOD, SERVER, reconnect_max_ms=60_000)
        with guest.doors.open("us", zmq.SUB, Endpoint.parse(bound.url), options):
            loop.until(lambda: guest.doors.status()[0].connections == 1, guest)
            guest.doors.forget("us")
        loop.doors.forget(name)
        with guest.doors.open("again", zmq.SUB, Endpoint.parse(bound.url), options):
            loop.until(lambda: guest.doors.status()[-1].refused["refused"] == 1, guest)


def test_who_is_refused_is_told_with_what_is_known_of_it(loop: Loop, zmq_context: ZmqContext) -> None:
    guest = Loop(zmq_context)
    with loop.doors.open("views", zmq.PUB, Endpoint.parse(ANY), server_options(SERVER, GOOD)) as bound:
        options = client_options(OTHER, SERVER, reconnect_max_ms=1)
        with guest.doors.open("us", zmq.SUB, Endpoint.parse(bound.url), options):
            loop.until(lambda: bool(loop.told and guest.told), guest)
    assert ("views", "unknown_key", "127.0.0.1", OTHER.public.decode()) == (
        loop.told[0].socket,
        loop.told[0].reason,
        loop.told[0].address,
        loop.told[0].public_key,
    )
    assert "refused" == guest.told[0].reason
    assert {"socket", "endpoint", "reason", "meaning", "peers_count"} == set(guest.told[0].fields())


def test_who_is_refused_asks_again_after_a_while(loop: Loop, zmq_context: ZmqContext) -> None:
    guest = Loop(zmq_context)
    with loop.doors.open("views", zmq.PUB, Endpoint.parse(ANY), server_options(SERVER, GOOD)) as bound:
        options = client_options(OTHER, SERVER, reconnect_max_ms=1000)
        with guest.doors.open("us", zmq.SUB, Endpoint.parse(bound.url), options):
            assert guest.doors.deadline_ns is None
            loop.until(lambda: guest.doors.deadline_ns is not None, guest)
            assert guest.doors.deadline_ns is not None
            guest.doors.on_time(guest.doors.deadline_ns - 1)
            assert guest.doors.deadline_ns is not None
            loop.doors.allow("views", None)
            guest.doors.on_time(guest.doors.deadline_ns)
            assert guest.doors.deadline_ns is None
            loop.until(lambda: guest.doors.status()[0].connections == 1, guest)


def test_what_others_can_reach_in_plain_is_exposed(loop: Loop) -> None:
    wild = Endpoint.parse("tcp://*:0")
    with (
        loop.doors.open("plain", zmq.PUB, wild, SocketOptions()),
        loop.doors.open("curve", zmq.PUB, wild, server_options(SERVER)),
        loop.doors.open("local", zmq.PUB, Endpoint.parse(ANY), SocketOptions()),
        loop.doors.open("out", zmq.SUB, Endpoint.parse("tcp://192.0.2.1:9"), SocketOptions()),
    ):
        assert ["plain"] == loop.doors.exposed


def test_two_gates_in_one_context_are_refused_and_nothing_stays_open(loop: Loop, zmq_context: ZmqContext) -> None:
    other = Loop(zmq_context)
    with loop.doors.open("a", zmq.PUB, Endpoint.parse(ANY), SocketOptions(), connections_max=1):
        with pytest.raises(ConfigError, match="has a gate already"):
            other.doors.open("b", zmq.PUB, Endpoint.parse(ANY), SocketOptions(), connections_max=1)
        other.doors.close()

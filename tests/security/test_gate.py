"""The gate on real sockets: who is let in, who is not, and how many."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from kvbus.connections import ConnectionWatch
from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError
from kvbus.security.gate import Gate
from kvbus.security.keys import key_of
from kvbus.sockets import BoundSocket, SocketOptions, ZmqContext, open_socket
from tests.security.peers import Pair, client_options, server_options

ANY = "tcp://127.0.0.1:0"
PATIENCE_S = 60.0
SERVER, GOOD, OTHER = Pair.new(), Pair.new(), Pair.new()


class House:
    """A bound socket, its gate, and whoever comes."""

    def __init__(self, context: ZmqContext, options: SocketOptions, connections_max: int = 0) -> None:
        self.context = context
        self.gate = Gate(context)
        self.bound = open_socket(context, zmq.XPUB, Endpoint.parse(ANY), options, watches=True)
        assert self.bound.watch is not None
        self.watch = self.bound.watch
        allowed = getattr(options.curve, "allowed", None)
        self.gate.admit("door", self.watch, allowed=allowed, connections_max=connections_max)
        self.guests: list[BoundSocket] = []

    def guest(self, options: SocketOptions | None = None) -> ConnectionWatch:
        """Let somebody come, and return what it sees of its connection."""
        guest = open_socket(self.context, zmq.SUB, Endpoint.parse(self.bound.url), options, watches=True)
        self.guests.append(guest)
        assert guest.watch is not None
        return guest.watch

    def until(self, is_so: Callable[[], bool]) -> None:
        """Be the loop until something is so."""
        poller = zmq.Poller()
        watches = [self.watch, *(guest.watch for guest in self.guests if guest.watch)]
        for socket in (self.gate.socket, *(watch.socket for watch in watches)):
            poller.register(socket, zmq.POLLIN)
        end_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end_s, f"{self.watch.refusals} {[watch.refusals for watch in watches]}"
            poller.poll(100)
            for watch in watches:
                watch.take_changes()
            self.gate.answer(time.monotonic_ns())

    def close(self) -> None:
        for each in (*self.guests, self.bound, self.gate):
            each.close()


@pytest.fixture
def house(zmq_context: ZmqContext) -> Iterator[Callable[..., House]]:
    houses: list[House] = []

    def make(options: SocketOptions, **more: int) -> House:
        houses.append(House(zmq_context, options, **more))
        return houses[-1]

    yield make
    for each in houses:
        each.close()


def test_a_key_in_the_list_is_let_in_and_another_is_not(house: Callable[..., House]) -> None:
    """The one that is not hears of it, and so do we, with its address and key."""
    home = house(server_options(SERVER, GOOD, gate_domain="door"))
    good = home.guest(client_options(GOOD, SERVER))
    home.until(lambda: good.connections_count == 1 == home.watch.connections_count)
    other = home.guest(client_options(OTHER, SERVER))
    home.until(lambda: other.is_cut_off and home.watch.refusals["unknown_key"] == 1)
    assert {"refused": 1} == {reason: count for reason, count in other.refusals.items() if count}
    assert ("127.0.0.1", OTHER.public.decode()) == home.gate.denied["door"]
    assert 1 == home.watch.connections_count


def test_a_list_may_change_while_it_runs(house: Callable[..., House]) -> None:
    """Keys are changed without a restart: who was refused asks again, and who is in stays."""
    home = house(server_options(SERVER, GOOD, gate_domain="door"))
    good = home.guest(client_options(GOOD, SERVER))
    other = home.guest(client_options(OTHER, SERVER))
    home.until(lambda: good.connections_count == 1 and other.is_cut_off)
    home.gate.allow("door", frozenset({key_of(OTHER.public.decode())}))
    home.guests[1].redial()
    home.until(lambda: other.connections_count == 1)
    assert 1 == good.connections_count


def test_plain_and_wrong_keys_do_not_come_as_far_as_the_gate(house: Callable[..., House]) -> None:
    home = house(server_options(SERVER, gate_domain="door"))
    wrong = home.guest(client_options(GOOD, OTHER))
    home.until(lambda: home.watch.refusals["wrong_key"] > 0 and wrong.refusals["handshake"] > 0)
    home.guests.pop().close()
    plain = home.guest(SocketOptions(reconnect_min_ms=1))
    home.until(lambda: plain.refusals["mechanism"] + plain.refusals["handshake"] > 0)
    home.until(lambda: home.watch.refusals["mechanism"] + home.watch.refusals["handshake"] > 0)
    assert {} == home.gate.denied


@pytest.mark.parametrize("is_plain", [True, False])
def test_no_more_peers_than_may_be(house: Callable[..., House], is_plain: bool) -> None:
    """E1: the one too many comes in when another has gone, by trying again."""
    options = SocketOptions(handshake_timeout_ms=100, gate_domain="door")
    guest_options = SocketOptions(reconnect_min_ms=1)
    if not is_plain:
        options = server_options(SERVER, handshake_timeout_ms=100, gate_domain="door")
        guest_options = client_options(GOOD, SERVER)
    home = house(options, connections_max=2)
    guests = [home.guest(guest_options) for _ in range(3)]
    home.until(lambda: home.watch.connections_count == 2 and home.watch.refusals["connections_max"] > 0)
    home.until(lambda: sum(guest.connections_count for guest in guests) == 2)
    inside = [guest.connections_count for guest in guests]
    home.guests.pop(inside.index(1)).close()
    home.until(lambda: guests[inside.index(0)].connections_count == 1)


def test_where_nobody_was_admitted_nobody_gets_in(house: Callable[..., House]) -> None:
    """A mistake of ours must not be an open door."""
    home = house(server_options(SERVER, gate_domain="other"))
    guest = home.guest(client_options(GOOD, SERVER))
    home.until(lambda: guest.is_cut_off)
    assert 0 == home.watch.connections_count


@pytest.mark.parametrize("is_plain", [True, False])
def test_without_a_gate_nobody_gets_in(zmq_context: ZmqContext, is_plain: bool) -> None:
    """ZeroMQ's own default is to let everybody in whom nobody is asked about."""
    options = SocketOptions(gate_domain="door") if is_plain else server_options(SERVER, gate_domain="door")
    guest_options = SocketOptions(reconnect_min_ms=1) if is_plain else client_options(GOOD, SERVER)
    with open_socket(zmq_context, zmq.XPUB, Endpoint.parse(ANY), options, watches=True) as bound:
        watch = bound.watch
        assert watch is not None
        with open_socket(zmq_context, zmq.SUB, Endpoint.parse(bound.url), guest_options):
            assert watch.socket.poll(PATIENCE_S * 1000)
            while not watch.refusals["handshake"]:
                assert watch.socket.poll(PATIENCE_S * 1000)
                assert [] == watch.take_changes()


def test_a_context_has_one_gate(zmq_context: ZmqContext) -> None:
    gate = Gate(zmq_context)
    with pytest.raises(ConfigError, match="has a gate already"):
        Gate(zmq_context)
    gate.close()
    gate.close()

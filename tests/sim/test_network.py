"""Sockets and connections; the contract tests hold the same against ZeroMQ."""

import random

from kvbus.sim.clock import MS, SECOND, Clock
from kvbus.sim.network import Network, Socket
from kvbus.sim.pipe import LinkOptions


class Net:
    """A network and its clock."""

    def __init__(self, seed: int = 1) -> None:
        self.clock = Clock()
        self.network = Network(self.clock, random.Random(seed), LinkOptions())

    def open(self, kind, name: str = "x", hwm: int = 0, prefix: bytes = b"") -> Socket:
        binds = kind in {"pub", "router"}
        return self.network.open(kind, name, binds=binds, hwm=hwm, wake=lambda: None, prefix=prefix)

    def run(self, duration_ns: int = SECOND) -> None:
        until_ns = self.clock.now_ns + duration_ns
        while self.clock.run_next(until_ns):
            pass

    def read(self, socket: Socket) -> list[bytes]:
        self.run()
        return [frames[-1] for frames in socket.inbox.take(1000)]


def test_who_joins_late_has_missed_what_went_out_before() -> None:
    """And the publisher is told nothing of it."""
    net = Net()
    pub = net.open("pub")
    net.network.publish(pub, [b"missed"])
    sub = net.open("sub")
    net.run()
    net.network.publish(pub, [b"got"])
    assert [b"got"] == net.read(sub)
    assert ["up"] == sub.take_changes() == pub.take_changes()


def test_a_filter_is_a_prefix() -> None:
    """`a` takes `ab` too."""
    net = Net()
    pub, sub = net.open("pub"), net.open("sub", prefix=b"a")
    net.run()
    for topic in (b"a", b"ab", b"b", b""):
        net.network.publish(pub, [topic])
    assert [b"a", b"ab"] == net.read(sub)


def test_a_subscriber_that_is_full_loses_in_silence() -> None:
    """What it gets is in order and without word of what is missing."""
    net = Net()
    pub, sub = net.open("pub", hwm=2), net.open("sub", hwm=3)
    net.run()
    for number in range(9):
        net.network.publish(pub, [b"%d" % number])
    assert [b"0", b"1", b"2", b"3", b"4"] == net.read(sub)
    assert 4 == net.network.counts["dropped at the high-water mark"]


def test_a_connection_that_ends_is_told_after_its_last_message_and_made_again() -> None:
    """Messages that have arrived stay readable; both ends hear of the end and of the new beginning."""
    net = Net()
    pub, sub = net.open("pub"), net.open("sub")
    net.run()
    net.network.publish(pub, [b"before"])
    net.run(10 * MS)
    net.network.sever(net.network.connections[0])
    net.network.publish(pub, [b"into the void"])
    net.run()
    assert ["up", "down", "up"] == sub.take_changes() == pub.take_changes()
    net.network.publish(pub, [b"nobody has looked yet"])
    net.network.touch(sub)
    net.run()
    net.network.publish(pub, [b"after"])
    assert [b"before", b"after"] == net.read(sub)


def test_a_request_waits_for_whoever_binds_next() -> None:
    """A DEALER keeps it, also across the death of its peer; the answer goes back to it alone."""
    net = Net()
    dealer = net.open("dealer")
    other = net.open("dealer")
    net.network.send(dealer, [b"", b"ask"])
    net.run()
    router = net.open("router")
    net.run(12 * SECOND)
    ((identity, *request),) = router.inbox.take(10)
    assert [b"", b"ask"] == request
    assert "sent" == net.network.route(router, identity, [b"answer"])
    assert [b"answer"] == net.read(dealer)
    assert [] == net.read(other)


def test_a_router_refuses_who_is_full_and_who_is_gone() -> None:
    """With mandatory routing it says so."""
    net = Net()
    router, dealer = net.open("router", hwm=1), net.open("dealer", hwm=1)
    net.network.send(dealer, [b"ask"])
    net.run()
    ((identity, _),) = router.inbox.take(10)
    assert ["sent", "sent", "full"] == [net.network.route(router, identity, [b"x"]) for _ in range(3)]
    net.network.close(dealer)
    net.run()
    assert "gone" == net.network.route(router, identity, [b"x"])


def test_nobody_connects_to_an_endpoint_out_of_reach() -> None:
    """Until it is within reach again."""
    net = Net()
    net.open("pub")
    net.network.block("x", 5 * SECOND)
    sub = net.open("sub")
    net.run(3 * SECOND)
    assert [] == sub.take_changes()
    net.run(10 * SECOND)
    assert ["up"] == sub.take_changes()

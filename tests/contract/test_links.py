"""What links do, held against the simulator's and against ZeroMQ's: a pretence that is kinder than the real thing hides bugs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.nets import WAIT_MS, Net, SimNet, ZmqNet


@pytest.fixture(params=["sim", "zmq"])
def net(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Net]:
    """Each kind of network in turn."""
    if request.param == "sim":
        yield SimNet()
        return
    real = ZmqNet(request.getfixturevalue("zmq_context"), tmp_path)
    yield real
    real.end_all()


def payloads(messages: list[list[bytes]]) -> list[int]:
    return [int(frames[1][:8]) for frames in messages]


def message(number: int, size: int = 0) -> list[bytes]:
    return [b"t", b"%08d" % number + b"x" * size]


def test_order_is_kept(net: Net) -> None:
    """Within a connection, always."""
    pub = net.publisher()
    sub = net.subscriber(pub)
    for number in range(2000):
        net.publish(pub, message(number))
    assert list(range(2000)) == payloads(net.read_all(pub, sub))


def test_a_filter_is_a_prefix(net: Net) -> None:
    """So a subscriber has to look at the topic itself."""
    pub = net.publisher()
    sub = net.subscriber(pub, prefix=b"kv@10.0.0.1")
    for topic in (b"", b"kv", b"kv@10.0.0.1", b"kv@10.0.0.10", b"other"):
        net.publish(pub, [topic, b""])
    got = net.read_all(pub, sub, topic=b"kv@10.0.0.1")
    assert [b"kv@10.0.0.1", b"kv@10.0.0.10"] == [frames[0] for frames in got]


def test_who_joins_late_has_missed_what_was_before(net: Net) -> None:
    """Without a word."""
    pub = net.publisher()
    first = net.subscriber(pub)
    net.publish(pub, message(0))
    second = net.subscriber(pub)
    net.publish(pub, message(1))
    assert [0, 1] == payloads(net.read_all(pub, first))
    assert [1] == payloads(net.read_all(pub, second))


def test_loss_at_the_high_water_mark_is_silent(net: Net) -> None:
    """Nobody is told, the publisher never waits, order is kept; once all is read messages arrive again (the mark)."""
    pub = net.publisher(hwm=4)
    sub = net.subscriber(pub, hwm=4)
    count = 400
    for number in range(count):
        net.publish(pub, message(number, size=256 * 1024))
    got = payloads(net.read_all(pub, sub))
    assert sorted(set(got)) == got
    assert [0, 1, 2, 3] == got[:4]
    assert len(got) < count


def test_one_slow_subscriber_costs_the_others_nothing(net: Net) -> None:
    """Each has a queue of its own."""
    pub = net.publisher(hwm=100)
    slow, fast = net.subscriber(pub, hwm=100), net.subscriber(pub, hwm=1000)
    got, size = [], 64 * 1024
    for number in range(500):
        net.publish(pub, message(number, size))
        if number % 5 == 4:
            got += [*payloads(net.read_until(fast, message(number, size))), number]
    assert list(range(500)) == got
    assert len(net.read_all(pub, slow)) < 500


def test_the_end_of_a_connection_is_told_and_what_has_arrived_stays(net: Net) -> None:
    """And so is the next beginning; what was said in between is missed."""
    pub = net.publisher()
    sub = net.subscriber(pub)
    net.publish(pub, message(0))
    net.publish(pub, message(1))
    assert [message(0)] == net.read_until(sub, message(1))
    net.end(pub)
    assert ["up", "down"] == net.changes(sub, 2)
    pub = net.again(pub)
    assert ["up"] == net.changes(sub, 1)
    net.joined(pub, sub)
    net.publish(pub, message(2))
    assert [2] == payloads(net.read_all(pub, sub))


def test_who_does_not_look_does_not_subscribe_again(net: Net) -> None:
    """After a reconnect a process that stands still misses everything, though its connection is up."""
    pub = net.publisher()
    sub = net.subscriber(pub)
    net.end(pub)
    pub = net.again(pub)
    assert ["up", "down", "up"] == net.changes(sub, 3)
    net.publish(pub, message(0))
    net.joined(pub, sub)
    net.publish(pub, message(1))
    assert [1] == payloads(net.read_all(pub, sub))


def test_a_request_waits_for_whoever_binds(net: Net) -> None:
    """A DEALER keeps it; the answer comes back to it, in order, and to no other."""
    asking, other = net.dealer(), net.dealer()
    net.send(asking, [b"", b"ask"])
    router = net.router()
    identity, *request = _first(net, router)
    assert [b"", b"ask"] == request
    for number in range(100):
        assert "sent" == net.route(router, identity, message(number))
    assert list(range(99)) == payloads(net.read_until(asking, message(99)))
    assert [] == net.read(other)


def test_a_router_refuses_who_is_full_and_goes_on_where_it_was(net: Net) -> None:
    """With mandatory routing, and without waiting: nothing is lost."""
    router, dealer = net.router(hwm=2), net.dealer(hwm=2)
    net.send(dealer, [b"", b"ask"])
    identity = _first(net, router)[0]
    sent = 0
    while "sent" == net.route(router, identity, message(sent, size=256 * 1024)):
        sent += 1
        assert sent < 1000
    got = []
    for number in range(sent, sent + 50):
        for _ in range(WAIT_MS):
            got += payloads(net.read(dealer))
            if "sent" == net.route(router, identity, message(number, size=256 * 1024)):
                break
    got += payloads(net.read_until(dealer, message(sent + 49, size=256 * 1024)))
    assert list(range(sent + 49)) == got[: sent + 49]


def test_a_router_says_who_is_gone(net: Net) -> None:
    """So that an answer is not kept for it."""
    router, dealer = net.router(), net.dealer()
    net.send(dealer, [b"", b"ask"])
    identity = _first(net, router)[0]
    assert "sent" == net.route(router, identity, message(0))
    net.close(dealer)
    for _ in range(WAIT_MS):
        if "gone" == net.route(router, identity, message(1)):
            return
        net.read(router)
    raise AssertionError("it never said so")


def _first(net: Net, socket: object) -> list[bytes]:
    for _ in range(WAIT_MS):
        if messages := net.read(socket):
            return messages[0]
    raise AssertionError("nothing has come")

"""E3: a publisher with keys, on real sockets: who gets its batches, who does not, and who says so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError
from kvbus.events import BlockRemoved
from kvbus.publisher.publisher import Publisher
from kvbus.security.doors import Doors
from kvbus.security.key_files import KeyPairFiles, new_key_pair, read_secret_key
from kvbus.security.keys import CurveConfig
from kvbus.security.refusals import SocketStatus
from kvbus.sockets import BoundSocket, SocketOptions, ZmqContext, open_socket, send_frames
from kvbus.wire.frames import replay_request
from tests.security.peers import Pair, client_options, server_options
from tests.waiting import wait_until

ANY = "tcp://127.0.0.1:0"
PATIENCE_MS = 60_000
EVENT = BlockRemoved([1])


def pair_of(files: KeyPairFiles) -> Pair:
    return Pair(files.public_key.encode(), read_secret_key(files.secret_key_file, "key").encode())


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, KeyPairFiles]:
    return {name: new_key_pair(str(tmp_path / name)) for name in ("own", "good", "other")}


@pytest.fixture
def publisher(keys: dict[str, KeyPairFiles]) -> Iterator[Publisher]:
    curve = CurveConfig(secret_key_file=keys["own"].secret_key_file, allow=(keys["good"].public_key_file,))
    with Publisher(ANY, replay_endpoint=ANY, curve=curve) as made:
        made.publish([EVENT])
        yield made


def refused(sockets: list[SocketStatus], name: str) -> dict[str, int]:
    (found,) = [each for each in sockets if each.name == name]
    return {reason: count for reason, count in found.refused.items() if count}


def reader(context: ZmqContext, publisher: Publisher, options: SocketOptions, kind: int) -> BoundSocket:
    where = publisher.endpoint if kind == zmq.SUB else publisher.replay_endpoint
    assert where is not None
    return open_socket(context, kind, Endpoint.parse(where), options, watches=True)


def test_a_known_key_gets_live_batches_and_replay(
    zmq_context: ZmqContext, keys: dict[str, KeyPairFiles], publisher: Publisher
) -> None:
    options = client_options(pair_of(keys["good"]), pair_of(keys["own"]), subscriptions=(b"",))
    with (
        reader(zmq_context, publisher, options, zmq.SUB) as live,
        reader(
            zmq_context, publisher, client_options(pair_of(keys["good"]), pair_of(keys["own"])), zmq.DEALER
        ) as asking,
    ):
        assert publisher.wait_for_subscribers(1, PATIENCE_MS / 1000)
        publisher.publish([EVENT])
        assert live.socket.poll(PATIENCE_MS)
        send_frames(asking.socket, replay_request(0))
        assert asking.socket.poll(PATIENCE_MS)
        wait_until(lambda: [1, 1] == [each.connections for each in publisher.stats.sockets])
        assert [True, True] == [each.is_encrypted for each in publisher.stats.sockets]


@pytest.mark.parametrize("kind", [zmq.SUB, zmq.DEALER])
def test_others_get_nothing_and_show(
    zmq_context: ZmqContext,
    keys: dict[str, KeyPairFiles],
    publisher: Publisher,
    caplog: pytest.LogCaptureFixture,
    kind: int,
) -> None:
    """An unknown key, a wrong server key and a plain peer; each is counted under its reason and told once."""
    name = "publish" if kind == zmq.SUB else "replay"
    caplog.set_level(logging.WARNING)
    own, good, other = (pair_of(keys[each]) for each in ("own", "good", "other"))
    plain = SocketOptions(reconnect_min_ms=1)
    for options, reasons in (
        (client_options(other, own), {"unknown_key"}),
        (client_options(good, other), {"wrong_key"}),
        (plain, {"mechanism", "handshake"}),
    ):
        with reader(zmq_context, publisher, options, kind):
            wait_until(lambda reasons=reasons: reasons & set(refused(publisher.stats.sockets, name)))
    # A line follows its count, by a moment.
    wait_until(lambda: all(f"reason={reason}" in caplog.text for reason in ("unknown_key", "wrong_key")))
    told = [record.getMessage() for record in caplog.records if "peer_refused" in record.getMessage()]
    assert 1 == sum("reason=unknown_key" in line for line in told)
    assert 1 == sum("reason=wrong_key" in line for line in told)
    assert any(f"socket={name}" in line and keys["other"].public_key in line and "127.0.0.1" in line for line in told)
    for each in (own, good, other):
        assert each.secret.decode() not in caplog.text
    assert 0 == publisher.stats.subscribers


def test_a_publisher_that_connects_is_a_client_and_comes_again(
    zmq_context: ZmqContext, keys: dict[str, KeyPairFiles], caplog: pytest.LogCaptureFixture
) -> None:
    """ZeroMQ never tries again after such a refusal; the worker would be silent until somebody starts it anew."""
    own, good, other = (pair_of(keys[each]) for each in ("own", "good", "other"))
    poller = zmq.Poller()
    doors = Doors(zmq_context, poller, lambda refused: None)
    options = server_options(own, other, subscriptions=(b"",))
    with doors.open("ingest", zmq.SUB, Endpoint.parse(f"bind:{ANY}"), options) as ingest:
        poller.register(ingest.socket, zmq.POLLIN)

        def turn(is_so: Callable[[], bool]) -> None:
            end_s = time.monotonic() + PATIENCE_MS / 1000
            while not is_so():
                assert time.monotonic() < end_s
                for socket, _ in poller.poll(10):
                    doors.take(socket, time.monotonic_ns())

        curve = CurveConfig(secret_key_file=keys["good"].secret_key_file, server_key=keys["own"].public_key)
        quick = SocketOptions(reconnect_min_ms=1, reconnect_max_ms=20)
        with Publisher(f"connect:{ingest.url}", curve=curve, socket_options=quick) as publisher:
            turn(lambda: refused(publisher.stats.sockets, "publish").get("refused", 0) >= 2)
            wait_until(lambda: "reason=refused" in caplog.text)
            doors.allow("ingest", server_options(own, good).curve.allowed)  # type: ignore[union-attr]
            turn(lambda: publisher.stats.subscribers == 1)
            publisher.publish([EVENT])
            turn(lambda: bool(ingest.socket.poll(0)))
    doors.close()


def test_connections_have_a_limit(zmq_context: ZmqContext) -> None:
    """E1: each peer has a queue of its own."""
    quick = SocketOptions(handshake_timeout_ms=50)
    with Publisher(ANY, connections_max=1, socket_options=quick) as publisher:
        readers = [reader(zmq_context, publisher, SocketOptions(reconnect_min_ms=1), zmq.SUB) for _ in range(2)]
        wait_until(lambda: "connections_max" in refused(publisher.stats.sockets, "publish"))
        wait_until(lambda: publisher.stats.sockets[0].connections == 1)
        for each in readers:
            each.close()


@pytest.mark.parametrize(("endpoint", "is_told"), [("tcp://*:0", True), (ANY, False), ("tcp://localhost:0", False)])
def test_g66_plaintext_on_every_interface_warns_once(
    caplog: pytest.LogCaptureFixture, endpoint: str, is_told: bool
) -> None:
    with Publisher(endpoint):
        pass
    assert is_told == (1 == caplog.text.count("plaintext_exposed"))


def test_with_keys_it_does_not_warn(keys: dict[str, KeyPairFiles], caplog: pytest.LogCaptureFixture) -> None:
    curve = CurveConfig(secret_key_file=keys["own"].secret_key_file, allow=("any",))
    with Publisher("tcp://*:0", curve=curve):
        pass
    assert "plaintext_exposed" not in caplog.text


def test_what_is_missing_is_said_before_anything_opens(keys: dict[str, KeyPairFiles]) -> None:
    own = keys["own"].secret_key_file
    for endpoint, curve, field in (
        (ANY, CurveConfig(secret_key_file=own), "curve.allow"),
        (ANY, CurveConfig(server_key=keys["own"].public_key), "curve.secret_key_file"),
        ("connect:tcp://127.0.0.1:1", CurveConfig(secret_key_file=own, allow=("any",)), "curve.server_key"),
        (ANY, CurveConfig(secret_key_file=keys["own"].public_key_file, allow=("any",)), "curve.secret_key_file"),
    ):
        with pytest.raises(ConfigError) as caught:
            Publisher(endpoint, curve=curve)
        assert field == caught.value.problems[0].field
    with pytest.raises(ConfigError, match="connections_max"):
        Publisher(ANY, connections_max=-1)

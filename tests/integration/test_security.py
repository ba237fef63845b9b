"""E3: CURVE on every socket of a broker: a good key works; an unknown one, a wrong one and plaintext do not, and it shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from kvbus.broker.notices import Notice
from kvbus.broker.server import Broker
from kvbus.config import BrokerConfig, IngestConfig, ViewConfig, WorkerConfig
from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError
from kvbus.publisher.publisher import Publisher
from kvbus.security.key_files import KeyPairFiles, new_key_pair, read_secret_key
from kvbus.security.keys import CurveConfig
from kvbus.sockets import BoundSocket, SocketOptions, ZmqContext, open_socket, send_frames
from kvbus.wire.frames import replay_request
from tests.integration.rig import ANY, PATIENCE_S, stored
from tests.security.peers import Pair, client_options, server_options
from tests.waiting import wait_until

NAMES = ("broker", "worker", "reader", "stranger")


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, KeyPairFiles]:
    return {name: new_key_pair(str(tmp_path / name)) for name in NAMES}


@pytest.fixture
def pairs(keys: dict[str, KeyPairFiles]) -> dict[str, Pair]:
    return {
        name: Pair(files.public_key.encode(), read_secret_key(files.secret_key_file, name).encode())
        for name, files in keys.items()
    }


def broker_of(keys: dict[str, KeyPairFiles], told: list[Notice], **options: Any) -> Broker:
    """A broker that lets the reader in at its view, and the worker at its ingest socket."""
    reader = keys["reader"].public_key_file
    options.setdefault("views", (ViewConfig(endpoint=ANY, replay_endpoint=ANY, allow=(reader,)),))
    curve = CurveConfig(secret_key_file=keys["broker"].secret_key_file, allow=(keys["worker"].public_key,))
    return Broker(BrokerConfig(curve=curve, **options), tell=told.append, seed=1)


def refused(broker: Broker, name: str) -> dict[str, int]:
    (found,) = [each for each in broker.status().sockets if each.name == name]
    return {reason: count for reason, count in found.refused.items() if count}


def connections(broker: Broker, name: str) -> int:
    (found,) = [each for each in broker.status().sockets if each.name == name]
    return found.connections


def complaints(told: list[Notice], socket: str) -> set[str]:
    return {
        str(notice.fields["reason"])
        for notice in told
        if notice.name == "peer_refused" and notice.fields["socket"] == socket
    }


def bad_peers(pairs: dict[str, Pair], server: str, good: str) -> Iterator[tuple[SocketOptions, set[str]]]:
    """Options of a client that must not get in, and what the server may call it."""
    yield client_options(pairs["stranger"], pairs[server]), {"unknown_key"}
    yield client_options(pairs[good], pairs["stranger"]), {"wrong_key"}
    yield SocketOptions(reconnect_min_ms=1), {"mechanism", "handshake"}


def connect(context: ZmqContext, kind: int, url: str, options: SocketOptions) -> BoundSocket:
    if kind == zmq.SUB:
        options = msgspec.structs.replace(options, subscriptions=(b"",))
    return open_socket(context, kind, Endpoint.parse(url), options, binds_by_default=False, watches=True)


def test_workers_and_readers_with_the_right_keys(
    zmq_context: ZmqContext, keys: dict[str, KeyPairFiles], pairs: dict[str, Pair]
) -> None:
    """Worker, broker and reader, live and replay, everything encrypted."""
    told: list[Notice] = []
    worker_curve = CurveConfig(secret_key_file=keys["worker"].secret_key_file, allow=(keys["broker"].public_key,))
    with Publisher(ANY, replay_endpoint=ANY, curve=worker_curve) as publisher:
        publisher.publish([stored(1)])  # before the broker is there: it has to ask for it
        worker = WorkerConfig(
            worker_id="w0",
            endpoint=publisher.endpoint,
            replay_endpoint=publisher.replay_endpoint,
            server_key=keys["worker"].public_key_file,
        )
        with broker_of(keys, told, workers=(worker,)) as broker:
            options = client_options(pairs["reader"], pairs["broker"])
            with connect(zmq_context, zmq.SUB, broker.endpoints["pub:all"], options) as live:
                wait_until(lambda: connections(broker, "pub:all") == 1)
                wait_until(lambda: broker.status().views[0].sent == 1)
                # Connected is not yet subscribed.
                wait_until(lambda: publisher.publish([stored(2)]) and live.socket.poll(20))
            with connect(zmq_context, zmq.DEALER, broker.endpoints["replay:all"], options) as asking:
                send_frames(asking.socket, replay_request(0))
                assert asking.socket.poll(PATIENCE_S * 1000)
            shown = {each.name: each.is_encrypted for each in broker.status().sockets}
    assert {"pub:all": True, "replay:all": True, "worker:w0": True} == shown
    assert [] == [notice for notice in told if notice.name in ("peer_refused", "plaintext_exposed")]


@pytest.mark.parametrize(("kind", "name"), [(zmq.SUB, "pub:all"), (zmq.DEALER, "replay:all")])
def test_nobody_else_gets_at_a_view(
    zmq_context: ZmqContext, keys: dict[str, KeyPairFiles], pairs: dict[str, Pair], kind: int, name: str
) -> None:
    told: list[Notice] = []
    with broker_of(keys, told, ingest=IngestConfig(endpoint=ANY)) as broker:
        for options, reasons in bad_peers(pairs, "broker", "reader"):
            with connect(zmq_context, kind, broker.endpoints[name], options):
                wait_until(lambda reasons=reasons: reasons & set(refused(broker, name)))
        # A key of another socket's list is none here.
        with connect(zmq_context, kind, broker.endpoints[name], client_options(pairs["worker"], pairs["broker"])):
            wait_until(lambda: refused(broker, name)["unknown_key"] >= 2)
        assert 0 == connections(broker, name)
    assert {"unknown_key", "wrong_key"} <= complaints(told, name)
    shown = str(told) + str(broker.status())
    assert keys["stranger"].public_key in shown
    assert [] == [pair for pair in pairs.values() if pair.secret.decode() in shown]


def test_ingest_takes_its_workers_and_nobody_else(
    zmq_context: ZmqContext, keys: dict[str, KeyPairFiles], pairs: dict[str, Pair]
) -> None:
    """Whoever may write here decides where requests go: it is worth more than reading."""
    told: list[Notice] = []
    with broker_of(keys, told, ingest=IngestConfig(endpoint=ANY)) as broker:
        url = f"connect:{broker.endpoints['ingest']}"
        for options, reasons in bad_peers(pairs, "broker", "worker"):
            with connect(zmq_context, zmq.PUB, url, options):
                wait_until(lambda reasons=reasons: reasons & set(refused(broker, "ingest")))
        curve = CurveConfig(secret_key_file=keys["worker"].secret_key_file, server_key=keys["broker"].public_key)
        with Publisher(url, curve=curve) as publisher:
            assert publisher.wait_for_subscribers(1, PATIENCE_S)
            publisher.publish([stored(1)])
            wait_until(lambda: broker.status().batches == 1)
            assert 1 == connections(broker, "ingest")
    assert {"unknown_key", "wrong_key"} <= complaints(told, "ingest")


@pytest.mark.parametrize("fault", ["unknown_key", "plaintext worker", "plaintext broker", "wrong_key"])
def test_a_broker_that_a_worker_does_not_let_in_says_so(
    zmq_context: ZmqContext, keys: dict[str, KeyPairFiles], pairs: dict[str, Pair], fault: str
) -> None:
    """A worker that is silently missing holds up its whole group."""
    told: list[Notice] = []
    allow = (keys["stranger" if fault == "unknown_key" else "broker"].public_key,)
    curve = CurveConfig(secret_key_file=keys["worker"].secret_key_file, allow=allow)
    with Publisher(ANY, curve=None if fault == "plaintext worker" else curve) as publisher:
        server_key = {"wrong_key": keys["stranger"].public_key, "plaintext broker": None}.get(
            fault, keys["worker"].public_key
        )
        worker = WorkerConfig(worker_id="w0", endpoint=publisher.endpoint, server_key=server_key)
        with broker_of(keys, told, workers=(worker,)) as broker:
            wait_until(lambda: complaints(told, "worker:w0"))
            assert 0 == connections(broker, "worker:w0")
            # The worker has noticed as well, maybe a moment later.
            wait_until(lambda: any(sum(each.refused.values()) for each in publisher.stats.sockets))
        assert complaints(told, "worker:w0") <= {"refused", "mechanism", "handshake"}


def test_a_replay_endpoint_that_refuses_shows(zmq_context: ZmqContext, keys: dict[str, KeyPairFiles]) -> None:
    """Live batches come and replays do not: every small hole would be a loss, and nobody would know why."""
    told: list[Notice] = []
    own = keys["worker"].secret_key_file
    anybody = CurveConfig(secret_key_file=own, allow=("any",))
    strict = CurveConfig(secret_key_file=own, allow=(keys["stranger"].public_key,))
    with Publisher(ANY, curve=anybody) as live, Publisher(ANY, replay_endpoint=ANY, curve=strict) as other:
        worker = WorkerConfig(
            worker_id="w0",
            endpoint=live.endpoint,
            replay_endpoint=other.replay_endpoint,
            server_key=keys["worker"].public_key,
        )
        with broker_of(keys, told, workers=(worker,)) as broker:
            wait_until(lambda: connections(broker, "worker:w0") == 1)
            live.publish([stored(1)])
            wait_until(lambda: complaints(told, "replay:worker:w0"))
            assert "refused" in refused(broker, "replay:worker:w0")
    names = {each.name for each in broker.status().sockets}
    assert {"pub:all", "replay:all", "worker:w0", "replay:worker:w0"} == names  # the last status has all of them


def test_a_list_is_read_again_and_who_waits_gets_in(
    zmq_context: ZmqContext, keys: dict[str, KeyPairFiles], pairs: dict[str, Pair], tmp_path: Path
) -> None:
    """Keys are changed without a restart: put the new one into the folder, reload, take the old one out, reload."""
    folder = tmp_path / "clients"
    folder.mkdir()
    (folder / "reader.key").write_bytes(Path(keys["reader"].public_key_file).read_bytes())
    view = ViewConfig(endpoint=ANY, replay_endpoint=ANY, allow=(str(folder),))
    told: list[Notice] = []
    with broker_of(keys, told, ingest=IngestConfig(endpoint=ANY), views=(view,)) as broker:
        options = client_options(pairs["stranger"], pairs["broker"])
        with connect(zmq_context, zmq.SUB, broker.endpoints["pub:all"], options) as waiting:
            wait_until(lambda: refused(broker, "pub:all").get("unknown_key"))
            (folder / "stranger.key").write_bytes(Path(keys["stranger"].public_key_file).read_bytes())
            broker.reload(broker.config)
            waiting.redial()
            wait_until(lambda: connections(broker, "pub:all") == 1)
        (folder / "broken.key").write_text("nonsense")
        with pytest.raises(ConfigError, match=r"broken\.key"):
            broker.reload(broker.config)
        (folder / "broken.key").unlink()
        (folder / "stranger.key").unlink()
        broker.reload(broker.config)
        with connect(zmq_context, zmq.SUB, broker.endpoints["pub:all"], options):
            wait_until(lambda: refused(broker, "pub:all")["unknown_key"] >= 2)


def test_a_reload_with_keys_needs_no_replay_socket_and_may_take_a_bound_worker_away(
    keys: dict[str, KeyPairFiles],
) -> None:
    """Lists are read again for sockets that are there, not for those that a view does not have or that have just gone."""
    view = ViewConfig(endpoint=ANY, replay_endpoint=None, allow=(keys["reader"].public_key,))
    stays = WorkerConfig(worker_id="stays", endpoint="connect:tcp://127.0.0.1:9")
    goes = WorkerConfig(worker_id="goes", endpoint=f"bind:{ANY}")
    with broker_of(keys, [], views=(view,), workers=(stays, goes)) as broker:
        broker.reload(broker.config)
        broker.reload(msgspec.structs.replace(broker.config, workers=(stays,)))
        assert {"pub:all", "worker:stays"} == {each.name for each in broker.status().sockets}


def test_a_plain_view_beside_an_encrypted_one(zmq_context: ZmqContext, keys: dict[str, KeyPairFiles]) -> None:
    """No router knows CURVE: it stands beside the broker, and the view for the others is encrypted."""
    views = (
        ViewConfig(name="router", endpoint=ANY, curve=False),
        ViewConfig(name="ops", endpoint=ANY, allow=(keys["reader"].public_key,)),
    )
    with broker_of(keys, [], ingest=IngestConfig(endpoint=ANY), views=views) as broker:
        with connect(zmq_context, zmq.SUB, broker.endpoints["pub:router"], SocketOptions()):
            wait_until(lambda: connections(broker, "pub:router") == 1)
        shown = {each.name: each.is_encrypted for each in broker.status().sockets}
    assert {"pub:router": False, "pub:ops": True, "ingest": True} == shown


def test_a_curve_client_at_a_plain_broker_shows_on_both_sides(zmq_context: ZmqContext, pairs: dict[str, Pair]) -> None:
    told: list[Notice] = []
    config = BrokerConfig(ingest=IngestConfig(endpoint=ANY), views=(ViewConfig(endpoint=ANY),))
    with Broker(config, tell=told.append) as broker:
        options = client_options(pairs["reader"], pairs["broker"])
        with connect(zmq_context, zmq.SUB, broker.endpoints["pub:all"], options) as reader:
            assert reader.watch is not None
            wait_until(lambda: complaints(told, "pub:all"))
            assert reader.watch.socket.poll(PATIENCE_S * 1000)
            reader.watch.take_changes()
            assert not reader.watch.connections_count


def test_connections_have_a_limit(zmq_context: ZmqContext) -> None:
    """E1: the peers of one socket are bounded, plaintext too, and the one too many is counted."""
    told: list[Notice] = []
    view = ViewConfig(endpoint=ANY)
    config = BrokerConfig(ingest=IngestConfig(endpoint=ANY), views=(view,), connections_max=2)
    with Broker(config, tell=told.append) as broker:
        once = SocketOptions(reconnect_min_ms=60_000)  # who is refused does not come again, to be counted once more
        readers = [connect(zmq_context, zmq.SUB, broker.endpoints["pub:all"], once) for _ in range(3)]
        wait_until(lambda: refused(broker, "pub:all") == {"connections_max": 1})
        wait_until(lambda: connections(broker, "pub:all") == 2)
        for reader in readers:
            reader.close()
    assert {"connections_max"} == complaints(told, "pub:all")


def test_g66_by_default_nothing_is_reachable_and_a_wildcard_warns_once() -> None:
    """Events hold the tokens of prompts."""
    for text in (ViewConfig().endpoint, IngestConfig().endpoint):
        assert Endpoint.parse(text).is_local
    told: list[Notice] = []
    views = (ViewConfig(name="a", endpoint="tcp://*:0"), ViewConfig(name="b", endpoint="tcp://0.0.0.0:0"))
    with Broker(BrokerConfig(ingest=IngestConfig(endpoint=ANY), views=views), tell=told.append):
        pass
    assert [{"sockets": ["pub:a", "pub:b"]}] == [each.fields for each in told if each.name == "plaintext_exposed"]


def test_a_subscriber_may_not_send_what_is_no_subscription(zmq_context: ZmqContext, pairs: dict[str, Pair]) -> None:
    """E1: a reader that sends megabytes is cut off, and nobody else is."""
    config = BrokerConfig(ingest=IngestConfig(endpoint=ANY), views=(ViewConfig(endpoint=ANY, replay_endpoint=ANY),))
    with Broker(config) as broker:
        url = broker.endpoints["replay:all"]
        with (
            connect(zmq_context, zmq.DEALER, url, SocketOptions()) as good,
            connect(zmq_context, zmq.DEALER, url, SocketOptions(reconnect_min_ms=60_000)) as bad,
        ):
            wait_until(lambda: connections(broker, "replay:all") == 2)
            bad.socket.send(bytes(70_000))
            wait_until(lambda: connections(broker, "replay:all") == 1)
            send_frames(good.socket, replay_request(0))
            assert good.socket.poll(PATIENCE_S * 1000)


def test_server_options_without_a_list_let_anybody_in(pairs: dict[str, Pair]) -> None:
    """What the peers of these tests rest on."""
    assert server_options(pairs["broker"]).curve.allowed is None  # type: ignore[union-attr]

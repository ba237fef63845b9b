"""E3: a subscriber with keys: it receives, or says why it does not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kvbus.errors import ConfigError
from kvbus.events import AllBlocksCleared
from kvbus.publisher.publisher import Publisher
from kvbus.security.key_files import KeyPairFiles, new_key_pair
from kvbus.security.keys import CurveConfig
from kvbus.subscriber import Received, Subscriber
from tests.waiting import wait_until

ANY = "tcp://127.0.0.1:0"
PATIENCE_S = 60.0


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, KeyPairFiles]:
    return {name: new_key_pair(str(tmp_path / name)) for name in ("server", "good", "stranger")}


def publisher_of(keys: dict[str, KeyPairFiles]) -> Publisher:
    curve = CurveConfig(secret_key_file=keys["server"].secret_key_file, allow=(keys["good"].public_key_file,))
    return Publisher(ANY, replay_endpoint=ANY, curve=curve)


def test_with_the_right_keys_it_gets_old_and_new_batches(keys: dict[str, KeyPairFiles]) -> None:
    with publisher_of(keys) as publisher:
        publisher.publish([AllBlocksCleared()])
        curve = CurveConfig(secret_key_file=keys["good"].secret_key_file, server_key=keys["server"].public_key)
        with Subscriber(publisher.endpoint, publisher.replay_endpoint, curve=curve) as subscriber:
            first = subscriber.receive(PATIENCE_S)
            assert isinstance(first, Received)
            assert first.replayed
            assert publisher.wait_for_subscribers(1, PATIENCE_S)
            publisher.publish([AllBlocksCleared()])
            assert isinstance(subscriber.receive(PATIENCE_S), Received)
            assert subscriber.refused is None
            (live,) = subscriber.sockets
            assert ("live", True, 1) == (live.name, live.is_encrypted, live.connections)


@pytest.mark.parametrize(
    ("key", "server", "reasons"),
    [
        ("stranger", "server", {"refused"}),
        ("good", "stranger", {"handshake"}),
        (None, "server", {"refused"}),
        (None, None, {"mechanism", "handshake"}),
    ],
)
def test_one_that_is_refused_says_so_and_keeps_quiet_about_the_rest(
    keys: dict[str, KeyPairFiles],
    caplog: pytest.LogCaptureFixture,
    key: str | None,
    server: str | None,
    reasons: set[str],
) -> None:
    """Unknown key, wrong server key, a key made up for this run, plaintext."""
    curve = CurveConfig(
        secret_key_file=None if key is None else keys[key].secret_key_file,
        server_key=None if server is None else keys[server].public_key,
    )
    with (
        publisher_of(keys) as publisher,
        Subscriber(publisher.endpoint, curve=None if server is None else curve) as subscriber,
    ):
        wait_until(lambda: subscriber.refused)
        assert subscriber.refused is not None
        assert subscriber.refused.reason in reasons
        assert not subscriber.is_connected
        assert any(subscriber.sockets[0].refused[reason] for reason in reasons)
    assert 1 <= caplog.text.count("peer_refused socket=live") <= len(reasons)


def test_a_replay_endpoint_that_refuses_shows(keys: dict[str, KeyPairFiles], caplog: pytest.LogCaptureFixture) -> None:
    """Live batches come, and what came before never does: that looks like a publisher that has let it go."""
    caplog.set_level(logging.WARNING)
    with publisher_of(keys) as strict, Publisher(ANY, curve=_anybody(keys)) as open_one:
        curve = CurveConfig(server_key=keys["server"].public_key)
        with Subscriber(open_one.endpoint, strict.replay_endpoint, curve=curve) as subscriber:
            assert open_one.wait_for_subscribers(1, PATIENCE_S)
            open_one.publish([AllBlocksCleared()])
            wait_until(lambda: any(each.name == "replay" for each in subscriber.sockets))
            (replay,) = [each for each in subscriber.sockets if each.name == "replay"]
            assert replay.refused["refused"] >= 1
            assert replay.is_encrypted


def test_one_that_binds_is_the_server(keys: dict[str, KeyPairFiles]) -> None:
    curve = CurveConfig(secret_key_file=keys["server"].secret_key_file, allow=(keys["good"].public_key,))
    client = CurveConfig(secret_key_file=keys["good"].secret_key_file, server_key=keys["server"].public_key)
    with Subscriber(f"bind:{ANY}", curve=curve) as subscriber:
        with Publisher(f"connect:{subscriber.endpoint}", curve=client) as publisher:
            assert publisher.wait_for_subscribers(1, PATIENCE_S)
            publisher.publish([AllBlocksCleared()])
            assert isinstance(subscriber.receive(PATIENCE_S), Received)
        with Publisher(f"connect:{subscriber.endpoint}"):
            wait_until(lambda: subscriber.refused)


def test_what_is_missing_is_said_before_anything_opens(keys: dict[str, KeyPairFiles]) -> None:
    with pytest.raises(ConfigError, match=r"curve\.server_key"):
        Subscriber("tcp://127.0.0.1:1", curve=CurveConfig(secret_key_file=keys["good"].secret_key_file))


def _anybody(keys: dict[str, KeyPairFiles]) -> CurveConfig:
    return CurveConfig(secret_key_file=keys["server"].secret_key_file, allow=("any",))

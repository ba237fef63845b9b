"""Which socket of a broker has which keys."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvbus.broker.intake import Intake, Source
from kvbus.broker.locks import Locks
from kvbus.config import BrokerConfig, IngestConfig, ViewConfig, parse_worker
from kvbus.errors import ConfigError
from kvbus.security.key_files import KeyPairFiles, new_key_pair
from kvbus.security.keys import CurveClient, CurveConfig, CurveServer, key_of


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, KeyPairFiles]:
    return {name: new_key_pair(str(tmp_path / name)) for name in ("own", "reader", "engine")}


def source_of(config: BrokerConfig) -> Source:
    return Intake(config, random.Random(0)).sources[0]


def test_without_keys_all_is_plaintext() -> None:
    config = BrokerConfig.of("tcp://127.0.0.1:1")
    locks = Locks(config)
    assert locks.of_view(ViewConfig()) is None
    assert locks.of_source(source_of(config)) is None
    ingest = BrokerConfig(ingest=IngestConfig())
    assert Locks(ingest).of_source(source_of(ingest)) is None


def test_what_is_bound_is_a_server_and_says_itself_who_may_come(keys: dict[str, KeyPairFiles]) -> None:
    """One list for all, another one for a view that says so, and plaintext for a router beside it."""
    curve = CurveConfig(secret_key_file=keys["own"].secret_key_file, allow=("any",))
    config = BrokerConfig(ingest=IngestConfig(allow=(keys["engine"].public_key_file,)), curve=curve)
    locks = Locks(config)
    assert CurveServer(secret_key=b"", allowed=None).allowed == getattr(locks.of_view(ViewConfig()), "allowed", 0)
    own = locks.of_view(ViewConfig(allow=(keys["reader"].public_key,)))
    assert frozenset({key_of(keys["reader"].public_key)}) == getattr(own, "allowed", 0)
    assert locks.of_view(ViewConfig(curve=False)) is None
    assert frozenset({key_of(keys["engine"].public_key)}) == getattr(locks.of_source(source_of(config)), "allowed", 0)
    bare = replace(config, ingest=IngestConfig(curve=False))
    assert Locks(bare).of_source(source_of(bare)) is None
    binding = replace(config, ingest=None, workers=(parse_worker("bind:tcp://127.0.0.1:0"),))
    assert isinstance(Locks(binding).of_source(source_of(binding)), CurveServer)


def test_a_worker_is_encrypted_where_its_key_is_known(keys: dict[str, KeyPairFiles]) -> None:
    """Engines know no CURVE: a broker with keys still connects to them in plaintext."""
    curve = CurveConfig(secret_key_file=keys["own"].secret_key_file, allow=("any",))
    plain = BrokerConfig.of("tcp://127.0.0.1:1", curve=curve)
    assert Locks(plain).of_source(source_of(plain)) is None
    own = BrokerConfig.of(f"tcp://127.0.0.1:1,server_key={keys['engine'].public_key}", curve=curve)
    found = Locks(own).of_source(source_of(own))
    assert isinstance(found, CurveClient)
    assert (keys["own"].public_key, keys["engine"].public_key) == (
        found.public_key.decode(),
        found.server_key.decode(),
    )
    common = BrokerConfig.of("tcp://127.0.0.1:1", curve=CurveConfig(server_key=keys["engine"].public_key_file))
    assert isinstance(Locks(common).of_source(source_of(common)), CurveClient)


def test_a_list_is_read_whenever_it_is_asked_for(keys: dict[str, KeyPairFiles], tmp_path: Path) -> None:
    """So that a folder with one key more is enough, with a SIGHUP."""
    folder = tmp_path / "clients"
    folder.mkdir()
    new_key_pair(str(folder / "a"))
    curve = CurveConfig(secret_key_file=keys["own"].secret_key_file, allow=(str(folder),))
    locks = Locks(BrokerConfig(curve=curve))
    assert 1 == len(getattr(locks.of_view(ViewConfig()), "allowed", ()))
    new_key_pair(str(folder / "b"))
    assert 2 == len(getattr(locks.of_view(ViewConfig()), "allowed", ()))


def test_what_cannot_be_read_is_named(keys: dict[str, KeyPairFiles]) -> None:
    curve = CurveConfig(secret_key_file=keys["own"].secret_key_file, allow=("any",))
    config = BrokerConfig.of("tcp://127.0.0.1:1,server_key=/no/such/file", curve=curve)
    with pytest.raises(ConfigError, match="/no/such/file"):
        Locks(config).of_source(source_of(config))
    with pytest.raises(ConfigError, match=r"views\.v\.allow.*/no/such/list"):
        Locks(config).of_view(ViewConfig(name="v", allow=("/no/such/list",)))
    with pytest.raises(ConfigError, match=r"curve\.secret_key_file"):
        Locks(replace(config, curve=CurveConfig(secret_key_file="/no/such/key")))

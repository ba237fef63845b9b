"""CURVE on the command line: what the flags say, and what a person sees of a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbus.errors import ConfigError, Problem
from kvbus.events import AllBlocksCleared
from kvbus.publisher.publisher import Publisher
from kvbus.security.key_files import KeyPairFiles, new_key_pair
from kvbus.security.keys import CurveConfig
from kvbus_cli.curve_flags import curve_of, naming_curve_flags
from kvbus_cli.main import app

ANY = "tcp://127.0.0.1:0"


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, KeyPairFiles]:
    return {name: new_key_pair(str(tmp_path / name)) for name in ("server", "good", "stranger")}


@pytest.fixture
def publisher(keys: dict[str, KeyPairFiles]) -> Iterator[Publisher]:
    curve = CurveConfig(secret_key_file=keys["server"].secret_key_file, allow=(keys["good"].public_key_file,))
    with Publisher(ANY, replay_endpoint=ANY, curve=curve) as made:
        made.publish([AllBlocksCleared()])
        yield made


def flags(keys: dict[str, KeyPairFiles], name: str) -> list[str]:
    return ["--curve-key", keys[name].secret_key_file, "--server-key", keys["server"].public_key_file]


def test_no_flags_are_no_curve() -> None:
    assert curve_of(None, None) is None
    assert CurveConfig(server_key="x") == curve_of(None, "x")
    assert CurveConfig(secret_key_file="f", allow=("any",)) == curve_of("f", None, ["any"])


def test_errors_name_the_flag() -> None:
    with pytest.raises(ConfigError) as caught, naming_curve_flags():
        raise ConfigError([Problem("curve.allow", "", "missing"), Problem("other", "", "wrong")])
    assert ["--allow", "other"] == [problem.field for problem in caught.value.problems]


def test_tail_and_snapshot_with_the_right_keys(publisher: Publisher, keys: dict[str, KeyPairFiles]) -> None:
    tail = ["tail", publisher.endpoint, "--replay", str(publisher.replay_endpoint), "--from", "oldest", "--count", "1"]
    result = CliRunner().invoke(app, [*tail, "--seconds", "20", *flags(keys, "good")])
    assert "AllBlocksCleared" in result.stdout or "cleared" in result.stdout.lower()
    result = CliRunner().invoke(app, ["snapshot", str(publisher.replay_endpoint), *flags(keys, "good")])
    assert 0 == result.exit_code, result.stderr


@pytest.mark.parametrize("name", ["stranger", None])
def test_tail_says_who_refuses_it(publisher: Publisher, keys: dict[str, KeyPairFiles], name: str | None) -> None:
    """Instead of waiting in silence. With a key that is not known, and in plaintext."""
    more = [] if name is None else flags(keys, name)
    result = CliRunner().invoke(app, ["tail", publisher.endpoint, "--seconds", "0.6", *more])
    assert 0 == result.exit_code
    assert 1 <= result.stderr.count(f"{publisher.endpoint} refuses the connection") <= 2
    assert "peer_refused" not in result.stderr


def test_snapshot_says_who_refuses_it(publisher: Publisher, keys: dict[str, KeyPairFiles]) -> None:
    where = str(publisher.replay_endpoint)
    result = CliRunner().invoke(app, ["snapshot", where, "--timeout", "0.5", *flags(keys, "stranger")])
    assert 1 == result.exit_code
    assert f"{where} refuses the connection (refused)" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["tail", "tcp://127.0.0.1:1"],
        ["snapshot", "tcp://127.0.0.1:1"],
        ["publish", "tcp://127.0.0.1:0", "--topic", "t", "--allow", "any"],
        ["worker", "--requests", "1", "--endpoint", "tcp://127.0.0.1:0", "--replay", "none", "--allow", "any"],
        ["broker", "--worker", "tcp://127.0.0.1:1", "--pub", ANY, "--replay", "none", "--allow", "any"],
    ],
)
def test_a_key_that_others_can_read_stops_every_command(keys: dict[str, KeyPairFiles], command: list[str]) -> None:
    """E3: with the way out in the line."""
    path = Path(keys["good"].secret_key_file)
    path.chmod(0o644)
    more = ["--server-key", keys["server"].public_key] if command[0] in ("tail", "snapshot") else []
    result = CliRunner().invoke(app, [*command, "--curve-key", str(path), *more])
    assert 2 == result.exit_code, result.output
    assert f"chmod 600 {path}" in result.stderr
    assert 1 == len(result.stderr.splitlines())


def test_publish_with_keys(keys: dict[str, KeyPairFiles]) -> None:
    result = CliRunner().invoke(
        app,
        ["publish", ANY, "--topic", "t", "--curve-key", keys["server"].secret_key_file, "--allow", "any"],
        input='{"event": {"type": "AllBlocksCleared"}}\n',
    )
    assert 0 == result.exit_code, result.stderr
    assert "published 1 events" in result.stderr

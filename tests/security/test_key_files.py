"""Key files: nobody else can read them, and what others could read is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import zmq
import zmq.auth

from kvbus.errors import ConfigError
from kvbus.security.key_files import (
    Keyring,
    exposure,
    new_key_pair,
    read_allowed,
    read_public_key,
    read_secret_key,
)
from kvbus.security.keys import CurveClient, CurveConfig, CurveServer, key_of


def complaint(caught: pytest.ExceptionInfo[ConfigError]) -> str:
    return str(caught.value)


def test_a_new_pair_is_for_its_owner_and_for_any_zeromq_program(tmp_path: Path) -> None:
    """E3: 0600 from its first byte on; `zmq.auth` reads what we write."""
    before = os.umask(0)
    try:
        made = new_key_pair(str(tmp_path / "broker"))
    finally:
        os.umask(before)
    assert str(tmp_path / "broker.key_secret") == made.secret_key_file
    assert 0o600 == stat.S_IMODE(os.stat(made.secret_key_file).st_mode)
    public_key, secret_key = zmq.auth.load_certificate(made.secret_key_file)
    assert secret_key is not None
    assert zmq.curve_public(secret_key) == public_key == made.public_key.encode()
    assert (public_key, None) == zmq.auth.load_certificate(made.public_key_file)
    assert secret_key.decode() == read_secret_key(made.secret_key_file, "key")
    for path in (made.secret_key_file, made.public_key_file, made.public_key):
        assert made.public_key == read_public_key(path, "key")


@pytest.mark.parametrize("there", ["broker.key", "broker.key_secret"])
def test_nothing_is_overwritten_and_nothing_left_behind(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("precious")
    with pytest.raises(ConfigError) as caught:
        new_key_pair(str(tmp_path / "broker.key_secret"))
    assert f"{tmp_path / there}" in complaint(caught)
    assert "never overwritten" in complaint(caught)
    assert [there] == os.listdir(tmp_path)
    assert "precious" == (tmp_path / there).read_text()


@pytest.mark.parametrize("path", ["no/such/folder/key", "", "/"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        new_key_pair(str(tmp_path / path) if path.startswith("no") else path)
    assert "PATH" == caught.value.problems[0].field


def test_a_secret_that_others_can_read_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    """`zmq.auth.create_certificates` leaves its secret file readable by all."""
    _, secret_path = zmq.auth.create_certificates(tmp_path, "theirs")
    os.chmod(secret_path, 0o644)
    with pytest.raises(ConfigError) as caught:
        read_secret_key(secret_path, "--curve-key")
    assert f"--curve-key: may be read or written by everybody (mode 0644): chmod 600 {secret_path}" in complaint(caught)
    os.chmod(secret_path, 0o600)
    assert 40 == len(read_secret_key(secret_path, "--curve-key"))


@pytest.mark.parametrize(
    ("mode", "owner", "reader", "is_exposed"),
    [
        (0o600, 1000, 1000, False),
        (0o400, 1000, 1000, False),
        (0o640, 1000, 1000, True),
        (0o604, 1000, 1000, True),
        (0o602, 1000, 1000, True),
        (0o440, 0, 1000, False),  # a secret of Kubernetes with fsGroup
        (0o660, 0, 1000, True),
        (0o440, 0, 0, True),
        (0o444, 0, 1000, True),
    ],
)
def test_who_else_may_read(mode: int, owner: int, reader: int, is_exposed: bool) -> None:
    """The one exception is PostgreSQL's: root's file, whose group we are in."""
    assert is_exposed == bool(exposure(mode, owner, reader))


def test_a_bad_file_is_named_and_not_quoted(tmp_path: Path) -> None:
    made = new_key_pair(str(tmp_path / "good"))
    other = new_key_pair(str(tmp_path / "other"))
    secret = read_secret_key(made.secret_key_file, "key")
    for content, why in (
        ("", "no key file"),
        ("hello\n", "no key file"),
        ("\0\xff", "not text"),
        (f'public-key = "{made.public_key}"', "holds a public key only"),
        (f'secret-key = "{secret[:-1]}"', "secret-key is none: a key has 40 characters of Z85, not 39"),
        (f'secret-key = "~{secret[1:]}"', "not of it"),
        (f'public-key = "{other.public_key}"\nsecret-key = "{secret}"', "not of one pair"),
        ("#" * 70_000, "too large"),
    ):
        bad = tmp_path / "bad"
        bad.write_bytes(content.encode("latin-1"))
        bad.chmod(0o600)
        with pytest.raises(ConfigError) as caught:
            read_secret_key(str(bad), "key")
        assert str(bad) in complaint(caught)
        assert why in complaint(caught)
        assert secret[:10] not in complaint(caught)
    for path in (str(tmp_path / "missing"), str(tmp_path)):
        with pytest.raises(ConfigError) as caught:
            read_secret_key(path, "key")
        assert path in complaint(caught)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="is no file"):
        read_secret_key(str(tmp_path / "pipe"), "key")


def test_a_secret_typed_in_place_of_its_file_is_not_shown(tmp_path: Path) -> None:
    secret = zmq.curve_keypair()[1].decode()
    with pytest.raises(ConfigError) as caught:
        Keyring(CurveConfig(secret_key_file=secret))
    assert secret not in complaint(caught)
    with pytest.raises(ConfigError) as caught:
        read_public_key(secret.replace(".", "x").replace("/", "x")[:-1], "--server-key")
    assert "39 characters" in complaint(caught)
    assert secret[:8] not in complaint(caught)


def test_a_list_of_clients_takes_keys_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    folder.mkdir()
    made = [new_key_pair(str(folder / name)) for name in ("a", "b")]
    single = new_key_pair(str(tmp_path / "c"))
    typed = zmq.curve_keypair()[0].decode()
    expected = {key_of(key) for key in (*(each.public_key for each in made), single.public_key, typed)}
    assert expected == read_allowed((str(folder), single.public_key_file, typed), "allow")
    assert read_allowed(("any",), "allow") is None


def test_everything_wrong_in_a_list_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError) as caught:
        read_allowed((str(tmp_path / "empty"), str(tmp_path / "missing.key"), "tooshort"), "--allow")
    assert ["--allow"] * 3 == [problem.field for problem in caught.value.problems]


def test_the_side_that_binds_is_the_server(tmp_path: Path) -> None:
    own, other = new_key_pair(str(tmp_path / "own")), new_key_pair(str(tmp_path / "other"))
    keys = Keyring(
        CurveConfig(secret_key_file=own.secret_key_file, server_key=other.public_key, allow=(other.public_key_file,))
    )
    server, client = keys.curve(binds=True), keys.curve(binds=False)
    assert isinstance(server, CurveServer)
    assert isinstance(client, CurveClient)
    assert frozenset({key_of(other.public_key)}) == server.allowed
    assert (own.public_key, other.public_key) == (client.public_key.decode(), client.server_key.decode())


def test_what_one_side_lacks_is_said(tmp_path: Path) -> None:
    own = new_key_pair(str(tmp_path / "own"))
    with pytest.raises(ConfigError, match=r"curve\.allow"):
        Keyring(CurveConfig(secret_key_file=own.secret_key_file)).curve(binds=True)
    with pytest.raises(ConfigError, match=r"curve\.server_key"):
        Keyring(CurveConfig(secret_key_file=own.secret_key_file)).curve(binds=False)
    with pytest.raises(ConfigError, match=r"curve\.secret_key_file"):
        Keyring(CurveConfig(server_key=own.public_key)).curve(binds=True)
    assert Keyring.of(None) is None


def test_a_zeromq_without_curve_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Distributions build it so; «invalid argument» would help nobody."""
    monkeypatch.setattr(zmq, "has", lambda capability: False)
    with pytest.raises(ConfigError, match="built without CURVE"):
        Keyring(CurveConfig(server_key="x"))
    with pytest.raises(ConfigError, match="built without CURVE"):
        new_key_pair(str(tmp_path / "a"))
    Keyring(CurveConfig())


def test_a_client_without_a_file_has_a_pair_for_this_run() -> None:
    """To look at a view that lets anybody in, nobody should have to make keys."""
    server_key = zmq.curve_keypair()[0].decode()
    first, second = (Keyring(CurveConfig(server_key=server_key)).curve(binds=False) for _ in range(2))
    assert isinstance(first, CurveClient)
    assert isinstance(second, CurveClient)
    assert first.public_key != second.public_key
    assert zmq.curve_public(first.secret_key) == first.public_key

"""A bound ipc path has one owner, and nothing is left behind or lost."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError
from kvbus.ipc import IpcFile


def at(path: Path | str) -> Endpoint:
    return Endpoint.parse(f"ipc://{path}", "--at")


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[IpcFile]:
    file = IpcFile(at(tmp_path / "events"))
    yield file
    file.close()


def test_it_listens_and_removes_its_files_on_close(owner: IpcFile, tmp_path: Path) -> None:
    assert ["events", "events.lock"] == sorted(os.listdir(tmp_path))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "events"))
    owner.close()
    assert [] == os.listdir(tmp_path)
    owner.close()


def test_the_descriptor_is_handed_over(owner: IpcFile, tmp_path: Path) -> None:
    with socket.socket(fileno=owner.take_descriptor()) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "events"))
        listener.accept()[0].close()
        owner.close()
        assert [] == os.listdir(tmp_path)


def test_g15_a_second_owner_is_refused_and_leaves_the_first_alone(owner: IpcFile, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"^--at: cannot bind: in use"):
            IpcFile(at(tmp_path / "events"))
    assert ["events", "events.lock"] == sorted(os.listdir(tmp_path))


def test_g15_a_path_that_an_engine_has_bound_is_refused(
    zmq_context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    """An engine takes no lock, so the file itself is asked whether somebody listens."""
    with zmq_context.socket(zmq.XPUB) as engine:
        engine.linger = 0
        engine.bind(f"ipc://{tmp_path}/events")
        with pytest.raises(ConfigError, match=r"^--at: cannot bind: in use"):
            IpcFile(at(tmp_path / "events"))
        assert ["events"] == os.listdir(tmp_path)


def test_g15_the_files_of_a_dead_process_are_no_obstacle(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "events"))
        dead.listen()
    (tmp_path / "events.lock").touch()
    IpcFile(at(tmp_path / "events")).close()
    assert [] == os.listdir(tmp_path)


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_what_is_no_socket_is_not_deleted(make: object, tmp_path: Path) -> None:
    """ZeroMQ itself deletes whatever is there."""
    assert callable(make)
    make(tmp_path / "notes")
    with pytest.raises(ConfigError, match="a file that is no socket is there"):
        IpcFile(at(tmp_path / "notes"))
    assert ["notes"] == os.listdir(tmp_path)


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    """In a folder that others may write to, a link could make us create a file where we would not."""
    (tmp_path / "events.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="--at: cannot bind"):
        IpcFile(at(tmp_path / "events"))
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_without_permission_names_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's refusal is played: root, who runs tests in containers, may write everywhere."""

    def denied(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("kvbus.ipc.os.open", denied)
    with pytest.raises(ConfigError, match=r"^--at: cannot bind: no permission"):
        IpcFile(at(tmp_path / "events"))
    assert [] == os.listdir(tmp_path)


def test_a_relative_path_is_removed_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = IpcFile(at("events"))
    monkeypatch.chdir("/")
    file.close()
    monkeypatch.chdir(tmp_path)
    assert [] == os.listdir(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is the system's")
def test_a_relative_path_may_be_in_a_deep_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        IpcFile(at("events")).close()
    assert [] == os.listdir(folder)

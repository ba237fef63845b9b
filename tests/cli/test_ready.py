"""The ready file is there exactly while it is true."""

from __future__ import annotations

import json

import pytest

from kvbus.errors import ConfigError
from kvbus_cli.ready import ready_file


def test_it_is_there_while_something_runs(tmp_path):
    path = tmp_path / "ready.json"
    with ready_file(path, {"pub": "tcp://127.0.0.1:5600"}):
        assert {"pub": "tcp://127.0.0.1:5600"} == json.loads(path.read_text())
    assert [] == list(tmp_path.iterdir())


def test_it_goes_when_what_ran_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), ready_file(tmp_path / "ready.json", {}):
        raise ZeroDivisionError
    assert [] == list(tmp_path.iterdir())


def test_no_path_no_file():
    with ready_file(None, {}):
        pass


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match="--ready-file: cannot be written"), ready_file(tmp_path / "no" / "x", {}):
        pass

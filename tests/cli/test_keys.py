"""`kvbus keys`: pairs are made, public keys shown, secret ones never."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbus.security.key_files import read_secret_key
from kvbus_cli.main import app


def test_new_prints_the_public_key_and_show_finds_it(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["keys", "new", str(tmp_path / "broker")])
    assert 0 == made.exit_code
    key = made.stdout.strip()
    assert 0o600 == stat.S_IMODE((tmp_path / "broker.key_secret").stat().st_mode)
    for path in ("broker", "broker.key", "broker.key_secret"):
        assert f"{key}\n" == CliRunner().invoke(app, ["keys", "show", str(tmp_path / path)]).stdout
    assert read_secret_key(str(tmp_path / "broker.key_secret"), "key") not in made.output


def test_json_says_where_everything_is(tmp_path: Path) -> None:
    made = json.loads(CliRunner().invoke(app, ["keys", "new", str(tmp_path / "a"), "--json"]).stdout)
    assert {"secret_key_file", "public_key_file", "public_key"} == set(made)
    shown = json.loads(CliRunner().invoke(app, ["keys", "show", made["public_key_file"], "--json"]).stdout)
    assert {"path": made["public_key_file"], "public_key": made["public_key"]} == shown


@pytest.mark.parametrize("command", ["new", "show"])
def test_what_cannot_be_is_one_line_and_exit_2(tmp_path: Path, command: str) -> None:
    path = tmp_path / "there.key"
    if command == "new":
        path.write_text("precious")
    result = CliRunner().invoke(app, ["keys", command, str(path)])
    assert 2 == result.exit_code
    assert 1 == len(result.stderr.splitlines())
    assert str(path) in result.stderr

"""The command as a whole: it finds its parts, answers at once and knows its version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbus_cli.main import app, run

COMMANDS = Path(__file__).parents[2] / "cli" / "kvbus_cli" / "commands"


def test_version() -> None:
    """What a bug report needs first."""
    result = CliRunner().invoke(app, ["--version"])
    assert (0, "kvbus 0.1.0\n") == (result.exit_code, result.stdout)


def test_every_command_module_gives_one_command_of_its_name() -> None:
    """Who looks for `kvbus tail` looks into `commands/tail.py`."""
    names = sorted(path.stem for path in COMMANDS.glob("*.py") if path.stem != "__init__")
    commands = [*app.registered_commands, *(group.typer_instance.info for group in app.registered_groups)]
    assert names == sorted(str(command.name) for command in commands)


def test_without_arguments_it_shows_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing that a newcomer types."""
    monkeypatch.setattr(sys, "argv", ["kvbus"])
    with pytest.raises(SystemExit):
        run()
    assert "Commands:\n" in "".join(capsys.readouterr())


def test_an_unknown_command_is_bad_usage() -> None:
    """Exit code 2, as for every wrong flag."""
    result = CliRunner().invoke(app, ["no-such-command"])
    assert (2, "") == (result.exit_code, result.stdout)
    assert "no-such-command" in result.stderr


def test_help_loads_nothing_heavy() -> None:
    """`kvbus --help` answers at once, and a shell's completion asks it at every key. What typer loads is its own affair."""
    program = (
        "import sys, typer; before = set(sys.modules); import kvbus_cli.main\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert set() == {"zmq", "structlog", "rich", "asyncio", "prometheus_client"} & set(done.stdout.split())

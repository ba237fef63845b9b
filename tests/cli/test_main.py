"""The command as a whole: it finds its parts, answers at once and knows its version."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kvbus_cli.exits import SUMMARY, Exit
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


HEAVY = {"zmq", "structlog", "rich", "asyncio", "prometheus_client", "sqlite3"}


def answer(arguments: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `kvbus` in an interpreter of its own; the last line of stderr tells what it has loaded."""
    program = (
        "import sys; sys.argv[0] = 'kvbus'\nfrom kvbus_cli.main import run\ntry:\n    run()\nfinally:\n"
        "    print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize("arguments", [["--help"], ["tail", "--help"], ["doctor", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    """It answers at once, and a shell's completion asks it at every key."""
    done = answer(arguments)
    assert 0 == done.returncode
    assert done.stdout
    assert set() == HEAVY & set(done.stderr.split())


def test_help_says_what_exit_codes_mean() -> None:
    """Scripts depend on them, and their authors look here first."""
    text = " ".join(CliRunner().invoke(app, ["--help"]).stdout.split())
    assert SUMMARY in text
    for code in Exit:
        assert f"{code.value} = " in text


def commands() -> list[tuple[list[str], typer.core.TyperCommand]]:
    """Every command with the words that name it."""
    found = []

    def walk(words: list[str], command: Any) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk([*words, name], inner)
        found.append((words, command))

    walk([], typer.main.get_command(app))
    return found


def test_lists_of_commands_show_whole_sentences() -> None:
    """«Join workers, release the events that all of them have...» helps nobody."""
    for words, command in commands():
        if hasattr(command, "commands"):
            assert "..." not in CliRunner().invoke(app, [*words, "--help"]).stdout.partition("Commands:")[2]


def test_every_help_reads_well() -> None:
    """Sentences that end, a word on every flag, and brackets only where something may be left out."""
    wrong = []
    for words, command in commands():
        text = CliRunner().invoke(app, [*words, "--help"], terminal_width=200).stdout
        name = " ".join(words)
        if "[[" in text.partition("Options:")[0]:
            wrong.append(f"{name}: doubled brackets")
        if not (command.help or "").strip().endswith((".", "?")):
            wrong.append(f"{name}: {command.help!r}")
        for parameter in command.params:
            said = getattr(parameter, "help", None)
            if not said or not (said.rstrip().endswith((".", "?")) or "completion" in parameter.name):
                wrong.append(f"{name} {parameter.name}: {said!r}")
    assert [] == wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("kvbus do", {"doctor"}), ("kvbus config pro", {"profiles"}), ("kvbus tail --own", {"--ownership"})],
)
def test_bash_completes(typed: str, expected: set[str], tmp_path: Path) -> None:
    """By the script that `--show-completion` prints, evaluated by a bash."""
    script = answer([], _KVBUS_COMPLETE="source_bash").stdout
    assert "complete -o default -F _kvbus_completion kvbus" in script
    command = tmp_path / "kvbus"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kvbus_cli "$@"\n')
    command.chmod(0o755)
    words = f"COMP_WORDS=({typed}); COMP_CWORD={len(typed.split()) - 1}"
    program = f"{script}\n{words}\n_kvbus_completion kvbus; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PATH": path},
    )
    assert ("", expected) == (done.stderr, set(done.stdout.split()))


def test_zsh_completes() -> None:
    """The script names the command, and what it asks for is answered in zsh's form, each on one line."""
    script = answer([], _KVBUS_COMPLETE="source_zsh").stdout
    assert script.strip().startswith("#compdef kvbus")
    assert "_KVBUS_COMPLETE=complete_zsh" in script
    told = answer([], _KVBUS_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="kvbus ").stdout
    assert told.startswith("_arguments")
    names = {" ".join(words) for words, _ in commands() if len(words) == 1}
    assert names == set(re.findall(r'^(?:_arguments.*\(\()?"([a-z]+)":"', told, re.MULTILINE))


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", ["--version", "config profiles", "publish tcp://127.0.0.1:0"])
def test_closed_standard_streams_are_nothing(closed: str, arguments: str) -> None:
    """A supervisor may start us without; then nothing is read, and nothing is printed anywhere."""
    command = f"{shlex.quote(sys.executable)} -m kvbus_cli {arguments} {closed}"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL
    )
    assert 0 == done.returncode
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", ["--help", "--version", "config profiles"])
def test_a_full_disk_is_one_line(arguments: str) -> None:
    """On systems that have a device for it."""
    if os.path.exists("/dev/full"):
        command = f"{shlex.quote(sys.executable)} -m kvbus_cli {arguments} > /dev/full"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
        assert "kvbus: No space left on device\n" == done.stderr
        assert 0 != done.returncode

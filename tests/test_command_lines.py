"""The check of documented command lines can fail, and fails for the right lines."""

from __future__ import annotations

import pytest

from tests.command_lines import command_lines, problem_of, shell_blocks


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        ("kvbus demo --seconds 3", [["demo", "--seconds", "3"]]),
        ("$ kvbus tail --json | jq .seq", [["tail", "--json"]]),
        ("a && X=1 .venv/bin/kvbus demo; kvbus tail > out.txt", [["demo"], ["tail"]]),
        ("kvbus broker \\\n  --pub tcp://*:0 # why\n", [["broker", "--pub", "tcp://*:0"]]),
        ("x serve '{\n }' # kvbus no\nkvbus tail  # why\n# kvbus no\nkvbus demo 2>&1 | cat", [["tail"], ["demo"]]),
        ("pip install kvbus\nls kvbus", []),
        ("kvbus tail ... & kvbus decode - < capture.bin", [["tail"], ["decode", "-"]]),
    ],
)
def test_command_lines_are_found(shell: str, expected: list[list[str]]) -> None:
    """Pipes, prompts, continuation lines and what merely mentions the name."""
    assert expected == command_lines(shell)


def test_only_shell_blocks_are_read() -> None:
    """Output and configuration are shown in blocks of their own."""
    assert ["kvbus a\n", "b\n"] == shell_blocks("x\n```bash\nkvbus a\n```\n```json\n{}\n```\n```console\nb\n```\n")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_right_lines_pass(arguments: list[str]) -> None:
    """The root's own flags."""
    assert problem_of(arguments) is None


@pytest.mark.parametrize("arguments", [["no-such-command"], ["--no-such-flag"]])
def test_wrong_lines_are_named(arguments: list[str]) -> None:
    """The message says which line and which word."""
    assert arguments[0] in (problem_of(arguments) or "")

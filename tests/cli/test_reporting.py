"""How commands end: one clear line a problem, the right exit code, and a traceback only for a bug of ours."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import typer

from kvbus.errors import ConfigError, DecodeError, Problem, UsageError
from kvbus_cli.reporting import complain, reporting


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            ConfigError([Problem("--pub", "x", "bad"), Problem("--hwm", "0", "small")]),
            2,
            "--pub: bad (got 'x')|--hwm: small (got '0')",
        ),
        (DecodeError("$[1]", "not a list"), 2, "not a list at $[1]"),
        (UsageError("closed"), 1, "closed"),
        (FileNotFoundError(2, "No such file or directory", "trace.jsonl"), 2, "trace.jsonl: No such file or directory"),
        (OSError("odd"), 2, "odd"),
        (KeyboardInterrupt(), 0, ""),
    ],
)
def test_expected_failures_are_one_line_each(
    error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, nothing on stdout, and the script around us can tell what happened."""
    with pytest.raises(typer.Exit) as ended, reporting():
        raise error
    assert code == ended.value.exit_code
    expected = "".join(f"kvbus: {line}\n" for line in text.split("|") if line)
    assert ("", expected) == tuple(capsys.readouterr())


def test_a_bug_keeps_its_traceback() -> None:
    """Swallowed, it would be reported as something that it is not."""
    with pytest.raises(ZeroDivisionError), reporting():
        raise ZeroDivisionError


def test_success_passes() -> None:
    """Nothing is raised; the command returns and typer exits with 0."""
    with reporting():
        pass


def test_talk_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Stdout belongs to data."""
    complain("hello")
    assert ("", "kvbus: hello\n") == tuple(capsys.readouterr())


def test_a_reader_that_left_is_no_error() -> None:
    """`kvbus tail | head -1` ends quietly, though stdout is closed under us."""
    program = (
        "import typer; from kvbus_cli.reporting import reporting\n"
        "def go():\n"
        "    with reporting():\n"
        "        while True: print('x' * 1000)\n"
        "typer.run(go)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert (0, b"") == (process.returncode, said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_end_on_request_is_no_failure(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a command that does not listen for signals itself; afterwards all is as before."""
    before = signal.getsignal(number)
    with pytest.raises(typer.Exit) as ended, reporting():
        signal.raise_signal(number)
    assert 0 == ended.value.exit_code
    assert ("", "") == tuple(capsys.readouterr())
    assert before == signal.getsignal(number)


def test_what_a_command_says_about_sigterm_counts() -> None:
    """Commands with an orderly end have handlers of their own, and one that was told to ignore it goes on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with reporting():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

"""`kvbus decode`: captures made readable, and the lines that cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from kvbus_cli.main import app
from tests.wire.golden_vectors import golden

EMPTY = msgspec.msgpack.encode([1.0, [], 0])
SHOWN = '{"ts":1.0,"data_parallel_rank":0,"events":[]}\n'


def decode(*arguments: str, stdin: bytes = b"") -> tuple[int, str, list[str]]:
    """Return exit code, stdout and the lines of stderr."""
    result = CliRunner().invoke(app, ["decode", *arguments], input=stdin)
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr.splitlines()


def test_a_payload_from_a_file(tmp_path: Path) -> None:
    """As captured: bytes, not text."""
    file = tmp_path / "payload"
    file.write_bytes(EMPTY)
    assert (0, SHOWN, []) == decode(str(file))


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_a_payload_from_standard_input(arguments: tuple[str, ...]) -> None:
    """With or without the dash."""
    assert (0, SHOWN, []) == decode(*arguments, stdin=EMPTY)


def test_every_golden_payload_shows_as_expected() -> None:
    """One line in, one line out, in the form in which they are kept."""
    found = golden()
    code, stdout, stderr = decode("--hex", stdin="".join(f"{vector.payload.hex()}\n" for vector in found).encode())
    assert (0, []) == (code, stderr)
    assert [json.dumps(vector.expect) for vector in found] == [
        json.dumps(json.loads(line)) for line in stdout.splitlines()
    ]


def test_hex_as_people_paste_it() -> None:
    """Capitals, a prefix, spaces and blank lines."""
    text = EMPTY.hex()
    lines = f"{text}\n\n{text.upper()}\n  0x{text}  \n{text[:4]} {text[4:]}\r\n{text}".encode()
    assert (0, SHOWN * 5, []) == decode("--hex", stdin=lines)


def test_a_bad_line_is_named_and_the_others_are_shown() -> None:
    """By its number in the input, blank lines counted."""
    bad = [b"zz", b"abc", b"c1", b"93cb3ff0000000000000ddffffffff", "ä".encode(), b"\xff"]
    code, stdout, stderr = decode("--hex", stdin=b"\n".join([EMPTY.hex().encode(), b"", *bad, EMPTY.hex().encode()]))
    assert (2, SHOWN * 2) == (code, stdout)
    assert [
        "kvbus: line 3: not hexadecimal",
        "kvbus: line 4: an odd number of hexadecimal digits",
        "kvbus: line 5: a batch is an array, this is no container at $",
        "kvbus: line 6: 4294967295 events declared, at most 262144 are read at $[1]",
        "kvbus: line 7: not hexadecimal",
        "kvbus: line 8: not hexadecimal",
    ] == stderr


def test_rejected_events_are_listed() -> None:
    """They are part of what the capture holds; the batch was read."""
    payload = msgspec.msgpack.encode([1.0, [5, ["AllBlocksCleared"]], 0])
    code, stdout, stderr = decode(stdin=payload)
    assert (0, []) == (code, stderr)
    shown = json.loads(stdout)
    assert [{"index": 0, "path": "$[1][0]", "reason": "an event is an array or a map"}] == shown["rejected"]
    assert [{"type": "AllBlocksCleared"}] == shown["events"]


@pytest.mark.parametrize(
    ("stdin", "line"),
    [
        (b"", "kvbus: empty payload at $"),
        (EMPTY + b"\0", "kvbus: trailing characters (byte 12) at $"),
        (EMPTY.hex().encode(), "kvbus: a batch is an array, this is no container at $"),
    ],
)
def test_what_is_no_payload_is_one_line(stdin: bytes, line: str) -> None:
    """No traceback, and a code that a script can see."""
    assert (2, "", [line]) == decode(stdin=stdin)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """With its name."""
    missing = tmp_path / "missing"
    assert (2, "", [f"kvbus: {missing}: No such file or directory"]) == decode(str(missing))
    assert (2, "", [f"kvbus: {tmp_path}: Is a directory"]) == decode(str(tmp_path), "--hex")


def test_an_endless_line_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without being held in memory, and without losing the next."""
    monkeypatch.setattr("kvbus.wire.limits.PAYLOAD_BYTES_MAX", 100)
    lines = b"00" * 5_000 + b"\n" + EMPTY.hex().encode() + b"\n" + b"00" * 5_000
    code, stdout, stderr = decode("--hex", stdin=lines)
    assert (2, SHOWN) == (code, stdout)
    assert ["kvbus: line 1: longer than any payload", "kvbus: line 3: longer than any payload"] == stderr


def test_as_a_process_it_writes_utf_8_and_survives_a_closed_pipe() -> None:
    """Whatever the locale says; `| head` ends it quietly."""
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    payload = msgspec.msgpack.encode([1.0, [["BlockRemoved", [1], "适配器"]], 0])
    command = [sys.executable, "-c", "from kvbus_cli.main import run; run()", "decode"]
    done = subprocess.run(command, input=payload, capture_output=True, env=environment, timeout=60, check=True)
    assert "适配器" == json.loads(done.stdout.decode())["events"][0]["medium"]
    assert b"" == done.stderr
    with subprocess.Popen(
        [*command, "--hex"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.write(payload.hex().encode() + b"\n")
        process.stdin.close()
        assert b"" == process.stderr.read()
        assert 0 == process.wait(timeout=60)

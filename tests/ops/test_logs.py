"""Log lines: JSON unless on a terminal, and never on stdout."""

from __future__ import annotations

import io
import json

import pytest

from kvbus.ops.logs import open_log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_one_json_object_with_level_and_time():
    stream = io.StringIO()
    open_log(stream=stream).warning("worker_restarted", worker="w0", old_position=7)
    line = json.loads(stream.getvalue())
    assert ("worker_restarted", "warning", "w0", 7) == (
        line["event"],
        line["level"],
        line["worker"],
        line["old_position"],
    )
    assert line["timestamp"].endswith("Z")


def test_lines_below_the_level_are_not_written():
    stream = io.StringIO()
    log = open_log("warning", stream)
    log.info("quiet")
    log.error("loud")
    assert 1 == len(stream.getvalue().splitlines())


def test_a_terminal_gets_a_readable_line():
    stream = Terminal()
    open_log(stream=stream).info("broker_started", endpoint="tcp://127.0.0.1:5600")
    assert "broker_started" in stream.getvalue()
    with pytest.raises(json.JSONDecodeError):
        json.loads(stream.getvalue())


def test_logs_go_to_stderr(capsys):
    """G57: stdout belongs to data."""
    open_log().info("hello")
    captured = capsys.readouterr()
    assert "" == captured.out
    assert "hello" in captured.err

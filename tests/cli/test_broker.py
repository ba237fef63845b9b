"""`kvbus broker` as typed: what it refuses, how it ends, what it tells."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import suppress

import pytest
from typer.testing import CliRunner

from kvbus.errors import UsageError
from kvbus_cli.broker_settings import BrokerSettings
from kvbus_cli.children import Child
from kvbus_cli.commands.broker import _reload
from kvbus_cli.main import app

ANY = "tcp://127.0.0.1:0"
START = ["broker", "--worker", "w0=tcp://127.0.0.1:9", "--pub", ANY, "--replay", ANY]


def run(*arguments):
    return CliRunner().invoke(app, ["broker", *arguments])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--worker: give at least one worker"),
        (["--worker", "nonsense"], "--worker: expected [id=]endpoint"),
        (["--worker", "tcp://h:70000"], "--worker: port 70000"),
        (["--worker", "tcp://h:65535,ranks=0-1"], "--worker: port 65535 + rank 1 = 65536"),
        (["--worker", "a=tcp://h:1", "--worker", "a=tcp://h:2"], "--worker: the same worker id is given twice"),
        (["--worker", "tcp://h:1", "--pub", "tcp://127.0.0.1"], "--pub: "),
        (["--worker", "tcp://h:1", "--replay", "x"], "--replay: "),
        (
            ["--worker", "tcp://h:1", "--pub", "tcp://127.0.0.1:7", "--replay", "tcp://127.0.0.1:7"],
            "--replay: port 7 is",
        ),
        (["--worker", "tcp://h:1", "--age", "0"], "--age: must be more than 0"),
        (["--worker", "tcp://h:1", "--clear-wait", "nan"], "--clear-wait: must be more than 0"),
        (["--worker", "tcp://h:1", "--buffer-batches", "0"], "--buffer-batches: must be at least 1"),
        (["--worker", "tcp://h:1", "--on-loss", "forget"], "--on-loss: must be one of clear, ignore"),
        (["--worker", "tcp://h:1", "--on-departure", "x"], "--on-departure: must be one of clear, shrink, hold"),
        (["--worker", "tcp://h:1", "--worker-timeout", "0"], "--worker-timeout: must be more than 0"),
        (["--worker", "tcp://h:1", "--probe", "-1"], "--probe: must be more than 0"),
        (["--config", "/dev/null/x"], "--config: "),
        (["--worker", "tcp://h:1", "--seconds", "0"], "--seconds: must be more than 0"),
        (["--worker", "tcp://h:1", "--log-level", "loud"], "--log-level: must be one of"),
        (["--worker", "tcp://h:1", "--workers", "2"], "--workers: needs --ingest"),
        (["--ingest", ANY], "--workers: --ingest needs"),
        (["--ingest", ANY, "--workers", "0"], "--workers: must be at least 1"),
        (["--ingest", ANY, "--workers", "1", "--topics", "a,b"], "--topics: names more topics"),
        (["--ingest", ANY, "--workers", "1", "--worker", "tcp://h:1"], "--ingest: cannot be combined"),
        (["--worker", "tcp://h:1", "--pub", "tcp://203.0.113.1:5600", "--replay", "none"], "--pub: "),
        (["--worker", "tcp://h:1", "--ready-file", "/dev/null/x", "--pub", ANY, "--replay", ANY], "--ready-file: "),
    ],
)
def test_bad_flags_are_one_clear_line_each_and_start_nothing(arguments, complaint):
    result = run(*arguments)
    assert 2 == result.exit_code, result.stderr
    assert "" == result.stdout
    lines = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    assert any(line.startswith(f"kvbus: {complaint}") for line in lines), lines
    assert "Traceback" not in result.stderr


def test_sigterm_ends_it_with_0_and_the_figures_are_one_json_object(tmp_path):
    with Child.that_gets_ready("broker", [*START, "--json"], tmp_path) as child:
        endpoints = child.wait_ready()
        child.ask_to_end()
        status = json.loads(child.finish())
    assert ["w0"] == [worker["worker_id"] for worker in status["workers"]]
    assert endpoints["pub:all"] == status["views"][0]["endpoint"]
    assert not (tmp_path / "broker.json").exists()


def test_g57_stdout_holds_data_only_and_logs_are_json_on_stderr(tmp_path):
    with Child.that_gets_ready("broker", START, tmp_path) as child:
        child.wait_ready()
        child.ask_to_end()
        assert "" == child.finish()
    names = [json.loads(line)["event"] for line in (tmp_path / "broker.err").read_text().splitlines()]
    assert ("broker_started", "broker_stopped") == (names[0], names[-1])


def test_seconds_end_it():
    result = run("--worker", "tcp://127.0.0.1:9", "--pub", ANY, "--replay", "none", "--seconds", "0.1")
    assert 0 == result.exit_code


def test_an_ingest_broker_tells_where_workers_connect(tmp_path):
    arguments = ["broker", "--ingest", ANY, "--workers", "2", "--topics", "a,b", "--pub", ANY, "--replay", "none"]
    with Child.that_gets_ready("broker", arguments, tmp_path) as child:
        assert {"http", "ingest", "pub:all"} == set(child.wait_ready())


def log_lines(tmp_path):
    lines = (tmp_path / "broker.err").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may still be being written


def wait_for_line(child, tmp_path, event):
    """Wait until the broker's log has a line; return it."""
    until = time.monotonic() + 60
    while time.monotonic() < until and not child.has_ended:
        for line in log_lines(tmp_path):
            if line["event"] == event:
                return line
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(0.02)
    raise AssertionError(f"no {event} in {log_lines(tmp_path)}")


def test_sighup_reads_the_file_again_and_drops_nothing_that_stays(tmp_path):
    """A worker more; then what cannot change, refused; and it goes on."""
    file = tmp_path / "kvbus.toml"
    file.write_text('workers = ["w0=tcp://127.0.0.1:9"]\n')
    flags = ["broker", "--config", str(file), "--pub", ANY, "--replay", ANY, "--json"]
    with Child.that_gets_ready("broker", flags, tmp_path) as child:
        child.wait_ready()
        file.write_text('workers = ["w0=tcp://127.0.0.1:9", "w1=tcp://127.0.0.1:10"]\n')
        child.process.send_signal(signal.SIGHUP)
        line = wait_for_line(child, tmp_path, "reloaded")
        assert (["w1"], []) == (line["added"], line["removed"])
        file.write_text('age_s = 3\nworkers = ["w0=tcp://127.0.0.1:9"]\n')
        child.process.send_signal(signal.SIGHUP)
        line = wait_for_line(child, tmp_path, "reload_refused")
        assert line["problem"].startswith("age_s: cannot change while the broker runs")
        child.ask_to_end()
        status = json.loads(child.finish())
    assert ["w0", "w1"] == [worker["worker_id"] for worker in status["workers"]]


def test_sighup_without_a_file_is_a_line_and_no_end(tmp_path):
    with Child.that_gets_ready("broker", START, tmp_path) as child:
        child.wait_ready()
        child.process.send_signal(signal.SIGHUP)
        wait_for_line(child, tmp_path, "reload_ignored")
        child.ask_to_end()
        child.finish()


def test_sighup_while_the_loop_hangs_is_a_line_and_no_end(tmp_path):
    """A disk that hangs for ten seconds and an impatient operator must not end the broker."""

    class Hanging:
        def reload(self, config):
            raise UsageError("the broker has not answered for 10 s")

    class Log:
        def __init__(self):
            self.lines = []

        def error(self, event, **fields):
            self.lines.append((event, fields))

    log = Log()
    file = tmp_path / "kvbus.toml"
    file.write_text('workers = ["w0=tcp://127.0.0.1:9"]\n')
    _reload(Hanging(), BrokerSettings(file), log)
    assert [("reload_refused", {"problem": "the broker has not answered for 10 s"})] == log.lines


@pytest.mark.slow
def test_g17_a_worker_that_is_not_there_is_told_within_seconds(tmp_path):
    """Both ends connect, and nobody binds."""
    with Child.that_gets_ready("broker", START, tmp_path) as child:
        child.wait_ready()
        line = wait_for_line(child, tmp_path, "no_peer_yet")
    assert ("w0", False) == (line["worker"], line["binds"])

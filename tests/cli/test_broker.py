"""`kvbus broker` as typed: what it refuses, how it ends, what it tells."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kvbus_cli.children import Child
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
        (["--worker", "tcp://h:1", "--pub", "tcp://127.0.0.1:7", "--replay", "tcp://127.0.0.1:7"], "--replay: is the"),
        (["--worker", "tcp://h:1", "--age", "0"], "--age: must be more than 0"),
        (["--worker", "tcp://h:1", "--clear-wait", "nan"], "--clear-wait: must be more than 0"),
        (["--worker", "tcp://h:1", "--buffer-batches", "0"], "--buffer-batches: must be at least 1"),
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
        assert {"ingest", "pub:all"} == set(child.wait_ready())

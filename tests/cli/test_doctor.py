"""`kvbus doctor`: what it prints, for people and programs, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from kvbus.publisher.publisher import Publisher
from kvbus_cli.exits import Exit
from kvbus_cli.main import app
from tests.doctor.made import stored

ANY = "tcp://127.0.0.1:0"


def run(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "200"})


@pytest.fixture
def publisher():
    """A publisher that is idle now, and has published."""
    with Publisher(ANY, replay_endpoint=ANY, topic="kv") as made:
        made.publish([stored(1)])
        yield made


def test_all_is_well(publisher):
    result = run(str(publisher.endpoint), "--replay", str(publisher.replay_endpoint), "--seconds", "0.2")
    assert Exit.OK == result.exit_code, result.output
    assert f"{publisher.endpoint}: written as by vLLM 0.24 or later; connected, nothing heard" in result.stdout
    assert "NOTE idle" in result.stdout
    assert "kvbus: 2 notes" in result.stderr


def test_a_problem_ends_with_1_and_says_what_to_do():
    result = run("tcp://no-such-pod.invalid:5557")
    assert Exit.FAILED == result.exit_code
    assert "PROBLEM name_unresolved" in result.stdout
    assert "  means  " in result.stdout
    assert "  do     " in result.stdout
    assert all(len(line) <= 120 for line in result.stdout.splitlines())
    assert "kvbus: 1 problem\n" in result.stderr


def test_for_programs(publisher):
    result = run("--json", f"w={publisher.endpoint},replay={publisher.replay_endpoint}", "--seconds", "0.2")
    target, *findings = [json.loads(line) for line in result.stdout.splitlines()]
    assert "w" == target["target"]["name"]
    assert {"cause", "severity", "where", "seen", "means", "do"} == set(findings[0]["finding"])
    assert ["idle", "router_reads"] == [each["finding"]["cause"] for each in findings]


def test_a_brokers_file(tmp_path, publisher):
    path = tmp_path / "kvbus.toml"
    path.write_text(
        f'workers = ["w={publisher.endpoint},replay={publisher.replay_endpoint}"]\n[[views]]\nendpoint = "tcp://127.0.0.1:1"\n'
    )
    result = run("--config", str(path), "--seconds", "0.2")
    assert Exit.FAILED == result.exit_code
    assert "view all" in result.stdout
    assert "the broker does not run" in result.stdout


def test_workers_that_the_broker_would_discover_are_looked_at_too(tmp_path):
    """And a place that cannot be asked is said on stderr, beside the findings."""
    listed = tmp_path / "workers.toml"
    listed.write_text('workers = ["found=tcp://127.0.0.1:9"]')
    path = tmp_path / "kvbus.toml"
    path.write_text(f'discovery = ["file:{listed}", "file:{tmp_path}/nowhere"]\n')
    result = run("--config", str(path), "--seconds", "0.2")
    assert "found" in result.stdout
    assert "kvbus: warning: nowhere: No such file or directory" in result.stderr


def test_an_engines_own_settings():
    result = run("--engine-config", '{"endpoint": "tcp://*:5557"}')
    assert Exit.FAILED == result.exit_code
    assert "events_disabled" in result.stdout


def test_ctrl_c_ends_it_with_what_was_seen(publisher):
    """Who has waited long enough wants to know all the same."""
    arguments = [str(publisher.endpoint), "--replay", str(publisher.replay_endpoint), "--seconds", "600"]
    with subprocess.Popen(
        [sys.executable, "-m", "kvbus_cli", "doctor", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert publisher.wait_for_subscribers(timeout_s=60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert Exit.OK == process.returncode, err
    assert "connected, nothing heard" in out
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "ENDPOINT: give endpoints, or --config, or --engine-config"),
        (["tcp://h:1", "--config", "x.toml"], "ENDPOINT: give endpoints, or --config, or --engine-config"),
        (
            ["tcp://h:1", "tcp://h:2", "--replay", "tcp://h:3"],
            "--replay: must be given once for each ENDPOINT (2 here)",
        ),
        (["tcp://h:1,replay=tcp://h:2", "--replay", "tcp://h:3"], "ENDPOINT has replay= already"),
        (["tcp://h:1", "--replay", "tcp://h:1"], "replay and publish endpoint are the same"),
        (["tcp://h:1", "--replay", "tcp://*:2"], "--replay: a wildcard can be bound only"),
        (["nonsense"], "ENDPOINT: expected [id=]endpoint"),
        (["tcp://h:99999"], "ENDPOINT:"),
        (["tcp://h:0"], "name the port"),
        (["inproc://x"], "inproc is within one process"),
        (["tcp://h:1", "--router", "none"], "--router: must be one of vllm, dynamo, llm-d"),
        (["tcp://h:1", "--seconds", "0"], "--seconds: must be more than 0"),
        (["tcp://h:1", "--seconds", "nan"], "--seconds: must be more than 0"),
        (["tcp://h:1", "--batches", "0"], "--batches: must be at least 1"),
        (["tcp://h:1", "--server-key", "no/such/file.key"], "--server-key: "),
        (["tcp://h:1", "--server-key", "x" * 40, "--curve-key", "no/such/file"], "--curve-key: "),
        (["--config", "no-such-file.toml"], "--config: No such file"),
        (["--engine-config", "{"], "--engine-config: no JSON"),
        (["--engine-config", '{"enable_kv_cache_events": true}', "--engine-ranks", "0"], "--engine-ranks:"),
    ],
)
def test_wrong_flags_end_with_2_before_anything_is_tried(arguments, said):
    result = run(*arguments)
    assert Exit.USAGE == result.exit_code, result.output
    assert said in result.stderr
    assert "" == result.stdout


def test_all_that_is_wrong_is_said_at_once():
    lines = run("nonsense", "--router", "none", "--seconds", "0").stderr.splitlines()
    assert ["kvbus: --router", "kvbus: --seconds", "kvbus: ENDPOINT"] == [
        line.rpartition(": ")[0].split(": m")[0].split(": e")[0] for line in lines
    ]

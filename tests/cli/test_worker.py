"""`kvbus worker`: flags, files, signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbus.worker import TraceWorker
from kvbus_cli.main import app

LINE = '{"timestamp": %d, "input_length": 1024, "output_length": 5, "hash_ids": [%d, %d]}\n'
NULL = ["worker", "--endpoint", "null", "--speed", "max"]


def run(*arguments: str):
    return CliRunner().invoke(app, [*NULL, *arguments])


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(LINE % (1000 * n, n % 3, 10 + n % 3) for n in range(12)))
    return str(path)


def test_a_trace_is_played_and_summed_up_as_json(trace: str) -> None:
    result = run("--trace", trace, "--ranks", "2", "--ownership", "cpu-tier", "--json")
    assert 0 == result.exit_code
    counts = json.loads(result.stdout)
    assert (True, 12, 12) == (counts["is_done"], counts["requests"], counts["requests_finished"])
    assert [0, 1] == [rank["tensor_parallel_rank"] for rank in counts["ranks"]]
    assert {None, "cpu-tier"} == {kind["ownership"] for kind in counts["ranks"][0]["by_kind"]}
    assert counts["ranks"][0]["by_kind"] == counts["ranks"][1]["by_kind"]
    assert pytest.approx(9 / 24) == counts["hit_rates"]["total"], "the second block of a full hit is computed again"


def test_a_summary_for_a_person(trace: str) -> None:
    result = run("--trace", trace, "--tier", "disk=STORAGE:100")
    assert 0 == result.exit_code
    first, second, *_ = result.stdout.splitlines()
    assert first.startswith("12 requests (0 refused, 0 preempted), ")
    assert "hit rate 37.5%: GPU 37.5%, CPU 0.0%, disk 0.0%" == second


def test_data_goes_to_stdout_and_talk_to_stderr(trace: str) -> None:
    result = run("--trace", trace, "--json")
    assert 1 == len(result.stdout.splitlines())
    assert "kvbus: rank 0 publishes on null\n" == result.stderr


def test_one_id_becomes_several_engine_blocks(trace: str) -> None:
    counts = json.loads(run("--trace", trace, "--engine-block-size", "16", "--cpu-blocks", "0", "--json").stdout)
    stored = next(kind for kind in counts["ranks"][0]["by_kind"] if kind["type"] == "BlockStored")
    assert stored["blocks"] >= 3 * 2 * 32
    assert counts["hit_rates"]["total"] > 0.7, "only the last 16 tokens of a full hit are computed again"


def test_a_hybrid_model(trace: str) -> None:
    result = run(
        "--trace", trace, "--groups", "mla_attention:256,sliding_window_mla:64:128", "--cache-policy", "arc", "--json"
    )
    assert 0 == result.exit_code
    assert json.loads(result.stdout)["hit_rates"]["total"] > 0.5


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--trace", "absent.jsonl"], "--trace: cannot be read: No such file or directory (got 'absent.jsonl')"),
        (["--ranks", "0"], "--ranks: must be at least 1"),
        (["--rate", "0"], "--rate: must be more than 0"),
        (["--speed", "fast"], "--speed: want a number above 0, or max"),
        (["--groups", "full_attention"], "--groups: want KIND:BLOCK_SIZE"),
        (["--groups", "attention:16"], "--groups groups[0].kind: must be one of"),
        (["--tier", "disk"], "--tier: want NAME=MEDIUM:BLOCKS"),
        (["--lag", "7=1"], "--lag: names no rank of 0 to 0"),
        (["--lag", "x"], "--lag: want RANK=SECONDS"),
        (["--cache-policy", "fifo"], "--cache-policy: must be lru or arc"),
        (["--encoding", "json"], "--encoding: must be map or array"),
        (["--seconds", "0"], "--seconds: must be more than 0"),
        (["--linger", "-1"], "--linger: must not be negative"),
        (["--skew-ms", "nan"], "--skew-ms: must not be negative"),
        (["--endpoint", "tcp://127.0.0.1"], "--endpoint: the port is missing"),
        (
            ["--endpoint", "tcp://127.0.0.1:5600", "--replay", "tcp://127.0.0.1:99999"],
            "--replay: port 99999 is past 65535",
        ),
        (["--endpoint", "tcp://127.0.0.1:65535", "--ranks", "2"], "--endpoint: port 65535 + rank 1 = 65536"),
        (["--log-dir", "/dev/null"], "--log-dir: cannot be written"),
        (["--oracle", "/"], "--oracle: cannot be written"),
    ],
)
def test_bad_flags_are_one_clear_line_each(arguments: list[str], complaint: str) -> None:
    result = run("--requests", "3", *arguments)
    assert 2 == result.exit_code
    assert "" == result.stdout
    [line] = result.stderr.splitlines()
    assert line.startswith(f"kvbus: {complaint}")


def test_a_bad_line_of_a_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(LINE % (0, 1, 2) + LINE.replace("1024", "9999") % (1, 1, 2))
    result = run("--trace", str(path))
    assert 2 == result.exit_code
    [line] = result.stderr.splitlines()
    assert "kvbus: trace line 2: 2 hash_ids for input_length 9999, want 20 at 512 tokens a block" in line


def test_its_seconds_begin_when_it_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo on a busy machine would else end before its broker has begun."""
    waited: list[str] = []
    wait_for_play, wait = TraceWorker.wait_for_play, TraceWorker.wait
    monkeypatch.setattr(TraceWorker, "wait_for_play", lambda *of: waited.append("play") or wait_for_play(*of))
    monkeypatch.setattr(TraceWorker, "wait", lambda *of: waited.append("end") or wait(*of))
    assert 0 == run("--seconds", "0.01", "--endpoint", "null").exit_code
    assert ["play", "end"] == list(dict.fromkeys(waited))


def test_sigterm_ends_it_cleanly(tmp_path: Path) -> None:
    """It runs without end, tells where it can be reached in a file that appears as a whole, and sums up when told to end."""
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-c", "from kvbus_cli.main import run; run()", "worker", "--ranks", "2"]
    command += ["--endpoint", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0", "--topic", "w{rank}"]
    command += ["--ready-file", str(ready), "--speed", "20", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not ready.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
            shown = json.loads(ready.read_text())
            process.send_signal(signal.SIGTERM)
            output, talk = process.communicate(timeout=60)
        finally:
            process.kill()
    assert 0 == process.returncode
    assert ["w0", "w1"] == [rank["topic"] for rank in shown["ranks"]]
    for rank in shown["ranks"]:
        assert f"publishes on {rank['endpoint']}, replay {rank['replay_endpoint']}" in talk
    counts = json.loads(output)
    assert not counts["is_done"]
    assert 1 == len({rank["events"] for rank in counts["ranks"]})
    assert not ready.exists()


ENGINE = {"enable_kv_cache_events": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0", "hwm": 7}
SHORT = ["--requests", "1", "--speed", "max", "--linger", "0"]


def test_it_publishes_as_the_engine_with_that_configuration_would() -> None:
    """The JSON is copied from the command that starts the engine."""
    result = CliRunner().invoke(app, ["worker", *SHORT, "--engine-config", json.dumps(ENGINE)])
    assert 0 == result.exit_code
    assert "rank 0 publishes on tcp://0.0.0.0:" in result.stderr
    assert ", replay tcp://0.0.0.0:" in result.stderr


def test_a_flag_counts_more_than_the_engines_configuration() -> None:
    """One may want the same engine elsewhere."""
    result = CliRunner().invoke(
        app,
        [
            "worker",
            *SHORT,
            "--engine-config",
            json.dumps(ENGINE),
            "--endpoint",
            "tcp://127.0.0.1:0",
            "--replay",
            "none",
        ],
    )
    assert 0 == result.exit_code
    assert "rank 0 publishes on tcp://127.0.0.1:" in result.stderr
    assert "replay" not in result.stderr


def test_g55_an_engine_without_events_opens_nothing() -> None:
    """Whatever else it was told."""
    silent = {**ENGINE, "enable_kv_cache_events": False, "endpoint": "tcp://*:5557"}
    result = CliRunner().invoke(app, ["worker", *SHORT, "--engine-config", json.dumps(silent)])
    assert (0, True) == (result.exit_code, "rank 0 publishes on null" in result.stderr)
    assert "enable_kv_cache_events is false: nothing is published" in result.stderr


def test_an_engine_that_there_cannot_be_is_refused() -> None:
    """With the key to blame."""
    result = CliRunner().invoke(app, ["worker", *SHORT, "--engine-config", '{"topics": "x"}'])
    assert 2 == result.exit_code
    assert "--engine-config.topics: unknown key; did you mean topic?" in result.stderr

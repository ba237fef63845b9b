"""`kvbus bench` from the outside: flags, tables, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbus_cli.exits import Exit
from kvbus_cli.main import app
from tests.bench.vllm_like import write_vllm_like
from tests.machine import needs_linux

pytestmark = needs_linux

TINY = ["bench", "--workers", "2", "--events", "20", "--rounds", "1", "--rate", "0"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--batch", "x"], "--batch: must be numbers with commas between"),
        (["--workers", "0"], "--workers: must be between 1 and 256"),
        (["--mode", "wild"], "--mode: must be one of aligned, resplit, shuffled, noisy"),
        (["--transport", "udp"], "--transport: must be one of tcp, ipc"),
        (["--variants", "nats"], "--variants: must be one of kvbus, curve"),
        (["--variants", "peer"], "--variants: needs --peer"),
        (["--peer", "nowhere.py"], "--peer: No such file or directory"),
    ],
)
def test_wrong_flags_are_one_line_each(flags: list[str], expected: str) -> None:
    """Before any process is started."""
    result = CliRunner().invoke(app, ["bench", *flags])
    assert Exit.USAGE == result.exit_code
    assert f"kvbus: {expected}" in result.stderr
    assert 1 == len(result.stderr.splitlines())


def test_a_table_for_each_configuration(tmp_path: Path) -> None:
    """Under one line about the machine."""
    peer = str(write_vllm_like(tmp_path))
    result = CliRunner().invoke(app, [*TINY, "--batch", "1,4", "--peer", peer, "--variants", "kvbus"])
    assert (Exit.OK, "") == (result.exit_code, result.stderr)
    assert 1 == result.stdout.count("cores, ")
    assert 2 == result.stdout.count("CPU µs/event")
    assert "N = 2, B = 4, aligned, tcp, 20 events a worker" in result.stdout


def test_json_is_one_object_a_line() -> None:
    """For scripts and for later."""
    result = CliRunner().invoke(app, [*TINY, "--variants", "kvbus,proxy", "--json", "--mode", "resplit"])
    assert Exit.OK == result.exit_code
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert ["machine", "case", "measurement", "measurement", "summary", "summary", "comparison"] == [
        row["kind"] for row in rows
    ]
    assert [True, True] == [row["is_exact"] for row in rows if row["kind"] == "summary"]

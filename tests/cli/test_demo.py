"""`kvbus demo` from start to end, on real processes and sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from kvbus_cli.main import app


def test_it_ends_by_itself_with_figures_that_add_up():
    result = CliRunner().invoke(app, ["demo", "--seconds", "2", "--speed", "60", "--ranks", "2", "--json"])
    assert 0 == result.exit_code, result.stderr
    report = json.loads(result.stdout)
    assert [] == report["disagreements"]
    assert 0 == report["gaps"]
    assert report["received"] == report["broker"]["views"][0]["sent"] > 100
    owners = {row["ownership"] for row in report["tiers"]}
    assert {None, "cpu-tier"} == owners


def test_a_person_sees_events_and_two_tables():
    result = CliRunner().invoke(app, ["demo", "--seconds", "2", "--speed", "60", "--ranks", "1", "--ownership", "dram"])
    assert 0 == result.exit_code, result.stderr
    assert "everything adds up" in result.stdout
    assert "dram" in result.stdout
    assert "rank0" in result.stdout


@pytest.mark.parametrize("flags", [["--seconds", "0"], ["--ranks", "0"], ["--speed", "-1"]])
def test_numbers_that_make_no_demo(flags):
    result = CliRunner().invoke(app, ["demo", *flags])
    assert 2 == result.exit_code
    assert result.stderr.startswith(f"kvbus: {flags[0]}: must be")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_early_with_figures_that_add_up(number):
    """Ctrl-C in a terminal reaches every process of the foreground, so the whole group gets it here."""
    command = [sys.executable, "-m", "kvbus_cli", "demo", "--seconds", "60", "--speed", "60", "--ranks", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        assert demo.stdout.readline().startswith("  seq 0 ")
        os.killpg(demo.pid, number)
        out, err = demo.communicate(timeout=60)
    assert 0 == demo.returncode, err
    assert "everything adds up" in out


def test_a_part_that_cannot_start_is_named():
    result = CliRunner().invoke(app, ["demo", "--trace", "absent.jsonl"])
    assert 2 == result.exit_code
    assert "worker ended with 2" in result.stderr
    assert "absent.jsonl" in result.stderr

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
    """Every variant with its figures, then the comparisons."""
    peer = str(write_vllm_like(tmp_path))
    result = CliRunner().invoke(app, [*TINY, "--batch", "1,4", "--peer", peer, "--variants", "kvbus,peer"])
    assert (Exit.OK, "") == (result.exit_code, result.stderr)
    assert 1 == result.stdout.count("cores, ")
    assert 2 == result.stdout.count("kvbus against")
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


def test_soak_refuses_what_cannot_be() -> None:
    """Before any process is started."""
    result = CliRunner().invoke(app, ["bench", "soak", "--minutes", "0", "--workers", "0"])
    assert (Exit.USAGE, "kvbus: --minutes: must be more than 0") == (result.exit_code, result.stderr[:37])


@pytest.mark.slow
def test_soak_tells_how_it_goes_and_what_came_of_it() -> None:
    """Looks while it runs, the account at the end."""
    flags = ["--minutes", "0.02", "--workers", "2", "--rate", "500", "--sample", "0.5", "--restart", "0"]
    result = CliRunner().invoke(app, ["bench", "soak", *flags])
    assert (Exit.OK, "") == (result.exit_code, result.stderr)
    assert "nothing was lost" == result.stdout.splitlines()[-1]
    rows = CliRunner().invoke(app, ["bench", "soak", *flags, "--json"]).stdout.splitlines()
    assert 0 == len(json.loads(rows[0])["problems"])


@pytest.mark.parametrize("subject", ["codec", "aggregator", "views"])
def test_parts_are_measured_by_name(subject: str) -> None:
    """A table, or one object a job and line."""
    flags = ["bench", subject, "--events", "20", "--rounds", "1"]
    result = CliRunner().invoke(app, flags)
    assert (Exit.OK, "") == (result.exit_code, result.stderr)
    assert "× the first" in result.stdout.splitlines()[1]
    rows = [json.loads(line) for line in CliRunner().invoke(app, [*flags, "--json"]).stdout.splitlines()]
    assert 1.0 == rows[0]["ratio"]["median"]


def test_pending_events_are_measured() -> None:
    """In both orders."""
    result = CliRunner().invoke(app, ["bench", "pending", "--events", "30", "--json"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [("in order", True), ("any order", True)] == [(row["order"], row["is_exact"]) for row in rows]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["pending", "--events", "0"], "--events: must be between 1 and 1000000"),
        (["scaling", "height"], "QUANTITY: must be one of workers, batch, pending, views, subscribers, resident"),
        (["goals", "10"], "GOAL: must be one of 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (["codec", "--mode", "wild"], "--mode: must be one of"),
    ],
)
def test_parts_refuse_what_they_cannot(flags: list[str], expected: str) -> None:
    """One line, before anything is measured."""
    result = CliRunner().invoke(app, ["bench", *flags])
    assert Exit.USAGE == result.exit_code
    assert f"kvbus: {expected}" in result.stderr


def test_a_goal_is_shown_beside_its_limit() -> None:
    """Exit code 1 where it is missed by more than a fifth, which is not for a test to say."""
    flags = ["bench", "goals", "6", "--pending-events", "50"]
    result = CliRunner().invoke(app, flags)
    assert result.exit_code in (Exit.OK, Exit.FAILED)
    assert "50 pending, any order: memory × payload" in result.stdout
    rows = [json.loads(line) for line in CliRunner().invoke(app, [*flags, "--json"]).stdout.splitlines()]
    assert [6] * 8 == [row["goal"] for row in rows]


@pytest.mark.slow
def test_a_curve_is_printed_with_its_points() -> None:
    """All points of one quantity, tiny runs."""
    flags = ["bench", "scaling", "views", "--events", "16", "--rounds", "1", "--workers", "2"]
    result = CliRunner().invoke(app, flags)
    assert (Exit.OK, "") == (result.exit_code, result.stderr)
    assert ["views", "1", "2", "4", "8", "16", "32"] == [line.split()[0] for line in result.stdout.splitlines()[2:]]

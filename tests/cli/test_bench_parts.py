"""`kvbus bench PART` from the outside: flags, tables, JSON, exit codes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kvbus_cli.exits import Exit
from kvbus_cli.main import app
from tests.machine import needs_linux

pytestmark = needs_linux


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

"""Whose blocks one wants to see: said in the same words wherever it can be said."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from kvbus_cli.main import app


@pytest.mark.parametrize("command", ["tail", "snapshot"])
def test_a_filter_that_cannot_be_is_refused_under_its_flag(command: str) -> None:
    """All of them at once, each repeatable."""
    flags = ["--ownership", "any", "--ownership", "a", "--medium", "", "--locality", "", "--group-idx", "x"]
    result = CliRunner().invoke(app, [command, "tcp://127.0.0.1:1", *flags])
    assert 2 == result.exit_code, result.output
    wrong = [line.removeprefix("kvbus: ").partition(":")[0] for line in result.stderr.splitlines()]
    assert ["--ownership", "--medium", "--locality", "--group-idx"] == wrong
    assert "any takes in all the others" in result.stderr

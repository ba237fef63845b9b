"""`kvbus sim`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kvbus_cli.main import app

RUNNER = CliRunner()


def test_one_seed_ends_in_a_digest() -> None:
    """With what happened, counted."""
    done = RUNNER.invoke(app, ["sim", "--seed", "4"])
    assert 0 == done.exit_code
    assert "broker: stream_opened" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("digest ")


def test_a_trace_is_printed_in_front() -> None:
    """In virtual time."""
    done = RUNNER.invoke(app, ["sim", "--seed", "4", "--trace"])
    assert "view 0 sends 0" in done.stdout


def test_several_seeds_end_in_a_report() -> None:
    """Both ends of the range are run."""
    done = RUNNER.invoke(app, ["sim", "--seeds", "4..5"])
    assert 0 == done.exit_code
    assert "2 runs, 0 failed" in done.stdout
    assert "connection broken" in done.stdout


def test_json_is_an_object_a_line() -> None:
    """The last one is for all."""
    done = RUNNER.invoke(app, ["sim", "--seeds", "4..5", "--json"])
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    assert [4, 5] == [run["seed"] for run in runs[:2]]
    assert (2, []) == (runs[2]["runs"], runs[2]["failed"])


def test_a_broken_promise_is_named_with_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the exit code says so."""
    monkeypatch.setattr("kvbus.streams.receiver.StreamReceiver.receive", None)
    done = RUNNER.invoke(app, ["sim", "--seeds", "4..4"])
    assert 1 == done.exit_code
    assert "seed 4: no exception" in done.stderr
    assert "kvbus sim --seed 4 --trace" in done.stderr


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ([], "either --seed or --seeds"),
        (["--seed", "1", "--seeds", "1..2"], "either"),
        (["--seeds", "2..1"], "A..B"),
        (["--seeds", "x"], "A..B"),
        (["--seeds", "1..2", "--trace"], "needs --seed"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused(flags: list[str], word: str) -> None:
    """All at once."""
    done = RUNNER.invoke(app, ["sim", *flags])
    assert 2 == done.exit_code
    assert word in done.stderr

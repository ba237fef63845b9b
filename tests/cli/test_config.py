"""`kvbus config`: what the profiles set, for people and for programs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kvbus.views.profiles import PROFILES
from kvbus_cli.main import app


def config(*arguments: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    result = CliRunner().invoke(app, ["config", *arguments])
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_profiles_are_shown_with_every_option_and_its_reason() -> None:
    """Who wonders why a router gets what it gets has to find it here."""
    code, out, _ = config("profiles")
    assert 0 == code
    for profile in PROFILES.values():
        assert f"{profile.name}: {profile.consumer}\n" in out
        for setting in profile.settings:
            assert setting.why in out


@pytest.mark.parametrize("name", PROFILES)
def test_one_profile_as_json_holds_all_of_it(name: str) -> None:
    """One object a line, values in full."""
    code, out, _ = config("profiles", name, "--json")
    (row,) = map(json.loads, out.splitlines())
    assert (0, name) == (code, row["profile"])
    wanted = [(each.option, each.why) for each in PROFILES[name].settings]
    assert wanted == [(each["option"], each["why"]) for each in row["settings"]]


def test_all_profiles_as_json_are_one_a_line() -> None:
    """For programs that read lines."""
    assert list(PROFILES) == [json.loads(line)["profile"] for line in config("profiles", "--json")[1].splitlines()]


def test_a_profile_that_there_is_not_is_a_usage_error() -> None:
    """With the names that there are, and no traceback."""
    code, out, err = config("profiles", "dinamo")
    assert (2, "") == (code, out)
    assert "must be one of vllm, dynamo" in err

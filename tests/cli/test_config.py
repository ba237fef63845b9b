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


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.delenv("KVBUS_CONFIG", raising=False)
    path = tmp_path / "kvbus.toml"
    path.write_text(
        'age_s = 3\nworkers = ["w=tcp://h:1"]\n[[views]]\nprofile = "smg"\nendpoint = "tcp://127.0.0.1:1"\n'
    )
    return path


def test_show_prints_every_option_with_its_origin(path, monkeypatch) -> None:
    """Default, profile, file with line, variable and flag."""
    monkeypatch.setenv("KVBUS_PROBE_S", "2")
    code, out, err = config("show", str(path), "--hwm", "7", "--clear-wait", "1.5")
    assert (0, "") == (code, err)
    lines = [line.split() for line in out.splitlines()]
    for line in (
        ["age_s", "3.0", "kvbus.toml:1"],
        ["probe_s", "2.0", "KVBUS_PROBE_S"],
        ["clear_wait_s", "1.5", "--clear-wait"],
        ["views[0].hwm", "7", "--hwm"],
        ["views[0].copies", '"count"', "profile", "smg"],
        ["views[0].replay_endpoint", "none", "default"],
        ["journal", "none", "default"],
    ):
        assert line in lines


def test_show_as_json_is_one_option_a_line(path) -> None:
    """For programs that read lines."""
    code, out, _ = config("show", "--json", str(path))
    rows = {row["option"]: row for row in map(json.loads, out.splitlines())}
    assert 0 == code
    assert {"option": "age_s", "value": 3.0, "origin": {"kind": "file", "where": "kvbus.toml:1"}} == rows["age_s"]
    assert {"kind": "default", "where": ""} == rows["probe_s"]["origin"]


def test_show_without_a_file_takes_flags_and_variables_alone(path, monkeypatch) -> None:
    """And the file that a variable names."""
    assert "--worker" in config("show", "--worker", "a=tcp://h:1")[1]
    monkeypatch.setenv("KVBUS_CONFIG", str(path))
    assert "kvbus.toml:1" in config("show")[1]


def test_show_says_what_is_wrong_after_what_holds(path, monkeypatch) -> None:
    """One asks because something is wrong."""
    monkeypatch.setenv("KVBUS_AGEE_S", "2")
    code, out, err = config("show", str(path), "--age", "-1")
    assert (2, True) == (code, "probe_s" in out)
    assert [
        "kvbus: warning: KVBUS_AGEE_S: no option is called so, and it is ignored; did you mean KVBUS_AGE_S?",
        "kvbus: --age: must be more than 0 seconds and finite (got '-1.0')",
    ] == err.splitlines()
    assert 2 == config("show", str(path), "--no-such-flag")[0]


WRONG = """
agee_s = 1
age_s = 0
workers = ["a=tcp://h:5557,replay=tcp://h:5558,ranks=0-1", "h:1"]

[[views]]
split = "rank"
ranks = [0, 1, 2]
endpoint = "tcp://*:5600"
replay_endpoint = "tcp://127.0.0.1:5602"
strip_tokens = true
resolve_placeholders = true
"""


def test_check_says_everything_at_once(path) -> None:
    """Unknown keys, wrong ranges, ports that meet by a rank, and relations between options, each with its line."""
    path.write_text(WRONG)
    code, out, err = config("check", str(path))
    assert (2, "") == (code, out)
    starts = [
        "kvbus: kvbus.toml:2: agee_s: unknown key; did you mean age_s?",
        "kvbus: kvbus.toml:3: age_s: must be more than 0",
        "kvbus: kvbus.toml:4: workers[1]: expected [id=]endpoint",
        "kvbus: kvbus.toml:4: workers[0].replay_endpoint: port 5558 (rank 0) is also that of workers[0].endpoint (rank 1)",
        "kvbus: kvbus.toml:10: views[0].replay_endpoint: port 5602 (rank 0) is also that of views[0].endpoint (rank 2)",
        "kvbus: kvbus.toml:11: views[0].strip_tokens: takes out what resolve_placeholders puts in",
    ]
    lines = err.splitlines()
    assert len(starts) == len(lines)
    for start in starts:
        assert any(line.startswith(start) for line in lines), start


def test_check_as_json_is_one_problem_a_line(path, monkeypatch) -> None:
    """On stdout, because it is the data that was asked for."""
    path.write_text(WRONG)
    monkeypatch.setenv("KVBUS_QQQ", "2")
    code, out, err = config("check", str(path), "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (2, "", 7) == (code, err, len(rows))
    assert {"severity": "error", "field": "kvbus.toml:2: agee_s", "value": ""}.items() <= rows[0].items()
    assert ("warning", "KVBUS_QQQ") == (rows[-1]["severity"], rows[-1]["field"])
    path.write_text("x = ")
    assert "no TOML" in json.loads(config("check", str(path), "--json")[1])["reason"]


def test_check_of_what_is_right(path) -> None:
    """Says so, on stderr, and exits with 0."""
    code, out, err = config("check", str(path))
    assert (0, "", f"kvbus: {path}: nothing is wrong\n") == (code, out, err)
    assert (0, "", "") == config("check", str(path), "--json")
    assert 2 == config("check", str(path.parent / "nowhere"))[0]


def test_schema_and_example_are_printed_whole() -> None:
    """For an editor, and for a first file."""
    code, out, _ = config("schema")
    assert (0, "kvbus broker") == (code, json.loads(out)["title"])
    assert (2, "") == config("schema", "router")[:2]
    assert config("example")[1].startswith("# Every option of")

"""File, variables and flags of the commands that are not the broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from kvbus_cli.command_options import ROLES, command_problems, command_schema, options_of_command, variables_of
from kvbus_cli.main import app


def run(*arguments: str, **variables: str):
    environment = {f"KVBUS_{name}": text for name, text in variables.items()}
    return CliRunner().invoke(app, list(arguments), env=environment)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "worker.toml"
    path.write_text('gpu_blocks = 10\nspeed = 4\ntier = "disk=STORAGE:5"\nself_describing = false\n')
    return path


def shown(*arguments: str, role: str = "worker", **variables: str) -> dict[str, tuple]:
    result = run("config", "show", "--role", role, "--json", *arguments, **variables)
    assert (0, "") == (result.exit_code, result.stderr)
    return {row["option"]: (row["value"], row["origin"]) for row in map(json.loads, result.stdout.splitlines())}


@pytest.mark.parametrize("role", ROLES)
def test_every_flag_is_an_option(role):
    """But for those that are about the file itself, and about help."""
    command = get_command(app).commands[role]
    flags = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    assert flags - {"--config", "--help"} == {option.flag for option in options_of_command(role).values()}


def test_flags_count_more_than_variables_and_these_more_than_the_file(path):
    rows = shown(str(path), "--seed", "7", WORKER_SEED="8", WORKER_GPU_BLOCKS="20", WORKER_LAG='["0=1", "1=2"]')
    for key, row in {
        "seed": (7, "--seed"),
        "gpu_blocks": (20, "KVBUS_WORKER_GPU_BLOCKS"),
        "lag": (["0=1", "1=2"], "KVBUS_WORKER_LAG"),
        "speed": ("4", "worker.toml:2"),
        "tier": (["disk=STORAGE:5"], "worker.toml:3"),
        "self_describing": (False, "worker.toml:4"),
        "ranks": (1, "default"),
    }.items():
        assert row == rows[key]


def test_a_variable_may_name_the_file(path):
    assert (10, "worker.toml:1") == shown(WORKER_CONFIG=str(path))["gpu_blocks"]


def test_a_flag_whose_parameter_is_called_otherwise_has_its_own_name(tmp_path):
    path = tmp_path / "tail.toml"
    path.write_text('from = "oldest"\nmedium = ["GPU", "CPU"]\n')
    rows = shown(str(path), role="tail", TAIL_JSON="true")
    assert ("oldest", "tail.toml:1") == rows["from"]
    assert (["GPU", "CPU"], "tail.toml:2") == rows["medium"]
    assert (True, "KVBUS_TAIL_JSON") == rows["json"]


def test_the_command_runs_with_what_the_file_says(tmp_path):
    path = tmp_path / "worker.toml"
    path.write_text('endpoint = "null"\nspeed = "max"\nrequests = 3\nlinger = 0\njson = true\n')
    result = run("worker", "--config", str(path))
    assert (0, 3) == (result.exit_code, json.loads(result.stdout)["requests"])


WRONG = 'gpu_bloks = 1\nspeed = []\ncpu_blocks = "x"\n'


@pytest.mark.parametrize("command", [["worker", "--config"], ["config", "check", "--role", "worker"]])
def test_everything_wrong_is_said_at_once(path, command):
    """With line or variable, and before anything runs."""
    path.write_text(WRONG)
    result = run(*command, str(path), WORKER_SEED="x")
    assert (2, "") == (result.exit_code, result.stdout)
    assert [
        "kvbus: worker.toml:1: gpu_bloks: unknown key; did you mean gpu_blocks?",
        "kvbus: worker.toml:2: speed: expected str, got array (got '[]')",
        "kvbus: worker.toml:3: cpu_blocks: expected int, got str (got 'x')",
        "kvbus: KVBUS_WORKER_SEED: expected int, got str (got 'x')",
    ] == result.stderr.splitlines()


def test_ranges_are_blamed_on_the_line_or_the_variable_or_the_flag(path):
    path.write_text('encoding = "x"\n')
    result = run("worker", "--config", str(path), "--gpu-blocks", "0", WORKER_RANKS="0")
    assert 2 == result.exit_code
    assert [
        "kvbus: --gpu-blocks: must be at least 1 (got '0')",
        "kvbus: KVBUS_WORKER_RANKS: must be at least 1 (got '0')",
        "kvbus: worker.toml:1: encoding: must be map or array (got 'x')",
    ] == result.stderr.splitlines()
    assert "worker.toml:1: encoding: must be map" in run("config", "check", "--role", "worker", str(path)).stderr


def test_a_file_that_is_right_is_said_to_be(path):
    result = run("config", "check", "--role", "worker", str(path))
    assert (0, f"kvbus: {path}: nothing is wrong\n") == (result.exit_code, result.stderr)
    assert [] == command_problems("worker", None, {})


def test_a_file_that_is_not_there_is_named(tmp_path):
    result = run("worker", "--config", str(tmp_path / "nowhere"))
    assert (2, True) == (result.exit_code, "--config: No such file" in result.stderr)


def test_a_variable_that_means_nothing_is_told_by_its_command_and_only_by_it():
    result = run("worker", "--requests", "0", WORKER_GPU_BLOKS="1", WORKER_TIMEOUT_S="3", TAIL_X="1")
    assert [
        "kvbus: warning: KVBUS_WORKER_GPU_BLOKS: no option is called so, and it is ignored; "
        "did you mean KVBUS_WORKER_GPU_BLOCKS?",
        "kvbus: --requests: must be at least 1 (got '0')",
    ] == result.stderr.splitlines()


def test_the_broker_knows_the_variables_of_the_others():
    result = run("config", "show", "--worker", "tcp://h:1", WORKER_SEED="3", TAIL_CONFIG="x", WORKER_SEEDS="3")
    assert ["KVBUS_WORKER_SEEDS"] == [line.split(": ")[2] for line in result.stderr.splitlines()]
    assert "KVBUS_WORKER_SEED" in variables_of("worker")


@pytest.mark.parametrize("role", ROLES)
def test_the_schema_takes_what_the_reader_takes(role):
    jsonschema = pytest.importorskip("jsonschema")
    schema = command_schema(role)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    defaults = {key: option.default for key, option in options_of_command(role).items() if option.default is not None}
    validator.validate(defaults)
    assert [] != list(validator.iter_errors({"nothing": 1}))
    assert schema == json.loads(run("config", "schema", role).stdout)


def test_a_role_that_there_is_not_is_refused(path):
    for arguments in (["show", "--role", "x"], ["check", "--role", "x", str(path)], ["schema", "x"]):
        result = run("config", *arguments)
        assert (2, "kvbus: ROLE: must be one of broker, worker, tail (got 'x')\n") == (result.exit_code, result.stderr)

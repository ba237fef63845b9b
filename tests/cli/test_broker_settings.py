"""File, environment and flags of `kvbus broker`, and which of them counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from kvbus.config import BrokerConfig, IngestConfig, ViewConfig, parse_worker
from kvbus.errors import ConfigError
from kvbus_cli.broker_settings import FLAGS, BrokerSettings, flags_of, read_toml
from kvbus_cli.main import app

FILE = """
on_departure = "shrink"
age_s = 12
workers = ["w0=tcp://h:1", { worker_id = "w1", endpoint = "tcp://h:2" }]

[[views]]
topic = "from-file"
replay_endpoint = "tcp://127.0.0.1:5701"
"""


def settings(path: Path | None = None, flags=(), **variables) -> BrokerSettings:
    return BrokerSettings(path, dict(flags), {f"KVBUS_{name}": text for name, text in variables.items()})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "kvbus.toml"
    path.write_text(FILE)
    return path


def problems(wrong: BrokerSettings) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        wrong.load()
    return [str(problem) for problem in caught.value.problems]


def test_flags_alone_are_enough():
    """And the view of a broker without a file answers replay requests."""
    expected = BrokerConfig(
        workers=(parse_worker("a=tcp://h:1"),),
        views=(ViewConfig(replay_endpoint="tcp://127.0.0.1:5700", topic="t"),),
        age_s=7.0,
    )
    typed = {"--worker": ["a=tcp://h:1"], "--topic": "t", "--hwm": None, "--age": 7.0, "--probe": None}
    assert expected == settings(None, typed).load()


def test_a_file_alone_is_enough(path):
    config = settings(path).load()
    assert ["w0", "w1"] == [worker.worker_id for worker in config.workers]
    assert ("shrink", 12.0) == (config.on_departure, config.age_s)
    assert (ViewConfig(topic="from-file", replay_endpoint="tcp://127.0.0.1:5701"),) == config.views


def test_variables_alone_are_enough():
    config = settings(WORKERS='["a=tcp://h:1"]', PUB="tcp://127.0.0.1:1", REPLAY="none", AGE_S="7").load()
    assert (
        BrokerConfig(
            workers=(parse_worker("a=tcp://h:1"),), views=(ViewConfig(endpoint="tcp://127.0.0.1:1"),), age_s=7.0
        )
        == config
    )


def test_flags_count_more_than_variables_and_these_more_than_the_file(path):
    typed = {"--worker": ["b=tcp://h:9"], "--topic": "typed", "--replay": "none", "--age": 1.0}
    config = settings(path, typed, AGE_S="2", PROBE_S="3", TOPIC="variable", VIEWS__0__HWM="9").load()
    assert ["b"] == [worker.worker_id for worker in config.workers]
    assert (ViewConfig(topic="typed", hwm=9),) == config.views
    assert ("shrink", 1.0, 3.0) == (config.on_departure, config.age_s, config.probe_s)


def test_every_value_has_its_origin(path):
    rows = {row.option: str(row.origin) for row in settings(path, {"--hwm": 5}, AGE_S="2").survey().rows}
    assert {
        "on_departure": "kvbus.toml:2",
        "age_s": "KVBUS_AGE_S",
        "views[0].hwm": "--hwm",
        "views[0].topic": "kvbus.toml:7",
        "views[0].name": "default",
        "workers[1].endpoint": "kvbus.toml:4",
        "probe_s": "default",
    }.items() <= rows.items()


def test_a_file_may_have_the_ingest_socket_and_a_flag_its_seats(tmp_path):
    path = tmp_path / "kvbus.toml"
    path.write_text('[ingest]\nendpoint = "tcp://127.0.0.1:5801"\nworkers = 2\n')
    config = settings(path, {"--workers": 3}).load()
    assert IngestConfig(endpoint="tcp://127.0.0.1:5801", workers=3) == config.ingest
    assert IngestConfig(endpoint="tcp://127.0.0.1:5801", workers=4) == settings(path, INGEST__WORKERS="4").load().ingest


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("workers = ", "--config: no TOML: "),
        ("\udce9", "--config: no TOML: "),
        ("x = " + "[" * 100_000, "--config: no TOML: "),
        ("workerz = []", "kvbus.toml:1: workerz: unknown key; did you mean workers?"),
        ("", "workers: give at least one worker"),
        ('workers = ["tcp://h:1"]\nage_s = 0', "kvbus.toml:2: age_s: must be more than 0"),
        ('workers = ["tcp://h:1"]\n[[views]]\n\nhwm = 0', "kvbus.toml:4: views[0].hwm: must be at least 1"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, line):
    path = tmp_path / "kvbus.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert problems(settings(path))[0].startswith(line)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"--config: No such file .*nowhere\.toml"):
        read_toml(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ({"--workers": 2}, "--workers: needs --ingest"),
        ({"--topics": ["a"]}, "--topics: needs --ingest"),
        ({"--ingest": "tcp://127.0.0.1:0"}, "--workers: --ingest needs the number"),
    ],
)
def test_half_an_ingest_socket_is_none(typed, line):
    assert problems(settings(None, typed))[0].startswith(line)


def test_all_workers_that_cannot_be_read_are_named():
    assert ["--worker: expected [id=]endpoint"] * 2 == [
        line.split("[,")[0] for line in problems(settings(None, {"--worker": ["x", "tcp://h:1", "y"]}))
    ]


def test_a_wrong_variable_is_blamed_by_its_name():
    wrong = settings(None, {"--worker": ["tcp://h:1"]}, AGE_S="soon", VIEWS__0__ENDPOINT="x", INGEST__WORKERS="1")
    lines = problems(wrong)
    assert lines[0].startswith("KVBUS_AGE_S: expected float, got str (got 'soon')")
    assert lines[1].startswith("KVBUS_VIEWS__0__ENDPOINT: an endpoint begins with")
    assert 2 == len(lines)


def test_a_view_flag_says_nothing_where_the_file_has_several_views(tmp_path):
    path = tmp_path / "kvbus.toml"
    path.write_text('workers = ["tcp://h:1"]\n[[views]]\n[[views]]\nname = "b"\nendpoint = "tcp://127.0.0.1:1"\n')
    assert "--hwm: there are 2 views in the file: say it there (got '2')" in problems(settings(path, {"--hwm": 2}))


def test_a_variable_that_means_nothing_stops_nobody():
    loaded = settings(None, {"--worker": ["tcp://h:1"]}, AGEE_S="1", LOG_LEVEL="info", PORT="tcp://1:1").survey()
    assert ([], ["KVBUS_AGEE_S"]) == (loaded.problems, [stranger.field for stranger in loaded.strangers])


def test_every_flag_that_sets_an_option_is_one_of_the_command():
    """Else it would be typed and not heard."""
    command = get_command(app).commands["broker"]
    known = {option for parameter in command.params for option in parameter.opts}
    assert set() == set(FLAGS) - known
    parameters = {parameter.name for parameter in command.params}
    assert set() == {flag.removeprefix("--").replace("-", "_") for flag in FLAGS} - parameters


ENGINE = '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}'


def test_an_engines_own_configuration_is_a_worker_more():
    loaded = settings(
        None, {"--worker": ["a=tcp://h:1"], "--engine-config": ENGINE, "--engine-ranks": 2, "--engine-host": "pod"}
    ).survey()
    assert [] == loaded.problems
    engine = parse_worker("engine=tcp://pod:5557,replay=tcp://pod:5657,ranks=0-1")
    assert (parse_worker("a=tcp://h:1"), engine) == loaded.config.workers
    origins = {row.option: row.origin.where for row in loaded.rows if row.option.startswith("workers")}
    assert ("--worker", "--engine-config") == (origins["workers[0].endpoint"], origins["workers[1].endpoint"])


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ({"--engine-config": "{}"}, "--engine-config: enable_kv_cache_events is not set"),
        ({"--engine-config": '{"hwn": 1}'}, "--engine-config.hwn: unknown key; did you mean hwm?"),
        ({"--engine-ranks": 2, "--worker": ["tcp://h:1"]}, "--engine-ranks: needs --engine-config"),
        (
            {"--engine-config": ENGINE.replace("5657", "5558"), "--engine-ranks": 2},
            "--engine-config: port 5558 (rank 0)",
        ),
    ],
)
def test_an_engine_that_cannot_be_heard_is_refused(typed, line):
    assert problems(settings(None, typed))[0].startswith(line)


def test_what_was_not_typed_is_no_flag():
    assert {"--topics": ["a", "b"], "--hwm": 0} == flags_of(
        {"topics": "a,,b", "hwm": 0, "worker": [], "journal_reset": False, "age": None, "seconds": 1.0}
    )
    assert {"--journal-reset": True} == flags_of({"journal_reset": True})


def test_places_to_discover_workers_are_typed_or_written(path):
    """And take the place of an ingest socket of the file, as workers do."""
    config = settings(None, {"--discover": ["dns:pods:5557", "vllm:http://e:8000"]}).load()
    assert ["dns", "vllm"] == [place.kind for place in config.discovery]
    path.write_text("[ingest]\nworkers = 2\n")
    assert settings(path, {"--discover": ["dns:pods:5557"]}).load().ingest is None
    path.write_text('discovery = ["dns:pods:5557", { kind = "file", target = "x", interval_s = 1 }]\n')
    assert 1.0 == settings(path).load().discovery[1].interval_s
    assert settings(path, {"--ingest": "tcp://127.0.0.1:0", "--workers": 1}).load().discovery == ()
    assert problems(settings(None, {"--discover": ["dns:pods"]}))[0].startswith("--discover: the port is missing")

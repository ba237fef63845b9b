"""File and flags of `kvbus broker`, and which of them counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbus.config import BrokerConfig, IngestConfig, ViewConfig, parse_worker
from kvbus.errors import ConfigError
from kvbus_cli.broker_settings import BrokerSettings, read_toml

FILE = """
on_departure = "shrink"
age_s = 12
workers = ["w0=tcp://h:1", { worker_id = "w1", endpoint = "tcp://h:2" }]

[[views]]
topic = "from-file"
replay_endpoint = "tcp://127.0.0.1:5701"
"""


def settings(path: Path | None = None, workers=(), ingest=(), view=(), **options) -> BrokerSettings:
    return BrokerSettings(path, list(workers), dict(ingest), dict(view), options)


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
    assert expected == settings(None, ["a=tcp://h:1"], view={"topic": "t", "hwm": None}, age_s=7.0, probe_s=None).load()


def test_a_file_alone_is_enough(path):
    config = settings(path).load()
    assert ["w0", "w1"] == [worker.worker_id for worker in config.workers]
    assert ("shrink", 12.0) == (config.on_departure, config.age_s)
    assert (ViewConfig(topic="from-file", replay_endpoint="tcp://127.0.0.1:5701"),) == config.views


def test_what_was_typed_counts_more_than_the_file(path):
    config = settings(path, ["b=tcp://h:9"], view={"topic": "typed", "replay_endpoint": "none"}, age_s=1.0).load()
    assert ["b"] == [worker.worker_id for worker in config.workers]
    assert (ViewConfig(topic="typed"),) == config.views
    assert ("shrink", 1.0) == (config.on_departure, config.age_s)


def test_a_file_may_have_the_ingest_socket_and_a_flag_its_seats(tmp_path):
    path = tmp_path / "kvbus.toml"
    path.write_text('[ingest]\nendpoint = "tcp://127.0.0.1:5801"\nworkers = 2\n')
    config = settings(path, ingest={"workers": 3, "endpoint": None}).load()
    assert IngestConfig(endpoint="tcp://127.0.0.1:5801", workers=3) == config.ingest


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("workers = ", "--config: no TOML: "),
        ("\udce9", "--config: no TOML: "),
        ("workerz = []", "workerz: unknown key; did you mean workers?"),
        ("", "--worker: give at least one worker"),
        ('workers = ["tcp://h:1"]\nage_s = 0', "--age: must be more than 0"),
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
    ("ingest", "line"),
    [
        ({"workers": 2}, "--workers: needs --ingest"),
        ({"topics": ["a"]}, "--topics: needs --ingest"),
        ({"endpoint": "tcp://127.0.0.1:0"}, "--workers: --ingest needs the number"),
    ],
)
def test_half_an_ingest_socket_is_none(ingest, line):
    assert problems(settings(ingest=ingest))[0].startswith(line)


def test_all_workers_that_cannot_be_read_are_named():
    assert 2 == len(problems(settings(workers=["x", "tcp://h:1", "y"])))

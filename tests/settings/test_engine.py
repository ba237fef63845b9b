"""vLLM's own JSON, for the one who listens to the engine and for the one who plays it."""

from __future__ import annotations

import json

import pytest

from kvbus.config.workers import WorkerConfig
from kvbus.errors import ConfigError
from kvbus.settings.engine import (
    EngineConfig,
    engine_endpoint,
    engine_replay_endpoint,
    engine_worker,
    parse_engine_config,
)


def read(**keys) -> EngineConfig:
    return parse_engine_config(json.dumps({"enable_kv_cache_events": True, **keys}))


def problems(call, *arguments, **keys) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **keys)
    return [str(problem) for problem in caught.value.problems]


def test_the_defaults_are_the_engines():
    assert EngineConfig(enable_kv_cache_events=True) == read()
    assert "tcp://*:5557" == EngineConfig().endpoint


def test_every_key_of_every_version_is_known():
    config = read(
        publisher="zmq",
        endpoint="tcp://*:1",
        replay_endpoint="tcp://*:2",
        buffer_steps=3,
        hwm=4,
        max_queue_size=5,
        topic="t",
        bind=True,
        format="dynamo",
    )
    assert ("tcp://*:1", "tcp://*:2", 3, 4, 5, "t") == (
        config.endpoint,
        config.replay_endpoint,
        config.buffer_steps,
        config.hwm,
        config.max_queue_size,
        config.topic,
    )


@pytest.mark.parametrize(
    ("keys", "options", "endpoint", "replay", "ranks"),
    [
        ({}, {}, "tcp://127.0.0.1:5557", None, None),
        ({"replay_endpoint": "tcp://*:5558"}, {"host": "pod-1"}, "tcp://pod-1:5557", "tcp://pod-1:5558", None),
        ({}, {"host": "fd00::5"}, "tcp://[fd00::5]:5557", None, None),
        ({"endpoint": "tcp://[::]:1"}, {"host": "10.0.0.1"}, "tcp://10.0.0.1:1", None, None),
        ({"endpoint": "tcp://[::1]:1"}, {"host": "10.0.0.1"}, "tcp://[::1]:1", None, None),
        ({"replay_endpoint": "tcp://*:5657"}, {"ranks": 3}, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5657", (0, 1, 2)),
        ({"endpoint": "ipc:///run/kv"}, {}, "ipc:///run/kv", None, None),
        # It connects to what is no wildcard, so the broker has to be there; but its replay socket is bound.
        (
            {"endpoint": "tcp://127.0.0.1:1", "replay_endpoint": "tcp://127.0.0.1:2"},
            {},
            "bind:tcp://127.0.0.1:1",
            "tcp://127.0.0.1:2",
            None,
        ),
        ({"endpoint": "tcp://0.0.0.0:1", "bind": True}, {}, "tcp://127.0.0.1:1", None, None),
        ({"endpoint": "tcp://10.0.0.9:1", "bind": True}, {}, "tcp://10.0.0.9:1", None, None),
    ],
)
def test_the_broker_is_where_the_engine_is_not(keys, options, endpoint, replay, ranks):
    worker = engine_worker(read(**keys), **options)
    assert WorkerConfig(worker_id="engine", endpoint=endpoint, replay_endpoint=replay, ranks=ranks) == worker


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"enable_kv_cache_events": False}, "enable_kv_cache_events is false: nothing is published"),
        ({"enable_kv_cache_events": None}, "enable_kv_cache_events is not set, and vLLM takes that for false"),
        ({"publisher": "null"}, "its publisher is null: nothing is published"),
        ({"publisher": "null", "enable_kv_cache_events": False}, "its publisher is null"),
    ],
)
def test_g56_an_engine_that_publishes_nothing_is_not_waited_for(keys, reason):
    """It looks configured, and not one event comes."""
    config = read(**keys)
    assert config.silence.startswith(reason)
    (line,) = problems(engine_worker, config)
    assert line.startswith(f"--engine-config: {reason}")


def test_sglang_has_no_switch():
    assert "" == parse_engine_config('{"publisher": "zmq", "bind": true}').silence


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", "--engine-config: no JSON"),
        ("[" * 100_000, "--engine-config: no JSON"),
        ("[]", "--engine-config: must be a JSON object"),
        (
            '{"enable_kv_cache_event": true}',
            "--engine-config.enable_kv_cache_event: unknown key; did you mean enable_kv",
        ),
        ('{"zzz": 1}', "--engine-config.zzz: unknown key; known are enable_kv_cache_events"),
        ('{"hwm": "x"}', "--engine-config.hwm: expected int, got str"),
        ('{"buffer_steps": 0}', "--engine-config.buffer_steps: must be a number of messages"),
        ('{"publisher": "kafka"}', "--engine-config.publisher: invalid enum value"),
        ('{"enable_kv_cache_events": true, "endpoint": "tcp://*:70000"}', "--engine-config.endpoint: port 70000"),
        (
            '{"enable_kv_cache_events": true, "endpoint": "tcp://0.0.0.0:5557"}',
            "--engine-config.endpoint: vLLM connects",
        ),
        (
            '{"enable_kv_cache_events": true, "endpoint": "bind:tcp://*:1"}',
            "--engine-config.endpoint: the engine knows no",
        ),
    ],
)
def test_what_no_engine_would_take_is_refused_with_its_key(text, line):
    (found,) = problems(parse_engine_config, text)
    assert found.startswith(line)


def test_all_mistakes_are_shown_at_once():
    text = '{"enable_kv_cache_events": true, "a": 1, "hwm": "x", "endpoint": "y", "replay_endpoint": "z"}'
    assert 4 == len(problems(parse_engine_config, text))


@pytest.mark.parametrize(
    ("keys", "options", "line"),
    [
        ({"endpoint": "tcp://*:0"}, {}, "--engine-config.endpoint: the engine takes any free port"),
        ({"endpoint": "tcp://*:65535"}, {"ranks": 2}, "--engine-config.endpoint: port 65535 + rank 1 = 65536"),
        ({}, {"ranks": 0}, "--engine-ranks: must be from 1 to 4096"),
        ({}, {"host": "a b"}, "--engine-config.endpoint: "),
    ],
)
def test_what_cannot_be_followed_is_refused(keys, options, line):
    assert problems(engine_worker, read(**keys), **options)[0].startswith(line)


def test_what_a_silent_engine_says_besides_does_not_matter():
    """G55: a null publisher with whatever arguments opens nothing, and fails at nothing."""
    assert parse_engine_config('{"publisher": "null", "endpoint": "nonsense"}').silence


def test_who_plays_the_engine_is_where_it_would_be():
    """Rank r on port + r, bound or connected as vLLM would."""
    config = read(endpoint="tcp://*:5557", replay_endpoint="tcp://*:5657")
    assert ("bind:tcp://*:5559", "tcp://*:5659") == (engine_endpoint(config, 2), engine_replay_endpoint(config, 2))
    assert "connect:tcp://127.0.0.1:1" == engine_endpoint(read(endpoint="tcp://127.0.0.1:1"), 0)
    assert engine_replay_endpoint(read(), 0) is None
    with pytest.raises(ConfigError, match="65536"):
        engine_endpoint(read(endpoint="tcp://*:65535"), 1)

"""An engine's own --kv-events-config."""

from __future__ import annotations

import json

import pytest

from kvbus.doctor.engine_settings import engine_findings, engine_targets
from kvbus.doctor.findings import Cause
from kvbus.doctor.targets import Role
from kvbus.settings.engine import parse_engine_config
from tests.doctor.made import causes

SOUND = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5657",
    "topic": "kv",
}


def settings(**change):
    return parse_engine_config(json.dumps(SOUND | change))


def test_sound_settings():
    assert [] == list(engine_findings(settings()))
    (target,) = engine_targets(settings())
    assert ("engine", "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5657", "kv") == (
        target.name,
        target.endpoint.url,
        target.replay.url,
        target.topic,
    )


def test_ranks_are_on_port_plus_rank():
    targets = engine_targets(settings(), "10.0.0.1", 2)
    assert [("tcp://10.0.0.1:5557", 0), ("tcp://10.0.0.1:5558", 1)] == [
        (each.endpoint.url, each.data_parallel_rank) for each in targets
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"enable_kv_cache_events": False}, [Cause.EVENTS_DISABLED]),
        ({"publisher": "null"}, [Cause.EVENTS_DISABLED]),
        ({"endpoint": "tcp://10.0.0.1:5557"}, [Cause.ENGINE_CONNECTS]),
        ({"endpoint": "tcp://[::1]:5557"}, []),
        ({"endpoint": "ipc:///run/kv"}, []),
        ({"replay_endpoint": None}, []),
        (
            {"replay_endpoint": None, "endpoint": "tcp://10.0.0.1:5557"},
            [Cause.ENGINE_CONNECTS, Cause.REPLAY_MISSING],
        ),
    ],
)
def test_what_is_wrong_as_it_stands(change, expected):
    assert expected == causes(list(engine_findings(settings(**change))))


def test_without_the_flag_nothing_is_published():
    """The commonest of all: the configuration looks right, and events are off."""
    read = parse_engine_config(json.dumps({key: SOUND[key] for key in SOUND if key != "enable_kv_cache_events"}))
    assert [Cause.EVENTS_DISABLED] == causes(list(engine_findings(read)))
    assert [] == engine_targets(read)


def test_an_engine_that_connects_expects_a_broker():
    (target,) = engine_targets(settings(endpoint="tcp://10.0.0.1:5557"), ranks=2)
    assert (Role.INGEST, "tcp://10.0.0.1:5557") == (target.role, target.endpoint.url)

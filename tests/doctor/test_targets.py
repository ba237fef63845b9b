"""What is looked at, from workers and from a broker's configuration."""

from __future__ import annotations

import pytest

from kvbus.config import BrokerConfig, IngestConfig, ViewConfig, parse_worker
from kvbus.doctor.targets import Role, broker_targets, publisher_candidates, replay_candidates, worker_targets
from kvbus.endpoints import Endpoint


def test_each_rank_of_a_worker_is_a_target():
    worker = parse_worker("w=tcp://h:5557,replay=tcp://h:5657,ranks=0-1,group=g")
    assert [
        ("w rank 0", "tcp://h:5557", "tcp://h:5657", 0, "g", "kv*"),
        ("w rank 1", "tcp://h:5558", "tcp://h:5658", 1, "g", "kv*"),
    ] == [
        (each.name, each.endpoint.url, each.replay.url, each.data_parallel_rank, each.group, each.topic)
        for each in worker_targets([worker], "kv*")
    ]


def test_a_worker_without_ranks_is_one():
    (target,) = worker_targets([parse_worker("tcp://h:5557")])
    assert ("tcp://h:5557", None, None) == (target.name, target.replay, target.data_parallel_rank)


def test_a_broker_is_its_workers_and_views():
    """Views are looked at from this machine, wherever they are bound."""
    view = ViewConfig(name="v", endpoint="tcp://*:5600", replay_endpoint="tcp://[::]:5700", topic="out")
    config = BrokerConfig(workers=(parse_worker("w=bind:tcp://*:5557"),), views=(view,))
    worker, out = broker_targets(config)
    assert (True, Role.WORKER) == (worker.binds, worker.role)
    assert ("view v", "tcp://127.0.0.1:5600", "tcp://[::1]:5700", False, Role.VIEW) == (
        out.name,
        out.endpoint.url,
        out.replay.url,
        out.binds,
        out.role,
    )


def test_an_ingest_is_where_a_broker_should_be():
    config = BrokerConfig(ingest=IngestConfig(endpoint="tcp://*:5800"), views=(ViewConfig(replay_endpoint=None),))
    ingest, view = broker_targets(config)
    assert (Role.INGEST, "tcp://127.0.0.1:5800") == (ingest.role, ingest.endpoint.url)
    assert view.replay is None


@pytest.mark.parametrize(
    ("text", "replays", "publishers"),
    [
        ("tcp://h:5557", [5558, 5657], [5556, 5558, 5457, 5600]),
        ("tcp://h:5600", [5601, 5700], [5599, 5601, 5500, 5557]),
        ("tcp://h:65535", [], [65534, 65435, 5557, 5600]),
        ("tcp://*:5557", [], [5556, 5558, 5457, 5600]),
        ("ipc:///run/kv", [], []),
    ],
)
def test_where_else_somebody_may_be(text, replays, publishers):
    endpoint = Endpoint.parse(text)
    assert replays == [each.port for each in replay_candidates(endpoint)]
    assert publishers == [each.port for each in publisher_candidates(endpoint)]

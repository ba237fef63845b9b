"""Sources and seats."""

from __future__ import annotations

import random

from kvbus.broker.intake import Intake
from kvbus.config import BrokerConfig, IngestConfig, parse_worker


def intake(*workers, ingest=None, streams_max=4096):
    config = BrokerConfig(workers=tuple(map(parse_worker, workers)), ingest=ingest, streams_max=streams_max)
    return Intake(config, random.Random(0))


def test_g18_each_declared_rank_has_its_own_source():
    """Four ranks behind one base port are four sockets, none of them lost in silence."""
    rows = [
        (source.endpoint.url, source.replay_endpoint and source.replay_endpoint.url, source.worker_id)
        for source in intake("w=tcp://h:5557,replay=tcp://h:6557,ranks=0-3").sources
    ]
    assert [(f"tcp://h:{5557 + rank}", f"tcp://h:{6557 + rank}", "w") for rank in range(4)] == rows


def test_workers_are_known_by_group_with_their_ranks():
    found = intake("a=tcp://h:1,ranks=0-1", "b=tcp://h:5,group=g")
    assert {"": {"a": (0, 1)}, "g": {"b": None}} == found.workers


def test_a_seat_is_called_by_the_topic_that_took_it():
    found = intake(ingest=IngestConfig(workers=2))
    source = found.sources[0]
    assert "seat-0" == found.worker_of(source, b"kv@pod-7@m")
    assert "seat-0" == found.worker_of(source, b"kv@pod-7@m")
    assert {"seat-0": "kv@pod-7@m", "seat-1": "seat-1"} == found.names


def test_kept_seats_go_to_their_topics_only():
    found = intake(ingest=IngestConfig(workers=3, topics=("x", "y")))
    source = found.sources[0]
    assert "seat-2" == found.worker_of(source, b"stranger")
    assert found.worker_of(source, b"another") is None
    assert ["seat-1", "seat-0"] == [found.worker_of(source, topic) for topic in (b"y", b"x")]


def test_the_ingest_socket_binds_and_workers_are_connected_to():
    assert intake(ingest=IngestConfig(workers=1)).sources[0].binds_by_default
    assert not intake("tcp://h:1").sources[0].binds_by_default


def test_room_for_streams_ends():
    found = intake("a=tcp://h:1", streams_max=1)
    assert found.has_room()
    found.open_stream(found.sources[0], b"t", 0, "a", rank_group=None)
    assert not found.has_room()

"""Sources and seats."""

from __future__ import annotations

import random

from kvbus.broker.intake import Intake
from kvbus.broker.rankgroup import RankGroup
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
    assert "seat-0" == found.worker_of(source, b"kv@pod-7@m", 0)
    assert "seat-0" == found.worker_of(source, b"kv@pod-7@m", 0)
    assert {"seat-0": "kv@pod-7@m", "seat-1": "seat-1"} == found.names


def test_kept_seats_go_to_their_topics_only():
    found = intake(ingest=IngestConfig(workers=3, topics=("x", "y")))
    source = found.sources[0]
    assert "seat-2" == found.worker_of(source, b"stranger", 0)
    assert found.worker_of(source, b"another", 0) is None
    assert ["seat-1", "seat-0"] == [found.worker_of(source, topic, 0) for topic in (b"y", b"x")]


def test_the_ingest_socket_binds_and_workers_are_connected_to():
    assert intake(ingest=IngestConfig(workers=1)).sources[0].binds_by_default
    assert not intake("tcp://h:1").sources[0].binds_by_default


def a_group(rank=0):
    return RankGroup("", rank, ["a"], BrokerConfig())


def test_room_for_streams_ends_and_comes_back():
    found = intake("a=tcp://h:1", streams_max=1)
    assert found.has_room()
    found.open_stream(found.sources[0], b"t", worker_id="a", rank_group=a_group(), number=0)
    assert not found.has_room()
    found.remove_worker("", "a")
    assert found.has_room()


def test_a_worker_that_is_taken_up_later_has_sources_of_its_own_numbers():
    """A number is never used twice, so nothing late can be taken for another worker's."""
    found = intake("a=tcp://h:1,ranks=0-1", "b=tcp://h:9")
    assert [0, 1] == [source.index for source in found.remove_worker("", "a")]
    worker = parse_worker("c=tcp://h:20,ranks=4-5")
    sources = found.sources_of(worker)
    assert [2] == [source.index for source in found.sources]
    found.add_worker(worker, sources)
    assert [(2, "b", None), (3, "c", 4), (4, "c", 5)] == [
        (source.index, source.worker_id, source.data_parallel_rank) for source in found.sources
    ]
    assert {"": {"b": None, "c": (4, 5)}} == found.workers


def test_a_seat_that_is_given_back_forgets_its_streams():
    found = intake(ingest=IngestConfig(workers=1))
    source = found.sources[0]
    seat = found.worker_of(source, b"x", 0)
    found.open_stream(source, b"x", worker_id=seat, rank_group=a_group(), number=0)
    found.release_seat(b"x")
    assert {} == source.streams
    assert seat == found.worker_of(source, b"y", 0)


def test_a_declared_socket_serves_its_rank_and_what_it_was_seen_with():
    found = intake("a=tcp://h:1,ranks=0-1", "b=tcp://h:9")
    zero, one, undeclared = found.sources
    assert (True, False, True) == (zero.serves(0), zero.serves(1), zero.serves(None))
    found.open_stream(one, b"t", worker_id="a", rank_group=a_group(7), number=0)
    assert (True, True) == (one.serves(1), one.serves(7))
    assert undeclared.serves(3)

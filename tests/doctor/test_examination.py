"""Looking with real sockets: how long, at what, and what is left behind. What is found is for the integration tests."""

from __future__ import annotations

import time

import msgspec
import pytest

from kvbus.doctor.evidence import Contact
from kvbus.doctor.examination import Effort, examine
from kvbus.doctor.targets import Role, Target
from kvbus.endpoints import Endpoint
from kvbus.publisher.publisher import Publisher
from tests.doctor.made import stored
from tests.machine import free_ports

ANY = "tcp://127.0.0.1:0"


@pytest.fixture
def publisher():
    with Publisher(ANY, replay_endpoint=ANY, topic="kv") as made:
        yield made


def target(publisher: Publisher, **options) -> Target:
    endpoints = Endpoint.parse(str(publisher.endpoint)), Endpoint.parse(str(publisher.replay_endpoint))
    return Target(**({"name": "w", "endpoint": endpoints[0], "replay": endpoints[1]} | options))


def test_an_idle_publisher_is_listened_to_for_the_whole_time(publisher):
    publisher.publish([stored(1)])
    (seen,) = examine([target(publisher)], Effort(seconds=0.3, knock_s=60, answer_s=60))
    assert 0.3 <= seen.seconds < 60
    assert (True, 0, 1, True) == (seen.is_reached, seen.heard.messages, seen.answers.batches, seen.answers.has_ended)
    assert {"BlockStored": 1} == seen.heard.contents.events


def test_it_ends_when_it_is_told_to(publisher):
    began = time.monotonic()
    examine([target(publisher)], Effort(seconds=600), is_told_to_stop=lambda: True)
    assert 60 > time.monotonic() - began


def test_it_ends_when_nobody_is_there(publisher):
    began = time.monotonic()
    gone = msgspec.structs.replace(target(publisher), endpoint=Endpoint.parse("tcp://no-such-pod.invalid:1"))
    (seen,) = examine([gone], Effort(seconds=600))
    assert Contact.UNRESOLVED is seen.knock.contact
    assert 60 > time.monotonic() - began


def test_an_ingest_is_only_knocked_at(publisher):
    (seen,) = examine([target(publisher, role=Role.INGEST, replay=None)], Effort(seconds=600, knock_s=60))
    assert ("XPUB", False) == (seen.knock.socket_type, seen.is_reached)


def test_nothing_to_look_at():
    assert [] == examine([], Effort(seconds=600))


def test_a_shared_context_goes_on(publisher, zmq_context):
    examine([target(publisher)], Effort(seconds=0.05), context=zmq_context)
    assert not zmq_context.closed


def test_listening_where_nobody_does_is_asked_for():
    """And it gives the port back."""
    url = f"tcp://127.0.0.1:{free_ports(1)}"
    here = Target(name="w", endpoint=Endpoint.parse(url))
    assert [None, 0] == [examine([here], Effort(seconds=0.1, listens=each))[0].callers for each in (False, True)]
    Publisher(url).close()

"""Requests to workers: a bounded number, each with a key of its own."""

from __future__ import annotations

import random

from kvbus.broker.intake import Intake
from kvbus.broker.requests import ASKS_MAX, DISCOVERY_NS, Requests
from kvbus.config import BrokerConfig, parse_worker


class PatientReceiver:
    """Counts how often it was put off."""

    def __init__(self):
        self.deferred_count = 0

    def deferred(self, now_ns):
        self.deferred_count += 1


class AskingStream:
    """As much of a stream as asking needs."""

    def __init__(self):
        self.receiver = PatientReceiver()


def sources(count=1):
    workers = tuple(parse_worker(f"w{n}=inproc://w{n},replay=inproc://r{n}") for n in range(count))
    return Intake(BrokerConfig(workers=workers), random.Random(0)).sources


def test_a_request_is_a_message_and_its_end_another():
    (source,) = sources()
    stream, requests = AskingStream(), Requests()
    requests.ask(source, stream, 5, 1, 0)
    (sent,) = requests.take()
    assert (0, [b"", (5).to_bytes(8, "big")]) == (sent.source_index, sent.frames)
    assert stream is requests.get(sent.key).stream
    requests.cancel(stream, 7)
    assert [] == requests.take()
    requests.cancel(stream, 1)
    assert [(0, sent.key, [])] == requests.take()
    assert requests.get(sent.key) is None


def test_one_too_many_is_put_off_and_loses_nothing():
    (source,) = sources()
    requests = Requests()
    streams = [AskingStream() for _ in range(ASKS_MAX + 1)]
    for stream in streams:
        requests.ask(source, stream, 0, 1, 0)
    assert ASKS_MAX == len(requests.take())
    assert [0] * ASKS_MAX + [1] == [stream.receiver.deferred_count for stream in streams]


def test_a_key_is_never_used_twice():
    """What still comes for a request that is over must not be taken for an answer to the next."""
    (source,) = sources()
    stream, requests = AskingStream(), Requests()
    keys = []
    for request in range(3):
        requests.ask(source, stream, 0, request, 0)
        keys.append(requests.take()[-1].key)
        requests.end(keys[-1])
    assert 3 == len(set(keys))


def test_a_silent_worker_is_asked_what_there_is_again_and_again():
    (source,) = sources()
    requests = Requests()
    requests.discover(source, 0)
    (first,) = requests.take()
    assert DISCOVERY_NS == source.discover_at_ns
    requests.discover(source, DISCOVERY_NS)
    ended, second = requests.take()
    assert [(first.key, []), (second.key, first.frames)] == [(ended.key, ended.frames), (second.key, second.frames)]


def test_a_source_that_goes_takes_its_requests_along():
    one, two = sources(2)
    requests = Requests()
    for source in (one, two):
        requests.ask(source, AskingStream(), 0, 1, 0)
    (_, kept) = requests.take()
    requests.end_all_of(one)
    assert [[]] == [message.frames for message in requests.take()]
    assert requests.get(kept.key) is not None

"""Subscribers that are played: they notice hellos and marks, and count afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import zmq

from kvbus.bench.load import checksum, hello_batch, make_load, mark_batch
from kvbus.bench.loader import stamped
from kvbus.bench.options import BenchOptions
from kvbus.bench.processes import BenchError
from kvbus.bench.sink import Sink
from kvbus.wire.envelope import split_batch

PAYLOADS = make_load(BenchOptions(workers=1, batch=4, events=8)).payloads[0]


@pytest.fixture
def sink() -> Iterator[Sink]:
    """One that is closed at the end."""
    made = Sink()
    yield made
    made.shut()


@pytest.fixture
def publisher(zmq_context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[zmq.Socket[bytes]]:
    """Where subscribers connect to."""
    with zmq_context.socket(zmq.XPUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.XPUB_VERBOSER, 1)
        socket.bind("tcp://127.0.0.1:0")
        yield socket


def _connect(sink: Sink, publisher: zmq.Socket[bytes], subscribers: int) -> None:
    url = publisher.getsockopt_string(zmq.LAST_ENDPOINT)
    sink.do("open", subscribers=[[url]] * subscribers)
    for _ in range(subscribers):
        assert publisher.poll(60_000)
        publisher.recv()


def _send(publisher: zmq.Socket[bytes], topic: bytes, *payloads: bytes) -> None:
    for payload in payloads:
        publisher.send_multipart([topic, bytes(8), payload])


def test_hellos_are_heard_by_topic(sink: Sink, publisher: zmq.Socket[bytes]) -> None:
    """A bus that forwards is up when every worker is heard."""
    _connect(sink, publisher, 2)
    _send(publisher, b"w0", hello_batch(0))
    assert {"done": "hello", "heard": True} == sink.do("hello", topics=1, wait_s=60.0)
    assert {"done": "hello", "heard": False} == sink.do("hello", topics=2, wait_s=0.0)
    _send(publisher, b"w1", hello_batch(0))
    assert {"done": "hello", "heard": True} == sink.do("hello", topics=2, wait_s=60.0)


def test_everything_up_to_the_mark_is_counted(sink: Sink, publisher: zmq.Socket[bytes]) -> None:
    """Events without signals, their checksum, and how long batches with a time took."""
    _connect(sink, publisher, 2)
    sent_s = time.monotonic()
    _send(publisher, b"", hello_batch(1), PAYLOADS[0], stamped(PAYLOADS[1], sent_s), mark_batch(2))
    answer = sink.do("watch", marks=1, timeout_s=60.0)
    assert sent_s * 1e9 < answer["at_ns"] <= time.monotonic_ns()
    counted = sink.do("count")
    total = checksum(event for payload in PAYLOADS for event in split_batch(payload).events)
    assert ([8, 8], [total, total], [4, 4]) == (counted["events"], counted["checksums"], counted["batches"])
    assert 2 == len(counted["latencies_ns"])
    assert all(0 < latency_ns <= answer["at_ns"] - sent_s * 1e9 + 1000 for latency_ns in counted["latencies_ns"])


def test_a_mark_that_does_not_come_is_an_error(sink: Sink, publisher: zmq.Socket[bytes]) -> None:
    """With how far it got."""
    _connect(sink, publisher, 1)
    _send(publisher, b"w0", mark_batch(0))
    assert sink._poller.poll(60_000)
    with pytest.raises(BenchError, match=r"nothing for 0.2 s, after \[1\] batches"):
        sink.do("watch", marks=2, timeout_s=0.2)

"""The publisher's thread: what it does when something goes wrong around it."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterable

import pytest
import zmq

from kvbus.errors import UsageError
from kvbus.publisher import Publisher, sender
from kvbus.sockets import ZmqContext
from tests.publisher.reading import WAIT_MS, Gate, Reader

LOCAL = "tcp://127.0.0.1:0"


def publisher_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kvbus-publisher"]


def test_g65_a_send_that_fails_is_not_counted_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "send_frames", lambda socket, frames: False)
    publisher = Publisher(LOCAL)
    for _ in range(3):
        publisher.publish_raw(b"x")
    publisher.close()
    assert (3, 0, 0) == (publisher.stats.numbered, publisher.stats.published, publisher.stats.published_bytes)
    assert {"send_failed": 3} == publisher.stats.dropped


def test_a_terminated_context_ends_the_publisher_and_says_so() -> None:
    context: ZmqContext = zmq.Context()
    publisher = Publisher(LOCAL, "", LOCAL, context=context)
    context.term()
    for thread in publisher_threads():
        thread.join(WAIT_MS / 1000)
    with pytest.raises(UsageError, match="its ZeroMQ context was terminated"):
        publisher.publish_raw(b"x")
    publisher.close()


def test_a_failure_of_the_thread_is_logged_and_told_to_the_caller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(socket: object, frames: object) -> bool:
        raise MemoryError

    monkeypatch.setattr(sender, "send_frames", fail)
    publisher = Publisher(LOCAL)
    publisher.publish_raw(b"x")
    for thread in publisher_threads():
        thread.join(WAIT_MS / 1000)
    with pytest.raises(UsageError, match=r"its thread failed \(MemoryError\)"):
        publisher.publish_raw(b"x")
    assert ["publisher_failed"] == [record.getMessage().split()[0] for record in caplog.records]
    assert {"send_failed": 1} == publisher.stats.dropped
    publisher.close()


def test_a_publisher_that_is_collected_ends_its_thread() -> None:
    publisher = Publisher(LOCAL)
    (thread,) = publisher_threads()
    del publisher
    gc.collect()
    thread.join(WAIT_MS / 1000)
    assert not thread.is_alive()


def test_drops_are_logged_once_until_the_queue_has_drained(
    zmq_context: ZmqContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line a batch would be another way to stall a worker."""
    caplog.set_level(logging.WARNING, "kvbus.publisher")
    gate = Gate(monkeypatch)
    with Publisher(LOCAL, queue_size=100) as publisher, Reader(zmq_context, publisher) as reader:
        gate.stop_sender(publisher)
        for _ in range(150):
            publisher.publish_raw(b"x")
        gate.open()
        assert [*range(101)] == [seq for _, seq, _ in reader.take(101)]
        assert 151 == publisher.publish_raw(b"x")
        assert 151 == reader.take(1)[0][1]
        assert {"queue_full": 50} == publisher.stats.dropped
    assert ["publish_queue_full", "publish_queue_drained"] == first_words(caplog.messages)
    assert "dropped=50" in caplog.messages[1]


def first_words(lines: Iterable[str]) -> list[str]:
    return [line.split()[0] for line in lines]

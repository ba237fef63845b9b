"""The socket thread by itself: that it opens, wakes, waits and ends as it should."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import zmq

from kvbus.errors import ConfigError, Problem
from kvbus.events import AllBlocksCleared, EventBatch
from kvbus.sockets import open_socket
from kvbus.subscriber.items import Received
from kvbus.subscriber.loop import SocketLoop
from kvbus.subscriber.node import SubscriberNode
from kvbus.subscriber.options import SubscriberLimits, SubscriberOptions
from kvbus.wire.codec import encode_batch
from tests.subscriber.publishing import WAIT_MS, BarePublisher

Context = zmq.Context[zmq.Socket[bytes]]

WAIT_S = WAIT_MS / 1000

CLEAR = encode_batch(EventBatch(1.0, [AllBlocksCleared()], 0))


def make_loop(
    endpoint: str,
    node_class: type[SubscriberNode] = SubscriberNode,
    replay_endpoint: str | None = None,
    **limits: Any,
) -> SocketLoop:
    options = SubscriberOptions.read(
        endpoint=endpoint,
        replay_endpoint=replay_endpoint,
        topic="",
        start=None,
        event_filter=None,
        wishes={},
        limits=SubscriberLimits(**limits),
        receiver_limits=None,
    )
    return SocketLoop(node_class(options, random.Random(7)), options, None)


def test_stop_ends_the_thread_and_the_mailbox() -> None:
    loop = make_loop("tcp://127.0.0.1:1")
    assert "tcp://127.0.0.1:1" == loop.start()
    loop.stop()
    loop.stop()
    loop.wake()
    assert loop.mailbox.is_ended
    assert not loop.is_connected


def test_an_endpoint_that_cannot_be_opened_is_told_to_who_starts_it() -> None:
    with pytest.raises(ConfigError):
        make_loop("bind:tcp://203.0.113.1:5600").start()


def test_a_full_mailbox_leaves_messages_where_they_are(zmq_context: Context) -> None:
    """The bound holds, and nothing is read that has nowhere to go."""
    with BarePublisher(zmq_context) as publisher:
        loop = make_loop(publisher.url, queue_items_max=2)
        loop.start()
        publisher.wait_for_subscription()
        for seq in range(200):
            publisher.send(b"kv", seq, CLEAR)
        taken: list[int] = []
        while len(taken) < 200:
            item = loop.mailbox.take(WAIT_S)
            assert isinstance(item, Received)
            taken.append(item.seq)
            assert loop.counts.batches_received <= len(taken) + 2 + 64
        loop.stop()
        assert list(range(200)) == taken


def test_a_fault_of_ours_reaches_the_reader(zmq_context: Context) -> None:
    """A thread that dies in silence looks like an idle publisher."""

    class BrokenNode(SubscriberNode):
        def on_live(self, frames: object, now_ns: int) -> None:
            raise ZeroDivisionError("a bug")

    with BarePublisher(zmq_context) as publisher:
        loop = make_loop(publisher.url, BrokenNode)
        loop.start()
        publisher.wait_for_subscription()
        publisher.send(b"kv", 0, CLEAR)
        with pytest.raises(ZeroDivisionError):
            loop.mailbox.take(WAIT_S)
        loop.stop()
        assert [] == [thread for thread in threading.enumerate() if thread.name == "kvbus-subscriber"]


def test_a_replay_that_cannot_be_opened_costs_nothing_else(
    zmq_context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is out of descriptors for a while: live batches go on, and the request is made when it can be."""
    refused = threading.Event()

    def open_late(context: Any, kind: int, *arguments: Any, **options: Any) -> Any:
        if kind == zmq.DEALER and not refused.is_set():
            refused.set()
            raise ConfigError([Problem("replay_endpoint", "", "too many open files")])
        return open_socket(context, kind, *arguments, **options)

    monkeypatch.setattr("kvbus.subscriber.loop.open_socket", open_late)
    with BarePublisher(zmq_context, with_replay=True) as publisher:
        loop = make_loop(publisher.url, replay_endpoint=publisher.replay_url)
        loop.start()
        identity, start_seq = publisher.wait_for_request()
        assert (0, True) == (start_seq, refused.is_set())
        publisher.answer(identity, [(b"kv", 0, CLEAR)])
        item = loop.mailbox.take(WAIT_S)
        assert isinstance(item, Received)
        assert 1 == loop.counts.replays_refused
        loop.stop()

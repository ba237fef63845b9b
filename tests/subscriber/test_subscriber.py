"""The subscriber over real sockets: joining, losing, closing, and being read in every way that there is."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from kvbus.errors import ConfigError
from kvbus.events import AllBlocksCleared, BlockStored, EventBatch
from kvbus.subscriber import Gap, Received, Restarted, StreamBrokenError, Subscriber, SubscriberLimits
from kvbus.views.filters import EventFilter
from kvbus.wire.codec import encode_batch
from tests.subscriber.publishing import BarePublisher

WAIT_S = 60.0

Context = zmq.Context[zmq.Socket[bytes]]


def numbered(seq: int) -> bytes:
    return encode_batch(EventBatch(1.0, [BlockStored([seq], None, [7], 1, medium="GPU")], 0))


def seqs(subscriber: Subscriber, count: int) -> list[int]:
    """The numbers of the next batches, which must come."""
    taken = []
    for _ in range(count):
        item = subscriber.receive(WAIT_S)
        assert isinstance(item, Received), item
        taken.append(item.seq)
    return taken


@pytest.fixture
def publisher(zmq_context: Context) -> Iterator[BarePublisher]:
    with BarePublisher(zmq_context, with_replay=True) as bare:
        yield bare


def test_batches_arrive(publisher: BarePublisher) -> None:
    with Subscriber(publisher.url) as subscriber:
        assert publisher.wait_for_subscription() == b""
        publisher.send(b"kv@w0", 0, numbered(0))
        item = subscriber.receive(WAIT_S)
        expected = EventBatch(1.0, [BlockStored([0], None, [7], 1, medium="GPU")], 0)
        assert Received("kv@w0", 0, expected) == item
        assert subscriber.is_connected
        assert subscriber.endpoint == publisher.url
        assert 1 == subscriber.counts.batches_delivered


def test_g06_g67_nothing_that_arrives_ends_it(publisher: BarePublisher) -> None:
    """One bad message must cost neither the connection nor what comes behind it on the same socket."""
    with Subscriber(publisher.url) as subscriber:
        publisher.wait_for_subscription()
        publisher.send(b"kv", 0, numbered(0))
        for count in (1, 2, 4, 50):
            publisher.send_frames([b"kv"] * count)
        publisher.send(b"kv", 1, b"\xc1")
        publisher.send(b"kv", 2, b"\x91" * 100_000)
        publisher.send(b"kv", 3, numbered(3))
        taken = [subscriber.receive(WAIT_S) for _ in range(4)]
        assert [0, Gap("kv", 1, 2, "unreadable"), Gap("kv", 2, 3, "unreadable"), 3] == [
            item.seq if isinstance(item, Received) else item for item in taken
        ]
        assert 4 == subscriber.counts.messages_malformed


@pytest.mark.parametrize("topic", ["kv-events", b"k\xf6ln", "test-topic"])
def test_g47_g48_exactly_the_topic_that_was_asked_for(publisher: BarePublisher, topic: str | bytes) -> None:
    wanted = topic.encode() if isinstance(topic, str) else topic
    with Subscriber(publisher.url, topic=topic) as subscriber:
        assert wanted == publisher.wait_for_subscription()
        publisher.send(wanted + b"-2", 0, numbered(0))
        publisher.send(wanted, 5, numbered(5))
        item = subscriber.receive(WAIT_S)
        assert isinstance(item, Received)
        assert (wanted.decode("utf-8", "surrogateescape"), 5) == (item.topic, item.seq)
        assert 1 == subscriber.counts.messages_unwanted


def test_ipc(zmq_context: Context, tmp_path: Path) -> None:
    with BarePublisher(zmq_context, f"ipc://{tmp_path}/pub") as bare, Subscriber(bare.url) as subscriber:
        bare.wait_for_subscription()
        bare.send(b"", 0, numbered(0))
        assert [0] == seqs(subscriber, 1)


def test_inproc_needs_the_same_context(zmq_context: Context) -> None:
    with (
        BarePublisher(zmq_context, "inproc://pub") as bare,
        Subscriber("inproc://pub", context=zmq_context) as subscriber,
    ):
        bare.wait_for_subscription()
        bare.send(b"", 0, numbered(0))
        assert [0] == seqs(subscriber, 1)


def test_it_can_bind(zmq_context: Context) -> None:
    """Engines whose PUB side connects need somebody to connect to."""
    with Subscriber("tcp://127.0.0.1:0".replace("tcp", "bind:tcp")) as subscriber:
        engine = zmq_context.socket(zmq.XPUB)
        engine.linger = 0
        engine.connect(subscriber.endpoint)
        assert engine.poll(60_000)
        engine.recv()
        engine.send_multipart([b"kv", (0).to_bytes(8, "big"), numbered(0)])
        assert [0] == seqs(subscriber, 1)
        engine.close()


def test_a_lost_batch_is_asked_for_again(publisher: BarePublisher) -> None:
    with Subscriber(publisher.url, publisher.replay_url, start="live") as subscriber:
        publisher.wait_for_subscription()
        publisher.send(b"kv", 3, numbered(3))
        publisher.send(b"kv", 6, numbered(6))
        identity, start_seq = publisher.wait_for_request()
        publisher.answer(identity, [(b"kv", seq, numbered(seq)) for seq in range(start_seq, 7)])
        assert [3, 4, 5, 6] == seqs(subscriber, 4)
        assert (0, 2) == (subscriber.counts.gaps, subscriber.counts.batches_replayed)


@pytest.mark.parametrize("old_form", [True, False])
def test_oldest_joins_replay_and_live(publisher: BarePublisher, old_form: bool) -> None:
    """Without hole or duplicate, whichever replay form the engine speaks."""
    with Subscriber(publisher.url, publisher.replay_url, topic="kv", start="oldest") as subscriber:
        publisher.wait_for_subscription()
        identity, start_seq = publisher.wait_for_request()
        assert start_seq == 0
        publisher.answer(identity, [(b"kv", seq, numbered(seq)) for seq in range(3)], old_form)
        assert [0, 1, 2] == seqs(subscriber, 3)
        publisher.send(b"kv", 5, numbered(5))
        identity, start_seq = publisher.wait_for_request()
        publisher.answer(identity, [(b"kv", seq, numbered(seq)) for seq in range(start_seq, 6)], old_form)
        publisher.send(b"kv", 6, numbered(6))
        assert [3, 4, 5, 6] == seqs(subscriber, 4)
        assert 0 == subscriber.counts.gaps


def test_g35_a_replay_that_begins_late_is_a_gap(publisher: BarePublisher) -> None:
    with Subscriber(publisher.url, publisher.replay_url, topic="kv", start=2) as subscriber:
        publisher.wait_for_subscription()
        identity, start_seq = publisher.wait_for_request()
        assert start_seq == 2
        publisher.answer(identity, [(b"kv", 90, numbered(90))])
        assert Gap("kv", 2, 90, "evicted") == subscriber.receive(WAIT_S)
        assert [90] == seqs(subscriber, 1)


def test_a_publisher_that_comes_back_is_compared(zmq_context: Context) -> None:
    """S4: it counted past our position before we saw anything of its new life."""
    with BarePublisher(zmq_context, with_replay=True) as first:
        url, replay_url = first.url, first.replay_url
        subscriber = Subscriber(url, replay_url, start="live")
        first.wait_for_subscription()
        first.send(b"kv", 0, numbered(0))
        assert [0] == seqs(subscriber, 1)
    again = BarePublisher(zmq_context, url, with_replay=True, replay_url=replay_url)
    with again, subscriber:
        again.wait_for_subscription()
        identity, start_seq = again.wait_for_request()
        assert start_seq == 0
        again.answer(identity, [(b"kv", seq, numbered(seq + 100)) for seq in range(3)])
        assert Restarted("kv", 1, "changed") == subscriber.receive(WAIT_S)


def test_strict_raises_and_goes_on(publisher: BarePublisher) -> None:
    with Subscriber(publisher.url, strict=True) as subscriber:
        publisher.wait_for_subscription()
        for seq in (0, 2):
            publisher.send(b"kv", seq, numbered(seq))
        assert 0 == next(subscriber).seq  # type: ignore[union-attr]
        with pytest.raises(StreamBrokenError) as caught:
            next(subscriber)
        assert Gap("kv", 1, 2, "no_replay") == caught.value.item
        assert [2] == seqs(subscriber, 1)


def test_filters(publisher: BarePublisher) -> None:
    gpu = BlockStored([1], None, [7], 1, medium="GPU")
    tier = BlockStored([1], medium="CPU", ownership="kvcr")
    data = encode_batch(EventBatch(1.0, [gpu, tier, AllBlocksCleared()], 0))
    with Subscriber(publisher.url, ownership="kvcr") as subscriber:
        publisher.wait_for_subscription()
        publisher.send(b"kv", 0, encode_batch(EventBatch(1.0, [gpu], 0)))
        publisher.send(b"kv", 1, data)
        assert Received("kv", 1, EventBatch(1.0, [tier, AllBlocksCleared()], 0)) == subscriber.receive(WAIT_S)
        assert (2, 1, 1) == (
            subscriber.counts.batches_received,
            subscriber.counts.batches_delivered,
            subscriber.counts.batches_filtered,
        )


def test_a_ready_made_filter(publisher: BarePublisher) -> None:
    with Subscriber(publisher.url, event_filter=EventFilter(medium="CPU")) as subscriber:
        publisher.wait_for_subscription()
        publisher.send(b"kv", 0, numbered(0))
        publisher.send(b"kv", 1, encode_batch(EventBatch(1.0, [AllBlocksCleared()], 0)))
        assert [1] == seqs(subscriber, 1)


def test_a_slow_reader_loses_nothing_that_zeromq_can_hold(publisher: BarePublisher) -> None:
    """The mailbox is small; what does not fit stays in ZeroMQ's queue."""
    limits = SubscriberLimits(queue_items_max=3)
    with Subscriber(publisher.url, limits=limits) as subscriber:
        publisher.wait_for_subscription()
        for seq in range(500):
            publisher.send(b"kv", seq, numbered(seq))
        assert list(range(500)) == seqs(subscriber, 500)


class TestReading:
    """Every way to wait ends when it is over."""

    @pytest.fixture
    def silent(self, publisher: BarePublisher) -> Iterator[Subscriber]:
        subscriber = Subscriber(publisher.url)
        publisher.wait_for_subscription()
        yield subscriber
        subscriber.close()

    def test_time_outs(self, silent: Subscriber) -> None:
        assert not silent.poll()
        assert not silent.poll(0.001)
        assert silent.receive(0.001) is None
        assert not silent.closed

    def test_poll_and_receive(self, silent: Subscriber, publisher: BarePublisher) -> None:
        publisher.send(b"kv", 0, numbered(0))
        assert silent.poll(WAIT_S)
        assert silent.poll()
        assert isinstance(silent.receive(0), Received)

    def test_g58_close_wakes_a_blocked_iterator(self, silent: Subscriber) -> None:
        ended = threading.Event()

        def read() -> None:
            assert [] == list(silent)
            ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        silent.close()
        assert ended.wait(WAIT_S)
        reader.join()
        assert silent.closed

    def test_close_twice_and_from_many_threads(self, silent: Subscriber) -> None:
        closers = [threading.Thread(target=silent.close) for _ in range(8)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(WAIT_S)
        silent.close()
        assert silent.receive() is None

    def test_what_was_not_taken_is_gone_after_close(self, silent: Subscriber, publisher: BarePublisher) -> None:
        publisher.send(b"kv", 0, numbered(0))
        assert silent.poll(WAIT_S)
        silent.close()
        assert [] == list(silent)

    def test_async_iteration(self, silent: Subscriber, publisher: BarePublisher) -> None:
        async def read() -> list[int]:
            taken = []
            async with silent:
                async for item in silent:
                    assert isinstance(item, Received)
                    taken.append(item.seq)
                    if len(taken) < 3:
                        publisher.send(b"kv", len(taken), numbered(len(taken)))
                    else:
                        silent.close()
            return taken

        publisher.send(b"kv", 0, numbered(0))
        assert [0, 1, 2] == asyncio.run(asyncio.wait_for(read(), WAIT_S))

    def test_a_forgotten_subscriber_ends_its_thread(self, publisher: BarePublisher) -> None:
        subscriber = Subscriber(publisher.url)
        publisher.wait_for_subscription()
        del subscriber
        gc.collect()
        assert [] == [thread for thread in threading.enumerate() if thread.name == "kvbus-subscriber"]


@pytest.mark.slow
def test_g58_two_hundred_closes_under_load(publisher: BarePublisher) -> None:
    """Only the owner thread touches a socket, so that no close can hit it in the middle of a receive."""
    for _ in range(200):
        subscriber = Subscriber(publisher.url)
        publisher.wait_for_subscription()
        for seq in range(50):
            publisher.send(b"kv", seq, numbered(seq))
        reader = threading.Thread(target=lambda each=subscriber: list(each))
        reader.start()
        subscriber.close()
        reader.join(WAIT_S)
        assert not reader.is_alive()


def test_g60_a_dead_replay_endpoint_holds_up_no_close(publisher: BarePublisher) -> None:
    """The request that nobody took must not keep the context from ending."""
    with Subscriber(publisher.url, "tcp://127.0.0.1:1", start="oldest"):
        publisher.wait_for_subscription()


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"endpoint": "tcp://127.0.0.1"}, ["endpoint"]),
        ({"endpoint": "tcp://127.0.0.1:70000", "replay_endpoint": "udp://x"}, ["endpoint", "replay_endpoint"]),
        ({"ownership": "", "group_idx": -1}, ["ownership", "group_idx"]),
        ({"start": "oldest"}, ["start"]),
        ({"start": -1, "replay_endpoint": "tcp://127.0.0.1:5700"}, ["start"]),
    ],
)
def test_what_cannot_work_is_refused_with_its_name(arguments: dict[str, object], fields: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Subscriber(**arguments)  # type: ignore[arg-type]
    assert fields == [problem.field for problem in caught.value.problems]


def test_a_port_in_use_is_refused_and_leaves_nothing_open(publisher: BarePublisher) -> None:
    with pytest.raises(ConfigError) as caught:
        Subscriber(f"bind:{publisher.url}")
    assert ["endpoint"] == [problem.field for problem in caught.value.problems]

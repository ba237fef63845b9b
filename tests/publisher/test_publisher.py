"""What a worker sees of a publisher, and what travels on its sockets."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError, UsageError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, Rejected
from kvbus.publisher import Publisher, PublisherStats
from kvbus.sockets import SocketOptions, ZmqContext, open_socket, receive_frames, send_frames
from kvbus.wire.codec import decode_batch
from kvbus.wire.frames import ReplayBatch, ReplayEnd
from tests.machine import free_ports, needs_ipv6
from tests.publisher.reading import WAIT_MS, Gate, Reader
from tests.waiting import wait_until

LOCAL = "tcp://127.0.0.1:0"


def stored(block_hash: int | bytes = 7) -> BlockStored:
    return BlockStored([block_hash], None, [1, 2, 3, 4], 4, medium="GPU")


def one_event(index: int) -> list[Event]:
    return [BlockRemoved([index], "CPU")]


# On the wire


@pytest.mark.parametrize("topic", [b"", b"kv@pod@model", "größe".encode(), b"\xff\x00"])
def test_g02_every_message_has_three_frames(zmq_context: ZmqContext, topic: bytes) -> None:
    with Publisher(LOCAL, topic) as publisher, Reader(zmq_context, publisher) as reader:
        assert [0, 1] == [publisher.publish([stored()]) for _ in range(2)]
        for seq, frames in enumerate(reader.messages(2)):
            assert [topic, seq.to_bytes(8, "big")] == frames[:2]
            assert 3 == len(frames)


def test_events_arrive_as_they_were_given(zmq_context: ZmqContext) -> None:
    events: list[Event] = [stored(-1), stored(2**64 - 1), stored(bytes(32)), BlockRemoved([1], "CPU", ownership="kvcr")]
    events.append(AllBlocksCleared())
    before = time.time()
    with Publisher(LOCAL, data_parallel_rank=3) as publisher, Reader(zmq_context, publisher) as reader:
        publisher.publish(events)
        ((_, _, payload),) = reader.take(1)
    batch = decode_batch(payload)
    assert (events, 3, []) == (batch.events, batch.data_parallel_rank, batch.rejected)
    assert before <= batch.ts <= time.time()


@pytest.mark.parametrize(
    ("own", "given", "sent"), [(None, None, None), (None, 4, 4), (2, None, 2), (2, 4, 4), (0, None, 0)]
)
def test_a_batch_keeps_its_time_and_its_rank(
    zmq_context: ZmqContext, own: int | None, given: int | None, sent: int | None
) -> None:
    with Publisher(LOCAL, data_parallel_rank=own) as publisher, Reader(zmq_context, publisher) as reader:
        publisher.publish(EventBatch(12.5, [stored()], given))
        ((_, _, payload),) = reader.take(1)
        assert EventBatch(12.5, [stored()], sent) == decode_batch(payload)


def test_the_array_form_can_be_asked_for(zmq_context: ZmqContext) -> None:
    with Publisher(LOCAL, encoding="array") as publisher, Reader(zmq_context, publisher) as reader:
        publisher.publish([stored()])
        ((_, _, payload),) = reader.take(1)
        assert b"block_hashes" not in payload
        assert [stored()] == decode_batch(payload).events


def test_g10_what_cannot_be_encoded_is_refused_before_a_number_is_used(zmq_context: ZmqContext) -> None:
    """Engines take the number first: such a batch leaves a hole that no replay can fill."""
    with Publisher(LOCAL) as publisher, Reader(zmq_context, publisher) as reader:
        for bad in (2**64, -(2**63) - 1, "text", None, 1.5):
            with pytest.raises(UsageError):
                publisher.publish([stored(), BlockStored([bad])])  # type: ignore[list-item]
        odd: list[Any] = [1]
        rejected = EventBatch(0.0, [], rejected=[Rejected(0, "$", "")])
        for rubbish in (stored(), odd, "x", EventBatch(0.0, odd), 5, None, rejected):
            with pytest.raises(UsageError):
                publisher.publish(rubbish)  # type: ignore[arg-type]
        assert 0 == publisher.publish([stored()])
        assert 0 == reader.take(1)[0][1]
        assert (12, 1) == (publisher.stats.refused, publisher.stats.numbered)


def test_a_batch_that_no_receiver_takes_is_refused() -> None:
    with Publisher(LOCAL) as publisher:
        with pytest.raises(UsageError, match="at most 67108864 bytes, this one has 67108865"):
            publisher.publish_raw(bytes(64 * 1024 * 1024 + 1))
        assert 0 == publisher.stats.numbered


def test_an_empty_batch_is_a_batch(zmq_context: ZmqContext) -> None:
    with Publisher(LOCAL) as publisher, Reader(zmq_context, publisher) as reader:
        assert 0 == publisher.publish([])
        assert [] == decode_batch(reader.take(1)[0][2]).events


# Replay


def test_a_replay_brings_the_live_bytes_again_and_ends(zmq_context: ZmqContext) -> None:
    with Publisher(LOCAL, "kv@w0@m", LOCAL) as publisher, Reader(zmq_context, publisher) as reader:
        for index in range(6):
            publisher.publish(one_event(index))
        live = reader.take(6)
        assert live == [tuple(batch) for batch in reader.replayed(0)]
        assert [4, 5] == [batch.seq for batch in reader.replayed(4)]
        assert [] == reader.replayed(6)
        assert [] == reader.replayed(2**64 - 2)


def test_the_old_replay_form_can_be_asked_for(zmq_context: ZmqContext) -> None:
    with Publisher(LOCAL, "t", LOCAL, old_replay_form=True) as publisher, Reader(zmq_context, publisher) as reader:
        publisher.publish_raw(b"x")
        assert [ReplayBatch(None, 0, b"x")] == reader.replayed(0)


def test_a_replay_begins_at_what_is_kept(zmq_context: ZmqContext) -> None:
    with Publisher(LOCAL, "", LOCAL, buffer_steps=3) as publisher, Reader(zmq_context, publisher) as reader:
        for _ in range(10):
            publisher.publish_raw(b"x")
        assert [7, 8, 9] == [batch.seq for batch in reader.replayed(0)]


def test_the_replay_buffer_is_bounded_by_bytes(zmq_context: ZmqContext) -> None:
    with Publisher(LOCAL, "", LOCAL, buffer_bytes=250) as publisher, Reader(zmq_context, publisher) as reader:
        for _ in range(10):
            publisher.publish_raw(bytes(100))
        assert [8, 9] == [batch.seq for batch in reader.replayed(0)]
        assert (2, 200) == (publisher.stats.kept, publisher.stats.kept_bytes)


@pytest.mark.parametrize("count", [400, pytest.param(5_000, marks=pytest.mark.slow)])
def test_g33_a_slow_reader_gets_every_batch_and_the_end_mark(zmq_context: ZmqContext, count: int) -> None:
    """A ROUTER drops at its high-water mark in silence: of 5000 batches 2000 came, and no end mark."""
    with Publisher(LOCAL, "", LOCAL) as publisher, Reader(zmq_context, publisher, hwm=2) as reader:
        for _ in range(count):
            publisher.publish_raw(bytes(50_000))
        reader.ask(0)
        deadline = time.monotonic() + WAIT_MS / 1000
        # Only when the server has filled every queue on the way does the client begin to read.
        before = -1
        while publisher.stats.replay.batches > before and time.monotonic() < deadline:
            before = publisher.stats.replay.batches
            assert not reader.live.socket.poll(50) or receive_frames(reader.live.socket, count)
        assert before < count
        seqs: list[int] = []
        while not isinstance(message := reader.reply(), ReplayEnd):
            seqs.append(message.seq)
        assert list(range(count)) == seqs


def test_g34_a_client_that_stops_reading_does_not_hold_up_live_batches(zmq_context: ZmqContext) -> None:
    with Publisher(LOCAL, "", LOCAL) as publisher, contextlib.ExitStack() as stack:
        stuck = stack.enter_context(Reader(zmq_context, publisher, hwm=1))
        reader = stack.enter_context(Reader(zmq_context, publisher))
        for _ in range(400):
            publisher.publish_raw(bytes(50_000))
        stuck.ask(0)
        seqs = [seq for _, seq, _ in reader.take(400)]
        for _ in range(100):
            publisher.publish_raw(b"live")
            seqs += [seq for _, seq, _ in reader.take(1)]
        assert list(range(500)) == seqs
        # And another client is served meanwhile.
        assert 500 == len(reader.replayed(0))
        wait_until(lambda: 1 == publisher.stats.replay.ends)
        stack.callback(publisher.close, 0.0)


def test_requests_that_are_none_do_no_harm(zmq_context: ZmqContext) -> None:
    with Publisher(LOCAL, "", LOCAL) as publisher, Reader(zmq_context, publisher) as reader:
        publisher.publish_raw(b"x")
        assert reader.replay is not None
        for frames in ([b""], [b"12345678"], [b"", b"1", b"2"], [b"", bytes(100)], [b"x"] * 50):
            send_frames(reader.replay.socket, frames)
        assert [0] == [batch.seq for batch in reader.replayed(0)]
        assert (6, 5) == (publisher.stats.replay.requests, publisher.stats.replay.malformed)


def test_a_req_client_is_served_and_wedges_nothing(zmq_context: ZmqContext) -> None:
    with Publisher(LOCAL, "t", LOCAL) as publisher, Reader(zmq_context, publisher) as reader:
        for _ in range(3):
            publisher.publish_raw(b"x")
        assert publisher.replay_endpoint is not None
        with open_socket(zmq_context, zmq.REQ, Endpoint.parse(publisher.replay_endpoint)) as client:
            client.socket.send(bytes(8))
            assert client.socket.poll(WAIT_MS)
            assert [b"t", bytes(8), b"x"] == client.socket.recv_multipart()
        assert 3 == len(reader.replayed(0))


# Never stalls


def test_g39_publish_returns_at_once_whatever_the_queue(
    zmq_context: ZmqContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines wait for ever on a full queue, and the inference loop with them."""
    gate = Gate(monkeypatch)
    with Publisher(LOCAL, "", LOCAL, queue_size=1) as publisher, Reader(zmq_context, publisher) as reader:
        gate.stop_sender(publisher)
        assert [1, 2, 3] == [publisher.publish_raw(b"x") for _ in range(3)]
        assert (4, 2, {"queue_full": 2}) == (publisher.stats.numbered, publisher.stats.waiting, publisher.stats.dropped)
        gate.open()
        assert [0, 1] == [seq for _, seq, _ in reader.take(2)]
        assert 4 == publisher.publish_raw(b"x")
        # The loss shows as a jump of the numbers, and replay fills it.
        assert [4] == [seq for _, seq, _ in reader.take(1)]
        assert [2, 3, 4] == [batch.seq for batch in reader.replayed(2)]


def test_g43_a_close_while_the_queue_is_full(zmq_context: ZmqContext, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    publisher = Publisher(LOCAL, queue_size=1)
    gate.stop_sender(publisher)
    assert [1, 2, 3] == [publisher.publish_raw(b"x") for _ in range(3)]
    closer = threading.Thread(target=publisher.close)
    closer.start()
    gate.open()
    closer.join()
    publisher.close()
    assert (4, 2, {"queue_full": 2}) == (publisher.stats.numbered, publisher.stats.published, publisher.stats.dropped)
    Publisher(publisher.endpoint).close()


def test_g40_a_burst_reaches_a_subscriber_that_does_not_read_yet(zmq_context: ZmqContext) -> None:
    """With ZeroMQ's own mark of 1000 the rest of a burst is lost in silence."""
    with Publisher(LOCAL) as publisher, Reader(zmq_context, publisher, hwm=100_000) as reader:
        for _ in range(20_000):
            publisher.publish_raw(b"x")
        assert list(range(20_000)) == [seq for _, seq, _ in reader.take(20_000)]
        wait_until(lambda: 20_000 == publisher.stats.published)


def test_g40_what_a_full_subscriber_misses_shows_as_a_gap_and_can_be_replayed(zmq_context: ZmqContext) -> None:
    with Publisher(LOCAL, "", LOCAL, hwm=5) as publisher, Reader(zmq_context, publisher, hwm=5) as reader:
        for _ in range(500):
            publisher.publish_raw(bytes(50_000))
        while publisher.stats.waiting or publisher.stats.published < 500:
            assert publisher.wait_for_subscribers(1)
        live = [frames[1] for frames in iter_messages(reader)]
        assert 0 < len(live) < 500
        with Reader(zmq_context, publisher) as other:
            assert 500 == len(other.replayed(0))


def iter_messages(reader: Reader) -> list[list[bytes]]:
    found = reader.messages(1)
    while reader.live.socket.poll(20):
        found += receive_frames(reader.live.socket, 100)
    return found


def test_g41_what_is_published_after_the_wait_arrives(zmq_context: ZmqContext) -> None:
    """Without a handshake 0 of 100 batches arrived."""
    with Publisher(LOCAL) as publisher:
        options = SocketOptions(subscriptions=(b"",))
        with open_socket(zmq_context, zmq.SUB, Endpoint.parse(publisher.endpoint), options) as reader:
            assert publisher.wait_for_subscribers(1, WAIT_MS / 1000)
            for _ in range(100):
                publisher.publish_raw(b"x")
            received = 0
            while received < 100 and reader.socket.poll(WAIT_MS):
                received += len(receive_frames(reader.socket, 100))
            assert 100 == received


def test_waiting_for_subscribers_ends_in_time_and_with_the_publisher(zmq_context: ZmqContext) -> None:
    with Publisher(LOCAL, "kv") as publisher:
        assert publisher.wait_for_subscribers(0, 0)
        assert not publisher.wait_for_subscribers(1, 0.01)
        with Reader(zmq_context, publisher, b"k"), Reader(zmq_context, publisher, b""):
            other = open_socket(zmq_context, zmq.SUB, Endpoint.parse(publisher.endpoint))
            other.socket.subscribe(b"other")
            assert publisher.wait_for_subscribers(2, WAIT_MS / 1000)
            assert not publisher.wait_for_subscribers(3, 0.01)
            other.close()
            closer = threading.Thread(target=publisher.close)
            closer.start()
            assert not publisher.wait_for_subscribers(3, 60)
            closer.join()


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), float("inf"), 3601])
def test_a_timeout_that_is_none_is_refused(timeout_s: float) -> None:
    with Publisher(LOCAL) as publisher:
        with pytest.raises(UsageError, match="a timeout is 0 to 3600 seconds"):
            publisher.wait_for_subscribers(1, timeout_s)
        with pytest.raises(UsageError, match="a timeout is 0 to 3600 seconds"):
            publisher.close(timeout_s)


def test_many_threads_publish_dense_numbers_in_order(zmq_context: ZmqContext) -> None:
    with Publisher(LOCAL) as publisher, Reader(zmq_context, publisher) as reader:
        numbers: list[list[int | None]] = [[] for _ in range(4)]

        def work(mine: list[int | None], name: int) -> None:
            mine.extend(publisher.publish_raw(b"%d:%d" % (name, index)) for index in range(250))

        threads = [threading.Thread(target=work, args=(mine, name)) for name, mine in enumerate(numbers)]
        for thread in threads:
            thread.start()
        batches = reader.take(1000)
        for thread in threads:
            thread.join()
        assert (
            list(range(1000))
            == [seq for _, seq, _ in batches]
            == sorted(n for mine in numbers for n in mine if n is not None)
        )
        for name, mine in enumerate(numbers):
            assert mine == [seq for _, seq, payload in batches if payload.startswith(b"%d:" % name)]


# Endpoints


@pytest.mark.parametrize("host", ["*", "0.0.0.0"])
def test_g12_a_wildcard_publisher_is_found(zmq_context: ZmqContext, host: str) -> None:
    with Publisher(f"tcp://{host}:0") as publisher, Reader(zmq_context, publisher) as reader:
        publisher.publish_raw(b"x")
        reader.take(1)


def test_g13_g18_four_ranks_with_one_endpoint_get_four_ports(zmq_context: ZmqContext) -> None:
    publishers = [Publisher("tcp://*:0", "", "tcp://*:0", rank) for rank in range(4)]
    urls = {url for publisher in publishers for url in (publisher.endpoint, publisher.replay_endpoint)}
    assert 8 == len(urls)
    assert 0 not in {Endpoint.parse(url or "").port for url in urls}
    for publisher in publishers:
        with publisher, Reader(zmq_context, publisher) as reader:
            publisher.publish([stored()])
            assert publisher.data_parallel_rank == decode_batch(reader.take(1)[0][2]).data_parallel_rank


def test_g18_a_bound_rank_lives_on_port_plus_rank() -> None:
    base = free_ports(3)
    with Publisher(f"tcp://127.0.0.1:{base}", "", f"tcp://127.0.0.1:{base + 1}", 1) as publisher:
        assert f"tcp://127.0.0.1:{base + 1}" == publisher.endpoint
        assert f"tcp://127.0.0.1:{base + 2}" == publisher.replay_endpoint
    with Publisher(f"tcp://127.0.0.1:{base}", data_parallel_rank=1, offset_by_rank=False) as publisher:
        assert f"tcp://127.0.0.1:{base}" == publisher.endpoint


def test_g18_ranks_that_connect_meet_at_one_ingest(zmq_context: ZmqContext) -> None:
    options = SocketOptions(subscriptions=(b"",))
    with open_socket(zmq_context, zmq.SUB, Endpoint.parse("bind:tcp://127.0.0.1:0"), options) as ingest:
        publishers = [Publisher(f"connect:{ingest.url}", f"w{rank}", None, rank) for rank in range(4)]
        for publisher in publishers:
            # The bound socket takes a new peer in when its own thread next looks at it.
            while not publisher.wait_for_subscribers(1, 0.001):
                assert not ingest.socket.poll(0)
        for publisher in publishers:
            publisher.publish_raw(b"x")
            assert publisher.endpoint == ingest.url
        topics: set[bytes] = set()
        while len(topics) < 4 and ingest.socket.poll(WAIT_MS):
            topics |= {frames[0] for frames in receive_frames(ingest.socket, 10)}
        assert {b"w0", b"w1", b"w2", b"w3"} == topics
        for publisher in publishers:
            publisher.close()


@needs_ipv6
def test_g14_ipv6_works(zmq_context: ZmqContext) -> None:
    with Publisher("tcp://[::1]:0", "", "tcp://[::1]:0") as publisher, Reader(zmq_context, publisher) as reader:
        publisher.publish_raw(b"x")
        reader.take(1)
        assert 1 == len(reader.replayed(0))


def test_g15_an_ipc_path_has_one_publisher_and_is_free_after_it(zmq_context: ZmqContext, tmp_path: Path) -> None:
    url = f"ipc://{tmp_path}/events"
    with Publisher(url) as publisher, Reader(zmq_context, publisher) as reader:
        with pytest.raises(ConfigError, match="endpoint: cannot bind: in use"):
            Publisher(url)
        publisher.publish_raw(b"x")
        reader.take(1)
        with Publisher(url, data_parallel_rank=2) as ranked:
            assert f"{url}_dp2" == ranked.endpoint
    assert [] == os.listdir(tmp_path)


def test_inproc_works_with_one_context_for_both(zmq_context: ZmqContext) -> None:
    publisher = Publisher("inproc://x", "", "inproc://y", context=zmq_context)
    with publisher, Reader(zmq_context, publisher) as reader:
        publisher.publish_raw(b"x")
        reader.take(1)
        assert 1 == len(reader.replayed(0))


def test_g16_a_rank_past_the_last_port_is_refused_by_its_number() -> None:
    with pytest.raises(ConfigError, match=r"endpoint: port 65535 \+ rank 1 = 65536"):
        Publisher("tcp://127.0.0.1:65535", data_parallel_rank=1)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Publisher(
            "tcp://127.0.0.1:70000",
            "x" * 5000,
            "nowhere",
            -1,
            encoding="yaml",  # type: ignore[arg-type]
            buffer_steps=0,
            queue_size=-1,
            hwm=-1,
        )
    fields = {
        "endpoint",
        "topic",
        "replay_endpoint",
        "data_parallel_rank",
        "encoding",
        "buffer_steps",
        "queue_size",
        "hwm",
    }
    assert fields == {problem.field for problem in caught.value.problems}


def test_a_topic_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="topic: a topic is Unicode text or bytes"):
        Publisher(LOCAL, "\ud800")


def test_one_endpoint_for_both_is_refused() -> None:
    with pytest.raises(ConfigError, match="replay_endpoint: replay and publish endpoint are the same"):
        Publisher("tcp://127.0.0.1:5600", "", "tcp://127.0.0.1:5600")


def test_a_replay_port_in_use_leaves_nothing_open(zmq_context: ZmqContext) -> None:
    with open_socket(zmq_context, zmq.XPUB, Endpoint.parse(LOCAL)) as other:
        port = free_ports(1)
        with pytest.raises(ConfigError, match="replay_endpoint: cannot bind: in use"):
            Publisher(f"tcp://127.0.0.1:{port}", "", other.url)
        Publisher(f"tcp://127.0.0.1:{port}").close()


# Off


def test_g55_not_enabled_nothing_is_checked_opened_or_sent() -> None:
    before = threading.active_count()
    with Publisher("nonsense", "t", "more nonsense", -5, buffer_steps=-1, enabled=False) as publisher:
        assert before == threading.active_count()
        assert publisher.publish([stored()]) is None
        assert publisher.publish_raw(b"") is None
        assert not publisher.wait_for_subscribers(1, 60)
        assert (False, "", None) == (publisher.is_enabled, publisher.endpoint, publisher.replay_endpoint)
        assert PublisherStats() == publisher.stats
    publisher.close()


# The end


def test_what_was_published_before_close_arrives(zmq_context: ZmqContext) -> None:
    publisher = Publisher(LOCAL)
    with Reader(zmq_context, publisher) as reader:
        for _ in range(1000):
            publisher.publish_raw(b"x")
        publisher.close(WAIT_MS / 1000)
        assert list(range(1000)) == [seq for _, seq, _ in reader.take(1000)]
        assert 1000 == publisher.stats.published


def test_an_open_replay_is_finished_before_close(zmq_context: ZmqContext) -> None:
    publisher = Publisher(LOCAL, "", LOCAL)
    with Reader(zmq_context, publisher) as reader:
        for _ in range(500):
            publisher.publish_raw(bytes(1000))
        reader.ask(0)
        while not publisher.stats.replay.requests:
            assert publisher.wait_for_subscribers(1)
        publisher.close(WAIT_MS / 1000)
        for _ in range(500):
            assert isinstance(reader.reply(), ReplayBatch)
        assert isinstance(reader.reply(), ReplayEnd)


def test_after_close_publish_says_so_and_numbers_stay() -> None:
    publisher = Publisher(LOCAL)
    publisher.publish_raw(b"x")
    publisher.close()
    publisher.close()
    with pytest.raises(UsageError, match="the publisher is closed"):
        publisher.publish([stored()])
    assert 1 == publisher.stats.numbered
    assert not publisher.wait_for_subscribers(0, 60)


def test_g60_a_subscriber_that_does_not_read_does_not_hold_up_the_close(zmq_context: ZmqContext) -> None:
    publisher = Publisher(LOCAL, "", LOCAL)
    with Reader(zmq_context, publisher, hwm=1) as reader:
        for _ in range(300):
            publisher.publish_raw(bytes(50_000))
        reader.ask(0)
        started = time.monotonic()
        publisher.close(0.1)
        assert time.monotonic() - started < 30


def test_g60_a_broker_that_is_not_there_does_not_hold_up_the_close() -> None:
    publisher = Publisher("connect:tcp://127.0.0.1:1", "", LOCAL)
    publisher.publish_raw(b"x")
    started = time.monotonic()
    publisher.close(60)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_g58_close_from_another_thread_under_load(zmq_context: ZmqContext, rounds: int) -> None:
    """A socket closed by another thread than its own aborts the process."""
    for _ in range(rounds):
        publisher = Publisher(LOCAL, "", LOCAL, queue_size=100)

        def load(publisher: Publisher = publisher) -> None:
            with contextlib.suppress(UsageError):
                while True:
                    publisher.publish_raw(bytes(500))

        threads = [threading.Thread(target=load) for _ in range(2)]
        with Reader(zmq_context, publisher, hwm=10) as reader:
            for thread in threads:
                thread.start()
            reader.ask(0)
            reader.take(5)
            closers = [threading.Thread(target=publisher.close, args=(0.02,)) for _ in range(2)]
            for closer in closers:
                closer.start()
            for thread in (*threads, *closers):
                thread.join(60)
                assert not thread.is_alive()
        stats = publisher.stats
        assert stats.numbered == stats.published + sum(stats.dropped.values())


def run(program: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert "" == result.stderr
    assert 0 == result.returncode
    return result.stdout


def test_g59_in_a_fork_every_call_says_so_and_nothing_hangs() -> None:
    program = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from kvbus.publisher import Publisher
from kvbus.errors import UsageError
parent = Publisher("tcp://127.0.0.1:0", "", "tcp://127.0.0.1:0")
child = os.fork()
if child == 0:
    for call in (lambda: parent.publish([]), lambda: parent.publish_raw(b""), lambda: parent.stats,
                 lambda: parent.wait_for_subscribers(1, 9)):
        try:
            call()
            print("no error")
        except UsageError as error:
            assert "does not survive a fork" in str(error)
    parent.close()
    with Publisher("tcp://127.0.0.1:0") as own:
        assert own.publish([]) == 0
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert parent.publish([]) == 0
parent.close()
print("done")
"""
    assert "done\n" == run(program)


def test_a_publisher_that_nobody_closes_sends_what_it_has_at_exit() -> None:
    program = """
import threading, zmq
from kvbus.publisher import Publisher
context = zmq.Context()
publisher = Publisher("tcp://127.0.0.1:0")
reader = context.socket(zmq.SUB)
reader.linger = 0
reader.subscribe(b"")
reader.connect(publisher.endpoint)
assert publisher.wait_for_subscribers(1, 60)
def read():
    for _ in range(100):
        reader.recv_multipart()
    print("all", flush=True)
    reader.close()
    context.term()
import atexit
thread = threading.Thread(target=read, daemon=True)
thread.start()
atexit.register(thread.join, 60)
def late():
    for _ in range(100):
        publisher.publish_raw(b"x")
atexit.register(late)
"""
    assert "all\n" == run(program)


def test_it_imports_with_pyzmq_and_msgspec_alone() -> None:
    """A worker has neither our command line nor our logging."""
    program = """
import sys
for name in ("typer", "click", "rich", "structlog", "prometheus_client", "yaml", "pytest"):
    sys.modules[name] = None  # importing it raises
from kvbus.publisher import Publisher
Publisher("tcp://127.0.0.1:0").close()
print("kvbus.subscriber" in sys.modules, "kvbus.broker" in sys.modules)
"""
    assert "False False\n" == run(program)

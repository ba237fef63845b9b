"""A broker on real sockets: starts, tells where it is, works, stops."""

from __future__ import annotations

import threading

import msgspec
import pytest
import zmq

from kvbus.broker.server import Broker
from kvbus.config import BrokerConfig, IngestConfig, ViewConfig, parse_worker
from kvbus.errors import ConfigError, UsageError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvbus.wire.codec import decode_batch, encode_batch
from tests.broker.real import ANY, WAIT_MS, RealWorker, read_until, real_broker
from tests.waiting import wait_until

GONE = BlockRemoved([1], "CPU")
CPU = BlockStored([1], None, [], 0, medium="CPU", ownership="cpu-tier")


def first_event(sub, workers, event):
    """Publish one event again and again until the subscriber, whose subscription may still be under way, has one."""
    poller = zmq.Poller()
    poller.register(sub, zmq.POLLIN)
    while not poller.poll(20):
        for worker in workers:
            worker.publish(event)
    return decode_batch(sub.recv_multipart()[2]).events[0]


def read_to(sub, event):
    """Receive until an event has come."""
    while event not in read_until(sub, 1):
        pass


def test_events_of_all_workers_come_out(zmq_context):
    with real_broker(zmq_context) as (_, workers, sub):
        assert first_event(sub, workers, CPU) == CPU


def test_replay_on_a_real_socket_brings_everything_and_the_end_mark(zmq_context):
    """G41: a late subscriber asks, and needs no sleep."""
    with real_broker(zmq_context) as (broker, workers, _):
        for number in range(500):
            for worker in workers:
                worker.publish(BlockRemoved([number]))
        dealer = zmq_context.socket(zmq.DEALER)
        dealer.linger, dealer.rcvtimeo = 0, WAIT_MS
        dealer.connect(broker.endpoints["replay:all"])
        seen = []
        while len(seen) < 500:
            seen = []
            dealer.send_multipart([b"", (0).to_bytes(8, "big")])
            while True:
                _, topic, seq, payload = dealer.recv_multipart()
                if seq == b"\xff" * 8:
                    break
                assert b"out" == topic
                seen += decode_batch(payload).events
        assert [BlockRemoved([number]) for number in range(500)] == seen
        dealer.close(0)


def test_ingest_takes_workers_that_connect(zmq_context):
    """The llm-d simulator and vLLM with a concrete host connect; somebody must bind."""
    config = BrokerConfig(
        ingest=IngestConfig(endpoint=ANY, workers=2), views=(ViewConfig(endpoint=ANY, replay_endpoint=ANY),)
    )
    pubs = []
    with Broker(config) as broker:
        dealer = zmq_context.socket(zmq.DEALER)
        dealer.linger, dealer.rcvtimeo = 0, WAIT_MS
        dealer.connect(broker.endpoints["replay:all"])
        for topic in (b"x", b"y"):
            pub = zmq_context.socket(zmq.XPUB)
            pub.linger, pub.rcvtimeo = 0, WAIT_MS
            pub.connect(broker.endpoints["ingest"])
            assert b"\x01" == pub.recv()
            pub.send_multipart([topic, bytes(8), encode_batch(EventBatch(1.0, [CPU], 0))])
            pubs.append(pub)
        frames = [b"", b"", b"\xff" * 8, b""]
        while frames[2] == b"\xff" * 8:
            dealer.send_multipart([b"", bytes(8)])
            frames = dealer.recv_multipart()
        assert [CPU] == decode_batch(frames[3]).events
        for socket in (*pubs, dealer):
            socket.close(0)


def test_released_events_leave_before_the_broker_does(zmq_context):
    """SIGTERM: takes no more input, flushes."""
    with real_broker(zmq_context, workers=1) as (broker, workers, sub):
        first_event(sub, workers, CPU)
        for number in range(1000):
            workers[0].publish(BlockRemoved([number]))
        seen: list = []
        while BlockRemoved([0]) not in seen:
            seen += decode_batch(sub.recv_multipart()[2]).events
        broker.stop()
        sent = broker.status().views[0].sent
        sub.rcvtimeo = 500
        try:
            while True:
                seen += decode_batch(sub.recv_multipart()[2]).events
        except zmq.Again:
            pass
        removed = [event for event in seen if isinstance(event, BlockRemoved)]
        assert [BlockRemoved([number]) for number in range(len(removed))] == removed
        assert sent >= len(removed)


def test_a_worker_that_restarts_clears_what_it_had(zmq_context):
    """S4 on real sockets: the number goes back and stale blocks must not stay."""
    with real_broker(zmq_context, workers=1, loss_window_s=0.0) as (_, workers, sub):
        first_event(sub, workers, CPU)
        workers[0].publish(CPU)
        workers[0].seq = 0
        workers[0].publish(BlockRemoved([7]))
        poller = zmq.Poller()
        poller.register(sub, zmq.POLLIN)
        seen: list = []
        while AllBlocksCleared() not in seen:
            if not poller.poll(50):
                workers[0].publish(CPU)
                continue
            seen += decode_batch(sub.recv_multipart()[2]).events


def test_stop_is_quick_and_harmless_twice_with_dead_peers(zmq_context):
    """G60: workers and replay endpoints that are not there."""
    specs = tuple(parse_worker(f"w{n}=tcp://127.0.0.1:{9 + n},replay=tcp://127.0.0.1:{19 + n}") for n in range(3))
    broker = Broker(BrokerConfig(workers=specs, views=(ViewConfig(endpoint=ANY, replay_endpoint=ANY),)))
    broker.start()
    assert 3 == len(broker.status().workers)
    broker.stop()
    broker.stop()
    assert broker.wait(0)
    assert 3 == len(broker.status().workers)


def test_a_port_in_use_is_named_with_its_flag(zmq_context):
    taken = zmq_context.socket(zmq.PUB)
    taken.bind(ANY)
    url = taken.getsockopt_string(zmq.LAST_ENDPOINT)
    broker = Broker(
        BrokerConfig(
            workers=(parse_worker("tcp://127.0.0.1:9"),), views=(ViewConfig(endpoint=url, replay_endpoint=ANY),)
        )
    )
    with pytest.raises(ConfigError, match="--pub"):
        broker.start()
    taken.close(0)


def test_g15_a_second_broker_on_one_ipc_path_refuses_and_the_first_goes_on(zmq_context, tmp_path):
    view = ViewConfig(endpoint=f"ipc://{tmp_path}/pub", replay_endpoint=None, topic="out")
    with real_broker(zmq_context, workers=1, view=view) as (_, workers, sub):
        second = Broker(BrokerConfig(workers=(parse_worker("tcp://127.0.0.1:9"),), views=(view,)))
        with pytest.raises(ConfigError):
            second.start()
        assert first_event(sub, workers, CPU) == CPU


def test_an_object_that_was_not_started_says_so():
    broker = Broker(BrokerConfig(workers=(parse_worker("tcp://127.0.0.1:9"),)))
    with pytest.raises(UsageError, match="not started"):
        broker.status()
    broker.stop()


def test_a_broker_starts_once(zmq_context):
    with real_broker(zmq_context, workers=1) as (broker, _, _), pytest.raises(UsageError, match="once"):
        broker.start()


def test_status_may_be_asked_from_many_threads(zmq_context):
    with real_broker(zmq_context, workers=1) as (broker, workers, sub):
        first_event(sub, workers, CPU)
        answers: list = []
        threads = [threading.Thread(target=lambda: answers.append(broker.status().batches)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 8 == sum(answer >= 1 for answer in answers)


def test_g40_a_burst_past_zeromqs_own_limit_arrives(zmq_context):
    """Its 1000 messages would be gone in one burst."""
    with real_broker(zmq_context, workers=1) as (_, workers, sub):
        first_event(sub, workers, CPU)
        for number in range(20_000):
            workers[0].publish(BlockRemoved([number]))
        seen = [event for event in read_until(sub, 20_000) if isinstance(event, BlockRemoved)]
        while len(seen) < 20_000:
            seen += [event for event in read_until(sub, 1) if isinstance(event, BlockRemoved)]
        assert [BlockRemoved([number]) for number in range(20_000)] == seen


def test_g67_wrong_frame_counts_on_every_socket_leave_it_alive(zmq_context):
    with real_broker(zmq_context, workers=1) as (broker, workers, sub):
        dealer = zmq_context.socket(zmq.DEALER)
        dealer.linger, dealer.rcvtimeo = 0, WAIT_MS
        dealer.connect(broker.endpoints["replay:all"])
        for count in (1, 2, 4, 50):
            workers[0].socket.send_multipart([b"t"] * count)
            dealer.send_multipart([b"x"] * count)
        assert first_event(sub, workers, CPU) == CPU
        dealer.send_multipart([b"", bytes(8)])
        while dealer.recv_multipart()[-2] != b"\xff" * 8:
            pass
        assert 4 == broker.status().refused["frame_count"]
        dealer.close(0)


def test_g37_a_req_client_does_not_wedge_the_replay(zmq_context):
    """It can read one of the many replies. The others go nowhere, and the next client is served in full."""
    with real_broker(zmq_context, workers=1) as (broker, workers, _):
        for number in range(50):
            workers[0].publish(BlockRemoved([number]))
        wait_until(lambda: 50 == broker.status().views[0].sent)
        request = zmq_context.socket(zmq.REQ)
        request.linger, request.rcvtimeo = 0, WAIT_MS
        request.connect(broker.endpoints["replay:all"])
        for _ in range(2):
            request.send(bytes(8))
            assert 3 == len(request.recv_multipart())
        dealer = zmq_context.socket(zmq.DEALER)
        dealer.linger, dealer.rcvtimeo = 0, WAIT_MS
        dealer.connect(broker.endpoints["replay:all"])
        dealer.send_multipart([b"", bytes(8)])
        seen = []
        while (message := dealer.recv_multipart())[2] != b"\xff" * 8:
            seen += decode_batch(message[3]).events
        assert [BlockRemoved([number]) for number in range(50)] == seen
        request.close(0)
        dealer.close(0)


class TestReload:
    """Workers come and go under a running broker, and what stays is not dropped."""

    def config(self, broker, *urls, **fields):
        workers = tuple(parse_worker(f"w{index}={url}") for index, url in enumerate(urls))
        return msgspec.structs.replace(broker.config, workers=workers, **fields)

    def test_a_worker_joins_and_another_goes(self, zmq_context):
        with real_broker(zmq_context, workers=1) as (broker, workers, sub):
            assert first_event(sub, workers, CPU) == CPU
            joining = RealWorker(zmq_context)
            change = broker.reload(self.config(broker, workers[0].url, joining.url))
            assert ["w1"] == [worker.worker_id for worker in change.added]
            joining.wait_for_subscriber()
            read_to(sub, AllBlocksCleared())
            workers[0].publish(GONE)
            joining.publish(GONE)
            assert [GONE] == read_until(sub, 1)
            broker.reload(self.config(broker, workers[0].url))
            read_to(sub, AllBlocksCleared())
            workers[0].publish(GONE)
            assert [GONE] == read_until(sub, 1)
            (row,) = broker.status().workers
            assert workers[0].seq == row.streams[0].position
            assert 0 == row.losses
            joining.socket.close(0)

    def test_what_cannot_change_is_refused_and_all_goes_on(self, zmq_context):
        with real_broker(zmq_context, workers=1) as (broker, workers, sub):
            before = broker.config
            moved = (msgspec.structs.replace(before.views[0], endpoint="tcp://127.0.0.1:1"),)
            with pytest.raises(ConfigError, match="views: cannot change while the broker runs"):
                broker.reload(msgspec.structs.replace(before, views=moved))
            with pytest.raises(ConfigError, match="workers: give"):
                broker.reload(msgspec.structs.replace(before, workers=()))
            assert broker.config is before
            assert first_event(sub, workers, CPU) == CPU

    def test_an_endpoint_that_cannot_be_bound_changes_nothing(self, zmq_context):
        with real_broker(zmq_context, workers=1) as (broker, workers, sub):
            taken = RealWorker(zmq_context)
            with pytest.raises(ConfigError, match="--worker"):
                broker.reload(self.config(broker, workers[0].url, f"bind:{taken.url}"))
            assert ["w0"] == [row.worker_id for row in broker.status().workers]
            assert first_event(sub, workers, CPU) == CPU
            taken.socket.close(0)

    def test_a_broker_that_has_ended_says_so(self, zmq_context):
        with real_broker(zmq_context, workers=1) as (broker, _, _):
            broker.stop()
            with pytest.raises(UsageError, match="ended"):
                broker.reload(broker.config)

    def test_policies_change(self, zmq_context):
        with real_broker(zmq_context, workers=1) as (broker, workers, _):
            broker.reload(self.config(broker, workers[0].url, on_loss="ignore"))
            assert "ignore" == broker.config.on_loss


def test_what_is_no_configuration_is_refused_with_where_to_get_one():
    with pytest.raises(UsageError, match=r"BrokerConfig\.of"):
        Broker({"worker": "tcp://127.0.0.1:5557"})

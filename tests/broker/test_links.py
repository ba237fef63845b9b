"""Sockets towards workers: the node hears of a connection before it gets what came through it."""

from __future__ import annotations

import random

import pytest
import zmq

from kvbus.broker.intake import Intake
from kvbus.broker.links import Links
from kvbus.broker.locks import Locks
from kvbus.broker.node import UpstreamRequest
from kvbus.config import BrokerConfig, parse_worker
from kvbus.errors import ConfigError
from kvbus.polling import SocketPoller
from kvbus.security.doors import Doors
from kvbus.sockets import SocketOptions
from tests.broker.real import ANY, WAIT_MS, RealWorker
from tests.waiting import wait_until


class Recorder:
    """Stands where the node stands and writes down what it is told, in order."""

    def __init__(self):
        self.heard = []

    def receive_all(self, index, messages, now_ns):
        self.heard += [("batch", index, frames[-1]) for frames in messages]

    def receive_replay(self, key, frames, now_ns):
        self.heard.append(("reply", key, frames[-1]))

    def connected(self, index, now_ns):
        self.heard.append(("connected", index))

    def disconnected(self, index, now_ns):
        self.heard.append(("disconnected", index))


class Rig:
    """Links, the poller that they register with, and a recorder."""

    def __init__(self, context, *workers):
        config = BrokerConfig(workers=tuple(map(parse_worker, workers)))
        sources = Intake(config, random.Random(0)).sources
        self.poller = SocketPoller()
        doors = Doors(context, self.poller, lambda refused: None)
        options = SocketOptions(linger_ms=0)
        self.links = Links(context, self.poller, options, sources, doors=doors, locks=Locks(config))
        self.node = Recorder()

    def until(self, *wanted):
        """Turn until all of this has been heard."""
        self.turn_until(lambda: all(item in self.node.heard for item in wanted))

    def turn_until(self, is_done):
        """Turn until something is so."""
        while not is_done():
            heard_count = len(self.node.heard)
            ready = self.poller.poll(0 if self.links.ended(()) else WAIT_MS)
            ready += self.links.ended(ready)
            assert ready or heard_count < len(self.node.heard), "nothing came"
            for socket in ready:
                self.links.drain(socket, self.node, 10, 0)


def test_a_connection_is_told_before_its_first_batch(zmq_context):
    worker = RealWorker(zmq_context)
    rig = Rig(zmq_context, worker.url)
    with rig.links:
        worker.wait_for_subscriber()
        worker.socket.send_multipart([b"t", bytes(8), b"one"])
        rig.until(("batch", 0, b"one"))
        assert [("connected", 0), ("batch", 0, b"one")] == rig.node.heard
    worker.socket.close(0)


def test_a_restart_is_told_between_the_two_lives(zmq_context):
    """S4: the new life's batch must not be taken for the old one's next."""
    worker = RealWorker(zmq_context)
    rig = Rig(zmq_context, worker.url)
    with rig.links:
        worker.wait_for_subscriber()
        worker.socket.send_multipart([b"t", bytes(8), b"old"])
        rig.until(("batch", 0, b"old"))
        worker.socket.unbind(worker.url)
        worker.socket.close(0)
        rig.until(("disconnected", 0))
        again = RealWorker(zmq_context, worker.url)
        # A SUB subscribes anew only when its own thread looks after it.
        rig.poller.register(again.socket, zmq.POLLIN)
        rig.turn_until(lambda: again.socket.poll(0))
        rig.poller.unregister(again.socket)
        again.wait_for_subscriber()
        again.socket.send_multipart([b"t", bytes(8), b"new"])
        rig.until(("batch", 0, b"new"))
        events = [item[0] if item[0] != "batch" else item[2] for item in rig.node.heard]
        assert ["connected", b"old", "disconnected", "connected", b"new"] == events
        again.socket.close(0)


def test_a_workers_last_words_are_heard_before_its_end(zmq_context):
    """They are many, and the connection goes down while they wait: none of them may be held in doubt."""
    worker = RealWorker(zmq_context)
    rig = Rig(zmq_context, worker.url)
    with rig.links:
        worker.wait_for_subscriber()
        rig.until(("connected", 0))
        for number in range(100):
            worker.socket.send_multipart([b"t", bytes(8), b"%d" % number])
        worker.socket.close(1000)
        rig.until(("disconnected", 0))
        assert [b"%d" % number for number in range(100)] == [item[2] for item in rig.node.heard if item[0] == "batch"]
        assert ("disconnected", 0) == rig.node.heard[-1]


def test_a_connection_that_ended_is_drained_until_it_is_dry_and_told_then(zmq_context):
    """A share at a time, whether or not the poller finds something; not twice where it does."""
    worker = RealWorker(zmq_context)
    rig = Rig(zmq_context, worker.url)
    with rig.links:
        worker.wait_for_subscriber()
        rig.until(("connected", 0))
        sub, watch = rig.poller.sockets
        for number in range(25):
            worker.socket.send_multipart([b"t", bytes(8), b"%d" % number])
        worker.socket.close(1000)
        wait_until(lambda: watch.poll(0) and sub.poll(0))
        assert [] == rig.links.ended(())
        rig.links.drain(watch, rig.node, 10, 0)
        assert 20 == sum(item[0] == "batch" for item in rig.node.heard)
        assert ([sub], [], []) == (rig.links.ended(()), rig.links.ended([sub]), rig.links.ended([watch]))
        rig.links.drain(sub, rig.node, 10, 0)
        assert [] == rig.links.ended(())
        assert [b"%d" % number for number in range(25)] == [item[2] for item in rig.node.heard if item[0] == "batch"]
        assert ("disconnected", 0) == rig.node.heard[-1]


def test_each_request_has_a_dealer_of_its_own(zmq_context):
    """What still comes for a request that was given up must not answer the next one."""
    router = zmq_context.socket(zmq.ROUTER)
    router.linger, router.rcvtimeo = 0, WAIT_MS
    router.bind(ANY)
    url = router.getsockopt_string(zmq.LAST_ENDPOINT)
    rig = Rig(zmq_context, f"tcp://127.0.0.1:9,replay={url}")
    with rig.links:
        identities = []
        for key in (1, 2):
            rig.links.request(UpstreamRequest(0, key, [b"", bytes(8)]))
            identity, *request = router.recv_multipart()
            assert [b"", bytes(8)] == request
            identities.append(identity)
        rig.links.request(UpstreamRequest(0, 1, []))
        for identity, text in zip(identities, (b"for-1", b"for-2"), strict=True):
            router.send_multipart([identity, b"", b"", bytes(8), text])
        rig.until(("reply", 2, b"for-2"))
        assert ("reply", 1, b"for-1") not in rig.node.heard
    router.close(0)


def test_a_workers_key_is_read_when_its_socket_opens_and_not_at_every_question(zmq_context, tmp_path):
    """A key file that is exchanged or gone later is nothing that the loop may end of."""
    key = tmp_path / "worker.key"
    key.write_text(f'public-key = "{zmq.curve_keypair()[0].decode()}"')
    rig = Rig(zmq_context, f"tcp://127.0.0.1:9,replay=tcp://127.0.0.1:10,server_key={key}")
    with rig.links:
        key.unlink()
        rig.links.request(UpstreamRequest(0, 1, [b"", bytes(8)]))
        rig.links.request(UpstreamRequest(0, 1, []))
    assert [] == rig.poller.sockets


def test_nothing_stays_open_when_one_source_cannot_be_bound(zmq_context):
    taken = RealWorker(zmq_context)
    rig = Rig(zmq_context, "tcp://127.0.0.1:9", f"bind:{taken.url}")
    with pytest.raises(ConfigError, match="--worker"), rig.links:
        pass
    assert [] == rig.poller.sockets
    taken.socket.close(0)


def test_sources_come_and_go_while_others_stay(zmq_context):
    worker, other = RealWorker(zmq_context), RealWorker(zmq_context)
    rig = Rig(zmq_context, worker.url)
    config = BrokerConfig(workers=(parse_worker(worker.url), parse_worker(other.url)))
    added = Intake(config, random.Random(0)).sources[1:]
    with rig.links:
        worker.wait_for_subscriber()
        rig.links.add(added)
        rig.poller.register(other.socket, zmq.POLLIN)
        rig.turn_until(lambda: other.socket.poll(0))
        rig.poller.unregister(other.socket)
        other.socket.send_multipart([b"t", bytes(8), b"more"])
        rig.until(("batch", 1, b"more"))
        rig.links.remove(added)
        rig.links.remove(added)
        worker.socket.send_multipart([b"t", bytes(8), b"still"])
        rig.until(("batch", 0, b"still"))
    assert [] == rig.poller.sockets
    for each in (worker, other):
        each.socket.close(0)


def test_sources_that_had_better_wait_are_named_by_their_sockets(zmq_context, monkeypatch):
    """Whether the socket or its watch was found ready; other sockets are nobody's."""
    rig = Rig(zmq_context, "a=tcp://127.0.0.1:1", "b=tcp://127.0.0.1:1")
    asked = []

    def wait(sources, now_ns):
        asked.append(([source.index for source in sources], now_ns))
        return {1}

    monkeypatch.setattr("kvbus.broker.links.waiting_among", wait)
    with rig.links:
        first, first_watch, second, second_watch = rig.poller.sockets
        assert {second, second_watch} == rig.links.waiting_among([first_watch, 7, second, first], 5)
        assert [([0, 1], 5)] == asked

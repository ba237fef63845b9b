"""Workers that are found while a real broker runs: they join, leave and stay as if a file had been read again on SIGHUP."""

from __future__ import annotations

import json
import queue
import socket
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
import zmq

import kvbus
from kvbus.broker.server import Broker
from kvbus.config import BrokerConfig, ViewConfig, parse_discovery, parse_worker
from kvbus.events import AllBlocksCleared, BlockStored
from kvbus.wire.codec import decode_batch
from tests.broker.real import ANY, WAIT_MS, RealWorker

FAST_S = 0.01
WAIT_S = WAIT_MS / 1000


def stored(number: int) -> BlockStored:
    return BlockStored([number], None, [1], 1)


class Told:
    """Everything that a broker tells, to be waited for."""

    def __init__(self) -> None:
        self._notices: queue.Queue = queue.Queue()
        self.seen: list = []

    def __call__(self, notice) -> None:
        self._notices.put(notice)

    def wait(self, name: str):
        """Return the next notice of a name."""
        while True:
            notice = self._notices.get(timeout=WAIT_S)
            self.seen.append(notice)
            if notice.name == name:
                return notice


@contextmanager
def running(context, *places: str, **config):
    """A broker that discovers, what it tells, and a subscriber."""
    found = tuple(msgspec.structs.replace(parse_discovery(place), interval_s=FAST_S) for place in places)
    view = ViewConfig(endpoint=ANY, replay_endpoint=ANY)
    told = Told()
    with Broker(BrokerConfig(discovery=found, views=(view,), **config), tell=told, seed=1) as broker:
        sub = context.socket(zmq.SUB)
        sub.linger, sub.rcvtimeo = 0, WAIT_MS
        sub.subscribe(b"")
        sub.connect(broker.endpoints["pub:all"])
        with closing(sub):
            yield broker, told, sub


def write(path, text: str) -> None:
    """Put a file in place at once, so that nobody sees half of it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def ids(broker) -> list[str]:
    return [worker.worker_id for worker in broker.config.workers]


def read_to(sub, event) -> list:
    """Receive until an event has come; return all."""
    events: list = []
    while event not in events:
        events += decode_batch(sub.recv_multipart()[2]).events
    return events


def say(worker, sub, event) -> None:
    """Publish an event until it has come out: the subscriber may be still on its way."""
    poller = zmq.Poller()
    poller.register(sub, zmq.POLLIN)
    while not poller.poll(20):
        worker.publish(event)
    read_to(sub, event)


def test_a_file_that_is_written_while_the_broker_runs(zmq_context, tmp_path):
    """Absent, present, broken, longer, shorter: in all of it nothing is lost that should stay."""
    path = tmp_path / "workers.toml"
    with (
        closing_worker(zmq_context) as first,
        closing_worker(zmq_context) as second,
        running(zmq_context, f"file:{path}") as (broker, told, sub),
    ):
        assert "No such file or directory" == told.wait("discovery_failed").fields["reason"]
        assert [] == ids(broker)
        write(path, f'workers = ["a={first.url}"]')
        assert ["a"] == told.wait("discovered").fields["added"]
        first.wait_for_subscriber()
        say(first, sub, stored(1))

        # Half-written: what was known still holds, and one line says so.
        write(path, f'workers = ["a={first.url}", "b=')
        told.wait("discovery_failed")
        assert ("a", 1) == (ids(broker)[0], broker.status().discovery[0].workers)

        write(path, f'workers = ["a={first.url}", "b={second.url}"]')
        assert (["b"], []) == tuple(told.wait("discovered").fields.values())
        second.wait_for_subscriber()
        # A join: what one of them held alone is withdrawn, and from now on both must agree.
        read_to(sub, AllBlocksCleared())
        first.publish(stored(2))
        second.publish(stored(2))
        read_to(sub, stored(2))

        # A departure: policy clear, which is the default.
        write(path, f'workers = ["b={second.url}"]')
        assert ([], ["a"]) == tuple(told.wait("discovered").fields.values())
        read_to(sub, AllBlocksCleared())
        second.publish(stored(3))
        read_to(sub, stored(3))
        names = [notice.name for notice in told.seen]
        assert (2, 2) == (names.count("discovery_failed"), names.count("discovery_works_again"))


def test_on_departure_shrink_holds_for_who_is_not_found_any_more(zmq_context, tmp_path):
    """What both had said stays announced."""
    path = tmp_path / "workers.json"
    with closing_worker(zmq_context) as first, closing_worker(zmq_context) as second:
        write(path, json.dumps([f"a={first.url}", f"b={second.url}"]))
        with running(zmq_context, f"file:{path}", on_departure="shrink") as (broker, told, sub):
            assert ["a", "b"] == ids(broker)  # found before anything was opened
            for worker in (first, second):
                worker.wait_for_subscriber()
            poller = zmq.Poller()
            poller.register(sub, zmq.POLLIN)
            while not poller.poll(20):
                first.publish(stored(1))
                second.publish(stored(1))
            read_to(sub, stored(1))
            first.publish(stored(2))
            write(path, json.dumps([f"a={first.url}"]))
            told.wait("discovered")
            first.publish(stored(3))
            events = read_to(sub, stored(3))
            assert AllBlocksCleared() not in events


def test_names_that_cannot_be_resolved_any_more_leave_all_as_it_was(zmq_context, monkeypatch):
    """A name server that is down for a minute must not clear every index."""
    answers: queue.Queue = queue.Queue()
    current: list = [["127.0.0.1"]]

    def fake(host, port, **_):
        assert "pods" == host
        while not answers.empty():
            current[0] = answers.get()
        if not current[0]:
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in current[0]]

    monkeypatch.setattr(socket, "getaddrinfo", fake)
    with closing_worker(zmq_context) as worker:
        port = worker.url.rpartition(":")[2]
        with running(zmq_context, f"dns:pods:{port}") as (broker, told, sub):
            assert ["pods/127.0.0.1"] == ids(broker)
            worker.wait_for_subscriber()
            say(worker, sub, stored(1))
            answers.put([])
            reason = told.wait("discovery_failed").fields["reason"]
            assert "Temporary failure in name resolution" == reason
            assert ["pods/127.0.0.1"] == ids(broker)
            assert reason == broker.status().discovery[0].problem
            answers.put(["127.0.0.1", "127.0.0.2"])
            assert ["pods/127.0.0.2"] == told.wait("discovered").fields["added"]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = json.dumps(self.server.sources).encode()
        self.send_response(200 if self.path == "/kv_event_sources" else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_an_engine_is_asked_where_its_ranks_are(zmq_context):
    """Ports of the system's choice, and others after a restart."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    with closing_worker(zmq_context) as rank, closing_worker(zmq_context) as restarted:
        server.sources = []
        thread.start()
        try:
            place = f"vllm:http://127.0.0.1:{server.server_port},name=e"
            with running(zmq_context, place) as (broker, told, sub):
                told.wait("discovery_finds_nobody")
                server.sources = [{"data_parallel_rank": 0, "endpoint": rank.url, "replay_endpoint": None, "topic": ""}]
                assert ["e"] == told.wait("discovered").fields["added"]
                assert ("e", "e") == (broker.config.workers[0].worker_id, broker.config.workers[0].group)
                rank.wait_for_subscriber()
                say(rank, sub, stored(1))
                server.sources = [{**server.sources[0], "endpoint": restarted.url}]
                assert (["e"], ["e"]) == tuple(told.wait("discovered").fields.values())
                restarted.wait_for_subscriber()
                read_to(sub, AllBlocksCleared())
                restarted.publish(stored(2))
                read_to(sub, stored(2))
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def test_who_was_found_stays_when_the_rest_changes(zmq_context, tmp_path):
    """SIGHUP reads the broker's own file; what was found elsewhere is not in it."""
    path = tmp_path / "workers.json"
    write(path, '["found=tcp://127.0.0.1:9"]')
    with running(zmq_context, f"file:{path}") as (broker, told, _):
        changed = msgspec.structs.replace(broker._said, workers=(parse_worker("named=tcp://127.0.0.1:10"),))
        assert ["named"] == [worker.worker_id for worker in broker.reload(changed).added]
        assert ["named", "found"] == ids(broker)
        # The same name twice: refused as a whole, and all goes on.
        write(path, '["named=tcp://127.0.0.1:11"]')
        assert "the same worker id is given twice" in told.wait("discovery_refused").fields["problem"]
        assert ["named", "found"] == ids(broker)


def test_a_broker_with_a_journal_goes_on_with_the_workers_that_it_finds(zmq_context, tmp_path):
    """Found before anything is opened, so that its restart is no new epoch and clears nothing."""
    path = tmp_path / "workers.json"
    with closing(kvbus.Publisher(ANY, replay_endpoint=ANY)) as engine:
        write(path, json.dumps([f"a={engine.endpoint},replay={engine.replay_endpoint}"]))
        seen = []
        for number in (1, 2):
            with running(zmq_context, f"file:{path}", journal=str(tmp_path / "journal")) as (broker, _, _):
                assert ["a"] == ids(broker)
                engine.publish([stored(number)])
                events = []
                dealer = zmq_context.socket(zmq.DEALER)
                dealer.linger, dealer.rcvtimeo = 0, WAIT_MS
                dealer.connect(broker.endpoints["replay:all"])
                with closing(dealer):
                    while stored(number) not in events:
                        events = replayed(dealer)
                seen.append(events)
        assert AllBlocksCleared() not in seen[1][seen[1].index(stored(1)) :]


def replayed(dealer) -> list:
    """Ask for everything, and return the events that come."""
    events: list = []
    dealer.send_multipart([b"", (0).to_bytes(8, "big")])
    while True:
        *_, seq, payload = dealer.recv_multipart()
        if seq == b"\xff" * 8:
            return events
        events += decode_batch(payload).events


def test_a_place_that_is_down_at_the_start_stops_nobody(zmq_context, tmp_path):
    """The broker is there, says why it has no workers, and ends in order."""
    with running(zmq_context, "vllm:http://127.0.0.1:9", f"file:{tmp_path}") as (broker, told, _):
        told.wait("discovery_failed")
        assert ["127.0.0.1", tmp_path.name] == [place.name for place in broker.status().discovery]
        assert all(place.problem for place in broker.status().discovery)


def test_a_start_that_fails_leaves_no_thread_that_looks(tmp_path):
    """The port is taken; `no_leaks` sees the rest."""
    from kvbus.errors import ConfigError

    with socket.create_server(("127.0.0.1", 0)) as taken:
        view = ViewConfig(endpoint=f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        broker = Broker(BrokerConfig(discovery=(parse_discovery(f"file:{tmp_path}/x"),), views=(view,)))
        with pytest.raises(ConfigError, match="--pub"):
            broker.start()
        broker.stop()


@contextmanager
def closing_worker(context):
    worker = RealWorker(context)
    try:
        yield worker
    finally:
        worker.socket.close(0)

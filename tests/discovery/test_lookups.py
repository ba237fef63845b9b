"""Looks at real files and real HTTP servers of this host; names are resolved by a function of the test's own."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from kvbus.config.discovery import DiscoveryConfig, parse_discovery
from kvbus.config.workers import WorkerConfig, parse_worker
from kvbus.discovery.answers import AnswerError
from kvbus.discovery.lookups import Found, look, look_everywhere, resolve

SOURCES = [{"data_parallel_rank": 0, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": ""}]


class Engine(ThreadingHTTPServer):
    """An HTTP server with answers by path; paths that it does not know are 404."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Host"]))
        content = self.server.answers.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    server = Engine()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def refuse(host: str, port: int) -> list[str]:
    raise OSError(-2, "Name or service not known")


def place(text: str, **changes) -> DiscoveryConfig:
    return msgspec.structs.replace(parse_discovery(text), **changes)


def failure(where: DiscoveryConfig, *arguments) -> str:
    with pytest.raises(AnswerError) as caught:
        look(where, *arguments)
    return str(caught.value)


def test_a_file(tmp_path):
    path = tmp_path / "workers.toml"
    assert "No such file or directory" == failure(place(f"file:{path}"))
    path.write_text('workers = ["a=tcp://h:1"]')
    assert Found((parse_worker("a=tcp://h:1"),)) == look(place(f"file:{path}"))
    path.write_bytes(b" " * (4 << 20) + b"  workers = []")
    assert "more than" in failure(place(f"file:{path}"))
    assert "Is a directory" == failure(place(f"file:{tmp_path}"))


def test_every_address_of_a_name_is_a_worker():
    found = look(place("dns:pods:5557,replay=5558,ranks=0-1"), (), lambda *_: ["10.0.0.1", "fd00::1"])
    first = WorkerConfig(
        worker_id="pods/10.0.0.1",
        endpoint="tcp://10.0.0.1:5557",
        replay_endpoint="tcp://10.0.0.1:5558",
        ranks=(0, 1),
    )
    second = msgspec.structs.replace(
        first, worker_id="pods/fd00::1", endpoint="tcp://[fd00::1]:5557", replay_endpoint="tcp://[fd00::1]:5558"
    )
    assert Found((first, second)) == found


def test_a_group_may_be_called_by_its_address_as_routers_know_pods():
    found = look(place("dns:pods:5557,group={address}"), (), lambda *_: ["10.0.0.1", "fd00::1"])
    assert ["10.0.0.1", "fd00::1"] == [worker.group for worker in found.workers]


def test_a_name_that_nobody_knows_is_a_failure_and_not_nobody():
    where = place("dns:pods:5557", workers_max=2)
    assert "Name or service not known" == failure(where, (), refuse)
    assert "the name has no address" == failure(where, (), lambda *_: [])
    assert "3 addresses, more than workers_max = 2" == failure(where, (), lambda *_: ["1.1.1.1", "1.1.1.2", "1.1.1.3"])


def test_the_system_resolves_addresses_and_what_can_be_no_name_is_a_failure():
    assert ["127.0.0.1"] == resolve("127.0.0.1", 1)
    assert failure(place(f"dns:{'a' * 70}.b:1"))


def test_vllm_is_asked_where_its_events_are(engine):
    engine.answers["/kv_event_sources"] = json.dumps(SOURCES).encode()
    expected = parse_worker("e=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558,group=e")
    assert Found((expected,)) == look(place(f"vllm:{engine.url},name=e"))
    assert [("/kv_event_sources", f"127.0.0.1:{engine.server_port}")] == engine.asked


def test_sglang_is_asked_by_its_older_path_too(engine):
    described = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "dp_size": 2}
    engine.answers["/base/get_server_info"] = json.dumps({"kv_events": described}).encode()
    (worker,) = look(place(f"sglang:{engine.url}/base")).workers
    assert ("tcp://127.0.0.1:5557", (0, 1)) == (worker.endpoint, worker.ranks)
    assert ["/base/server_info", "/base/get_server_info"] == [path for path, _ in engine.asked]


def test_every_address_is_asked_and_one_that_is_silent_has_not_gone(engine):
    """A pod whose API server is busy is still in DNS, and its publisher still publishes."""
    engine.answers["/kv_event_sources"] = json.dumps(SOURCES).encode()
    where = place(f"vllm:http://pods:{engine.server_port}", timeout_s=60.0)
    hosts = ["127.0.0.1", "127.0.0.2"]  # nobody listens on the second
    before = (
        msgspec.structs.replace(parse_worker("x=tcp://127.0.0.2:5557"), worker_id="pods/127.0.0.2"),
        msgspec.structs.replace(parse_worker("x=tcp://127.0.0.3:5557"), worker_id="pods/127.0.0.3"),
    )
    found = look(where, before, lambda *_: hosts)
    assert ["pods/127.0.0.1", "pods/127.0.0.2"] == [worker.worker_id for worker in found.workers]
    assert found.problem.startswith("127.0.0.2: ")
    assert [f"pods:{engine.server_port}"] == [host for _, host in engine.asked]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "127.0.0.1 answers GET /kv_event_sources with 404"),
        (b"<html>", "127.0.0.1 answers with no JSON"),
        (b"[" * 100_000, "127.0.0.1 answers with no JSON"),
        (b"{}" + b" " * (4 << 20), "127.0.0.1 answers with more than"),
        (b"7", "neither a list of sources nor a map of ranks"),
    ],
)
def test_answers_that_say_nothing(engine, content, problem):
    if content is not None:
        engine.answers["/kv_event_sources"] = content
    found = look(place(f"vllm:{engine.url}"))
    assert ((), True) == (found.workers, found.problem.startswith(problem)), found


def test_all_places_at_once(tmp_path):
    """For who asks once, such as the doctor."""
    path = tmp_path / "workers.toml"
    path.write_text('workers = ["a=tcp://h:1"]')
    found = look_everywhere((place(f"file:{path}"), place(f"file:{path}.x")))
    assert ((parse_worker("a=tcp://h:1"),), ["workers.toml.x: No such file or directory"]) == found


def test_a_server_that_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert "127.0.0.1 has not answered within 0.05 s" == look(place(f"vllm:{url}", timeout_s=0.05)).problem


def test_a_server_that_speaks_something_else():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"\x00\x01\x02\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert "127.0.0.1 speaks no HTTP: BadStatusLine" == look(place(f"vllm:{url}")).problem
        thread.join()

"""The HTTP server: good questions are answered, bad ones are too, and nothing of either is left."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kvbus.errors import ConfigError
from kvbus.ops import web
from kvbus.ops.web import Answer, Question, WebServer
from tests.ops.standin import WAIT_S, get, raw


def echo(question: Question) -> Answer:
    return Answer(200, "text/plain", question.path.encode())


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer(("127.0.0.1", 0), echo) as running:
        yield running


def test_a_question_is_answered(server: WebServer) -> None:
    assert f"http://127.0.0.1:{server.port}" == server.url
    response, body = get(server.port, "/a/b?c=d")
    assert (200, b"/a/b", "text/plain") == (response.status, body, response.headers["Content-Type"])
    assert ("close", "no-store") == (response.headers["Connection"], response.headers["Cache-Control"])
    assert "Python" not in response.headers["Server"]


def test_head_is_get_without_the_body(server: WebServer) -> None:
    response, body = get(server.port, "/abc", "HEAD")
    assert (200, b"", "4") == (response.status, body, response.headers["Content-Length"])


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_other_methods_are_refused_and_told_which_are_not(server: WebServer, method: str) -> None:
    response, body = get(server.port, "/", method)
    assert (405, "GET, HEAD") == (response.status, response.headers["Allow"])
    assert b"405 Method Not Allowed\n" == body


def test_a_refused_body_does_not_take_the_answer_back(server: WebServer) -> None:
    """Closing with unread bytes resets the connection, and the client sees no answer at all."""
    answer = raw(server.port, b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000)
    assert answer.startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /\r\n\r\n", b"200"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"GET / HTTP/x\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET http://elsewhere/there HTTP/1.1\r\n\r\n", b"200"),
        (b"GET //[ HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", b"200"),
    ],
)
def test_bad_requests_get_proper_answers(server: WebServer, sent: bytes, status: bytes) -> None:
    assert status == raw(server.port, sent).split(b" ")[1]
    assert 200 == get(server.port, "/")[0].status


def test_an_answer_never_quotes_the_request(server: WebServer) -> None:
    """What comes from outside is not ours to say."""
    assert b"evil" not in raw(server.port, b"<evil> <evil> <evil>\r\n\r\n").replace(b"/evil", b"")


def test_a_connection_without_a_request_is_no_event(server: WebServer) -> None:
    assert b"" == raw(server.port, b"")
    socket.create_connection(("127.0.0.1", server.port)).close()
    assert 200 == get(server.port, "/")[0].status


def test_a_slow_client_is_cut_off_and_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends a byte now and then, so that no single read takes long; the whole must not either."""
    accept, taken = WebServer._accept, threading.Event()
    monkeypatch.setattr(WebServer, "_accept", lambda server: (accept(server), taken.set())[0])
    monkeypatch.setattr(web, "DEADLINE_S", 0.2)
    with WebServer(("127.0.0.1", 0), echo) as server:
        slow = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
        with slow:
            slow.sendall(b"GET / HT")
            assert taken.wait(WAIT_S)
            monkeypatch.setattr(web, "DEADLINE_S", WAIT_S)  # for the others, whom a busy machine may keep waiting
            assert 200 == get(server.port, "/")[0].status
            assert b"" == slow.recv(100)


def test_too_many_clients_are_refused_and_room_comes_back(server: WebServer) -> None:
    clients = [socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) for _ in range(web.CONNECTIONS_MAX)]
    try:
        for client in clients:
            client.sendall(b"GET")
        answer = raw(server.port, b"")
        assert answer.startswith(b"HTTP/1.1 503 ")
    finally:
        for client in clients:
            client.close()
    for _ in range(1_000):  # each takes as long as a refused connection does
        try:
            if get(server.port, "/")[0].status == 200:
                break
        except OSError:
            continue
    else:
        pytest.fail("there is no room any more")


class Starved(socket.socket):
    """Listens in a process that has no descriptor left for whoever comes, as long as it lasts."""

    tries = 0
    fails = 0

    def accept(self) -> tuple[socket.socket, object]:
        type(self).tries += 1
        if self.tries <= self.fails:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.mark.parametrize(("pause_s", "fails"), [(60.0, 1_000_000), (0.001, 3)])
def test_without_descriptors_it_waits_and_does_not_spin(
    monkeypatch: pytest.MonkeyPatch, pause_s: float, fails: int
) -> None:
    """A listener that cannot take anybody is ready all the time, and the loop beside it needs the processor."""
    listen = web._listen
    monkeypatch.setattr(web, "_listen", lambda address: Starved(fileno=listen(address).detach()))
    monkeypatch.setattr(web, "PAUSE_S", pause_s)
    monkeypatch.setattr(Starved, "tries", 0)
    monkeypatch.setattr(Starved, "fails", fails)
    with WebServer(("127.0.0.1", 0), echo) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(WAIT_S if fails < 10 else 0.05)
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        until_s = time.monotonic() + WAIT_S
        while not Starved.tries:
            assert time.monotonic() < until_s
        if fails < 10:
            assert client.recv(12).startswith(b"HTTP/1.1 200")
        else:
            with pytest.raises(TimeoutError):
                client.recv(12)
    assert Starved.tries == (4 if fails < 10 else 1)


def test_without_threads_somebody_is_closed_and_the_next_one_served(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(web, "PAUSE_S", 0.001)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert b"" == raw(server.port, b"")
    assert 200 == get(server.port, "/")[0].status


def test_closing_cuts_off_who_is_still_there() -> None:
    """Nothing waits for a client that does not come to an end; the fixture looks for what is left."""
    server = WebServer(("127.0.0.1", 0), echo)
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        assert 200 == get(server.port, "/")[0].status
        server.close()
        server.close()
        assert b"" == client.recv(100)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)


def test_slow_answers_are_given_side_by_side() -> None:
    """A scrape that waits for the broker does not keep the probe waiting."""
    may_answer = threading.Event()

    def slow(question: Question) -> Answer:
        if question.path == "/slow":
            may_answer.wait(WAIT_S)
        return echo(question)

    with WebServer(("127.0.0.1", 0), slow) as server:
        found: list[bytes] = []
        asker = threading.Thread(target=lambda: found.append(get(server.port, "/slow")[1]))
        asker.start()
        assert b"/fast" == get(server.port, "/fast")[1]
        may_answer.set()
        asker.join()
        assert [b"/slow"] == found


def test_a_port_that_is_taken_is_an_error_with_the_flags_name(server: WebServer) -> None:
    with pytest.raises(ConfigError, match=f"--there: cannot listen.*127.0.0.1:{server.port}"):
        WebServer(("127.0.0.1", server.port), echo, "--there")


def test_a_host_that_is_unknown_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.host\.invalid"):
        WebServer(("no.such.host.invalid", 0), echo)


def test_ipv6_works() -> None:
    with WebServer(("::1", 0), echo) as server:
        assert f"http://[::1]:{server.port}" == server.url
        with socket.create_connection(("::1", server.port), timeout=WAIT_S) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert client.recv(12).startswith(b"HTTP/1.1 200")

"""A small HTTP server of its own thread, for probes, scrapes and one page: it answers GET and HEAD, one request a connection.

It runs beside a loop that must not be disturbed, and may be reachable by anybody. So everything is bounded: connections at once,
the time that one may take from its first byte to its last, and the size of a request (by the standard library's parser). A client
that is slow, silent or too many costs a thread for seconds at most and nobody else's answer. `close` ends all of it at once.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import NamedTuple
from urllib.parse import urlsplit

from kvbus.errors import ConfigError, Problem

__all__ = ["Answer", "Question", "WebServer"]

CONNECTIONS_MAX = 16
"""Connections at once: a Prometheus, two probes, and more browsers and `kvbus top` than one broker has onlookers."""

DEADLINE_S = 10.0
"""Longest life of a connection. Answers take milliseconds, and up to two seconds where the broker is stuck."""

PAUSE_S = 0.2
"""How long nobody is taken where one could not be, for want of descriptors or threads: who waits stays in the queue."""

LINGER_S = 0.5
"""How long the rest of a refused request is read and thrown away, so that its sender gets to see the answer."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    # The page has its script and style inside, and asks nobody but us; nothing else may run in it or put it into a frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Question(NamedTuple):
    """What somebody asks for.

    Attributes:
        path: Without the query, as sent.
        accept: Media types that the asker can read; may be empty.
    """

    path: str
    accept: str


class Answer(NamedTuple):
    """What they get.

    Attributes:
        status: HTTP status.
        media_type: Of the body.
        body: All of it.
    """

    status: int
    media_type: str
    body: bytes


class WebServer:
    """Listens and answers until it is closed. `close` may be called by any thread."""

    def __init__(self, address: tuple[str, int], answer: Callable[[Question], Answer], field: str = "--http") -> None:
        """Bind and begin.

        Args:
            address: Host and port; 0 = any free one.
            answer: Gives the answer, on a thread of its own; must not raise, and must return within seconds.
            field: Flag or key to name in an error.

        Raises:
            ConfigError: The address cannot be bound.
        """
        self._answer = answer
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        self._threads: set[threading.Thread] = set()
        self._is_closing = False
        try:
            self._listener = _listen(address)
        except OSError as error:
            shown = f"{address[0]}:{address[1]}"
            raise ConfigError([Problem(field, shown, f"cannot listen: {error.strerror or error}")]) from None
        self._wake_read, self._wake_write = socket.socketpair()
        host, self.port = self._listener.getsockname()[:2]
        self.url = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
        self._thread = threading.Thread(target=self._serve, name="kvbus-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End: stop listening, cut off who is still being answered, wait for every thread. Twice is harmless."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        self._wake_write.send(b".")
        self._thread.join()
        for each in (self._listener, self._wake_read, self._wake_write):
            each.close()

    def _serve(self) -> None:
        """Be the server's thread: accept, and end what takes too long."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while not self._is_closing:
                for key, _ in selector.select(self._next_deadline_s()):
                    if key.fileobj is self._listener and not self._accept():
                        # It stays ready, and would be tried without end, beside a loop that needs the time.
                        selector.unregister(self._listener)
                        selector.select(PAUSE_S)
                        selector.register(self._listener, selectors.EVENT_READ)
                self._cut_off(time.monotonic())
        self._cut_off(float("inf"))
        for thread in list(self._threads):
            thread.join()

    def _accept(self) -> bool:
        """Take one connection and give it a thread, or close it at once where there are too many; tell whether that worked."""
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone already, or we have no descriptor left
            return False
        connection.settimeout(DEADLINE_S)
        with self._lock:
            is_full = len(self._open) >= CONNECTIONS_MAX
            if not is_full:
                self._open[connection] = time.monotonic() + DEADLINE_S
        if is_full:
            with suppress(OSError):
                connection.send(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            connection.close()
            return True
        thread = threading.Thread(target=self._talk, args=(connection,), name="kvbus-http-client", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the system gives us no more
            self._threads.discard(thread)
            with self._lock:
                del self._open[connection]
                connection.close()
            return False
        return True

    def _talk(self, connection: socket.socket) -> None:
        """Be a connection's thread."""
        try:
            with suppress(OSError):
                _Handler(connection, self._answer)
                _drain(connection)
        finally:
            with self._lock:
                self._open.pop(connection, None)
                # Closed under the lock, so that nobody shuts a descriptor that already is another connection's.
                connection.close()
            self._threads.discard(threading.current_thread())

    def _next_deadline_s(self) -> float | None:
        """Return for how long no connection becomes too old."""
        with self._lock:
            soonest_s = min(self._open.values(), default=None)
        return None if soonest_s is None else max(0.0, soonest_s - time.monotonic()) + 0.01

    def _cut_off(self, now_s: float) -> None:
        """End the connections that are too old; their threads find out."""
        with self._lock:
            for connection, deadline_s in self._open.items():
                if deadline_s <= now_s:
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> WebServer:
        """Return itself; it serves already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


class _Handler(BaseHTTPRequestHandler):
    """One request, read by the standard library's parser, which bounds its line and its headers."""

    protocol_version = "HTTP/1.1"
    server_version = "kvbus"
    sys_version = ""
    default_request_version = "HTTP/1.0"
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def __init__(self, connection: socket.socket, answer: Callable[[Question], Answer]) -> None:
        self._give = answer
        self._connection = connection
        super().__init__(connection, connection.getpeername(), None)  # type: ignore[arg-type]

    def handle(self) -> None:
        """Answer once."""
        self.close_connection = True
        self.handle_one_request()

    def do_GET(self) -> None:
        """Answer with a body."""
        self._reply(has_body=True)

    def do_HEAD(self) -> None:
        """Answer as to GET, without the body."""
        self._reply(has_body=False)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request. The text is ours, and quotes nothing of what was sent."""
        if code == HTTPStatus.NOT_IMPLEMENTED:  # what the parser says of methods that we do not have
            code = HTTPStatus.METHOD_NOT_ALLOWED
        text = f"{int(code)} {HTTPStatus(code).phrase}\n".encode()
        self._send(Answer(int(code), "text/plain; charset=utf-8", text), has_body=self.command != "HEAD")

    def _reply(self, has_body: bool) -> None:
        question = Question(urlsplit(self.path).path, self.headers.get("Accept", ""))
        self._send(self._give(question), has_body)

    def _send(self, answer: Answer, has_body: bool) -> None:
        self.close_connection = True
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.media_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if has_body:
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a probe every second is no event."""


def _listen(address: tuple[str, int]) -> socket.socket:
    """Return a listening socket.

    Raises:
        OSError: The host is unknown or the port taken.
    """
    family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(CONNECTIONS_MAX)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _drain(connection: socket.socket) -> None:
    """Let the client read the answer: closing with unread bytes would make the system take it back."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(LINGER_S)
        until_s = time.monotonic() + LINGER_S
        while time.monotonic() < until_s and connection.recv(65536):
            pass

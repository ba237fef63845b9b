"""A broker that says what a test wants it to say, and requests as any client would send them."""

from __future__ import annotations

import socket
from http.client import HTTPConnection, HTTPResponse

from kvbus.broker.status import BrokerStatus
from kvbus.errors import UsageError
from kvbus.ops.report import Observer, Report
from tests.broker.playbook import Playbook

WAIT_S = 60


class StandIn:
    """Stands for a running broker: a node without sockets, or none that answers."""

    def __init__(self, book: Playbook | None = None, silence_s: float | None = 0.0) -> None:
        self.book = book or Playbook("ab")
        self.silence: float | None = silence_s
        self.answers = True
        self.asked = 0
        self.endpoints = {"pub:all": "tcp://127.0.0.1:1"}

    def status(self, timeout_s: float = 10.0) -> BrokerStatus:
        self.asked += 1
        if not self.answers:
            raise UsageError(f"the broker has not answered for {timeout_s:g} s")
        return self.book.node.status(self.endpoints, self.book.now_ns)

    def silence_s(self) -> float | None:
        return self.silence

    def report(self) -> Report:
        return Observer(self).take()


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    """Ask once."""
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def raw(port: int, sent: bytes) -> bytes:
    """Send bytes and return everything that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while more := client.recv(65536):
            answer += more
        return answer

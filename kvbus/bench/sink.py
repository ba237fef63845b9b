"""The process that plays subscribers: it takes what comes, notes when, and looks into it only after the measurement.

Commands: `open`, `hello`, `watch`, `count`, `shut`.
"""

from __future__ import annotations

import struct
import time
from typing import Any

import zmq

from kvbus.bench.load import HELLO, MARK, checksum, is_signal
from kvbus.bench.processes import BenchError, Channel, Player
from kvbus.security.key_files import Keyring
from kvbus.security.keys import CurveConfig
from kvbus.sockets import ZmqContext, ZmqSocket, receive_frames, set_curve
from kvbus.wire.envelope import split_batch

__all__ = ["Sink", "run"]

TAIL_BYTES = 200
"""A signal is the last event of its batch, and shorter than this however it is written."""

SHARE = 64
"""Messages taken before the clock is read again: at rates at which latency is measured, one or a few."""

_ts = struct.Struct(">d")


def run(role: str, channel: Channel, arguments: dict[str, Any]) -> None:
    """Do what the parent says.

    Args:
        role: Not looked at.
        channel: To the parent.
        arguments: None.
    """
    sink = Sink()
    sink.serve(channel)
    sink.shut()


class Sink(Player):
    """Some of the subscribers of a run."""

    COMMANDS = frozenset(("open", "hello", "watch", "count", "shut"))

    def __init__(self) -> None:
        """Begin without a socket."""
        self._context: ZmqContext | None = None
        self._sockets: list[ZmqSocket] = []
        self._poller = zmq.Poller()
        self._received: list[list[tuple[int, bytes]]] = []
        self._said_hello: list[set[bytes]] = []

    def open(self, subscribers: list[list[str]], keys: str | None = None) -> None:
        """Connect subscribers.

        Args:
            subscribers: URLs of each.
            keys: Secret key file, the broker's and theirs, where it is encrypted.
        """
        self.shut()
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        for urls in subscribers:
            socket = self._context.socket(zmq.SUB)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            if keys is not None:
                set_curve(socket, Keyring(CurveConfig(secret_key_file=keys, server_key=keys)).curve(binds=False))
            for url in urls:
                socket.connect(url)
            self._sockets.append(socket)
            self._poller.register(socket, zmq.POLLIN)
        self._said_hello = [set() for _ in self._sockets]

    def hello(self, topics: int, wait_s: float) -> dict[str, Any]:
        """Wait until all subscribers have heard a hello, of each of so many topics.

        Args:
            topics: Topics that each must have heard.
            wait_s: How long to wait.

        Returns:
            `heard`: whether they have.
        """
        end_s = time.monotonic() + wait_s
        while not (is_heard := all(len(said) >= topics for said in self._said_hello)):
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            for socket, _ in self._poller.poll(round(left_s * 1000) + 1):
                said = self._said_hello[self._sockets.index(socket)]
                for frames in receive_frames(socket, SHARE):
                    if HELLO in frames[2][-TAIL_BYTES:]:
                        said.add(frames[0])
        return {"heard": is_heard}

    def watch(self, marks: int, timeout_s: float) -> dict[str, Any]:
        """Take everything until every subscriber has seen the mark so often.

        Args:
            marks: How often.
            timeout_s: How long a silence may be, seconds.

        Returns:
            `at_ns`: when the last mark came, monotonic, nanoseconds.

        Raises:
            BenchError: They did not come.
        """
        self._received = [[] for _ in self._sockets]
        left = dict.fromkeys(range(len(self._sockets)), marks)
        index_of = {socket: index for index, socket in enumerate(self._sockets)}
        while left:
            ready = self._poller.poll(round(timeout_s * 1000))
            if not ready:
                counts = [len(received) for received in self._received]
                raise BenchError(f"subscribers have heard nothing for {timeout_s:g} s, after {counts} batches")
            for socket, _ in ready:
                index = index_of[socket]
                received = self._received[index]
                messages = receive_frames(socket, SHARE)
                now_ns = time.monotonic_ns()
                for frames in messages:
                    payload = frames[2]
                    received.append((now_ns, payload))
                    if MARK in payload[-TAIL_BYTES:] and index in left:
                        left[index] -= 1
                        if left[index] <= 0:
                            del left[index]
        return {"at_ns": now_ns}

    def count(self) -> dict[str, Any]:
        """Look into what was taken.

        Returns:
            For each subscriber `events`, `checksums` and `batches`, without signals; and `latencies_ns` of all batches that
            carry a time.
        """
        events, checksums, batches, latencies_ns = [], [], [], []
        for received in self._received:
            count = total = 0
            for at_ns, payload in received:
                raws = [raw for raw in split_batch(payload).events if not is_signal(raw)]
                count += len(raws)
                total += checksum(raws)
                (ts,) = _ts.unpack_from(payload, 2)
                if raws and ts:
                    latencies_ns.append(at_ns - round(ts * 1e9))
            events.append(count)
            checksums.append(total)
            batches.append(len(received))
        self._received = []
        return {"events": events, "checksums": checksums, "batches": batches, "latencies_ns": latencies_ns}

    def shut(self) -> None:
        """Close all sockets."""
        for socket in self._sockets:
            socket.close(0)
        self._sockets = []
        if self._context is not None:
            self._context.term()
            self._context = None

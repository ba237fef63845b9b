"""The readers of a soak: one subscriber a view, which believes nothing, and clients that ask for replay.

Each batch must carry the next number, and the time since its newest worker spoke is taken; where that is long, it is a pause,
kept with its moment. Every so often the last batches of a view are asked for again and held against what came live, byte for
byte.

Commands: `figures`, which answers and begins anew; `pauses`; `stop`.
"""

from __future__ import annotations

import struct
import time
from collections import OrderedDict
from typing import Any

import zmq

from kvbus.bench.figures import percentile
from kvbus.bench.processes import Channel
from kvbus.sockets import ZmqContext, receive_frames, send_frames
from kvbus.wire.envelope import split_batch
from kvbus.wire.frames import ReplayEnd, read_live, read_replay_reply, replay_request

__all__ = ["Reader", "run"]

KEPT_BATCHES = 400
ASKED_BATCHES = 200
PAUSE_MS = 100.0
PAUSES_MAX = 10_000
SHARE = 256

_ts = struct.Struct(">d")


def run(role: str, channel: Channel, arguments: dict[str, Any]) -> None:
    """Read until told to stop.

    Args:
        role: Not looked at.
        channel: To the parent.
        arguments: `urls` and `replays`, one a view; `replay_s`, seconds between requests, 0 = none.
    """
    with zmq.Context() as context:
        poller = zmq.Poller()
        poller.register(channel.read_fd, zmq.POLLIN)
        readers = [
            Reader(context, poller, url, replay)
            for url, replay in zip(arguments["urls"], arguments["replays"], strict=True)
        ]
        replay_ns = round(arguments["replay_s"] * 1e9)
        ask_at_ns = time.monotonic_ns() + replay_ns
        channel.write({"ready": True})
        while True:
            ready = dict(poller.poll(100))
            now_ns = time.monotonic_ns()
            for reader in readers:
                reader.take(ready, now_ns / 1e9)
            if replay_ns and now_ns >= ask_at_ns:
                ask_at_ns = now_ns + replay_ns
                for reader in readers:
                    reader.ask()
            if channel.read_fd in ready:
                command = channel.read()
                if command is None:
                    break
                if command["do"] == "pauses":
                    channel.write({"pauses": [reader.pauses for reader in readers]})
                else:
                    channel.write({"views": [reader.figures() for reader in readers]})
        for reader in readers:
            reader.close()


class Reader:
    """One view's subscriber and replay client.

    Attributes:
        pauses: `[at_s, ms]` of batches that took long, monotonic seconds, one each second.
    """

    def __init__(self, context: ZmqContext, poller: zmq.Poller, url: str, replay_url: str) -> None:
        """Connect.

        Args:
            context: To open sockets in.
            poller: To register them with.
            url: Where the view publishes.
            replay_url: Where it answers.
        """
        self._sub = context.socket(zmq.SUB)
        self._sub.setsockopt(zmq.RCVHWM, 0)
        self._sub.setsockopt(zmq.SUBSCRIBE, b"")
        self._sub.connect(url)
        self._dealer = context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.LINGER, 0)
        self._dealer.connect(replay_url)
        for socket in (self._sub, self._dealer):
            poller.register(socket, zmq.POLLIN)
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._next: int | None = None
        self._batches = self._events = self._gaps = 0
        self._replays = self._replayed = self._wrong = 0
        self._wanted: int | None = None
        self._latencies_ms: list[float] = []
        self.pauses: list[list[float]] = []

    def take(self, ready: dict[Any, int], at_s: float) -> None:
        """Take what has arrived.

        Args:
            ready: Sockets that have something.
            at_s: Now, monotonic, seconds.
        """
        if self._sub in ready:
            for frames in receive_frames(self._sub, SHARE):
                self._live(frames, at_s)
        if self._dealer in ready:
            for frames in receive_frames(self._dealer, SHARE):
                self._reply(frames)

    def ask(self) -> None:
        """Ask for the last batches again, unless an answer is still under way."""
        if self._wanted is None and self._next is not None:
            self._wanted = max(0, self._next - ASKED_BATCHES)
            send_frames(self._dealer, replay_request(self._wanted))

    def figures(self) -> dict[str, Any]:
        """Return all counts since the start, and latencies since the last time."""
        ordered = sorted(self._latencies_ms)
        self._latencies_ms = []
        return {
            "batches": self._batches,
            "events": self._events,
            "gaps": self._gaps,
            "replays": self._replays,
            "replayed": self._replayed,
            "wrong": self._wrong,
            "p50_ms": percentile(ordered, 50) if ordered else None,
            "p99_ms": percentile(ordered, 99) if ordered else None,
            "most_ms": ordered[-1] if ordered else None,
        }

    def close(self) -> None:
        """Close both sockets."""
        self._sub.close(0)
        self._dealer.close(0)

    def _live(self, frames: list[bytes], at_s: float) -> None:
        _, seq, payload = read_live(frames)
        if self._next is not None and seq != self._next:
            self._gaps += 1
        self._next = seq + 1
        self._kept[seq] = payload
        if len(self._kept) > KEPT_BATCHES:
            self._kept.popitem(last=False)
        self._batches += 1
        events = len(split_batch(payload).events)
        self._events += events
        (ts,) = _ts.unpack_from(payload, 2)
        if events and ts:
            latency_ms = (time.monotonic() - ts) * 1e3
            self._latencies_ms.append(latency_ms)
            if latency_ms > PAUSE_MS:
                self._pause(at_s, latency_ms)

    def _pause(self, at_s: float, latency_ms: float) -> None:
        """Keep the longest of each second."""
        if self.pauses and at_s - self.pauses[-1][0] < 1.0:
            self.pauses[-1][1] = max(self.pauses[-1][1], latency_ms)
        elif len(self.pauses) < PAUSES_MAX:
            self.pauses.append([at_s, latency_ms])

    def _reply(self, frames: list[bytes]) -> None:
        """Hold what comes again against what came live."""
        message = read_replay_reply(frames)
        if isinstance(message, ReplayEnd):
            self._replays += 1
            self._wanted = None
            return
        self._replayed += 1
        if message.seq != self._wanted or self._kept.get(message.seq, message.payload) != message.payload:
            self._wrong += 1
        self._wanted = message.seq + 1

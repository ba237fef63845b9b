"""The other end of a publisher, made of bare sockets in the test's own thread. Nothing is waited for by sleeping."""

from __future__ import annotations

import threading
from types import TracebackType

import pytest
import zmq

from kvbus.endpoints import Endpoint
from kvbus.publisher import Publisher, sender
from kvbus.sockets import SocketOptions, ZmqContext, ZmqSocket, open_socket, receive_frames, send_frames
from kvbus.wire.frames import ReplayBatch, ReplayEnd, read_live, read_replay_reply, replay_request

WAIT_MS = 60_000
"""How long an event may take that must come; only a test that fails waits so long."""


class Reader:
    """A SUB that is known to be subscribed, and a replay client."""

    def __init__(self, context: ZmqContext, publisher: Publisher, topic: bytes = b"", hwm: int = 0) -> None:
        options = SocketOptions(receive_hwm=hwm, linger_ms=0, subscriptions=(topic,))
        before = publisher.stats.subscribers
        self.live = open_socket(context, zmq.SUB, Endpoint.parse(reachable(publisher.endpoint)), options)
        self.replay = None
        if publisher.replay_endpoint is not None:
            where = Endpoint.parse(reachable(publisher.replay_endpoint))
            self.replay = open_socket(context, zmq.DEALER, where, SocketOptions(receive_hwm=hwm, linger_ms=0))
        assert publisher.wait_for_subscribers(before + 1, WAIT_MS / 1000)

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.close()
        if self.replay is not None:
            self.replay.close()

    def messages(self, count: int) -> list[list[bytes]]:
        """The next so many live messages."""
        found: list[list[bytes]] = []
        while len(found) < count:
            assert self.live.socket.poll(WAIT_MS), f"only {len(found)} of {count} batches came"
            found += receive_frames(self.live.socket, count - len(found))
        return found

    def take(self, count: int) -> list[tuple[bytes, int, bytes]]:
        """The next live batches as `(topic, seq, payload)`."""
        return [read_live(frames) for frames in self.messages(count)]

    def ask(self, start: int) -> None:
        """Send a replay request."""
        assert self.replay is not None
        assert send_frames(self.replay.socket, replay_request(start))

    def reply(self) -> ReplayBatch | ReplayEnd:
        """The next message of a replay."""
        assert self.replay is not None
        assert self.replay.socket.poll(WAIT_MS), "no answer"
        return read_replay_reply(receive_frames(self.replay.socket, 1)[0])

    def replayed(self, start: int) -> list[ReplayBatch]:
        """Everything that a replay brings, up to its end mark."""
        self.ask(start)
        batches: list[ReplayBatch] = []
        while not isinstance(message := self.reply(), ReplayEnd):
            batches.append(message)
        return batches


class Gate:
    """Holds the sender's thread up in the middle of a send."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()
        monkeypatch.setattr(sender, "send_frames", self._send)

    def stop_sender(self, publisher: Publisher) -> None:
        """Publish one batch, and return when the sender is held up with it."""
        publisher.publish_raw(b"x")
        assert self._reached.wait(WAIT_MS / 1000)

    def open(self) -> None:
        """Let the sender go on, for good."""
        self._opened.set()

    def _send(self, socket: ZmqSocket, frames: list[bytes]) -> bool:
        self._reached.set()
        assert self._opened.wait(WAIT_MS / 1000)
        return send_frames(socket, frames)


def reachable(url: str) -> str:
    """A URL to connect to, for one that was bound."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")

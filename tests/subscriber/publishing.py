"""A publisher made of bare sockets, so that a test says which messages exist, which are lost and who answers a replay.

It lives in the test's own thread: nothing is sent that the test did not send, and nothing is waited for by sleeping.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import zmq

from kvbus.wire.frames import live_message, read_replay_request, replay_end, replay_reply

WAIT_MS = 60_000
"""How long an event may take that must come; only a failing test waits this long."""


class BarePublisher:
    """An XPUB (which tells when somebody has subscribed) and, if asked for, a replay ROUTER."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        url: str = "tcp://127.0.0.1:*",
        with_replay: bool = False,
        replay_url: str | None = None,
    ) -> None:
        self._live = _open_live(context, url)
        self.url: str = self._live.getsockopt_string(zmq.LAST_ENDPOINT)
        self._router = context.socket(zmq.ROUTER)
        self._router.linger = 0
        self._router.router_mandatory = 1
        _bind(self._router, replay_url or "tcp://127.0.0.1:*")
        self.replay_url: str | None = self._router.getsockopt_string(zmq.LAST_ENDPOINT) if with_replay else None

    def wait_for_subscription(self) -> bytes:
        """Return the prefix that somebody has just subscribed to; from now on nothing is missed."""
        while True:
            assert self._live.poll(WAIT_MS), "nobody subscribed"
            message = self._live.recv()
            if message[:1] == b"\x01":  # else somebody has left
                return message[1:]

    def send(self, topic: bytes, seq: int, payload: bytes) -> None:
        self.send_frames(live_message(topic, seq, payload))

    def send_frames(self, frames: Sequence[bytes]) -> None:
        self._live.send_multipart(frames)

    def wait_for_request(self) -> tuple[bytes, int]:
        """Return who asks for a replay, and from where on."""
        assert self._router.poll(WAIT_MS), "nobody asked for a replay"
        identity, *frames = self._router.recv_multipart()
        return identity, read_replay_request(frames)

    def answer(
        self, identity: bytes, batches: Sequence[tuple[bytes, int, bytes]], old_form: bool = False, has_end: bool = True
    ) -> None:
        """Answer one replay request."""
        for topic, seq, payload in batches:
            self.reply(identity, replay_reply(topic, seq, payload, old_form))
        if has_end:
            self.reply(identity, replay_end(old_form))

    def reply(self, identity: bytes, frames: Sequence[bytes]) -> None:
        self._router.send_multipart([identity, *frames])

    def reopen(self) -> None:
        """Become another life of the publisher: its subscribers get what was sent, are disconnected and come back."""
        self._live.close(WAIT_MS)
        self._live = _open_live(self._router.context, self.url)

    def close(self) -> None:
        self._live.close()
        self._router.close()

    def __enter__(self) -> BarePublisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_live(context: zmq.Context[zmq.Socket[bytes]], url: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.XPUB)
    socket.linger = 0
    socket.setsockopt(zmq.XPUB_VERBOSER, 1)
    _bind(socket, url)
    return socket


def _bind(socket: zmq.Socket[bytes], url: str) -> None:
    """Bind, again and again while ZeroMQ's own thread has not yet let go of the port that an earlier socket had."""
    with socket.context.socket(zmq.PAIR) as clock:
        for _ in range(WAIT_MS // 10):
            try:
                socket.bind(url)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise
                clock.poll(10)
            else:
                return
    raise AssertionError(f"{url} is still in use")

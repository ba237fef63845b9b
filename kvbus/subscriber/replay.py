"""One replay, read to its end and no further: for who wants to know the state of a view and not to follow it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import zmq

from kvbus.endpoints import Endpoint
from kvbus.errors import FrameError
from kvbus.security.key_files import Keyring
from kvbus.security.keys import CurveConfig
from kvbus.security.refusals import PEER_REFUSALS, PeerRefusal
from kvbus.sockets import BoundSocket, SocketOptions, ZmqContext, open_socket, receive_frames, send_frames
from kvbus.wire.frames import ReplayBatch, ReplayEnd, read_replay_reply, replay_request

__all__ = ["Replay"]

SHARE_MESSAGES = 256
"""Messages taken at a time."""

RECEIVE_HWM = 1_000
"""Messages that may wait here; what is more waits at the sender, which is made for it."""


class Replay:
    """Asks one of several endpoints and iterates over what it answers.

    ```
    replay = Replay([Endpoint.parse("tcp://127.0.0.1:5700")])
    for batch in replay:
        ...
    if not replay.has_ended: ...  # it fell silent
    ```

    Attributes:
        endpoint: Who has answered; `None` = nobody yet.
        has_ended: Whether the end mark has come.
        refusals: Attempts to connect that were refused, by endpoint and reason, of those that nobody answered.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        start_seq: int = 0,
        *,
        silence_s: float = 10.0,
        curve: CurveConfig | None = None,
        context: ZmqContext | None = None,
    ) -> None:
        """Prepare; nothing is opened before the iteration.

        Args:
            endpoints: Where a replay ROUTER may be, at least one; the first to answer is read.
            start_seq: First number wanted.
            silence_s: Seconds without a message after which to give up. A view with a million blocks needs two to answer.
            curve: Keys of a client, for encryption; `None` = plaintext.
            context: ZeroMQ context to share; `None` = one of its own, for as long as the iteration.
        """
        self.endpoint: Endpoint | None = None
        self.has_ended = False
        self._endpoints = endpoints
        self._start_seq = start_seq
        self._silence_s = silence_s
        self._context = context
        self._keys = Keyring.of(curve)
        self.refusals: dict[str, list[PeerRefusal]] = {}

    def __iter__(self) -> Iterator[ReplayBatch]:
        """Ask, and return the batches in order until the end mark or silence.

        Raises:
            ConfigError: An endpoint cannot be connected, or a key is missing.
        """
        context: ZmqContext = self._context or zmq.Context()
        sockets: list[BoundSocket] = []
        try:
            curve = None if self._keys is None else self._keys.curve(binds=False)
            options = SocketOptions(receive_hwm=RECEIVE_HWM, linger_ms=0, curve=curve)
            for endpoint in self._endpoints:
                sockets.append(
                    open_socket(context, zmq.DEALER, endpoint, options, binds_by_default=False, watches=True)
                )
                send_frames(sockets[-1].socket, replay_request(self._start_seq))
            yield from self._read(sockets)
        finally:
            for bound in sockets:
                self._note(bound)
                bound.close()
            if self._context is None:
                context.term()

    def _note(self, bound: BoundSocket) -> None:
        """Keep what an endpoint refused that has not answered."""
        assert bound.watch is not None
        bound.watch.take_changes()
        found = [reason for reason in PEER_REFUSALS if bound.watch.refusals[reason]]
        if found and bound.endpoint != self.endpoint:
            self.refusals[bound.url] = found

    def _read(self, sockets: list[BoundSocket]) -> Iterator[ReplayBatch]:
        """Wait for the first to answer, and read that one."""
        poller = zmq.Poller()
        for bound in sockets:
            poller.register(bound.socket, zmq.POLLIN)
        heard_s = time.monotonic()
        while (left_s := heard_s + self._silence_s - time.monotonic()) > 0:
            for bound in sockets:
                if self.endpoint not in (None, bound.endpoint):
                    continue
                for frames in receive_frames(bound.socket, SHARE_MESSAGES):
                    heard_s = time.monotonic()
                    self.endpoint = bound.endpoint
                    try:
                        message = read_replay_reply(frames)
                    except FrameError:
                        continue
                    if isinstance(message, ReplayEnd):
                        self.has_ended = True
                        return
                    yield message
            poller.poll(max(1, round(min(left_s, 0.1) * 1000)))

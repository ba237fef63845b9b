"""The thread that owns a publisher's sockets: sends what is queued, hears who subscribes, and answers replay requests.

Nothing in it waits for a peer. XPUB drops for a subscriber that is full (which shows as a gap, and replay fills it), the ROUTER
is tried without blocking. Live batches and replay take turns, a slice each, so neither keeps the other waiting.

`publish` must not wait for this thread, which may lose the processor at any point. So the lock is between producers, and the live
path takes none here: it is held for cutting a slice of replay, for closing and for a look at the figures, each some microseconds
of work, and never while a socket is used or events are encoded.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket as posix_socket
import threading
import time

import msgspec
import zmq

from kvbus.endpoints import Endpoint
from kvbus.errors import UsageError
from kvbus.publisher.outbox import Outbox
from kvbus.publisher.stats import PublisherStats
from kvbus.publisher.subscriptions import Subscriptions
from kvbus.security.doors import Doors
from kvbus.security.key_files import Keyring
from kvbus.security.refusals import Refused
from kvbus.sockets import (
    BoundSocket,
    Routed,
    SocketOptions,
    ZmqContext,
    ZmqSocket,
    receive_frames,
    route_frames,
    send_frames,
    will_bind,
)
from kvbus.streams.serving import ReplayServer, Turn
from kvbus.wire.frames import live_message

__all__ = ["Sender"]

_log = logging.getLogger("kvbus.publisher")

SLICE_BATCHES = 64
SLICE_BYTES = 256 * 1024
"""What is sent live between two slices of replay; the same as replay's own slice, so that both get half under full load."""

HEARD_MAX = 256
"""Messages from subscribers, and replay requests, taken in one turn."""

REQUEST_BYTES_MAX = 64 * 1024
"""Largest frame that a subscriber or replay client may send: a prefix or a number."""

REPLAY_HWM = 256
"""Replies queued for one client. The server resumes where a client is full, so a deep queue gains nothing, and a client that does
not read costs only this much."""

EXIT_S = 1.0
"""How long the end of the interpreter waits for a publisher that nobody has closed."""


class Sender:
    """Sockets and thread of one publisher.

    Attributes:
        url: Where the live socket is; known after `start`.
        replay_url: Where the replay socket is; `None` = there is none.
    """

    def __init__(
        self,
        outbox: Outbox,
        subscriptions: Subscriptions,
        server: ReplayServer,
        *,
        endpoint: Endpoint,
        replay_endpoint: Endpoint | None,
        options: SocketOptions,
        context: ZmqContext | None,
        keys: Keyring | None = None,
        connections_max: int = 0,
    ) -> None:
        """Prepare; nothing is opened before `start`.

        Args:
            outbox: What to send; from now on used through the sender only.
            subscriptions: Who listens.
            server: Serves the outbox's ring.
            endpoint: Where to publish.
            replay_endpoint: Where to answer replay requests; `None` = nowhere.
            options: For the live socket; the replay socket takes its security and timeouts from them.
            context: Context to use; `None` = one of its own, ended with it.
            keys: For CURVE; `None` = plaintext.
            connections_max: Most peers of a bound socket; 0 = no limit.
        """
        self.url = ""
        self.replay_url: str | None = None
        self._outbox = outbox
        self._subscriptions = subscriptions
        self._server = server
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._options = msgspec.structs.replace(options, message_bytes_max=REQUEST_BYTES_MAX)
        self._context_given = context
        self._keys = keys
        self._connections_max = connections_max
        self._doors: Doors | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(threading.Lock())
        self._opened = threading.Event()
        self._open_error: BaseException | None = None
        self._process = os.getpid()
        self._is_idle = False
        self._is_closed = False
        self._why_closed = ""
        self._stop_at_ns: int | None = None
        self._drops_told = 0
        self._is_dropping = False
        self._wake_reader, self._wake_writer = posix_socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="kvbus-publisher", daemon=True)

    def start(self) -> None:
        """Start the thread and wait until its sockets are open.

        Raises:
            ConfigError: An endpoint cannot be bound or connected; nothing stays open.
        """
        self._thread.start()
        self._opened.wait()
        if self._open_error is not None:
            self._thread.join()
            raise self._open_error
        atexit.register(self.stop, EXIT_S)

    def put(self, payload: bytes) -> int:
        """Number a batch and queue it. Any thread; never waits for a peer.

        Args:
            payload: An encoded batch.

        Returns:
            Its number.

        Raises:
            UsageError: Closed, or this process is a fork of the one that made it.
        """
        # Before the lock: in a fork its holder may not exist, and nobody would ever give it back.
        self.check_process()
        with self._lock:
            if self._is_closed:
                raise UsageError(f"the publisher is closed{self._why_closed}")
            seq = self._outbox.put(payload)
            # Only now: the thread says that it is idle, then looks at the queue; we queue, then look whether it is idle.
            if self._is_idle:
                self._is_idle = False
                self._wake()
        return seq

    def check_process(self) -> None:
        """Check that this is the process that made the sender.

        Raises:
            UsageError: It is a fork of it: sockets and thread stayed behind.
        """
        if os.getpid() != self._process:
            raise UsageError(
                f"the publisher was made in process {self._process} and does not survive a fork; make one in this process"
            )

    def stats(self, refused: int) -> PublisherStats:
        """Return what has happened so far. Any thread.

        Args:
            refused: Calls that the publisher has refused, which it counts itself.

        Raises:
            UsageError: This process is a fork of the one that made it.
        """
        self.check_process()
        outbox = self._outbox
        with self._lock:
            published, published_bytes, dropped = outbox.published, outbox.published_bytes, outbox.dropped
            numbered = outbox.ring.next_seq  # read last: what is published meanwhile counts as waiting
            return PublisherStats(
                numbered=numbered,
                published=published,
                published_bytes=published_bytes,
                waiting=numbered - published - sum(dropped.values()),
                queued_bytes=outbox.queued_bytes,
                dropped={str(reason): count for reason, count in dropped.items()},
                refused=refused,
                kept=len(outbox.ring),
                kept_bytes=outbox.ring.kept_bytes,
                subscribers=self._subscriptions.count,
                ignored=self._subscriptions.ignored,
                replay=msgspec.structs.replace(self._server.counts),
                sockets=[] if self._doors is None or self._is_closed else self._doors.status(),
            )

    def wait_for_subscribers(self, count: int, timeout_s: float) -> bool:
        """Wait until so many subscriptions match the topic. Any thread.

        Args:
            count: How many, from 0.
            timeout_s: Seconds to wait at most.

        Returns:
            Whether they are there; false also once the publisher is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._subscriptions.count >= count, timeout_s)
            return not self._is_closed and self._subscriptions.count >= count

    def stop(self, timeout_s: float) -> None:
        """Send what is queued, then end thread and sockets. Any thread; twice is harmless; nothing happens in a fork.

        Args:
            timeout_s: Seconds that queued batches, open replay answers and ZeroMQ's own queues may take together; what has not
                left then is dropped.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            self._is_closed = True
            stop_at_ns = time.monotonic_ns() + int(timeout_s * 1e9)
            if self._stop_at_ns is None or stop_at_ns < self._stop_at_ns:
                self._stop_at_ns = stop_at_ns
            self._wake()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            # Everything in the thread is bounded by the same time; what comes on top is for a machine that stands still.
            self._thread.join(timeout_s + 1.0)

    def abandon(self) -> None:
        """End soon, without waiting: for a publisher that was collected before it was closed.

        Takes no lock, since the collector may run it anywhere, in the sender's own thread too.
        """
        if os.getpid() == self._process and self._stop_at_ns is None:
            self._stop_at_ns = time.monotonic_ns() + int(EXIT_S * 1e9)
            self._wake()

    def _wake(self) -> None:
        """Make the thread look up from its sockets."""
        # Full = it is being woken already; closed = it has ended.
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def _run(self) -> None:
        """Own context and sockets from opening to closing."""
        context: ZmqContext = self._context_given or zmq.Context()
        poller = zmq.Poller()
        self._doors = doors = Doors(context, poller, self._tell_refused)
        sockets: list[BoundSocket] = []
        try:
            live = self._open(doors, "publish", zmq.XPUB, self._endpoint, self._options)
            sockets.append(live)
            self.url = live.url
            router: ZmqSocket | None = None
            if self._replay_endpoint is not None:
                options = msgspec.structs.replace(self._options, send_hwm=REPLAY_HWM)
                replay = self._open(doors, "replay", zmq.ROUTER, self._replay_endpoint, options)
                sockets.append(replay)
                self.replay_url, router = replay.url, replay.socket
            self._opened.set()
            if doors.exposed:
                _log.warning("plaintext_exposed endpoint=%s replay=%s", self.url, self.replay_url)
            self._take_turns(live.socket, router, doors, poller)
        except zmq.ContextTerminated:
            self._why_closed = ": its ZeroMQ context was terminated"
        except BaseException as error:
            if not self._opened.is_set():
                self._open_error = error
            else:
                self._why_closed = f": its thread failed ({type(error).__name__})"
                _log.exception("publisher_failed endpoint=%s", self.url)
        finally:
            doors.close()
            self._close(context, sockets)
            self._opened.set()

    def _open(self, doors: Doors, name: str, kind: int, endpoint: Endpoint, options: SocketOptions) -> BoundSocket:
        """Open a socket with its keys: those of a server where it binds, of a client where it connects."""
        if self._keys is not None and endpoint.transport != "inproc":
            options = msgspec.structs.replace(options, curve=self._keys.curve(will_bind(kind, endpoint, True)))
        return doors.open(name, kind, endpoint, options, binds_by_default=True, connections_max=self._connections_max)

    def _close(self, context: ZmqContext, sockets: list[BoundSocket]) -> None:
        """Close everything, leaving ZeroMQ what is left of the time to send what it has."""
        with self._lock:
            self._is_closed = True
            self._outbox.give_up()
            stop_at_ns = self._stop_at_ns or 0
        with self._changed:
            self._changed.notify_all()
        atexit.unregister(self.stop)
        linger_ms = max(0, (stop_at_ns - time.monotonic_ns()) // 1_000_000)
        for bound in sockets:
            bound.close(linger_ms)
        if self._context_given is None:
            context.term()
        with self._lock:
            self._wake_reader.close()
            self._wake_writer.close()

    def _take_turns(self, live: ZmqSocket, router: ZmqSocket | None, doors: Doors, poller: zmq.Poller) -> None:
        """Send, serve and hear, until told to stop and done, or out of time."""
        poller.register(live, zmq.POLLIN)
        poller.register(self._wake_reader, zmq.POLLIN)
        if router is not None:
            poller.register(router, zmq.POLLIN)
        while True:
            self._send_live(live)
            if router is not None:
                self._serve(router)
            redial_at_ns = doors.deadline_ns
            timeout_ms = self._timeout_ms(redial_at_ns)
            if timeout_ms is None:
                return
            for ready, _ in poller.poll(timeout_ms):
                if ready is live:
                    self._hear(live)
                elif ready is router:
                    self._take_requests(router)
                elif not doors.take(ready, time.monotonic_ns()):
                    with contextlib.suppress(BlockingIOError):
                        self._wake_reader.recv(4096)
            if redial_at_ns is not None:
                doors.on_time(time.monotonic_ns())

    def _timeout_ms(self, redial_at_ns: int | None) -> int | None:
        """Return how long to sleep: −1 = until something comes, `None` = stop now."""
        now_ns = time.monotonic_ns()
        replay_at_ns, stop_at_ns = self._server.deadline_ns, self._stop_at_ns
        if stop_at_ns is not None and (now_ns >= stop_at_ns or (not self._outbox.has_queued and replay_at_ns is None)):
            return None
        if replay_at_ns == 0:
            return 0
        self._is_idle = True
        if self._outbox.has_queued:
            self._is_idle = False
            return 0
        deadlines = [at_ns for at_ns in (replay_at_ns, stop_at_ns, redial_at_ns) if at_ns is not None]
        if not deadlines:
            return -1
        return max(0, -((now_ns - min(deadlines)) // 1_000_000))

    def _send_live(self, live: ZmqSocket) -> None:
        """Send one slice of the live queue."""
        batches = self._outbox.take(SLICE_BATCHES, SLICE_BYTES)
        if not batches:
            return
        sent = sent_bytes = 0
        try:
            for batch in batches:
                if send_frames(live, live_message(batch.topic, batch.seq, batch.payload)):
                    sent += 1
                    sent_bytes += len(batch.payload)
        finally:
            self._outbox.sent(sent, sent_bytes, failed=len(batches) - sent)
        self._tell_drops(sum(self._outbox.dropped.values()), self._outbox.has_queued)

    def _serve(self, router: ZmqSocket) -> None:
        """Send one slice of replay."""
        if self._server.deadline_ns is None:
            return
        now_ns = time.monotonic_ns()
        with self._lock:
            turns = self._server.take_slice(now_ns)
        for turn in turns:
            count, is_gone = self._send_turn(router, turn)
            self._server.sent(turn, count, now_ns)
            if is_gone:
                self._server.gone(turn.identity)

    def _send_turn(self, router: ZmqSocket, turn: Turn) -> tuple[int, bool]:
        """Send one client's share; return how much of it was taken and whether the client has gone."""
        for count, message in enumerate(turn.messages):
            result = route_frames(router, turn.identity, message)
            if result is not Routed.SENT:
                return count, result is Routed.GONE
        return len(turn.messages), False

    def _take_requests(self, router: ZmqSocket) -> None:
        """Take replay requests that have arrived."""
        for frames in receive_frames(router, HEARD_MAX):
            self._server.receive(frames)

    def _hear(self, live: ZmqSocket) -> None:
        """Take what subscribers have said."""
        messages = receive_frames(live, HEARD_MAX)
        with self._changed:
            for frames in messages:
                self._subscriptions.hear(frames)
            self._changed.notify_all()

    def _tell_refused(self, refused: Refused) -> None:
        """Log who did not get in. A log may block, but so seldom is this."""
        _log.warning("peer_refused %s", " ".join(f"{name}={value!s}" for name, value in refused.fields().items()))

    def _tell_drops(self, drops: int, is_queued: bool) -> None:
        """Log when batches begin to be dropped, and once more when the queue has drained. Here, since a log may block."""
        if drops > self._drops_told and not self._is_dropping:
            self._is_dropping = True
            _log.warning("publish_queue_full endpoint=%s dropped=%d", self.url, drops)
        elif self._is_dropping and not is_queued:
            self._is_dropping = False
            self._drops_told = drops
            _log.warning("publish_queue_drained endpoint=%s dropped=%d", self.url, drops)

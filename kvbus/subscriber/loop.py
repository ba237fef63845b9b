"""The thread that owns a subscriber's sockets: it drains them into the node and carries out what the node asks for.

It never waits for the reader. While the mailbox is full it leaves messages where they are, in ZeroMQ's queue, and lets no time
pass for the node: a replay is not late because nobody has read its answers.
"""

from __future__ import annotations

import contextlib
import logging
import socket as posix_socket
import threading
import time

import msgspec
import zmq

from kvbus.connections import ConnectionChange
from kvbus.errors import ConfigError
from kvbus.security.doors import CONNECTIONS_MAX, Doors
from kvbus.security.key_files import Keyring
from kvbus.security.refusals import Refused, SocketStatus
from kvbus.sockets import (
    BoundSocket,
    SocketOptions,
    ZmqContext,
    ZmqSocket,
    open_socket,
    receive_frames,
    send_frames,
    will_bind,
)
from kvbus.subscriber.items import Item, SubscriberCounts
from kvbus.subscriber.mailbox import Mailbox
from kvbus.subscriber.node import OpenReplay, SubscriberNode
from kvbus.subscriber.options import SubscriberOptions

__all__ = ["SocketLoop"]

_log = logging.getLogger("kvbus.subscriber")

TURN_MESSAGES_MAX = 64
"""Messages taken from one socket in a turn: enough that a turn's own cost does not matter, few enough that no socket starves
the others."""


class SocketLoop:
    """Sockets and thread of one subscriber.

    Attributes:
        url: Where the live socket is, once it is open.
        is_connected: Whether a publisher is connected right now, as far as ZeroMQ knows.
        counts: What has been seen up to the items that are in the mailbox; replaced, never changed.
        mailbox: Where items go.
        refused: Why it is not connected: what was said of it last; `None` while it is, and where nothing is known.
    """

    def __init__(
        self,
        node: SubscriberNode,
        options: SubscriberOptions,
        context: ZmqContext | None,
        keys: Keyring | None = None,
    ) -> None:
        """Prepare a loop; nothing is opened before `start`.

        Args:
            node: The rules; from `start` on it belongs to the thread.
            options: The same that the node has.
            context: ZeroMQ context to share; `None` = one of its own, ended with the loop.
            keys: For CURVE; `None` = plaintext.
        """
        limits = options.limits
        self.refused: Refused | None = None
        self._keys = keys
        self._doors: Doors | None = None
        self.url = ""
        self.is_connected = False
        self.counts = SubscriberCounts()
        self.mailbox: Mailbox[Item] = Mailbox(limits.queue_items_max, limits.queue_bytes_max, self.wake)
        self._node = node
        self._options = options
        self._live_options = SocketOptions(
            receive_hwm=limits.hwm,
            linger_ms=0,
            message_bytes_max=limits.message_bytes_max,
            subscriptions=(options.topic.subscription,),
        )
        self._replay_options = msgspec.structs.replace(self._live_options, subscriptions=())
        self._context_given = context
        self._replays: dict[int, BoundSocket] = {}
        self._deadline_ns: int | None = None
        self._is_stopping = False
        self._opened = threading.Event()
        self._open_error: BaseException | None = None
        self._waker = _Waker()
        self._thread = threading.Thread(target=self._run, name="kvbus-subscriber", daemon=True)

    def start(self) -> str:
        """Start the thread and wait until its sockets are open.

        Returns:
            Where the live socket is: the real port if it was bound to port 0.

        Raises:
            ConfigError: An endpoint cannot be used.
        """
        self._waker.open()
        self._thread.start()
        self._opened.wait()
        if self._open_error is not None:
            self._thread.join()
            self._waker.close()
            raise self._open_error
        return self.url

    def wake(self) -> None:
        """Make the thread look up from its sockets. Any thread, any time; never waits."""
        self._waker.wake()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread and close its sockets. Any thread; twice is harmless.

        Args:
            timeout_s: Seconds to wait for it at most. It waits for nothing itself, so this is for a machine that stands still.
        """
        self._is_stopping = True
        self._waker.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            if not self._thread.is_alive():
                self._waker.close()

    def _run(self) -> None:
        """Own context and sockets from opening to closing."""
        context: ZmqContext = self._context_given or zmq.Context()
        poller = zmq.Poller()
        self._doors = doors = Doors(context, poller, self._tell_refused)
        try:
            self._take_keys()
            # Where it binds, in a context of its own: in another's, the gate may be somebody else's.
            most = 0 if self._context_given else CONNECTIONS_MAX
            with doors.open(
                "live", zmq.SUB, self._options.endpoint, self._live_options, connections_max=most, reads_watch=False
            ) as live:
                self.url = live.url
                if doors.exposed:
                    _log.warning("plaintext_exposed endpoint=%s", self.url)
                self._opened.set()
                try:
                    self._take_turns(context, live, doors, poller)
                finally:
                    for replay in self._replays.values():
                        replay.close()
        except BaseException as error:
            if not self._opened.is_set():
                self._open_error = error
            # Behind the opening it is a bug of ours; the reader must hear of it rather than wait for ever.
            self.mailbox.end(error)
        finally:
            self.is_connected = False
            doors.close()
            if self._context_given is None:
                context.destroy(0)
            self.mailbox.end()
            self._opened.set()

    def status(self) -> list[SocketStatus]:
        """Describe the sockets. Any thread."""
        return [] if self._doors is None else self._doors.status()

    def _take_keys(self) -> None:
        """Give the sockets their keys: those of a server where one binds, of a client where one connects.

        Raises:
            ConfigError: Something that they need was not said, or cannot be read.
        """
        if self._keys is None:
            return
        if self._options.endpoint.transport != "inproc":
            curve = self._keys.curve(will_bind(zmq.SUB, self._options.endpoint))
            self._live_options = msgspec.structs.replace(self._live_options, curve=curve)
        if self._options.replay_endpoint is not None:
            curve = self._keys.curve(will_bind(zmq.DEALER, self._options.replay_endpoint))
            self._replay_options = msgspec.structs.replace(self._replay_options, curve=curve)

    def _tell_refused(self, refused: Refused) -> None:
        """Say why it is not connected, or who did not get in."""
        self.refused = refused
        _log.warning("peer_refused %s", " ".join(f"{name}={value!s}" for name, value in refused.fields().items()))

    def _take_turns(self, context: ZmqContext, live: BoundSocket, doors: Doors, poller: zmq.Poller) -> None:
        """Drain, decide, act, until stopped."""
        assert live.watch is not None
        waiting = zmq.Poller()
        poller.register(live.socket, zmq.POLLIN)
        poller.register(live.watch.socket, zmq.POLLIN)
        poller.register(self._waker.fileno(), zmq.POLLIN)
        waiting.register(self._waker.fileno(), zmq.POLLIN)
        self._node.join(time.monotonic_ns())
        self._act(context, poller)
        while not self._is_stopping:
            if not self.mailbox.has_room:
                waiting.poll()
                self._waker.hush()
                continue
            redial_at_ns = doors.deadline_ns
            for each, _ in poller.poll(self._timeout_ms(redial_at_ns)):
                if each == self._waker.fileno():
                    self._waker.hush()
                elif each is live.watch.socket:
                    self._follow(live)
                    doors.look("live", time.monotonic_ns())
                else:
                    doors.take(each, time.monotonic_ns())
            if redial_at_ns is not None:
                doors.on_time(time.monotonic_ns())
            self._drain(live.socket)
            self._act(context, poller)

    def _timeout_ms(self, redial_at_ns: int | None) -> int | None:
        """Milliseconds until there is something to do by itself, rounded up; `None` = there is not."""
        # Asked for once a turn: with a thousand streams it takes a millisecond.
        self._deadline_ns = deadline_ns = self._node.deadline_ns
        if deadline_ns is None or (redial_at_ns is not None and redial_at_ns < deadline_ns):
            deadline_ns = redial_at_ns
        return None if deadline_ns is None else max(0, -((time.monotonic_ns() - deadline_ns) // 1_000_000))

    def _drain(self, live: ZmqSocket) -> None:
        """Hand the node what has arrived; and the time, once nothing is left that could have arrived before."""
        node = self._node
        messages = receive_frames(live, TURN_MESSAGES_MAX)
        now_ns = time.monotonic_ns()
        for frames in messages:
            node.on_live(frames, now_ns)
        is_empty = len(messages) < TURN_MESSAGES_MAX
        for replay_id, replay in self._replays.items():
            messages = receive_frames(replay.socket, TURN_MESSAGES_MAX)
            for frames in messages:
                node.on_replay(replay_id, frames, now_ns)
            is_empty = is_empty and len(messages) < TURN_MESSAGES_MAX
        if is_empty and self._deadline_ns is not None and self._deadline_ns <= now_ns:
            node.on_time(now_ns)

    def _act(self, context: ZmqContext, poller: zmq.Poller) -> None:
        """Open and close replay connections as the node wants it, and put its items into the mailbox."""
        for action in self._node.take_actions():
            replay = self._replays.pop(action.replay_id, None)
            if replay is not None:
                poller.unregister(replay.socket)
                assert self._doors is not None
                self._doors.finish("replay", replay, time.monotonic_ns())
                replay.close()
            elif isinstance(action, OpenReplay):
                self._open_replay(context, poller, action)
        items = self._node.take_items()
        # First the counts: whoever has taken an item finds it counted.
        counts = self._node.counts
        self.counts = msgspec.structs.replace(counts, dropped=dict(counts.dropped))
        if items:
            self.mailbox.put(items)

    def _open_replay(self, context: ZmqContext, poller: zmq.Poller, action: OpenReplay) -> None:
        """Open a connection for a request and send it."""
        assert self._options.replay_endpoint is not None
        try:
            replay = open_socket(context, zmq.DEALER, self._options.replay_endpoint, self._replay_options, watches=True)
        except ConfigError:  # at run time it is not the endpoint but the machine: no more sockets or files
            self._node.refuse_replay(action.replay_id, time.monotonic_ns())
            return
        self._replays[action.replay_id] = replay
        poller.register(replay.socket, zmq.POLLIN)
        send_frames(replay.socket, action.frames)

    def _follow(self, live: BoundSocket) -> None:
        """Tell the node when the connection comes and goes."""
        assert live.watch is not None
        for change in live.watch.take_changes():
            if change is ConnectionChange.UP:
                self._node.on_connected(time.monotonic_ns())
            elif not live.is_bound:
                self._node.on_disconnected(time.monotonic_ns())
        self.is_connected = live.watch.connections_count > 0
        if self.is_connected and self.refused is not None and self.refused.socket == "live" and not live.is_bound:
            self.refused = None


class _Waker:
    """A descriptor to poll beside ZeroMQ's, which any thread can make readable."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may close what the code that it interrupted is waking.
        self._lock = threading.RLock()
        self._reader: posix_socket.socket | None = None
        self._writer: posix_socket.socket | None = None

    def open(self) -> None:
        self._reader, self._writer = posix_socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """The descriptor to poll."""
        assert self._reader is not None
        return self._reader.fileno()

    def wake(self) -> None:
        """Make it readable; nothing happens once it is closed."""
        with self._lock:
            if self._writer is not None:
                with contextlib.suppress(BlockingIOError):  # full: it is readable already
                    self._writer.send(b"\0")

    def hush(self) -> None:
        """Make it unreadable again."""
        assert self._reader is not None
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)

    def close(self) -> None:
        # Under the lock, or a byte could go to whoever has got the number of the closed descriptor.
        with self._lock:
            if self._reader is not None and self._writer is not None:
                self._reader.close()
                self._writer.close()
            self._reader = self._writer = None

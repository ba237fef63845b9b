"""The broker's one hot thread: sockets on one side, the node on the other.

Each turn: wait, drain what has arrived in bounded shares, let due things happen, flush when input has run dry, send, and serve
one slice of replay. Nothing in it waits for a peer: PUB drops for a subscriber that is full (replay repairs that), ROUTER and
DEALER are tried without blocking.

All sockets are opened, used and closed by the thread that enters the loop. Others hand it work through `call` and `stop`, which
never block.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
import zmq

from kvbus.broker.change import Change, plan_change
from kvbus.broker.journal import Journal
from kvbus.broker.links import Links
from kvbus.broker.locks import Locks
from kvbus.broker.meter import Meter
from kvbus.broker.node import BrokerNode, UpstreamRequest
from kvbus.broker.notices import Notice
from kvbus.broker.recorder import Recorder
from kvbus.broker.status import BrokerStatus
from kvbus.config import BrokerConfig, ViewConfig
from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError, UsageError
from kvbus.polling import SocketPoller
from kvbus.security.doors import Doors
from kvbus.security.keys import CurveServer
from kvbus.security.refusals import Refused
from kvbus.sockets import BoundSocket, Routed, SocketOptions, receive_frames, route_frames, send_frames

if TYPE_CHECKING:
    from kvbus.streams.serving import ReplayServer, Turn

__all__ = ["BrokerLoop"]

SHARE_MESSAGES = 128
"""Messages taken from one source in a turn, at most: enough that a turn's fixed cost vanishes. Also how far apart workers that
are all drained can be in a turn: of usual batches, fewer events than a lane holds (`aggregate.lockstep.LANE_EVENTS_MAX`)."""

SHARE_MESSAGES_LEAST = 16
"""And at least, where many are ready: less, and what it costs to look at a source would count."""

TURN_MESSAGES = 512
"""Messages taken from all sources in a turn, about: ten milliseconds of usual batches, so that no source, no replay client and no
probe waits long for the others."""

NAP_S = 0.001
"""How long to look away where all that is ready waits for an answer that has not come: there is nothing else to do, and asking
again at once would take a whole core from whoever has to answer."""

REQUEST_BYTES_MAX = 64 * 1024
"""Largest frame that a subscriber or replay client may send: a prefix or a number."""

REPLAY_HWM = 128
"""Messages queued for one replay client. What it has not taken is still in the ring, so more would only fill the memory and give
the I/O thread work beside live batches; two slices keep a fast client busy until it is tried again, a millisecond later."""

POLL_MS_MAX = 1_000
"""Longest sleep; everything that is due sooner shortens it."""

_NS_PER_MS = 1_000_000

_ZERO_COPY_RECV = 10
"""`ZMQ_ZERO_COPY_RECV`, which has no name in pyzmq. Off: a message that waits then holds its own bytes; else the buffer of 8 KB
that it was read with, so that a backlog of usual batches takes twice its size. It is no slower: we copy out of it anyway."""


class BrokerLoop:
    """Sockets and turns of one broker; a context manager that opens and closes them.

    Attributes:
        node: The rules; another object once entered, if there is a journal.
        endpoints: Bound URLs: `pub:NAME` and `replay:NAME` per view, and `ingest`. Complete once entered.
        turned_at_ns: When the last turn began, monotonic nanoseconds; any thread may read it.
    """

    def __init__(self, config: BrokerConfig, tell: Callable[[Notice], None], seed: int | None = None) -> None:
        """Prepare; nothing is opened yet.

        Args:
            config: Checked.
            tell: Takes notices, on the loop's thread; must not block.
            seed: For jitter; default: from the system.
        """
        self._config = config
        self._tell = tell
        self._seed = seed
        self._journal = None if config.journal is None else Journal(config, tell)
        self.node = self._make_node()
        self.endpoints: dict[str, str] = {}
        self.turned_at_ns = 0
        self._meter = Meter(clock=time.time)
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake_lock = threading.Lock()
        self._is_wake_open = False
        self._is_stopping = False
        self._has_ended = False
        self._stack = ExitStack()

    def __enter__(self) -> BrokerLoop:
        """Go on where the journal ends, if there is one, and open every socket.

        Raises:
            ConfigError: An endpoint cannot be bound or connected, or the journal cannot be used; nothing stays open.
        """
        with self._stack as stack:
            if self._journal is not None:
                stack.callback(self._journal.close)
                self.node = self._journal.open(self._make_node, time.monotonic_ns())
            self.node.meter = self._meter
            self.turned_at_ns = time.monotonic_ns()
            self._wake_read, self._wake_write = os.pipe()
            self._is_wake_open = True
            stack.callback(self._close_wake)
            for end in (self._wake_read, self._wake_write):
                os.set_blocking(end, False)
            self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            with suppress(zmq.ZMQError):
                self._context.set(_ZERO_COPY_RECV, 0)
            stack.callback(self._context.term)
            self._poller = SocketPoller()
            stack.callback(self._poller.close)
            self._poller.register(self._wake_read, zmq.POLLIN)
            self._options = SocketOptions(
                receive_hwm=self._config.receive_hwm,
                message_bytes_max=self._config.message_bytes_max,
                linger_ms=round(self._config.linger_s * 1000),
            )
            self._locks = Locks(self._config)
            self._doors = Doors(self._context, self._poller, self._tell_refused)
            stack.callback(self._doors.close)
            self._open_views(stack)
            self._links = stack.enter_context(self._make_links())
            if self._doors.exposed:
                self._tell(Notice("warning", "plaintext_exposed", {"sockets": self._doors.exposed}))
            if self._config.ingest is not None:
                self.endpoints["ingest"] = self._links.url(0)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every socket; unsent output has the configured linger."""
        self._has_ended = True
        self._stack.close()
        self._run_calls()

    def call(self, work: Callable[[], None]) -> bool:
        """Have the loop's thread do something between two turns.

        Args:
            work: What to do; must not block and not raise.

        Returns:
            Whether it will be done; False = the loop has ended.
        """
        if self._has_ended:
            return False
        self._calls.put(work)
        self._wake()
        return True

    def stop(self) -> None:
        """Ask the loop to end: no more input, output sent. Any thread, any number of times."""
        self._is_stopping = True
        self._wake()

    def run(self) -> None:
        """Turn until `stop`."""
        is_dry = True
        while not self._is_stopping:
            is_dry = self._turn(0 if not is_dry else self._sleep_ms())
        # The last word: what has been released goes out, whether or not its run is full.
        self._finish(time.monotonic_ns())
        if self._journal is not None:
            self._journal.close(self.node, time.monotonic_ns())

    def change(self, config: BrokerConfig) -> Change:
        """Go on with another configuration; on the loop's thread, between two turns.

        What was done so far is sent, and committed, before anything changes; sockets of workers that come are opened first.

        Args:
            config: Checked.

        Returns:
            What has changed.

        Raises:
            ConfigError: Something cannot change while the broker runs, or a worker's endpoint cannot be bound or connected; all
                goes on as before.
            UsageError: The loop ends or has ended.
        """
        if self._has_ended or self._is_stopping:
            raise UsageError("the broker has ended")
        change = plan_change(self._config, config)
        lists = self._lists()
        added = self.node.new_sources(change)
        self._links.add(added)
        now_ns = time.monotonic_ns()
        self.node.flush()
        self._send(now_ns)
        gone = self.node.change(change, added, now_ns)
        self.node.flush()
        self._config = config
        if self._journal is not None:
            self._journal.change(config)
        self._send(now_ns)
        self._links.remove(gone)
        for name, allowed in lists.items():
            self._doors.allow(name, allowed)
        return change

    def status(self) -> BrokerStatus:
        """Return all figures; on the loop's thread, or after its end."""
        status = self.node.status(self.endpoints, time.monotonic_ns())
        status = msgspec.structs.replace(status, sockets=self._doors.status())
        return status if self._journal is None else msgspec.structs.replace(status, journal=self._journal.status())

    def _make_node(self, recorder: Recorder | None = None) -> BrokerNode:
        """Make a node that has seen nothing."""
        return BrokerNode(self._config, random.Random(self._seed), time.time_ns() // 1000, recorder)

    def _turn(self, timeout_ms: int) -> bool:
        """Do one turn and tell whether input has run dry."""
        ready = self._poller.poll(timeout_ms)
        ready += self._links.ended(ready)
        self.turned_at_ns = now_ns = time.monotonic_ns()
        self._meter.wall_ns = time.time_ns() - now_ns
        share = max(SHARE_MESSAGES_LEAST, min(SHARE_MESSAGES, TURN_MESSAGES // max(1, len(ready))))
        is_dry = True
        waiting = self._links.waiting_among(ready, now_ns) if timeout_ms == 0 and ready else ()
        if waiting and all(socket in waiting for socket in ready):
            time.sleep(NAP_S)
        for socket in ready:
            if socket in waiting:
                is_dry = False
            elif isinstance(socket, int):
                self._run_calls()
            elif (index := self._view_of_router.get(socket)) is not None:
                self._take_replay_requests(index)
            elif not self._doors.take(socket, now_ns):
                is_dry = self._links.drain(socket, self.node, share, now_ns) and is_dry
        self._doors.on_time(now_ns)
        self.node.on_time(now_ns)
        if is_dry:
            self.node.flush()
        self._send(now_ns)
        return is_dry

    def _sleep_ms(self) -> int:
        """Return how long nothing will be due, in whole milliseconds, rounded up so that the loop does not spin."""
        if self._journal is not None and self._journal.has_work:
            return 0
        dues = [self.node.deadline_ns, *(output.replay.deadline_ns for output in self.node.outputs)]
        soonest = min((due for due in dues if due is not None), default=None)
        if soonest is None:
            return POLL_MS_MAX
        left_ms = -(-(soonest - time.monotonic_ns()) // _NS_PER_MS)
        return max(0, min(left_ms, POLL_MS_MAX))

    def _send(self, now_ns: int) -> None:
        """Send what the node has to say: live output, requests, log lines; then one slice of replay per view."""
        output = self.node.take_output() if self._journal is None else self._journal.commit(self.node, now_ns)
        for view_index, frames in output:
            send_frames(self._pubs[view_index].socket, frames)
        if output:
            self._meter.sent(time.monotonic_ns())
        for request in self.node.take_requests():
            self._ask(request)
        for notice in self.node.take_notices():
            self._tell(notice)
        for index, router in self._routers.items():
            self._serve(self.node.outputs[index].replay, router, now_ns)

    def _ask(self, request: UpstreamRequest) -> None:
        """Ask a worker for lost batches. What cannot be asked, for want of files say, is a question without an answer."""
        try:
            self._links.request(request)
        except ConfigError as error:
            self._tell(Notice("warning", "replay_not_asked", {"problem": str(error)}))

    def _serve(self, replay: ReplayServer, router: BoundSocket, now_ns: int) -> None:
        """Send one slice of replay."""
        for turn in replay.take_slice(now_ns):
            replay.sent(turn, self._send_turn(replay, router, turn), now_ns)

    def _send_turn(self, replay: ReplayServer, router: BoundSocket, turn: Turn) -> int:
        """Send one client's turn and return how many messages were taken."""
        for count, frames in enumerate(turn.messages):
            routed = route_frames(router.socket, turn.identity, frames)
            if routed is Routed.GONE:
                replay.gone(turn.identity)
            if routed is not Routed.SENT:
                return count
        return len(turn.messages)

    def _take_replay_requests(self, index: int) -> None:
        """Read one share of replay requests."""
        output = self.node.outputs[index]
        for frames in receive_frames(self._routers[index].socket, SHARE_MESSAGES):
            refusal = output.receive_request(frames)
            if refusal is not None:
                self.node.tell_refused_request(output, refusal)

    def _finish(self, now_ns: int) -> None:
        """Send what is left."""
        self.node.finish()
        self._send(now_ns)

    def _open_views(self, stack: ExitStack) -> None:
        """Bind every view's PUB and ROUTER."""
        self._pubs: list[BoundSocket] = []
        self._routers: dict[int, BoundSocket] = {}
        self._view_of_router: dict[object, int] = {}
        for index, view in enumerate(self.node.views):
            self._open_view(stack, index, view)

    def _open_view(self, stack: ExitStack, index: int, view: ViewConfig) -> None:
        """Bind one view."""
        options = SocketOptions(
            send_hwm=view.hwm,
            linger_ms=self._options.linger_ms,
            message_bytes_max=REQUEST_BYTES_MAX,
            curve=self._locks.of_view(view),
        )
        most = self._config.connections_max
        where = Endpoint.parse(view.endpoint, "--pub")
        pub = self._doors.open(f"pub:{view.name}", zmq.PUB, where, options, connections_max=most)
        stack.enter_context(pub)
        self._pubs.append(pub)
        self.endpoints[f"pub:{view.name}"] = pub.url
        if view.replay_endpoint is not None:
            endpoint = Endpoint.parse(view.replay_endpoint, "--replay")
            router_options = msgspec.structs.replace(options, send_hwm=REPLAY_HWM)
            name = f"replay:{view.name}"
            router = self._doors.open(name, zmq.ROUTER, endpoint, router_options, connections_max=most)
            stack.enter_context(router)
            self._routers[index] = router
            self._view_of_router[router.socket] = index
            self._poller.register(router.socket, zmq.POLLIN)
            self.endpoints[f"replay:{view.name}"] = router.url

    def _make_links(self) -> Links:
        """Make the sockets towards workers."""
        return Links(
            self._context,
            self._poller,
            self._options,
            self.node.sources,
            doors=self._doors,
            locks=self._locks,
            connections_max=self._config.connections_max,
        )

    def _lists(self) -> dict[str, frozenset[bytes] | None]:
        """Read again who may connect, by the names of the sockets that have a list.

        Raises:
            ConfigError: A list cannot be read.
        """
        lists = {}
        for view in self.node.views:
            curve = self._locks.of_view(view)
            if curve is not None:
                lists[f"pub:{view.name}"] = lists[f"replay:{view.name}"] = curve.allowed
        for source in self.node.sources:
            found = self._locks.of_source(source)
            if isinstance(found, CurveServer):
                lists[self._links.name(source.index)] = found.allowed
        return lists

    def _tell_refused(self, refused: Refused) -> None:
        """Say who did not get in."""
        self._tell(Notice("warning", "peer_refused", refused.fields()))

    def _run_calls(self) -> None:
        """Do what others asked for."""
        if self._is_wake_open:
            with suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        with suppress(Empty):
            while True:
                self._calls.get_nowait()()

    def _wake(self) -> None:
        """End the loop's sleep, unless it has ended. A full pipe means that it is awake already."""
        with self._wake_lock, suppress(BlockingIOError):
            if self._is_wake_open:
                os.write(self._wake_write, b".")

    def _close_wake(self) -> None:
        """Close the pipe; from now on nobody writes to its number, which the system gives to the next file."""
        with self._wake_lock:
            self._is_wake_open = False
            os.close(self._wake_read)
            os.close(self._wake_write)

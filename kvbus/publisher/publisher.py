"""What a worker calls: `Publisher`."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Iterable
from types import TracebackType

import msgspec

from kvbus.endpoints import PORT_MAX, Endpoint
from kvbus.errors import ConfigError, Problem, UsageError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, UnknownEvent
from kvbus.publisher.outbox import Outbox, OutboxLimits
from kvbus.publisher.sender import Sender
from kvbus.publisher.stats import PublisherStats
from kvbus.publisher.subscriptions import Subscriptions
from kvbus.security.doors import CONNECTIONS_MAX
from kvbus.security.key_files import Keyring
from kvbus.security.keys import CurveConfig
from kvbus.sockets import SocketOptions, ZmqContext, shared_context
from kvbus.streams.serving import ReplayServer, ServingLimits
from kvbus.wire.codec import Encoding, encode_batch

__all__ = ["Publisher"]

TOPIC_BYTES_MAX = 4096
"""Longest topic; sixteen times the longest `kv@POD@MODEL` that we know of."""

PAYLOAD_BYTES_MAX = 64 * 1024 * 1024
"""Largest batch: what kvbus's own receivers take (`SocketOptions.message_bytes_max`)."""

TIMEOUT_S_MAX = 3600.0

_EVENT_TYPES = (BlockStored, BlockRemoved, AllBlocksCleared, UnknownEvent)


class Publisher:
    """Publishes the KV-cache events of one worker on the engines' own wire.

    ```python
    with Publisher("tcp://127.0.0.1:5600", topic="kv@pod-7@model", replay_endpoint="tcp://127.0.0.1:5700") as publisher:
        publisher.publish([BlockStored([hash], parent, tokens, 16, medium="GPU")])
    ```

    `publish` never waits for a peer and never raises for a full queue: a batch that finds no room uses up its number, is counted,
    and can still be had through replay. Every method may be called from any thread. A publisher does not survive a fork: in the
    child every call says so, except `close`, which does nothing there.

    Attributes:
        topic: Topic frame of every batch.
        data_parallel_rank: Rank of this worker.
    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        topic: str | bytes = "",
        replay_endpoint: str | Endpoint | None = None,
        data_parallel_rank: int | None = None,
        *,
        encoding: Encoding = "map",
        buffer_steps: int = 10_000,
        buffer_bytes: int = 256 * 1024 * 1024,
        queue_size: int = 100_000,
        queue_bytes: int = 256 * 1024 * 1024,
        hwm: int = 100_000,
        offset_by_rank: bool | None = None,
        old_replay_form: bool = False,
        enabled: bool = True,
        curve: CurveConfig | None = None,
        connections_max: int | None = None,
        socket_options: SocketOptions | None = None,
        replay_limits: ServingLimits | None = None,
        context: ZmqContext | None = None,
    ) -> None:
        """Bind or connect, and start the publisher's one thread.

        Args:
            endpoint: Where to publish; binds unless it says `connect:`. Port 0 takes a free one, see `endpoint`.
            topic: Topic of every batch, text (UTF-8) or bytes; may be empty.
            replay_endpoint: Where to answer replay requests; `None` = nowhere.
            data_parallel_rank: Rank of this worker, 0 to 65535; goes into each batch that names none. `None` = says nothing.
            encoding: `"map"` (vLLM from 0.24) or `"array"` (before).
            buffer_steps: Batches kept for replay.
            buffer_bytes: Payload bytes kept for replay.
            queue_size: Batches that may wait to be sent.
            queue_bytes: Payload bytes that may wait to be sent.
            hwm: Messages queued for one subscriber before it loses some; 0 = no limit.
            offset_by_rank: Whether the rank is added to the ports, as engines do it; `None` = to those that are bound. Ranks that
                connect to one broker all connect to the same port.
            old_replay_form: Answer replays without the topic frame, as vLLM up to 0.25.
            enabled: Whether to do anything: if not, nothing is checked or opened, and `publish` returns `None`.
            curve: Keys, for encryption: of a server where it binds, of a client where it connects; `None` = plaintext.
            connections_max: Most peers of a bound socket at once; 0 = no limit. `None` = 1024, and no limit in a context that is
                not its own.
            socket_options: Time limits and the like of the sockets; default `SocketOptions()`.
            replay_limits: Bounds of the replay server; default `ServingLimits()`.
            context: ZeroMQ context to use; default: one of its own, and the process's shared one for `inproc`.

        Raises:
            ConfigError: Every argument that cannot work, each named; or the endpoint cannot be bound.
        """
        self._refused = 0
        self._lock = threading.Lock()
        self._sender: Sender | None = None
        self.data_parallel_rank = data_parallel_rank
        self._encoding: Encoding = encoding
        if not enabled:
            self.topic = b""
            return
        limits = OutboxLimits(
            buffer_steps=buffer_steps, buffer_bytes=buffer_bytes, queue_size=queue_size, queue_bytes=queue_bytes
        )
        problems = _problems(data_parallel_rank, encoding, hwm, limits)
        if connections_max is not None and connections_max < 0:
            problems.append(Problem("connections_max", str(connections_max), "must be 0 (no limit) or more"))
        self.topic = _topic(topic, problems)
        rank = data_parallel_rank or 0
        live = _endpoint(endpoint, "endpoint", rank, offset_by_rank, problems)
        replay = None
        if replay_endpoint is not None:
            replay = _endpoint(replay_endpoint, "replay_endpoint", rank, offset_by_rank, problems)
            if live is not None and replay is not None and live.url == replay.url and live.port != 0:
                problems.append(Problem(replay.field, replay.url, "replay and publish endpoint are the same"))
        if problems:
            raise ConfigError(problems)
        assert live is not None
        if context is None and "inproc" in (live.transport, replay.transport if replay else ""):
            context = shared_context()
        if connections_max is None:
            connections_max = CONNECTIONS_MAX if context is None else 0
        outbox = Outbox(self.topic, limits)
        server = ReplayServer(outbox.ring, replay_limits, old_form=old_replay_form)
        options = msgspec.structs.replace(socket_options or SocketOptions(), send_hwm=hwm)
        self._sender = Sender(
            outbox,
            Subscriptions(self.topic),
            server,
            endpoint=live,
            replay_endpoint=replay,
            options=options,
            context=context,
            keys=Keyring.of(curve),
            connections_max=connections_max,
        )
        self._sender.start()
        weakref.finalize(self, self._sender.abandon).atexit = False

    @property
    def is_enabled(self) -> bool:
        """Whether it does anything."""
        return self._sender is not None

    @property
    def endpoint(self) -> str:
        """Where it publishes, as a URL: the real port where 0 was asked for, the rank added; empty when not enabled."""
        return self._sender.url if self._sender else ""

    @property
    def replay_endpoint(self) -> str | None:
        """Where it answers replay requests, as a URL; `None` = nowhere."""
        return self._sender.replay_url if self._sender else None

    def publish(self, batch: EventBatch | Iterable[Event]) -> int | None:
        """Encode a batch, give it the next number, keep it for replay and queue it for sending.

        Args:
            batch: Events in order, which get the current time and this worker's rank; or a batch with a time of its own, whose
                rank is kept unless it is `None`. May be empty.

        Returns:
            Its number; also when the queue was full and it is not sent live (see `stats`). `None` when not enabled.

        Raises:
            UsageError: The events cannot be encoded or are no events, before a number is used; closed; or this is a fork.

        Cost: 4 µs an event for encoding and judging, 3 µs a batch. Waits for nothing but a lock that is held for microseconds.
        """
        if self._sender is None:
            return None
        self._sender.check_process()
        try:
            payload = encode_batch(self._complete(batch), self._encoding)
            _check_size(payload)
        except UsageError:
            self._count_refused()
            raise
        return self._sender.put(payload)

    def publish_raw(self, payload: bytes) -> int | None:
        """Publish a batch that is encoded already; it is not looked into.

        Args:
            payload: One payload frame.

        Returns:
            As `publish`.

        Raises:
            UsageError: Larger than any receiver takes; closed; or this is a fork.
        """
        if self._sender is None:
            return None
        self._sender.check_process()
        try:
            _check_size(payload)
        except UsageError:
            self._count_refused()
            raise
        return self._sender.put(payload)

    def wait_for_subscribers(self, count: int = 1, timeout_s: float = 10.0) -> bool:
        """Wait until subscribers are ready: what is published after that reaches them.

        Args:
            count: Subscriptions that must match the topic; a peer with two matching prefixes counts twice.
            timeout_s: Seconds to wait at most, 0 to 3600.

        Returns:
            Whether they are there. False when the time is over, when closed, and when not enabled.

        Raises:
            UsageError: A time outside its range, or this is a fork.
        """
        _check_timeout(timeout_s)
        if self._sender is None:
            return False
        self._sender.check_process()
        return self._sender.wait_for_subscribers(count, timeout_s)

    @property
    def stats(self) -> PublisherStats:
        """What has happened so far; all zero when not enabled.

        Raises:
            UsageError: This is a fork.
        """
        return self._sender.stats(self._refused) if self._sender else PublisherStats()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is queued, then free sockets and thread. Twice is harmless.

        Args:
            timeout_s: Seconds that this may take at most, 0 to 3600; what has not left by then is dropped.

        Raises:
            UsageError: A time outside its range.
        """
        _check_timeout(timeout_s)
        if self._sender is not None:
            self._sender.stop(timeout_s)

    def __enter__(self) -> Publisher:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _complete(self, batch: EventBatch | Iterable[Event]) -> EventBatch:
        """Return a batch with a time and a rank.

        Raises:
            UsageError: Neither a batch nor events.
        """
        if not isinstance(batch, EventBatch):
            if isinstance(batch, _EVENT_TYPES):
                raise UsageError("publish takes a list of events or a batch, got a single event")
            try:
                events = list(batch)
            except TypeError:
                raise UsageError(f"publish takes a list of events or a batch, got {type(batch).__name__}") from None
            batch = EventBatch(time.time(), events, self.data_parallel_rank)
        elif batch.data_parallel_rank is None and self.data_parallel_rank is not None:
            batch = msgspec.structs.replace(batch, data_parallel_rank=self.data_parallel_rank)
        for index, event in enumerate(batch.events):
            if not isinstance(event, _EVENT_TYPES):
                raise UsageError(f"events[{index}]: {type(event).__name__} is no event")
        return batch

    def _count_refused(self) -> None:
        with self._lock:
            self._refused += 1


def _problems(rank: int | None, encoding: str, hwm: int, limits: OutboxLimits) -> list[Problem]:
    """Say what is wrong with the plain arguments."""
    problems: list[Problem] = []
    if rank is not None and not 0 <= rank <= PORT_MAX:
        problems.append(Problem("data_parallel_rank", str(rank), f"a rank is 0 to {PORT_MAX}"))
    if encoding not in ("map", "array"):
        problems.append(Problem("encoding", str(encoding), "neither map nor array"))
    if not 0 <= hwm < 2**31:
        problems.append(Problem("hwm", str(hwm), "a high-water mark is 0 (no limit) to 2147483647"))
    for name in limits.__struct_fields__:
        if getattr(limits, name) < 1:
            problems.append(Problem(name, str(getattr(limits, name)), "must be at least 1"))
    return problems


def _topic(topic: str | bytes, problems: list[Problem]) -> bytes:
    """Return the topic as bytes; add what is wrong with it to `problems`."""
    try:
        encoded = topic.encode("utf-8", "surrogateescape") if isinstance(topic, str) else bytes(topic)
    except UnicodeEncodeError:
        problems.append(Problem("topic", ascii(topic), "a topic is Unicode text or bytes"))
        return b""
    if len(encoded) > TOPIC_BYTES_MAX:
        problems.append(Problem("topic", f"{len(encoded)} bytes", f"a topic has at most {TOPIC_BYTES_MAX} bytes"))
    return encoded


def _endpoint(
    given: str | Endpoint, field: str, rank: int, offset_by_rank: bool | None, problems: list[Problem]
) -> Endpoint | None:
    """Return the endpoint of this rank; add what is wrong with it to `problems`."""
    try:
        endpoint = Endpoint.parse(given, field) if isinstance(given, str) else given
        is_offset = endpoint.binds(default=True) if offset_by_rank is None else offset_by_rank
        return endpoint.for_rank(rank) if is_offset and rank > 0 else endpoint
    except ConfigError as error:
        problems.extend(error.problems)
        return None


def _check_size(payload: bytes) -> None:
    """Raise UsageError for a payload that receivers refuse."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise UsageError(f"a batch has at most {PAYLOAD_BYTES_MAX} bytes, this one has {len(payload)}")


def _check_timeout(timeout_s: float) -> None:
    """Raise UsageError for a time that is none."""
    if not (math.isfinite(timeout_s) and 0 <= timeout_s <= TIMEOUT_S_MAX):
        raise UsageError(f"a timeout is 0 to {TIMEOUT_S_MAX:g} seconds, got {timeout_s}")

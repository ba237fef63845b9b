"""The broker's sockets towards workers: a watched SUB per source, and a DEALER per open replay request.

**Order.** A connection that comes up may belong to another life of the worker (rule S4), so the node must hear of it before it
gets a batch that came through it; and of one that goes down only after the last batch that did, or a worker's last words would be
held in doubt. ZeroMQ reports an up before it delivers from the connection and a down after, but on another socket. Therefore
messages are taken first and the watch is read then. Without an up in it, all that was taken is of the old connection, and a down
waits until nothing is left. With one, the node hears it first: early only makes it compare once more.

**A DEALER per request.** What a worker still sends for a request that was given up ends with its DEALER, and can never be taken
for an answer to the next one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import TracebackType

import msgspec
import zmq

from kvbus.broker.intake import Source
from kvbus.broker.locks import Locks
from kvbus.broker.node import BrokerNode, UpstreamRequest
from kvbus.broker.pacing import waiting_among
from kvbus.connections import ConnectionChange
from kvbus.polling import SocketPoller
from kvbus.security.doors import Doors
from kvbus.security.keys import CurveClient
from kvbus.sockets import (
    BoundSocket,
    SocketOptions,
    ZmqContext,
    ZmqSocket,
    open_socket,
    receive_frames,
    receive_triples,
    send_frames,
)

__all__ = ["Links"]

SHARE_MESSAGE_BYTES = 8 << 10
"""Payload bytes taken from one source in a turn, about, for each message of its share: with the largest share a megabyte, half a
millisecond of work where batches are as expected, 5 ms where each event has to be looked at; and no worker gets so far ahead of
the others that what it has sent must be read twice."""

MESSAGE_FRAMES = 3
"""Topic, number, payload."""


class Links:
    """Every socket towards workers. Opened, used and closed by one thread."""

    def __init__(
        self,
        context: ZmqContext,
        poller: SocketPoller,
        options: SocketOptions,
        sources: list[Source],
        *,
        doors: Doors,
        locks: Locks,
        connections_max: int = 0,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            context: The loop's.
            poller: The loop's; sockets register themselves.
            options: For all sockets.
            sources: What to open; further ones with `add`.
            doors: The loop's; SUBs are opened there.
            locks: Keys.
            connections_max: Most peers of a SUB that binds; 0 = no limit.
        """
        self._context = context
        self._poller = poller
        self._options = options
        self._sources = {source.index: source for source in sources}
        self._subs: dict[int, BoundSocket] = {}
        self._dealers: dict[int, BoundSocket] = {}
        self._source_of_socket: dict[ZmqSocket, int] = {}
        self._request_of_dealer: dict[ZmqSocket, int] = {}
        self._doors = doors
        self._locks = locks
        self._connections_max = connections_max
        self._names: dict[int, str] = {}
        self._replay_keys: dict[int, CurveClient | None] = {}
        self._name_of_dealer: dict[int, str] = {}
        self._downs: dict[int, list[ConnectionChange]] = {}
        self._topics: dict[int, bytes] = {}  # by source with one worker, the topic of its last message

    def __enter__(self) -> Links:
        """Open a SUB per source.

        Raises:
            ConfigError: An endpoint cannot be bound or connected; nothing stays open.
        """
        self.add(list(self._sources.values()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all."""
        self.close()

    def url(self, source_index: int) -> str:
        """Return where a source's SUB is bound or connected."""
        return self._subs[source_index].url

    def name(self, source_index: int) -> str:
        """Return what a source's SUB is called in log and status."""
        return self._names[source_index]

    def add(self, sources: Sequence[Source]) -> None:
        """Open a SUB per source.

        Args:
            sources: New ones.

        Raises:
            ConfigError: An endpoint cannot be bound or connected; none of them stays open.
        """
        try:
            for source in sources:
                self._sources[source.index] = source
                self._open_sub(source)
        except BaseException:
            self.remove(sources)
            raise

    def remove(self, sources: Sequence[Source]) -> None:
        """Close the SUBs of sources, with what has not been taken from them. Twice is harmless.

        Args:
            sources: Those that are gone.
        """
        for source in sources:
            name = self._names.pop(source.index, None)
            if name is not None:
                self._doors.forget(name)
            self._close_sub(source)

    def drain(self, socket: ZmqSocket, node: BrokerNode, share: int, now_ns: int) -> bool:
        """Give the node one share of what has arrived on one socket.

        Args:
            socket: One that the poller found ready.
            node: Who takes it.
            share: Most messages to take.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            Whether the socket has run dry.
        """
        index = self._source_of_socket.get(socket)
        if index is not None:
            return self._drain_source(index, node, share, now_ns)
        request = self._request_of_dealer.get(socket)
        if request is None:
            return True  # its request ended earlier in this turn, or its worker went
        messages = receive_frames(socket, share)
        for frames in messages:
            node.receive_replay(request, frames, now_ns)
        return len(messages) < share

    def ended(self, ready: Iterable[object]) -> list[ZmqSocket | int]:
        """Find the SUBs whose connection is down while batches of it waited, to be drained until they have run dry.

        The poller says nothing of a socket that has just run dry, and the node has yet to hear of the end.

        Args:
            ready: What the poller found; what is in it already is left out.
        """
        if not self._downs:
            return []
        found = self._sources_among(ready)
        return [self._subs[index].socket for index in self._downs if index not in found]

    def waiting_among(self, ready: Iterable[object], now_ns: int) -> set[ZmqSocket]:
        """Find the SUBs that had better wait (`pacing`), and what watches them.

        Args:
            ready: What the poller found.
            now_ns: Monotonic time, nanoseconds.
        """
        found = sorted(self._sources_among(ready))
        waiting = waiting_among([self._sources[index] for index in found], now_ns)
        return {socket for socket, index in self._source_of_socket.items() if index in waiting} if waiting else set()

    def request(self, request: UpstreamRequest) -> None:
        """Open a DEALER and ask, or close the one whose request is over, with all that it would still bring.

        Args:
            request: From the node. What cannot be sent is lost, and the stream's time limit notices.

        Raises:
            ConfigError: The replay endpoint cannot be connected; no more sockets, or files, in this process.
        """
        if not request.frames:
            self._close_dealer(request.key)
            return
        endpoint = self._sources[request.source_index].replay_endpoint
        assert endpoint is not None
        curve = self._replay_keys[request.source_index]
        options = msgspec.structs.replace(self._options, curve=curve)
        dealer = open_socket(self._context, zmq.DEALER, endpoint, options, watches=curve is not None)
        self._dealers[request.key] = dealer
        if curve is not None:
            self._name_of_dealer[request.key] = f"replay:{_name_of(self._sources[request.source_index])}"
        self._request_of_dealer[dealer.socket] = request.key
        self._poller.register(dealer.socket, zmq.POLLIN)
        send_frames(dealer.socket, request.frames)

    def close(self) -> None:
        """Close every socket."""
        for key in list(self._dealers):
            self._close_dealer(key)
        # Not forgotten by the doors: the last status shows them too.
        for source in list(self._sources.values()):
            self._close_sub(source)

    def _sources_among(self, ready: Iterable[object]) -> set[int]:
        """Return the numbers of the sources that have something."""
        return {index for each in ready if (index := self._source_of_socket.get(each)) is not None}  # type: ignore[call-overload]

    def _drain_source(self, index: int, node: BrokerNode, share: int, now_ns: int) -> bool:
        """Take a share of live messages, and what happened to the connections that they came through."""
        sub = self._subs[index]
        messages, is_dry = self._take(index, sub.socket, share)
        assert sub.watch is not None
        changes = self._downs.pop(index, []) + sub.watch.take_changes()
        if changes:
            if ConnectionChange.UP not in changes:
                # Only now is everything in the socket that came before the down.
                more, is_dry = self._take(index, sub.socket, share)
                messages += more
                changes += sub.watch.take_changes()
            self._poller.touched(sub.watch.socket)
        if not is_dry:
            self._poller.touched(sub.socket)
        if sub.watch.has_news:
            self._doors.look(self._names[index], now_ns)
        is_up = ConnectionChange.UP in changes
        if is_up:
            self._tell(index, changes, node, now_ns)
        if messages:
            node.receive_all(index, messages, now_ns)
        if not is_up and changes:
            if is_dry:
                self._tell(index, changes, node, now_ns)
            else:
                self._downs[index] = changes
        return is_dry

    def _take(self, index: int, socket: ZmqSocket, share: int) -> tuple[list[list[bytes]], bool]:
        """Take a share of live messages, and tell whether the socket has run dry."""
        topic = self._topics.get(index)
        if topic is None:
            messages = receive_frames(socket, share)
            is_dry = len(messages) < share
        else:
            messages, is_dry = receive_triples(socket, topic, share, share * SHARE_MESSAGE_BYTES)
        if messages and self._sources[index].worker_id is not None and len(messages[-1]) == MESSAGE_FRAMES:
            self._topics[index] = messages[-1][0]
        return messages, is_dry

    def _tell(self, index: int, changes: list[ConnectionChange], node: BrokerNode, now_ns: int) -> None:
        """Tell the node what happened to a source's connection."""
        for change in changes:
            if change is ConnectionChange.UP:
                node.connected(index, now_ns)
            else:
                node.disconnected(index, now_ns)

    def _open_sub(self, source: Source) -> None:
        """Open one SUB and its watch."""
        curve = self._locks.of_source(source)
        # Read once, like those of the SUB: a file that is exchanged or gone later must not end the loop at the next question.
        self._replay_keys[source.index] = None if source.replay_endpoint is None else self._locks.of_worker(source)
        options = msgspec.structs.replace(self._options, subscriptions=(b"",), curve=curve)
        name = self._names[source.index] = _name_of(source)
        sub = self._doors.open(
            name,
            zmq.SUB,
            source.endpoint,
            options,
            binds_by_default=source.binds_by_default,
            connections_max=self._connections_max,
            reads_watch=False,
        )
        self._subs[source.index] = sub
        assert sub.watch is not None
        for socket in (sub.socket, sub.watch.socket):
            self._source_of_socket[socket] = source.index
            self._poller.register(socket, zmq.POLLIN)

    def _close_sub(self, source: Source) -> None:
        """Close the SUB of a source, if it is open."""
        self._sources.pop(source.index, None)
        self._downs.pop(source.index, None)
        self._topics.pop(source.index, None)
        self._replay_keys.pop(source.index, None)
        sub = self._subs.pop(source.index, None)
        if sub is not None:
            assert sub.watch is not None
            for socket in (sub.socket, sub.watch.socket):
                self._poller.unregister(socket)
                del self._source_of_socket[socket]
            sub.close(0)

    def _close_dealer(self, key: int) -> None:
        """Close the DEALER of a request, if it is open."""
        dealer = self._dealers.pop(key, None)
        if dealer is not None:
            self._poller.unregister(dealer.socket)
            del self._request_of_dealer[dealer.socket]
            name = self._name_of_dealer.pop(key, None)
            if name is not None:
                self._doors.finish(name, dealer, time.monotonic_ns())
            dealer.close(0)


def _name_of(source: Source) -> str:
    """Return what the socket of a source is called in log and status."""
    if source.worker_id is None:
        return "ingest"
    group = f"{source.group}/" if source.group else ""
    rank = "" if source.data_parallel_rank is None else f":{source.data_parallel_rank}"
    return f"worker:{group}{source.worker_id}{rank}"

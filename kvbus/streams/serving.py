"""The replay server: answers replay requests from a ring, in fair turns, without ever waiting for a reader.

A ROUTER drops in silence for a peer at its high-water mark, the end mark included, and a long replay served in one go keeps
live batches waiting. So the answer to a request is a cursor, not a loop: between two drains of live input the shell takes one
slice, offers it to the socket with mandatory routing and without blocking, and says how much of it was taken. A client that
is full keeps its place and is tried again later; one that takes nothing for `stall_ns` is dropped and counted.

```
for turn in server.take_slice(now_ns):
    count = 0
    for frames in turn.messages:            # ROUTER_MANDATORY and NOBLOCK; EAGAIN: break; EHOSTUNREACH: server.gone(…)
        if not send([turn.identity, *frames]):
            break
        count += 1
    server.sent(turn, count, now_ns)
```

An answer runs from the number asked for to the last one sent when the request arrived, then the end mark. What comes after it
goes out live. A batch that has left the ring shows as a jump of the numbers (declared, never papered over), and the end mark
comes all the same. A request that is refused gets no end mark, because the end mark says «that was all».
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from kvbus.errors import FrameError
from kvbus.streams.ring import KeptBatch
from kvbus.wire.frames import read_replay_request, replay_end, replay_reply

__all__ = ["Refusal", "ReplayServer", "ReplaySource", "ServingCounts", "ServingLimits", "Turn"]

_MS = 1_000_000

Refusal: TypeAlias = Literal["malformed", "clients_max", "requests_max"]
"""Why a request is not answered: no `[empty, start]`, too many clients, or too many requests of this client."""


class ReplaySource(Protocol):
    """Where batches come from. `ReplayRing` is one; an answer for a start older than the ring can be another."""

    @property
    def oldest_seq(self) -> int:
        """Number of the oldest batch that can be had; `next_seq` when there is none."""

    @property
    def next_seq(self) -> int:
        """The number after the last one that can be had."""

    def read(self, start_seq: int, batches_max: int, bytes_max: int) -> list[KeptBatch]:
        """Return batches from a number on, ascending; the first whatever its size; empty when none is left."""


class ServingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a replay server.

    Attributes:
        slice_batches: Most messages in one slice, all clients together; keeps live input waiting about 0.3 ms.
        slice_bytes: Most payload bytes in one slice; one larger batch still goes, alone.
        clients_max: Most clients with an open request; five times the fifty that a large fleet has at once.
        requests_max: Most open requests of one client; a well-behaved one has one or, after a time-out, two.
        stall_ns: A client that takes nothing for so long is dropped; 10 s is longer than any pause of a live reader.
        retry_min_ns: First wait before a full client is tried again, since a ROUTER cannot tell when it has room.
        retry_max_ns: Longest such wait; waits double up to it.
    """

    slice_batches: int = 64
    slice_bytes: int = 256 * 1024
    clients_max: int = 256
    requests_max: int = 8
    stall_ns: int = 10_000 * _MS
    retry_min_ns: int = 1 * _MS
    retry_max_ns: int = 50 * _MS


class ServingCounts(msgspec.Struct):
    """What has happened, since the start. Requests = ends + refused (all three) + stalled + gone + open.

    Attributes:
        requests: Messages that arrived at the ROUTER, malformed ones included.
        malformed: Refused: not a request.
        clients_refused: Refused: `clients_max` clients were being served.
        requests_refused: Refused: this client had `requests_max` open.
        batches: Batches taken by the socket.
        payload_bytes: Their payload bytes.
        ends: End marks taken by the socket, one an answered request.
        stalled: Requests given up because their client took nothing for `stall_ns`.
        gone: Requests given up because their client was no longer connected.
        late_starts: Answers that began above the number asked for because it had left the ring.
        evicted: Batches that left the ring while they were waiting for a slow client.
    """

    requests: int = 0
    malformed: int = 0
    clients_refused: int = 0
    requests_refused: int = 0
    batches: int = 0
    payload_bytes: int = 0
    ends: int = 0
    stalled: int = 0
    gone: int = 0
    late_starts: int = 0
    evicted: int = 0


class Turn(NamedTuple):
    """What one client is to be sent now.

    Attributes:
        identity: Its ROUTER identity; goes in front of each message.
        messages: Messages in order, at least one, each without the identity. Stop at the first that the socket refuses.
        batches: The batch behind each message; `None` is the end mark.
    """

    identity: bytes
    messages: list[list[bytes]]
    batches: list[KeptBatch | None]


class _Answer(msgspec.Struct):
    """One open request: the batches in `[cursor, stop)`, then the end mark."""

    source: ReplaySource
    cursor: int
    stop: int
    is_begun: bool = False


class _Client(msgspec.Struct):
    """One peer with open requests, which are answered one after the other."""

    identity: bytes
    answers: deque[_Answer]
    blocked_at_ns: int | None = None
    retry_at_ns: int = 0
    retry_ns: int = 0
    is_ready: bool = True


class ReplayServer:
    """Answers any number of clients from one source. Pure: frames and time in, turns out.

    Attributes:
        limits: The bounds.
        counts: What has happened.

    Invariant: what one client is offered is contiguous in the source, in order, each batch once per request, and ends with
        exactly one end mark per request unless the client was dropped.
    """

    def __init__(self, source: ReplaySource, limits: ServingLimits | None = None, *, old_form: bool = False) -> None:
        """Serve from a source.

        Args:
            source: Usually the stream's `ReplayRing`.
            limits: Bounds; default `ServingLimits()`.
            old_form: Leave the topic frame out, for clients of vLLM up to 0.25.
        """
        self.limits = limits or ServingLimits()
        self.counts = ServingCounts()
        self._source = source
        self._old_form = old_form
        self._clients: dict[bytes, _Client] = {}
        self._ready: deque[_Client] = deque()

    @property
    def clients_count(self) -> int:
        """Clients with an open request."""
        return len(self._clients)

    @property
    def requests_count(self) -> int:
        """Open requests of all clients."""
        return sum(len(client.answers) for client in self._clients.values())

    @property
    def deadline_ns(self) -> int | None:
        """When `take_slice` has something to do: 0 = at once, `None` = not before another request.

        Cost: O(1) when idle or ready, else O(clients).
        """
        if not self._clients:
            return None
        if self._ready:
            return 0
        return min(client.retry_at_ns for client in self._clients.values())

    def receive(self, frames: Sequence[bytes]) -> Refusal | None:
        """Take one message that arrived at the ROUTER.

        Args:
            frames: The whole message, identity first.

        Returns:
            `None` when it will be answered, else why not; refusals are counted and never answered.
        """
        try:
            start_seq = read_replay_request(frames[1:])
        except FrameError:
            self.counts.requests += 1
            self.counts.malformed += 1
            return "malformed"
        return self.request(frames[0], start_seq)

    def request(self, identity: bytes, start_seq: int, source: ReplaySource | None = None) -> Refusal | None:
        """Open an answer for one client.

        Args:
            identity: Its ROUTER identity.
            start_seq: First number wanted; past the end is answered by the end mark alone.
            source: What to answer it from; `None` = the server's own source.

        Returns:
            `None`, or `"clients_max"` or `"requests_max"`; refusals are counted.
        """
        self.counts.requests += 1
        client = self._clients.get(identity)
        if client is None:
            if len(self._clients) >= self.limits.clients_max:
                self.counts.clients_refused += 1
                return "clients_max"
            client = self._clients[identity] = _Client(identity, deque())
            self._ready.append(client)
        elif len(client.answers) >= self.limits.requests_max:
            self.counts.requests_refused += 1
            return "requests_max"
        source = source or self._source
        client.answers.append(_Answer(source, start_seq, source.next_seq))
        return None

    def switch(self, source: ReplaySource) -> None:
        """Answer from another source from now on; open answers stay with theirs.

        Args:
            source: Where batches come from, for example the ring of a new epoch.
        """
        self._source = source

    def take_slice(self, now_ns: int) -> list[Turn]:
        """Return what to send now: one slice, shared by the clients whose turn it is.

        Args:
            now_ns: Monotonic time, nanoseconds.

        Returns:
            Turns, each of another client, together at most `slice_batches` messages and, but for a single large batch,
            `slice_bytes`; empty when nobody waits. Each must be reported with `sent` before the next call.

        Cost: O(1) when idle, else O(clients + messages).
        """
        if not self._clients:
            return []
        self._wake(now_ns)
        turns: list[Turn] = []
        messages_left, bytes_left = self.limits.slice_batches, self.limits.slice_bytes
        while self._ready and messages_left > 0 and (bytes_left > 0 or not turns):
            client = self._ready.popleft()
            client.is_ready = False
            batches = self._offer(client, messages_left, bytes_left, is_first=not turns)
            if not batches:
                # What is left of the slice has no room for its next batch: it is first in the next one.
                client.is_ready = True
                self._ready.appendleft(client)
                break
            messages_left -= len(batches)
            bytes_left -= sum(len(batch.topic) + len(batch.payload) for batch in batches if batch is not None)
            turns.append(Turn(client.identity, [self._message(batch) for batch in batches], batches))
        return turns

    def sent(self, turn: Turn, count: int, now_ns: int) -> None:
        """Say how much of a turn the socket took.

        Args:
            turn: As returned by `take_slice`.
            count: How many of its messages, from the first; fewer than all means that the client is full.
            now_ns: Monotonic time, nanoseconds.
        """
        client = self._clients.get(turn.identity)
        if client is None:
            return
        for batch in turn.batches[:count]:
            self._advance(client.answers[0], batch)
            if batch is None:
                client.answers.popleft()
        if count:
            client.blocked_at_ns = None
            client.retry_ns = 0
        if not client.answers:
            del self._clients[turn.identity]
        elif count == len(turn.messages):
            client.is_ready = True
            self._ready.append(client)
        else:
            self._block(client, now_ns)

    def gone(self, identity: bytes) -> None:
        """Forget a client that the socket no longer knows; an unknown one is no error.

        Args:
            identity: Its ROUTER identity.
        """
        client = self._clients.pop(identity, None)
        if client is not None:
            self.counts.gone += len(client.answers)
            if client.is_ready:
                self._ready.remove(client)

    def _block(self, client: _Client, now_ns: int) -> None:
        """Put a full client aside until it is tried again, or drop it when it has taken nothing for too long."""
        if client.blocked_at_ns is None:
            client.blocked_at_ns = now_ns
        if now_ns - client.blocked_at_ns >= self.limits.stall_ns:
            self.counts.stalled += len(client.answers)
            del self._clients[client.identity]
            return
        client.retry_ns = min(max(client.retry_ns * 2, self.limits.retry_min_ns), self.limits.retry_max_ns)
        client.retry_at_ns = now_ns + client.retry_ns

    def _wake(self, now_ns: int) -> None:
        """Let full clients whose wait is over have their turn again."""
        if len(self._ready) == len(self._clients):
            return
        for client in self._clients.values():
            if not client.is_ready and client.retry_at_ns <= now_ns:
                client.is_ready = True
                self._ready.append(client)

    def _offer(self, client: _Client, messages_max: int, bytes_max: int, *, is_first: bool) -> list[KeptBatch | None]:
        """Return what one client's first answer has next: batches, then `None` for the end mark.

        Empty only when its next batch does not fit and it is not the first of the slice.
        """
        answer = client.answers[0]
        batches: list[KeptBatch | None] = []
        size = 0
        for batch in answer.source.read(answer.cursor, messages_max, max(bytes_max, 1)):
            if batch.seq >= answer.stop:
                break
            size += len(batch.topic) + len(batch.payload)
            if size > bytes_max and (batches or not is_first):
                return batches
            batches.append(batch)
        if len(batches) < messages_max and self._is_last(answer, batches):
            batches.append(None)
        return batches

    def _is_last(self, answer: _Answer, batches: list[KeptBatch | None]) -> bool:
        """Tell whether nothing of an answer is left after these batches."""
        last = batches[-1] if batches else None
        cursor = answer.cursor if last is None else last.seq + 1
        if cursor >= answer.stop:
            return True
        following = answer.source.read(cursor, 1, 1)
        return not following or following[0].seq >= answer.stop

    def _advance(self, answer: _Answer, batch: KeptBatch | None) -> None:
        """Move an answer past a message that was taken, and count what it had to leap over."""
        seq = answer.stop if batch is None else batch.seq
        if seq > answer.cursor:
            if answer.is_begun:
                self.counts.evicted += seq - answer.cursor
            else:
                self.counts.late_starts += 1
        answer.is_begun = True
        if batch is None:
            self.counts.ends += 1
        else:
            answer.cursor = batch.seq + 1
            self.counts.batches += 1
            self.counts.payload_bytes += len(batch.payload)

    def _message(self, batch: KeptBatch | None) -> list[bytes]:
        """Build the frames of one reply or of the end mark."""
        if batch is None:
            return replay_end(self._old_form)
        return replay_reply(batch.topic, batch.seq, batch.payload, self._old_form)

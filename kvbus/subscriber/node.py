"""The subscriber without sockets: messages and time go in, items, replay requests and a next deadline come out.

One `StreamReceiver` per topic keeps the watermark and decides what to ask for; this node finds the stream of each message,
reads and filters what the receiver delivers, and shares out the replays.

**Which stream a reply belongs to.** Replies of vLLM before 0.26 and SGLang before 0.5.22 carry no topic. So every request has a
connection of its own (`OpenReplay`), closed when it is over, and each reply is handed in with the id of that connection: nothing
has to be guessed, and what a slow server still sends for an abandoned request is never seen.

**Joining.** Whoever wants what came before does not wait for the first live batch: an engine may be idle for long. If one topic
was asked for, its stream exists from the start. If any topic will do, the first stream has no name until a message names it, live
or replayed (a reply of the old form cannot; then its batches go out under the empty topic).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from kvbus.errors import DecodeError, FrameError
from kvbus.events import AllBlocksCleared, EventBatch, facets_of
from kvbus.streams.outputs import AskReplay, CancelReplay, Conflict, Deliver, Lost, NewEpoch, StreamOutput
from kvbus.streams.receiver import StreamReceiver
from kvbus.subscriber.items import Gap, Item, Received, Restarted, RestartReason, SubscriberCounts
from kvbus.subscriber.options import SubscriberOptions
from kvbus.views.filters import SpecKinds
from kvbus.wire.codec import decode_batch
from kvbus.wire.frames import ReplayEnd, read_live, read_replay_reply, replay_request

__all__ = ["CloseReplay", "OpenReplay", "ReplayAction", "SubscriberNode"]

RANKS_MAX: Final = 1024
"""Data-parallel ranks of one stream whose spec kinds are learned; removals of further ones pass every filter on kinds."""


class OpenReplay(NamedTuple):
    """Open a fresh connection to the replay endpoint and send a request on it.

    Attributes:
        replay_id: Names the connection; to be given back with each reply. Never used twice.
        frames: The request.
    """

    replay_id: int
    frames: list[bytes]


class CloseReplay(NamedTuple):
    """Close a replay connection; what still arrives on it is of no interest.

    Attributes:
        replay_id: As in the `OpenReplay`.
    """

    replay_id: int


ReplayAction: TypeAlias = OpenReplay | CloseReplay
"""What the shell is to do, in order."""


class _Stream:
    """What is known of one topic.

    Attributes:
        topic: Its topic; `None` until a message has named it.
        receiver: Its watermark and recovery.
        replay_id: Connection of its open request, or `None`.
        request: The receiver's name for that request.
        heard_ns: When a message of it last arrived, or when it was made.
        kinds: Spec kinds by data-parallel rank, where the filter needs them.
    """

    def __init__(self, topic: bytes | None, receiver: StreamReceiver, now_ns: int) -> None:
        self.topic = topic
        self.receiver = receiver
        self.replay_id: int | None = None
        self.request: int | None = None
        self.heard_ns = now_ns
        self.kinds: dict[int | None, SpecKinds] = {}

    def kinds_of(self, data_parallel_rank: int | None) -> SpecKinds:
        """Return what is known of a rank's spec kinds; nothing, and not kept, for a rank too many."""
        kinds = self.kinds.get(data_parallel_rank)
        if kinds is None:
            kinds = SpecKinds()
            if len(self.kinds) < RANKS_MAX:
                self.kinds[data_parallel_rank] = kinds
        return kinds

    @property
    def text(self) -> str:
        """The topic as text."""
        return (self.topic or b"").decode("utf-8", "surrogateescape")


class SubscriberNode:
    """All rules of a subscriber.

    Attributes:
        counts: What has been seen so far.

    Invariant: items of one stream leave in the order of their numbers, each number at most once in an epoch, and a `Gap` or
    `Restarted` leaves before the batch behind it.
    """

    def __init__(self, options: SubscriberOptions, rng: random.Random) -> None:
        """Know nothing yet.

        Args:
            options: What is wanted and what may be used.
            rng: For the jitter of retries.
        """
        self.counts = SubscriberCounts()
        self._options = options
        self._can_replay = options.replay_endpoint is not None
        self._passes_everything = options.event_filter.passes_everything
        self._rng = rng
        self._streams: dict[bytes | None, _Stream] = {}
        self._replays: dict[int, _Stream] = {}
        self._next_replay_id = 0
        self._was_connected = False
        self._actions: list[ReplayAction] = []
        self._items: list[tuple[Item, int]] = []

    @property
    def deadline_ns(self) -> int | None:
        """When `on_time` wants to be called, monotonic nanoseconds; `None` = not before something arrives."""
        deadlines = (stream.receiver.deadline_ns for stream in self._streams.values())
        return min((deadline_ns for deadline_ns in deadlines if deadline_ns is not None), default=None)

    def take_items(self) -> list[tuple[Item, int]]:
        """Drain the items that are ready, in order, each with the bytes of its payload."""
        items, self._items = self._items, []
        return items

    def take_actions(self) -> list[ReplayAction]:
        """Drain what the shell is to do, in order."""
        actions, self._actions = self._actions, []
        return actions

    def join(self, now_ns: int) -> None:
        """Ask for what came before, if it is wanted. Once, before anything else.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        if self._options.start != "live":
            topic = self._options.topic
            self._open_stream(topic.subscription if topic.is_exact else None, now_ns)

    def on_live(self, frames: Sequence[bytes], now_ns: int) -> None:
        """Take one live message, whatever it is.

        Args:
            frames: All frames of the message.
            now_ns: Monotonic time, nanoseconds.
        """
        counts = self.counts
        counts.messages += 1
        try:
            topic, seq, payload = read_live(frames)
        except FrameError:
            counts.messages_malformed += 1
            return
        stream = self._streams.get(topic)
        if stream is None:
            if not self._options.topic.matches(topic):
                counts.messages_unwanted += 1
                return
            stream = self._new_topic(topic, now_ns)
            if stream is None:
                counts.messages_refused += 1
                return
        stream.heard_ns = now_ns
        receiver = stream.receiver
        if frames[1] == receiver.expected:
            receiver.accept_expected(payload, now_ns)
            self._deliver(stream, Deliver(seq, payload), now_ns)
        else:
            self._apply(stream, receiver.receive(seq, payload, now_ns), now_ns)

    def on_replay(self, replay_id: int, frames: Sequence[bytes], now_ns: int) -> None:
        """Take one message of a replay, whatever it is.

        Args:
            replay_id: As in the `OpenReplay` whose connection brought it.
            frames: All frames of the message.
            now_ns: Monotonic time, nanoseconds.
        """
        stream = self._replays.get(replay_id)
        if stream is None:
            return
        try:
            message = read_replay_reply(frames)
        except FrameError:
            self.counts.messages_malformed += 1
            return
        stream.heard_ns = now_ns
        receiver, request = stream.receiver, stream.request
        if isinstance(message, ReplayEnd):
            self._close_replay(stream)
            self._apply(stream, receiver.receive_end(now_ns, request), now_ns)
        elif message.topic is None or self._is_of(stream, message.topic, now_ns):
            outputs = receiver.receive_replay(message.seq, message.payload, now_ns, request)
            self._apply(stream, outputs, now_ns)
        else:
            self.counts.messages_unwanted += 1

    def refuse_replay(self, replay_id: int, now_ns: int) -> None:
        """Say that a connection could not be opened; the stream asks again shortly, and goes on as it can meanwhile.

        Args:
            replay_id: As in the `OpenReplay`.
            now_ns: Monotonic time, nanoseconds.
        """
        stream = self._replays.pop(replay_id, None)
        if stream is not None:
            self.counts.replays_refused += 1
            stream.replay_id = stream.request = None
            stream.receiver.deferred(now_ns)

    def on_connected(self, now_ns: int) -> None:
        """Take note that the live connection is up, for the first time or again: then the publisher may have begun anew.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        for stream in list(self._streams.values()):
            # The first connection is no news to a stream that is asking anyway.
            if self._was_connected or not stream.receiver.is_asking:
                self._apply(stream, stream.receiver.reconnected(now_ns), now_ns)
        self._was_connected = True

    def on_disconnected(self, now_ns: int) -> None:
        """Take note that the live connection is down. Not for a bound socket, where it was one publisher of several.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        for stream in list(self._streams.values()):
            self._apply(stream, stream.receiver.disconnected(now_ns), now_ns)

    def on_time(self, now_ns: int) -> None:
        """Let the time pass for every stream that waits for it.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        for stream in list(self._streams.values()):
            deadline_ns = stream.receiver.deadline_ns
            if deadline_ns is not None and deadline_ns <= now_ns:
                self._apply(stream, stream.receiver.on_time(now_ns), now_ns)

    def _is_of(self, stream: _Stream, topic: bytes, now_ns: int) -> bool:
        """Tell whether a replayed batch belongs to the stream that asked, naming the stream or meeting another one on the way."""
        if stream.topic == topic:
            return True
        if not self._options.topic.matches(topic) or topic in self._streams:
            return False
        # A stream of its own; if it is not this one, it asks for its own history.
        return self._new_topic(topic, now_ns) is stream

    def _new_topic(self, topic: bytes, now_ns: int) -> _Stream | None:
        """Return the stream of a topic that has none yet, or `None` where there is no room for it."""
        unnamed = self._streams.pop(None, None)
        if unnamed is not None:
            unnamed.topic = topic
            self._streams[topic] = unnamed
            return unnamed
        if len(self._streams) >= self._options.limits.streams_max and not self._forget_one(now_ns):
            return None
        return self._open_stream(topic, now_ns)

    def _forget_one(self, now_ns: int) -> bool:
        """Forget the stream that has been silent longest, if that is long enough, and say that what it told is void."""
        stream = min(self._streams.values(), key=lambda each: each.heard_ns)
        if now_ns - stream.heard_ns < self._options.limits.stream_idle_s * 1e9:
            return False
        self._close_replay(stream)
        del self._streams[stream.topic]
        self._restarted(stream, stream.receiver.position or 0, "forgotten")
        return True

    def _open_stream(self, topic: bytes | None, now_ns: int) -> _Stream:
        """Make a stream and let it ask for its history, if that is wanted."""
        start = self._options.start
        receiver = StreamReceiver(
            can_replay=self._options.replay_endpoint is not None,
            limits=self._options.receiver_limits,
            rng=self._rng,
            first_contact="live" if start == "live" else "replay",
            start_seq=start if isinstance(start, int) else 0,
        )
        stream = self._streams[topic] = _Stream(topic, receiver, now_ns)
        if start != "live":
            self._apply(stream, receiver.reconnected(now_ns), now_ns)
        return stream

    def _apply(self, stream: _Stream, outputs: Iterable[StreamOutput], now_ns: int) -> None:
        """Do what a receiver says, in order."""
        for output in outputs:
            if isinstance(output, Deliver):
                self._deliver(stream, output, now_ns)
            elif isinstance(output, Lost):
                self._gap(stream, output)
            elif isinstance(output, NewEpoch):
                stream.kinds.clear()
                self._restarted(stream, output.old_position, output.reason)
            elif isinstance(output, AskReplay):
                self._ask(stream, output, now_ns)
            elif isinstance(output, CancelReplay):
                self._close_replay(stream)
            elif isinstance(output, Conflict):
                self.counts.conflicts += 1
            else:
                dropped = self.counts.dropped
                dropped[output.reason] = dropped.get(output.reason, 0) + 1

    def _deliver(self, stream: _Stream, output: Deliver, now_ns: int) -> None:
        """Read one batch, filter it and hand out what is left."""
        counts = self.counts
        counts.batches_received += 1
        counts.batches_replayed += output.replayed
        try:
            batch = decode_batch(output.payload)
        except DecodeError:
            counts.batches_unreadable += 1
            self._apply(stream, stream.receiver.unreadable(output.seq, now_ns), now_ns)
            return
        kept = self._filtered(stream, batch)
        rejected_count = len(batch.rejected)
        counts.events_received += len(batch.events) + rejected_count
        counts.events_rejected += rejected_count
        counts.events_delivered += len(kept.events)
        counts.events_filtered += len(batch.events) - len(kept.events)
        if kept.events or rejected_count:
            counts.batches_delivered += 1
            item = Received(stream.text, output.seq, kept, output.replayed)
            self._items.append((item, len(output.payload)))
        else:
            counts.batches_filtered += 1

    def _filtered(self, stream: _Stream, batch: EventBatch) -> EventBatch:
        """Return the batch with the events that pass."""
        if self._passes_everything:
            return batch
        event_filter = self._options.event_filter
        kinds = stream.kinds_of(batch.data_parallel_rank) if event_filter.spec_kinds is not None else None
        kept = []
        for event in batch.events:
            facets = facets_of(event)
            removal_kinds: frozenset[str | None] = frozenset()
            if kinds is not None:
                kinds.learn(facets)
                removal_kinds = kinds.of(facets.group_idx)
            is_scoped_clear = isinstance(event, AllBlocksCleared) and event.is_scoped
            if event_filter.accepts(facets, is_scoped_clear, removal_kinds):
                kept.append(event)
        return batch if len(kept) == len(batch.events) else msgspec.structs.replace(batch, events=kept)

    def _gap(self, stream: _Stream, lost: Lost) -> None:
        """Hand out a gap."""
        gap = Gap(stream.text, lost.start_seq, lost.stop_seq, lost.reason)
        self.counts.gaps += 1
        self.counts.batches_lost += gap.batches_count
        self._items.append((gap, 0))

    def _restarted(self, stream: _Stream, old_position: int, reason: RestartReason) -> None:
        """Hand out a restart."""
        self.counts.restarts += 1
        self._items.append((Restarted(stream.text, old_position, reason), 0))

    def _ask(self, stream: _Stream, asked: AskReplay, now_ns: int) -> None:
        """Open a connection for a request, or put it off where there is none to spare."""
        if len(self._replays) >= self._options.limits.replays_max:
            stream.receiver.deferred(now_ns)
            return
        self.counts.replays += 1
        stream.replay_id, stream.request = self._next_replay_id, asked.request
        self._replays[self._next_replay_id] = stream
        self._actions.append(OpenReplay(self._next_replay_id, replay_request(asked.start_seq)))
        self._next_replay_id += 1

    def _close_replay(self, stream: _Stream) -> None:
        """Close the connection of a stream's request, if it has one."""
        if stream.replay_id is not None:
            del self._replays[stream.replay_id]
            self._actions.append(CloseReplay(stream.replay_id))
            stream.replay_id = stream.request = None

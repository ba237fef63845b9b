"""The broker without a socket: bytes and time go in, frames to send and a next deadline come out.

```
receive ─▸ split_batch ─▸ stream (what the number proves) ─▸ rank group (aggregator, run) ─▸ views ─▸ take_output
   ▴                          │ asks                              ▴ loss, restart
   └── receive_replay ◂───────┘ take_requests                     └ on_time
```

The shell (`broker/server.py`) and the simulator drive the same object:

1. give it every message that has arrived (`receive`, `receive_replay`), then `on_time`,
2. `flush` when input has run dry, and send `take_output`, in order, and `take_requests`,
3. sleep until `deadline_ns` or the next message.

Everything that the network does is a value here; no method raises for what a peer sent.

What a batch costs that was expected, and why it is not even opened, `hotpath` tells.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from kvbus.broker.change import Change
from kvbus.broker.followed import Followed
from kvbus.broker.hotpath import follow
from kvbus.broker.intake import Intake, Source, Stream
from kvbus.broker.meter import Meter
from kvbus.broker.notices import Level, Notice, Reason, Refusals, shown
from kvbus.broker.output import Outgoing, Output
from kvbus.broker.rankgroup import RankGroup
from kvbus.broker.recorder import Recorder, StreamMark
from kvbus.broker.requests import Requests, UpstreamRequest
from kvbus.broker.status import BrokerStatus, status_of
from kvbus.broker.timetable import Timetable
from kvbus.config import BrokerConfig
from kvbus.errors import DecodeError, FrameError
from kvbus.streams.outputs import AskReplay, CancelReplay, Deliver, Dropped, Lost, NewEpoch, StreamOutput
from kvbus.streams.serving import Refusal
from kvbus.wire.envelope import Envelope, split_batch
from kvbus.wire.frames import ReplayEnd, read_live, read_replay_reply

__all__ = ["BrokerNode", "Outgoing", "UpstreamRequest"]


class BrokerNode:
    """All rules of one broker. Owned by one thread.

    Attributes:
        sources: Where messages arrive, in order of their numbers.
        views: What is opened: the views of the configuration, those split by rank as one for each rank.
        outputs: Where events leave, one for each of `views`.
        groups: Worker groups by name and data-parallel rank, in the order in which they were met.
        descriptions: What is known of blocks, by worker group; `None` where no view asks for it.
        streams: Streams by number.
        followed: All of these three, and what lets a predecessor's be taken over.
        refusals: Messages turned away, by reason.
        batches_received: Batches taken from workers so far.
        losses: Declared losses so far, by reason.
        announced_count: Clears about a predecessor's groups.
        meter: Takes ages and times; `None` where there is no clock but `now_ns`.
        recorder: Hears of all that is done, or `None`.
    """

    def __init__(
        self, config: BrokerConfig, rng: random.Random, clock_seq: int = 0, recorder: Recorder | None = None
    ) -> None:
        """Lay out sources, groups and views.

        Args:
            config: Checked by `validate()`.
            rng: For jitter; the same seed and input give the same output.
            clock_seq: First number of views whose numbers come from the clock: microseconds since 1970, so that nobody publishes
                fast enough to overtake it.
            recorder: Hears of all that is done, for a journal; `None` = nobody does.
        """
        self.recorder = recorder
        self._intake = Intake(config, rng)
        self.sources: list[Source] = self._intake.sources
        self.followed = Followed(self._intake, config, recorder)
        self._quorums = self.followed.quorums
        self._attendance = self.followed.attendance
        self._timetable = Timetable(self._intake, self._attendance)
        self.groups = self.followed.groups
        self.descriptions = self.followed.descriptions
        self.streams = self.followed.streams
        self.views = config.outputs()
        self.outputs = [
            Output(view, self.followed.residencies, rng=rng, first_seq=clock_seq if view.numbers_from == "clock" else 0)
            for view in self.views
        ]
        self.refusals = Refusals()
        self.batches_received = 0
        self.losses: Counter[str] = Counter()
        self.announced_count = 0
        self.meter: Meter | None = None
        self._output: list[Outgoing] = []
        self._requests = Requests()
        self._notices: list[Notice] = []

    def receive(self, source_index: int, frames: Sequence[bytes], now_ns: int) -> None:
        """Take one live message.

        Args:
            source_index: Where it arrived.
            frames: All its frames, in order, whatever their number.
            now_ns: Monotonic time, nanoseconds.
        """
        self.receive_all(source_index, (frames,), now_ns)

    def receive_all(self, source_index: int, messages: Sequence[Sequence[bytes]], now_ns: int) -> None:
        """Take live messages that have arrived together; that they have makes no difference but in cost.

        Args:
            source_index: Where they arrived.
            messages: In order of arrival, each as in `receive`.
            now_ns: Monotonic time, nanoseconds.
        """
        source, index = self._intake.by_index[source_index], 0
        while index < len(messages):
            frames = messages[index]
            stream = source.latest.get(frames[0]) if frames else None
            taken = 0
            if stream is not None and source.presence.departed_at_ns is None:
                taken = follow(stream, messages, index, now_ns, recorder=self.recorder, meter=self.meter)
                self.batches_received += taken
                self._timetable.expected(stream)
                if stream.rank_group.finished:
                    self.publish(stream.rank_group)
            if not taken:
                self._receive_one(source, frames, now_ns)
            index += taken or 1

    def _receive_one(self, source: Source, frames: Sequence[bytes], now_ns: int) -> None:
        """Take one live message that may be anything."""
        self._timetable.disturb()
        if len(frames) != 3:
            self._refuse("frame_count", source, None, frames=len(frames))
            return
        topic, seq_frame, payload = frames
        try:
            envelope = split_batch(payload)
        except DecodeError as error:
            self._receive_unreadable(source, frames, error, now_ns)
            return
        is_present = source.presence.departed_at_ns is None
        if not is_present:
            self._notices += self._attendance.heard(source, now_ns)
        stream = source.streams.get((topic, envelope.data_parallel_rank))
        # `expected` is empty while a stream recovers, and so may be the frame of a hostile peer.
        if stream is not None and seq_frame and seq_frame == stream.receiver.expected and is_present:
            stream.receiver.accept_expected(payload, now_ns)
            if self.recorder is not None:
                self.recorder.took(stream.number, int.from_bytes(seq_frame, "big"), payload, now_ns)
            source.latest[topic] = stream
            self._deliver(stream, envelope, payload, now_ns)
            return
        try:
            seq = read_live(frames)[1]
        except FrameError as error:
            self._refuse("seq_frame", source, topic, error=error.reason)
            return
        rank = envelope.data_parallel_rank
        stream = stream or self.followed.named(source, topic, rank) or self._open_stream(source, topic, rank, now_ns)
        if stream is not None:
            source.latest[topic] = stream
            self._apply(stream, stream.receiver.receive(seq, payload, now_ns), now_ns)

    def receive_replay(self, key: int, frames: Sequence[bytes], now_ns: int) -> None:
        """Take one message from a worker's replay ROUTER.

        Args:
            key: Which request it answers, as `UpstreamRequest` gave it.
            frames: All its frames, in order.
            now_ns: Monotonic time, nanoseconds.
        """
        self._timetable.disturb()
        ask = self._requests.get(key)
        if ask is None:
            return  # over; what was still under way is not counted, because nobody waits for it
        source = self._intake.by_index[ask.source_index]
        try:
            message = read_replay_reply(frames)
        except FrameError as error:
            self._refuse("replay_frame", source, None, error=error.reason)
            return
        if source.presence.departed_at_ns is not None:
            self._notices += self._attendance.heard(source, now_ns)
        if isinstance(message, ReplayEnd):
            self._requests.end(key)
            if ask.stream is not None:
                self._apply(ask.stream, ask.stream.receiver.receive_end(now_ns, ask.request), now_ns)
            return
        try:
            rank = split_batch(message.payload).data_parallel_rank
        except DecodeError as error:
            self._refuse("replay_unreadable", source, message.topic, seq=message.seq, error=error.reason)
            if ask.stream is not None:
                self._apply(
                    ask.stream, ask.stream.receiver.receive_replay(message.seq, None, now_ns, ask.request), now_ns
                )
            return
        if ask.stream is None:
            self._discovered(source, key, message.topic, rank, now_ns)
        elif rank != ask.stream.data_parallel_rank or message.topic not in (None, ask.stream.topic):
            self._refuse("replay_unasked", source, message.topic)
        else:
            replayed = ask.stream.receiver.receive_replay(message.seq, message.payload, now_ns, ask.request)
            self._apply(ask.stream, replayed, now_ns)

    def connected(self, source_index: int, now_ns: int) -> None:
        """Say that a source's connection is up, for the first time or again.

        What was published before the first time is asked for; after another time the worker may be another life (rule S4).

        Args:
            source_index: Whose connection.
            now_ns: Monotonic time, nanoseconds.
        """
        self._timetable.disturb()
        source = self._intake.by_index[source_index]
        self._notices += self._attendance.connected(source, now_ns)
        for stream in list(source.streams.values()):
            self._apply(stream, stream.receiver.reconnected(now_ns), now_ns)
        if not source.streams and source.replay_endpoint is not None:
            source.discover_at_ns = now_ns

    def disconnected(self, source_index: int, now_ns: int) -> None:
        """Say that a source's connection is down.

        Args:
            source_index: Whose connection.
            now_ns: Monotonic time, nanoseconds.
        """
        self._timetable.disturb()
        source = self._intake.by_index[source_index]
        self._notices += self._attendance.disconnected(source, now_ns)
        for stream in list(source.streams.values()):
            self._apply(stream, stream.receiver.disconnected(now_ns), now_ns)

    def on_time(self, now_ns: int) -> None:
        """Do what is due: recovery, probes, votes that are too old, clears that waited long enough, heartbeats, snapshots.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        for source in self.sources if self._timetable.is_due(now_ns) else ():
            if source.discover_at_ns is not None and source.discover_at_ns <= now_ns:
                self._requests.discover(source, now_ns)
            for stream in list(source.streams.values()):
                due = stream.receiver.deadline_ns
                if due is not None and due <= now_ns:
                    self._apply(stream, stream.receiver.on_time(now_ns), now_ns)
        self._notices += self._attendance.look(now_ns)
        for group in list(self.groups.values()):
            due = group.aggregator.deadline_ns
            if due is not None and due <= now_ns:
                group.call("expire", now_ns)
        if any(output.needs_all for output in self.outputs):
            self.flush()
        for index, output in enumerate(self.outputs):
            self._output += [Outgoing(index, frames) for frames in output.on_time(now_ns)]

    @property
    def deadline_ns(self) -> int | None:
        """When `on_time` has something to do next; `None` = not before another message.

        Cost: O(groups + views), and O(streams) after anything but expected batches.
        """
        dues = [self._timetable.deadline_ns]
        dues += [group.aggregator.deadline_ns for group in self.groups.values()]
        dues += [output.deadline_ns for output in self.outputs]
        return min((due for due in dues if due is not None), default=None)

    def flush(self) -> None:
        """Hand everything released so far to the views. To be called when input has run dry."""
        if self.recorder is not None and any(group.has_more for group in self.groups.values()):
            self.recorder.flushed()
        for group in self.groups.values():
            group.finish_run()
            self.publish(group)

    def finish(self) -> None:
        """Hand over everything that still waits for its turn. To be called once, before the end."""
        self.flush()
        for index, output in enumerate(self.outputs):
            self._output += [Outgoing(index, frames) for frames in output.finish()]

    def take_output(self) -> list[Outgoing]:
        """Return messages to publish, in order, and forget them."""
        output, self._output = self._output, []
        return output

    def take_requests(self) -> list[UpstreamRequest]:
        """Return messages to workers' replay ROUTERs, in order, and forget them."""
        return self._requests.take()

    def take_notices(self) -> list[Notice]:
        """Return what is worth a log line, in order, and forget it."""
        notices, self._notices = self._notices, []
        return notices

    def status(self, endpoints: Mapping[str, str], now_ns: int | None = None) -> BrokerStatus:
        """Return all figures of this moment.

        Args:
            endpoints: Bound URLs, as `BrokerLoop.endpoints`; empty where there is no socket.
            now_ns: Monotonic time, nanoseconds; `None` = nobody knows, and ages are left out.
        """
        return status_of(self, endpoints, now_ns)

    def new_sources(self, change: Change) -> list[Source]:
        """Return the sources that a change adds, so that their sockets can be opened before anything is changed."""
        return [source for worker in change.added for source in self._intake.sources_of(worker)]

    def change(self, change: Change, added: Sequence[Source], now_ns: int) -> list[Source]:
        """Let workers, seats and policies change (rule A6: who comes, joins; who goes, departs).

        Args:
            change: What.
            added: From `new_sources`.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            Sources that are gone; their requests are ended by `take_requests`, their sockets are to be closed.
        """
        self._timetable.disturb()
        gone, notices = self.followed.change(change, added, now_ns)
        for source in gone:
            self._requests.end_all_of(source)
        self._notices += notices
        return gone

    def note_departed(self, now_ns: int) -> None:
        """Find out who had departed before a predecessor ended; to be called once its state has been taken over."""
        self._timetable.disturb()
        self._attendance.note_departed(now_ns)

    def _open_stream(self, source: Source, topic: bytes, rank: int | None, now_ns: int) -> Stream | None:
        """Begin to follow a stream, if its worker has a seat and there is room."""
        worker_id = self._intake.worker_of(source, topic, now_ns)
        if worker_id is None:
            self._refuse("no_seat", source, topic)
            return None
        if not self.followed.has_room(source.group, rank):
            self._refuse("streams_max", source, topic)
            return None
        if self.recorder is not None:
            place = self._intake.sources_of_worker(source.group, worker_id).index(source)
            self.recorder.opened(StreamMark(place, topic, rank, worker_id, source.group))
        self._quorums.see(source.group, worker_id, rank, topic if source.worker_id is None else None)
        self._tell("info", "stream_opened", worker=self._intake.names[worker_id], topic=shown(topic), rank=rank)
        is_new = (source.group, rank) not in self.groups
        stream = self._follow(source, topic, rank, worker_id)
        if is_new:
            self._quorums.settle_new(stream.rank_group, now_ns)
        self._quorums.settle(source.group, worker_id, now_ns)
        return stream

    def _follow(self, source: Source, topic: bytes, rank: int | None, worker_id: str) -> Stream:
        """Begin to follow a stream whose worker has been seen with that rank."""
        stream = self.followed.follow(source, topic, rank, worker_id)
        group = stream.rank_group
        if group.hear(topic) and not any(output.view.carries(group.group, rank, topic) for output in self.outputs):
            self._tell("warning", "rank_in_no_view", group=group.group, rank=rank, topic=shown(topic))
        return stream

    def _deliver(self, stream: Stream, envelope: Envelope, payload: bytes, now_ns: int) -> None:
        """Count one batch that is next in its stream."""
        self.batches_received += 1
        stream.batches_count += 1
        stream.lag.see(envelope.ts, now_ns)
        group = stream.rank_group
        released = group.deliver(stream.worker_id, envelope, now_ns, payload)
        if released and self.meter is not None:
            self.meter.released(group.group, envelope.ts, released, now_ns)
        if group.finished:
            self.publish(group)

    def publish(self, group: RankGroup) -> None:
        """Offer finished runs to every view."""
        for run in group.take_finished():
            for index, output in enumerate(self.outputs):
                frames = output.offer(run)
                if frames is not None:
                    self._output.append(Outgoing(index, frames))
                    if self.meter is not None:
                        self.meter.publishing(index, run.since_ns)

    def _apply(self, stream: Stream, outputs: list[StreamOutput], now_ns: int) -> None:
        """Do what a stream's receiver says, in its order."""
        edge = stream.counts.note(outputs, stream.receiver.has_gap, self.losses)
        if edge is not None:
            self._tell("info", edge, **self._where(stream), position=stream.receiver.position)
        for output in outputs:
            if isinstance(output, Deliver):
                if not self._quorums.holds(stream.rank_group, stream.worker_id):
                    self._pass_over(stream, output.seq)
                    continue
                if self.recorder is not None:
                    self.recorder.took(stream.number, output.seq, output.payload, now_ns)
                self._deliver(stream, split_batch(output.payload), output.payload, now_ns)
            elif isinstance(output, Lost | NewEpoch):
                self._lose(stream, output, now_ns)
            elif isinstance(output, AskReplay):
                self._requests.ask(stream.source, stream, output.start_seq, output.request, now_ns)
            elif isinstance(output, CancelReplay):
                self._requests.cancel(stream, output.request)
            elif isinstance(output, Dropped):
                self._refuse(output.reason, stream.source, stream.topic, seq=output.seq)
            else:
                self._tell("error", "two_publishers", **self._where(stream), seq=output.seq)

    def _where(self, stream: Stream) -> dict[str, object]:
        """Return what tells a stream from others in the log."""
        worker = self._intake.names[stream.worker_id]
        return {"worker": worker, "topic": shown(stream.topic), "rank": stream.data_parallel_rank}

    def _pass_over(self, stream: Stream, seq: int) -> None:
        """Take no votes from a worker that has departed and is not back; its return begins a new segment anyway."""
        self._refuse("departed", stream.source, stream.topic, seq=seq)
        if self.recorder is not None:
            self.recorder.moved(stream.number, seq + 1, False)

    def _lose(self, stream: Stream, output: Lost | NewEpoch, now_ns: int) -> None:
        """Declare a loss: what this rank's workers hold is not known any more (rule S5)."""
        where = self._where(stream)
        if isinstance(output, Lost):
            lost = {"start_seq": output.start_seq, "stop_seq": output.stop_seq, "reason": output.reason}
            self._tell("warning", "batches_lost", **where, **lost)
        else:
            self._tell("warning", "worker_restarted", **where, old_position=output.old_position, reason=output.reason)
        if self.recorder is not None:
            is_new_epoch = isinstance(output, NewEpoch)
            self.recorder.moved(stream.number, 0 if isinstance(output, NewEpoch) else output.stop_seq, is_new_epoch)
        group = stream.rank_group
        if self.followed.config.policy(group.group).on_loss == "ignore" or not self._quorums.holds(
            group, stream.worker_id
        ):
            return  # told and counted; of a worker that has departed nothing is pending
        was_aside = stream.worker_id in group.aggregator.set_aside
        group.call("restart" if isinstance(output, NewEpoch) else "lose", now_ns, stream.worker_id)
        if not was_aside and stream.worker_id in group.aggregator.set_aside:
            self._tell("warning", "worker_set_aside", **where)

    def _discovered(self, source: Source, key: int, topic: bytes | None, rank: int | None, now_ns: int) -> None:
        """Follow a stream that a worker's replay has shown. Its batches are asked for once more, by the stream itself.

        An old reply names no topic. The first live message of that rank will (`_named`); until then the stream has none.
        """
        self._requests.end(key)
        source.discover_at_ns = None
        if any(stream.data_parallel_rank == rank for stream in source.streams.values()):
            return  # a live message was faster, and that stream asks for its own history
        stream = self._open_stream(source, topic or b"", rank, now_ns)
        if stream is not None:
            stream.is_named = topic is not None
            if self.recorder is not None and topic is None:
                self.recorder.named(stream.number, None)
            self._apply(stream, stream.receiver.reconnected(now_ns), now_ns)

    def _receive_unreadable(self, source: Source, frames: Sequence[bytes], error: DecodeError, now_ns: int) -> None:
        """Treat a numbered batch of a known stream whose envelope cannot be read as a hole (rule W3)."""
        topic = frames[0]
        self._refuse("unreadable_batch", source, topic, error=str(error))
        try:
            seq = read_live(frames)[1]
        except FrameError:
            return
        # Its rank is inside what cannot be read. With one stream of this topic there is no doubt; with several, the hole
        # shows by itself at that stream's next number.
        streams = source.streams_of_topic(topic)
        if len(streams) == 1:
            self._apply(streams[0], streams[0].receiver.unreadable(seq, now_ns), now_ns)

    def _refuse(self, reason: Reason, source: Source, topic: bytes | None, **fields: object) -> None:
        """Count a message that is not taken."""
        where = source.endpoint.url if topic is None else f"{source.endpoint.url} {shown(topic)!r}"
        notice = self.refusals.count(reason, where, **fields)
        if notice is not None:
            self._notices.append(notice)

    def tell_refused_request(self, output: Output, refusal: Refusal) -> None:
        """Note that a view has refused a replay request; it counts them itself, the log hears of the first.

        Args:
            output: Whose.
            refusal: Why.
        """
        notice = self.refusals.first(f"replay request: {refusal}", output.view.name)
        if notice is not None:
            self._notices.append(notice)

    def _tell(self, level: Level, name: str, **fields: object) -> None:
        """Add a line for the log."""
        self._notices.append(Notice(level, name, fields))

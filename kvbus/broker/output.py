"""One view on its way out: its batches as messages, kept for those who ask again, and a snapshot for those who come too late.

Numbers are what a view spends: a router that joins is given one message for each number since 0. So an idle view beats at
doubling intervals, events are sent in runs, and at `numbers_max` the view does what its consumers understand: it lets them jump,
or begins a new epoch.

**A new epoch** is begun by the view itself, never because a client asked. While the snapshot is being built the old numbers go
on; then the first batches from 0 are the clear, the snapshot and what was published meanwhile, a slice at a time, and whatever
is released before they are out waits behind them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kvbus.broker.checkpoint import OutputState
from kvbus.broker.heartbeat import Heartbeat
from kvbus.broker.snapshots import SLICE_BLOCKS, SnapshotDesk
from kvbus.config import ViewConfig
from kvbus.errors import FrameError
from kvbus.streams.ring import KeptBatch, ReplayRing
from kvbus.streams.serving import Refusal, ReplayServer
from kvbus.views.residency import Residency
from kvbus.views.run import Run
from kvbus.views.snapshot import SnapshotBuilder
from kvbus.views.view import Offered, View
from kvbus.wire.envelope import join_batch, split_batch
from kvbus.wire.frames import live_message, read_replay_request

__all__ = ["Outgoing", "Output"]

_NS = 1_000_000_000

FILL_S = 0.5
"""What tells fill from the empty batches that are published, in seconds of their time."""


class Outgoing(NamedTuple):
    """One message to publish.

    Attributes:
        view_index: On which view's PUB socket.
        frames: `[topic, seq:8 BE, payload]`.
    """

    view_index: int
    frames: list[bytes]


class Output:
    """A view, the ring that keeps its batches, and the server that replays them. It knows no socket.

    Attributes:
        view: Filter and numbers.
        topic: First frame of messages without events: the topic of all, or the last one published where they differ.
        replay: Answers to replay requests, to be sent by the owner of the ROUTER.
        desk: Snapshots for requests that the ring cannot answer; `None` where the view makes none.
        epochs_count: New epochs that the view has begun by itself.
        published_bytes: Payload bytes of all batches published so far.
    """

    def __init__(
        self,
        config: ViewConfig,
        residencies: Sequence[Residency] = (),
        *,
        rng: random.Random | None = None,
        first_seq: int = 0,
    ) -> None:
        """Begin with nothing kept.

        Args:
            config: What the view carries and how much it keeps.
            residencies: What the released events of each group and rank leave behind; may grow. Each must have folded what is
                offered here, and nothing beyond it, whenever `on_time` is called.
            rng: For what tells empty batches of one epoch from those of another.
            first_seq: Number of the first batch.
        """
        self.view = View(config, first_seq)
        self.topic = self.view.fixed_topic or b""
        self.epochs_count = 0
        self.published_bytes = 0
        self._config = config
        self._residencies = residencies
        self._rng = rng or random.Random(0)
        self._ring = ReplayRing(config.buffer_batches, config.buffer_bytes, first_seq)
        self.replay = ReplayServer(self._ring, old_form=config.old_replay_form)
        fill_max = config.numbers_max if config.on_many == "jump" else None
        self.desk = SnapshotDesk(lambda: self.view.snapshot(residencies), fill_max) if config.snapshot else None
        self._heartbeat = Heartbeat(round(config.heartbeat_s * _NS))
        self._sent_ns: int | None = None
        self._now_ns = 0
        self._rank: int | None = None
        self._ts = 0.0
        self._empty = b""
        self._epoch_at: int | None = config.numbers_max if config.on_many == "epoch" else None
        self._epoch_builder: SnapshotBuilder | None = None
        # Batches that wait for a number of the new epoch: while it is built those after its snapshot, then all of them.
        self._backlog: deque[Offered] = deque()
        self._offered_batches = self._offered_bytes = 0
        self._is_turning = False

    @property
    def deadline_ns(self) -> int | None:
        """When `on_time` has something to do, monotonic nanoseconds; `None` = not before something else happens."""
        desk = self.desk
        if self._is_turning or self._epoch_builder or (desk is not None and (desk.is_building or desk.wishes_count)):
            return self._now_ns + 1
        beat_ns = self._heartbeat.due_ns
        if self._sent_ns is not None and self._config.heartbeat_s:
            beat_ns = self._sent_ns + round(self._config.heartbeat_s * _NS)
        dues = (beat_ns, None if desk is None else desk.deadline_ns)
        return min((due for due in dues if due is not None), default=None)

    @property
    def oldest_seq(self) -> int:
        """Number of the oldest batch that is kept; the next number when none is."""
        return self._ring.oldest_seq

    @property
    def kept(self) -> tuple[int, int]:
        """Batches that are kept, and their bytes."""
        return len(self._ring), self._ring.kept_bytes

    def capture(self) -> OutputState:
        """Return what there is to know besides numbers and batches."""
        return OutputState(
            counts=self.view.counts()._asdict(),
            epochs_count=self.epochs_count,
            empty=self._empty,
            data_parallel_rank=self._rank,
            ts=self._ts,
            epoch_at=self._epoch_at,
            is_turning=self._is_turning,
            topic=self.topic,
        )

    def resume(self, next_seq: int, batches: Sequence[KeptBatch], state: OutputState, now_ns: int) -> None:
        """Go on where another process ended; to be called before anything else.

        It speaks up after the first silence, because what that one had sent last may have reached nobody. If the first batches
        of its epoch were not all out, what was waiting is gone, and another epoch begins.

        Args:
            next_seq: Number of the next batch.
            batches: Those that were kept, without a gap up to `next_seq`; may be empty.
            state: From `capture`.
            now_ns: Monotonic time, nanoseconds.
        """
        self.view.resume(next_seq, state.counts)
        self._ring.restart(batches[0].seq if batches else next_seq)
        for batch in batches:
            self._ring.append(*batch)
        self.epochs_count = state.epochs_count
        self._empty, self._rank, self._ts = state.empty, state.data_parallel_rank, state.ts
        self.topic = self.view.fixed_topic or state.topic
        if state.is_turning:
            self._epoch_at = next_seq
        elif self._epoch_at is not None and state.epoch_at is not None:
            self._epoch_at = state.epoch_at
        self._now_ns = now_ns
        if self._empty:
            self._heartbeat.sent(now_ns)

    @property
    def needs_all(self) -> bool:
        """Whether everything released must have been offered before the next `on_time`, which is going to copy a residency."""
        desk = self.desk
        has_wish = desk is not None and desk.wishes_count > 0 and not desk.is_building
        return has_wish or (self._is_epoch_due and self._epoch_builder is None)

    def offer(self, run: Run) -> list[bytes] | None:
        """Take what the view wants of a run.

        Args:
            run: Released events, complete; it is not changed.

        Returns:
            The message to publish, `[topic, seq:8 BE, payload]`, also kept for replay; `None` when nothing of it is wanted, or
            it waits behind the first batches of a new epoch and comes out of `on_time`.
        """
        batch = self.view.offer(run)
        if batch is None:
            return None
        self.topic = batch.topic
        if not self._empty:
            self._rank, self._ts = self.view.rank_of(run.data_parallel_rank), run.ts
            self._renew_empty()
        if self._is_turning or self._epoch_builder is not None:
            self._backlog.append(batch)
            self._offered_batches += 1
            self._offered_bytes += len(batch.payload)
        return None if self._is_turning else self._publish(*batch)

    def receive_request(self, frames: Sequence[bytes]) -> Refusal | None:
        """Take one message that arrived at the ROUTER.

        Args:
            frames: The whole message, identity first.

        Returns:
            `None` when it will be answered, else why not; refusals are counted and never answered.
        """
        if self.desk is None or not self._empty:
            return self.replay.receive(frames)
        try:
            start_seq = read_replay_request(frames[1:])
        except FrameError:
            return self.replay.receive(frames)
        if start_seq >= self._ring.oldest_seq:
            return self.replay.request(frames[0], start_seq)
        return self.desk.ask(frames[0], start_seq, self._ring, self.replay)

    def on_time(self, now_ns: int) -> list[list[bytes]]:
        """Do what is due: one slice of a snapshot, one of a new epoch, a heartbeat.

        Args:
            now_ns: Monotonic time, nanoseconds.

        Returns:
            Messages to publish, in order, behind those of `offer`; kept for replay already.

        Cost: O(1) when nothing is due; at most a few milliseconds.
        """
        messages: list[list[bytes]] = []
        self._now_ns = now_ns
        if self._sent_ns is not None:
            # Sent after the last call: right after it, as a rule; where calls are rare, nobody knows, and later is right.
            is_known = now_ns - self._sent_ns <= self._config.heartbeat_s * _NS
            self._heartbeat.sent(self._sent_ns if is_known else now_ns)
            self._sent_ns = None
        if self._is_turning:
            self._drain(messages)
        elif self._is_epoch_due:
            self._prepare_epoch(messages)
        elif self.desk is not None:
            self._serve_late(self.desk, messages)
        if self._heartbeat.beat(now_ns) and not self._is_turning:
            messages.append(self._publish(self.topic, self._empty))
            self._sent_ns = None  # a heartbeat does not end the silence
        return messages

    def finish(self) -> list[list[bytes]]:
        """Return every message that still waits for its turn; before the end."""
        messages: list[list[bytes]] = []
        while self._is_turning:
            more: list[list[bytes]] = []
            self._drain(more)
            messages += more
        return messages

    @property
    def _is_epoch_due(self) -> bool:
        """Whether the view has used up the numbers of its epoch."""
        return self._epoch_at is not None and self.view.next_seq >= self._epoch_at

    def _publish(self, topic: bytes, payload: bytes) -> list[bytes]:
        """Number a payload, keep it and return its message."""
        seq = self.view.take_number()
        self.published_bytes += len(payload)
        self._ring.append(seq, topic, payload)
        self._sent_ns = self._now_ns
        return live_message(topic, seq, payload)

    def _renew_empty(self) -> None:
        """Make the empty batch of this epoch, for heartbeats and markers.

        A fraction of a second is added to the time, drawn once per epoch: two epochs would else have equal batches under equal
        numbers, and a client that compares (rule S4) would take the one for the other.
        """
        self._empty = join_batch(self._ts + self._rng.random(), [], self._rank)

    def _fill(self) -> bytes:
        """Return the empty batch that stands in front of snapshots: the same in a whole epoch, and never published.

        The same, so that a client which was cut off in the middle of the fill finds the batch that it had.
        """
        return join_batch(split_batch(self._empty).ts + FILL_S, [], self._rank)

    def _serve_late(self, desk: SnapshotDesk, messages: list[list[bytes]]) -> None:
        """Answer requests from before the ring, or do one slice of what they wait for."""
        now_ns = self._now_ns
        desk.tidy(now_ns)
        if not desk.is_building:
            desk.answer(self._ring, self.replay, now_ns)
            start_seq = desk.latest_start
            if start_seq is None:
                return
            missing = desk.begin() + 1 - (self.view.next_seq - start_seq)
            messages += [self._publish(self.topic, self._empty) for _ in range(max(1, missing))]
            desk.mark(KeptBatch(self.view.next_seq - 1, self.topic, self._empty), self._fill())
        if desk.step(now_ns):
            desk.answer(self._ring, self.replay, now_ns)

    def _prepare_epoch(self, messages: list[list[bytes]]) -> None:
        """Build one slice of the snapshot with which the next epoch begins; when it is complete, begin."""
        if self._epoch_builder is None:
            self._epoch_builder = self.view.snapshot(self._residencies)
        # What is published meanwhile is bounded like the ring; past that, the rest is built at once.
        is_late = self._offered_bytes > self._config.buffer_bytes
        snapshot = self._epoch_builder.step(1 << 62 if is_late else SLICE_BLOCKS)
        if snapshot is None:
            return
        self._epoch_builder = None
        topics = [self.topic] * len(snapshot.payloads)
        if snapshot.topics:
            topics = [snapshot.topics[part] for part in snapshot.parts]
        self._backlog.extendleft(reversed(list(map(Offered, topics, snapshot.payloads))))
        self._epoch_at = max(self._config.numbers_max, 2 * len(self._backlog))
        self._is_turning = True
        self.epochs_count += 1
        self.view.begin_epoch()
        self._ring = ReplayRing(self._config.buffer_batches, self._config.buffer_bytes)
        self.replay.switch(self._ring)
        self._renew_empty()
        if self.desk is not None:
            for identity in self.desk.begin_epoch():
                self.replay.request(identity, 0)
        self._drain(messages)

    def _drain(self, messages: list[list[bytes]]) -> None:
        """Publish one slice of what waits at the beginning of an epoch, and at least twice what has joined it since the last."""
        limits = self.replay.limits
        batches_max = max(limits.slice_batches, 2 * self._offered_batches)
        bytes_max = max(limits.slice_bytes, 2 * self._offered_bytes)
        self._offered_batches = self._offered_bytes = 0
        size = 0
        while self._backlog and len(messages) < batches_max and size < bytes_max:
            batch = self._backlog.popleft()
            size += len(batch.payload)
            messages.append(self._publish(*batch))
        self._is_turning = bool(self._backlog)

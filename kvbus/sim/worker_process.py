"""A publisher: dense numbers, live batches, a ring, and a replay ROUTER as good or as bad as engines have it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from kvbus.events import Event, EventBatch
from kvbus.sim.network import Socket
from kvbus.sim.plan import WorkerPlan
from kvbus.sim.process import Process, Stage
from kvbus.sim.truth import PublisherTruth
from kvbus.streams.ring import ReplayRing
from kvbus.streams.serving import ReplayServer
from kvbus.wire.codec import encode_batch
from kvbus.wire.frames import live_message, read_replay_request, replay_end, replay_reply

__all__ = ["WorkerProcess"]

RING_BYTES = 1 << 30

GARBAGE = b"\xc1"
"""No msgpack value begins so."""


class WorkerProcess(Process):
    """One publisher through its lives.

    Attributes:
        plan: What it is like.
        truth: What it holds and has said.
        ring: What it keeps for replay.
        mute_until_ns: Until then it takes replay requests and says nothing.
        may_fail: Whether batches may be skipped or garbled.
        is_whole: Whether its present life has seen its engine's from the beginning.
    """

    def __init__(self, stage: Stage, plan: WorkerPlan) -> None:
        """Prepare; `start` begins its first life.

        Args:
            stage: What it stands on.
            plan: What it is like.
        """
        suffix = f".{plan.data_parallel_rank}" if plan.data_parallel_rank is not None else ""
        super().__init__(stage, f"worker {plan.worker_id}{suffix}")
        self.plan = plan
        self.truth = PublisherTruth()
        self.mute_until_ns = 0
        self.may_fail = True
        self.is_whole = True

    def open(self) -> None:
        """Open PUB and ROUTER with an empty ring."""
        plan = self.plan
        self.truth.begin_life(plan.first_seq)
        self.ring = ReplayRing(plan.kept_batches, RING_BYTES, plan.first_seq)
        self._server = ReplayServer(self.ring, old_form=plan.old_form)
        self._queue: deque[list[Event]] = deque()
        self._requests: deque[tuple[int, list[bytes]]] = deque()
        self._pub = self._network.open("pub", plan.endpoint, binds=not plan.connects, hwm=plan.hwm, wake=self.wake)
        self._router: Socket | None = None
        if plan.replay_endpoint is not None:
            self._router = self._network.open("router", plan.replay_endpoint, binds=True, hwm=plan.hwm, wake=self.wake)

    def close(self, told_ns: int) -> None:
        """Lose sockets, queue and ring."""
        self._network.close(self._pub, told_ns)
        if self._router is not None:
            self._network.close(self._router, told_ns)

    @property
    def deadline_ns(self) -> int | None:
        """When a request has waited long enough, or a slow client is tried again."""
        dues = [self._requests[0][0]] if self._requests else []
        if (due_ns := self._server.deadline_ns) is not None:
            dues.append(due_ns)
        return min(dues, default=None)

    def publish(self, events: list[Event]) -> None:
        """Have events published in the next turn.

        Args:
            events: One batch.
        """
        if self.is_running:
            self._queue.append(events)
            self.wake()

    def turn(self) -> Iterator[int]:
        """Publish what waits, then serve replay."""
        while self._queue:
            self._publish(self._queue.popleft())
        if self._router is not None:
            now_ns = self._clock.now_ns
            for frames in self._router.inbox.take(64):
                if now_ns >= self.mute_until_ns:
                    self._requests.append((now_ns + self.plan.serve_ns, frames))
            while self._requests and self._requests[0][0] <= now_ns:
                self._answer(self._router, self._requests.popleft()[1])
            self._serve(self._router)
        yield 0

    def _publish(self, events: list[Event]) -> None:
        """Number and send one batch, or spoil it."""
        plan, rng, truth = self.plan, self._rng, self.truth
        seq = truth.say(events, plan.data_parallel_rank)
        if self.may_fail and rng.random() < plan.skip_probability:
            self._network.counts["number skipped"] += 1
            return
        # A clock that no other payload of the run shares, so that a payload names its life.
        ts = 1e9 + self._clock.now_ns / 1e9 + seq / 1e7
        payload = encode_batch(EventBatch(ts, events, plan.data_parallel_rank), plan.encoding)
        if self.may_fail and rng.random() < plan.garble_probability:
            self._network.counts["payload garbled"] += 1
            payload = GARBAGE + payload
        truth.life_of[payload] = truth.life
        truth.sent_stop = seq + 1
        self.ring.append(seq, plan.topic, payload)
        self._network.publish(self._pub, live_message(plan.topic, seq, payload))

    def _answer(self, router: Socket, frames: list[bytes]) -> None:
        """Take up one request."""
        if self.plan.replay == "fair":
            self._server.receive(frames)
            return
        identity = frames[0]
        start_seq = read_replay_request(frames[1:])
        replies = [
            replay_reply(batch.topic, batch.seq, batch.payload, self.plan.old_form)
            for batch in self.ring.read(start_seq, self.plan.kept_batches, RING_BYTES)
        ]
        for reply in [*replies, replay_end(self.plan.old_form)]:
            if self._network.route(router, identity, reply) == "full":
                self._network.counts["reply dropped"] += 1

    def _serve(self, router: Socket) -> None:
        """Send one slice, as our own shells do."""
        now_ns = self._clock.now_ns
        for turn in self._server.take_slice(now_ns):
            count = 0
            for frames in turn.messages:
                routed = self._network.route(router, turn.identity, frames)
                if routed == "gone":
                    self._server.gone(turn.identity)
                if routed != "sent":
                    break
                count += 1
            self._server.sent(turn, count, now_ns)

"""A pretend worker, its two links and a careless caller around one `StreamReceiver`, all from one seed, and an oracle.

Links do what ZeroMQ does: order within a connection, silent loss, a connection that breaks. The live link and the replay race.
What has arrived in the subscriber's queue before a restart stays readable after it.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from kvbus.streams.outputs import AskReplay, CancelReplay, Conflict, Deliver, Dropped, Lost, NewEpoch, StreamOutput
from kvbus.streams.receiver import ReceiverLimits, StreamReceiver

MS = 1_000_000


class Faults:
    """The fault mix of one seed; zero is a legal probability everywhere."""

    def __init__(self, rng: random.Random) -> None:
        def sometimes(most: float) -> float:
            return 0.0 if rng.random() < 0.4 else rng.random() * most

        self.lose_live = sometimes(0.5)
        self.lose_reply = sometimes(0.3)
        self.lose_end = rng.choice((0.0, 0.0, 0.5, 1.0))
        self.ignore_request = rng.choice((0.0, 0.0, 0.3, 1.0))
        self.skip_number = sometimes(0.1)
        self.restart = sometimes(0.08)
        self.blip = sometimes(0.02)
        self.defer = sometimes(0.5)
        self.stall = sometimes(0.1)

    @property
    def spare_replay(self) -> bool:
        """Whether the replay endpoint does its duty. Without end marks, a new life that has less than asked for says nothing."""
        return self.lose_reply == self.ignore_request == 0 and (self.lose_end == 0 or self.restart == 0)


class Worker:
    """One publisher through its lives: numbers, ring, and what it has published. A payload is `life:seq:padding`."""

    def __init__(self, rng: random.Random, kept: int, first_seq: int) -> None:
        self.rng = rng
        self.kept = kept
        self.first_seq = first_seq
        self.life = 0
        self.seq = first_seq
        self.ring: list[tuple[int, bytes]] = []
        self.published: set[tuple[int, int]] = set()
        self.skipped: set[int] = set(range(first_seq))

    def publish(self) -> tuple[int, bytes]:
        """Publish one batch."""
        seq = self.seq
        payload = b"%d:%d:%s" % (self.life, seq, b"x" * self.rng.randrange(20))
        self.ring = [*self.ring, (seq, payload)][-self.kept :]
        self.published.add((self.life, seq))
        self.seq += 1
        return seq, payload

    def skip_number(self) -> None:
        """Use up a number for a batch that never was."""
        self.skipped.add(self.seq)
        self.seq += 1

    def restart(self) -> None:
        """Begin another life."""
        self.life += 1
        self.seq = self.first_seq
        self.ring = []


class Oracle:
    """Looks at every output and knows what may not be."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.position: int | None = None if world.first_contact == "live" else 0
        self.is_fresh = True
        self.life: int | None = None
        self.is_declared = True
        self.delivered: set[tuple[int, int]] = set()
        self.open_request: int | None = None
        self.counts: Counter[str] = Counter()

    def look(self, outputs: Sequence[StreamOutput]) -> None:
        """Check outputs in order."""
        for output in outputs:
            self.counts[type(output).__name__] += 1
            if isinstance(output, Deliver):
                self.deliver(output.seq, output.payload)
            elif isinstance(output, Lost):
                self.counts[f"Lost.{output.reason}"] += 1
                if self.world.is_repairable:
                    # A stream that was given 1 as its first number for want of a 0 has lost it the same way.
                    assert set(range(output.start_seq, output.stop_seq)) <= self.world.worker.skipped, output
                assert self.position is not None
                assert self.position == output.start_seq <= output.stop_seq
                assert output.start_seq < output.stop_seq or output.reason in ("unverified", "conflict")
                assert self.is_fresh == output.is_before_first
                self.position = output.stop_seq
                self.is_declared = True
            elif isinstance(output, NewEpoch):
                self.counts[f"NewEpoch.{output.reason}"] += 1
                assert self.world.worker.life or not self.world.is_repairable, output
                assert self.position == output.old_position
                self.position = 0
                self.is_fresh = self.is_declared = True
                self.delivered.clear()
            elif isinstance(output, AskReplay):
                assert self.open_request is None
                self.open_request = output.request
            elif isinstance(output, CancelReplay):
                assert self.open_request == output.request
                self.open_request = None
            elif isinstance(output, Dropped):
                self.counts[f"Dropped.{output.reason}"] += 1
            else:
                assert isinstance(output, Conflict)

    def deliver(self, seq: int, payload: bytes) -> None:
        """Check one delivery."""
        life, number, _ = payload.split(b":")
        batch = (int(life), int(number))
        if self.position is None or (self.position == 0 and self.is_fresh and seq == 1 and self.world.can_replay):
            self.position = seq
        assert self.position == seq == batch[1]
        assert batch in self.world.worker.published
        assert batch not in self.delivered
        if not self.is_declared and self.world.is_exact:
            assert self.life == batch[0], f"life {batch[0]} after life {self.life} without a declared loss"
        self.delivered.add(batch)
        self.position = seq + 1
        self.life = batch[0]
        self.is_declared = self.is_fresh = False


class World:
    """Worker, links, receiver and caller in virtual time."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.faults: Faults | None = Faults(rng)
        self.can_replay = rng.random() < 0.8
        self.has_monitor = rng.random() < 0.8
        self.has_request_ids = rng.random() < 0.7
        self.closes_on_cancel = self.has_request_ids and rng.random() < 0.5
        self.first_contact: Literal["replay", "live"] = rng.choice(("replay", "replay", "live"))
        # Without a replay, or without word of a reconnect, a restart can hide by counting past the position first (S4).
        self.is_exact = self.can_replay and self.has_monitor and self.has_request_ids
        self.worker = Worker(rng, rng.choice((1, 5, 50, 10_000)), rng.choice((0, 0, 0, 1)))
        self.limits = ReceiverLimits(
            hold_batches=rng.choice((2, 10, 1000)),
            hold_bytes=rng.choice((100, 10**6)),
            hold_ns=rng.choice((500, 8000)) * MS,
        )
        # A worker that keeps everything and always answers: then nothing may be lost that it has ever published.
        self.is_repairable = self.is_exact and self.faults.spare_replay and self.limits.hold_ns > MS * 1000
        self.is_repairable = self.is_repairable and self.worker.kept > 500
        self.receiver = StreamReceiver(
            can_replay=self.can_replay, limits=self.limits, rng=rng, first_contact=self.first_contact
        )
        self.oracle = Oracle(self)
        self.now = 0
        self.events: list[tuple[int, int, tuple[Any, ...]]] = []
        self.ties = 0
        self.connection = 0
        self.is_connected = False
        self.live_at = self.monitor_at = 0
        self.reply_at: dict[int, int] = {}
        self.closed: set[int] = set()
        self.is_silent_for_good = False
        self.schedule(0, "connect")

    # Links.

    def schedule(self, at: int, *event: Any) -> int:
        """Put an event at a time, behind others of that time."""
        self.ties += 1
        heapq.heappush(self.events, (at, self.ties, event))
        return at

    def delay(self) -> int:
        """Draw the delay of one message."""
        faults = self.faults
        if faults is not None and self.rng.random() < faults.stall:
            return self.rng.randrange(300 * MS)
        return self.rng.randrange(3 * MS)

    def send_live(self, seq: int, payload: bytes) -> None:
        """Send one live batch down the present connection."""
        if self.is_connected and not (self.faults and self.rng.random() < self.faults.lose_live):
            self.live_at = self.schedule(max(self.live_at, self.now + self.delay()), "live", seq, payload)

    def break_connection(self) -> None:
        """Break the live connection; the monitor says so, and what arrived stays readable. Replay connections break too."""
        if not self.is_connected:
            return
        self.is_connected = False
        self.connection += 1
        self.monitor_at = max(self.monitor_at, self.now + self.rng.randrange(2 * MS))
        self.schedule(self.monitor_at, "down")
        self.schedule(self.now + self.rng.randrange(2 * MS, 200 * MS), "connect")

    def serve(self, start_seq: int, request: int) -> None:
        """Answer one replay request as the worker stands now."""
        faults = self.faults
        if self.is_silent_for_good or (faults and self.rng.random() < faults.ignore_request):
            return
        replies: list[tuple[Any, ...]] = [
            ("reply", seq, payload) for seq, payload in self.worker.ring if seq >= start_seq
        ]
        if faults:
            replies = [reply for reply in replies if self.rng.random() >= faults.lose_reply]
        if not (faults and self.rng.random() < faults.lose_end):
            replies.append(("end",))
        at = self.reply_at.get(request, 0) if self.has_request_ids else max(self.reply_at.values(), default=0)
        for reply in replies:
            at = max(at, self.now + self.delay())
            self.reply_at[request] = self.schedule(at, "answer", request, reply)

    # Caller.

    def obey(self, outputs: list[StreamOutput]) -> None:
        """Do what the receiver asks for."""
        self.oracle.look(outputs)
        for output in outputs:
            if isinstance(output, AskReplay):
                if self.faults and self.rng.random() < self.faults.defer:
                    if output is [o for o in outputs if isinstance(o, AskReplay)][-1] and self.receiver.is_asking:
                        self.receiver.deferred(self.now)
                        self.oracle.open_request = None
                else:
                    self.schedule(
                        self.now + self.delay(), "request", output.start_seq, output.request, self.worker.life
                    )
            elif isinstance(output, CancelReplay) and self.closes_on_cancel:
                self.closed.add(output.request)
        receiver, limits = self.receiver, self.limits
        if self.oracle.position is None:
            self.oracle.position = receiver.position
        assert receiver.held_count <= limits.hold_batches
        assert receiver.held_bytes <= limits.hold_bytes + 40
        assert receiver.position == self.oracle.position
        assert receiver.is_asking == (self.oracle.open_request is not None)
        if receiver.expected:
            assert self.oracle.position == int.from_bytes(receiver.expected, "big")
            assert receiver.held_count == 0

    def take_live(self, seq: int, payload: bytes) -> None:
        """Take a live batch as a shell does."""
        if seq.to_bytes(8, "big") == self.receiver.expected and self.rng.random() < 0.8:
            self.receiver.accept_expected(payload, self.now)
            self.oracle.look([Deliver(seq, payload)])
            self.obey([])
        else:
            self.obey(self.receiver.receive(seq, payload, self.now))

    def handle(self, event: tuple[Any, ...]) -> None:
        """Let one event happen."""
        what, *rest = event
        receiver = self.receiver
        if what == "live":
            self.take_live(*rest)
        elif what == "connect":
            self.is_connected = True
            self.live_at = max(self.live_at, self.monitor_at)
            self.monitor_at = self.schedule(
                max(self.monitor_at, self.now + self.rng.randrange(20 * MS)), "up", self.connection
            )
        elif what == "down" and self.has_monitor:
            self.obey(receiver.disconnected(self.now))
        elif what == "up" and self.has_monitor:
            if self.is_connected and rest[0] == self.connection:
                self.obey(receiver.reconnected(self.now))
        elif what == "request":
            start_seq, request, life = rest
            if life == self.worker.life and self.is_connected:
                self.serve(start_seq, request)
        elif what == "answer":
            request, reply = rest
            if request in self.closed:
                return
            known = request if self.has_request_ids else None
            if reply[0] == "reply":
                self.obey(receiver.receive_replay(reply[1], reply[2], self.now, known))
            else:
                if receiver.is_asking and known in (None, self.oracle.open_request):
                    self.oracle.open_request = None
                    outputs = receiver.receive_end(self.now, known)
                else:
                    outputs = receiver.receive_end(self.now, known)
                self.obey(outputs)

    def advance(self, until: int) -> None:
        """Let time pass, with every event and deadline on the way."""
        while True:
            deadline = self.receiver.deadline_ns
            event_at = self.events[0][0] if self.events else until + 1
            if deadline is not None and max(deadline, self.now) <= min(event_at, until):
                self.now = max(self.now, deadline)
                self.obey(self.receiver.on_time(self.now))
                after = self.receiver.deadline_ns
                assert after is None or after > self.now, "a deadline that stays due would spin"
            elif event_at <= until:
                self.now = max(self.now, event_at)
                self.handle(heapq.heappop(self.events)[2])
            else:
                self.now = until
                return

    # Phases.

    def safety(self, steps: int) -> None:
        """Faults on."""
        assert self.faults is not None
        rng, faults = self.rng, self.faults
        for _ in range(steps):
            if rng.random() < faults.restart:
                self.break_connection()
                self.worker.restart()
            elif rng.random() < faults.blip:
                self.break_connection()
            elif rng.random() < faults.skip_number:
                self.worker.skip_number()
            elif rng.random() < 0.9:
                for _ in range(rng.choice((1, 1, 1, 5, 30))):
                    self.send_live(*self.worker.publish())
            self.advance(self.now + rng.choice((0, 1, 10, 10, 100, 3000)) * rng.randrange(1, MS))

    def liveness(self) -> None:
        """Faults off: all must be delivered or declared within a bound."""
        self.faults = None
        self.advance(self.now + 40_000 * MS)
        for _ in range(5):
            self.send_live(*self.worker.publish())
            self.advance(self.now + 20 * MS)
        if self.can_replay and self.rng.random() < 0.5:
            # A lost tail: nothing comes after it, so only a probe can find it.
            self.worker.publish()
        self.advance(self.now + 30_000 * MS)
        assert self.worker.seq == self.receiver.position
        assert not self.receiver.is_recovering
        assert (0, 0) == (self.receiver.held_count, self.receiver.held_bytes)
        if self.is_exact:
            assert self.worker.life == self.oracle.life

"""The workers of a soak: one engine's ranks in step, at a rate, with holes, replays and restarts.

All ranks send the same batches. Now and then one sends a number to nobody, as ZeroMQ does when a queue is full, and the bus has
to ask for it again; and one rank restarts: it closes, and its engine stands still until it is back, with numbers from 0 and
nothing left of its earlier life. What each has sent is counted, to be held against what the bus says it has received.

Commands: `go`, `allow`, `figures`, `stop`.
"""

from __future__ import annotations

import random
import time
from collections import deque
from itertools import islice
from math import inf
from typing import Any

import msgspec
import zmq

from kvbus.bench.load import RANK, make_events, removal
from kvbus.bench.loader import stamped
from kvbus.bench.options import BenchOptions
from kvbus.bench.processes import Channel
from kvbus.sockets import Routed, ZmqContext, ZmqSocket, receive_frames, route_frames, send_frames
from kvbus.streams.ring import ReplayRing
from kvbus.streams.serving import ReplayServer
from kvbus.wire.envelope import join_batch
from kvbus.wire.frames import seq_frame

__all__ = ["Engine", "Worker", "in_cycle", "make_cycle", "run"]

TIER = "cpu-tier"
TIER_SHARE = 0.3
CYCLE_BATCHES = 4000
CYCLE_MARK = b"\xc1\xc1cycle\xc1"
"""What all hashes begin with, and what the number of the cycle takes the place of as it is sent: the blocks of one cycle are
others than those of the next, as in life, where the same blocks do not come again every second."""
RESIDENT_MAX = 20_000
LAST_REMOVAL_BLOCKS = 64

TICK_S = 0.002
LATE_STEPS_MAX = 200
"""Steps made up for at once after a stall; further ones are left out, since nobody can be behind time for ever."""

AWAY_S = 0.3
LINGER_MS = 2000

RING_BATCHES = 10_000
"""Batches that a rank keeps for replay, as engines do, and queues for a broker that is slow."""


def run(role: str, channel: Channel, arguments: dict[str, Any]) -> None:
    """Be an engine until told to stop.

    Args:
        role: Not looked at.
        channel: To the parent; answers `urls` and `replays`.
        arguments: `options`; `hole_s` and `restart_s`, seconds between holes and restarts, 0 = none.
    """
    options = msgspec.convert(arguments["options"], BenchOptions)
    with zmq.Context() as context:
        engine = Engine(context, options, arguments["hole_s"], arguments["restart_s"])
        channel.write({"urls": [worker.url for worker in engine.workers], "replays": engine.replays})
        poller = zmq.Poller()
        poller.register(channel.read_fd, zmq.POLLIN)
        while True:
            if poller.poll(round(TICK_S * 1000)):
                command = channel.read()
                if command is None:
                    break
                channel.write(engine.do(**command))
            engine.turn(time.monotonic_ns())
        engine.close()


def make_cycle(seed: int, batch: int, batches: int = CYCLE_BATCHES) -> list[bytes]:
    """Make batches that can be sent over and over (`in_cycle`): at their end everything that they store is removed again.

    Args:
        seed: Same seed, same batches.
        batch: Events in each.
        batches: How many, about.
    """
    rng = random.Random(f"{seed} cycle")
    kept: list[deque[bytes]] = [deque(), deque()]
    tiers: tuple[tuple[str, str | None], ...] = (("GPU", None), ("CPU", TIER))
    sources = [
        make_events(rng, medium=medium, ownership=owner, resident=resident, resident_max=RESIDENT_MAX, mark=CYCLE_MARK)
        for (medium, owner), resident in zip(tiers, kept, strict=True)
    ]
    events = [next(sources[rng.random() < TIER_SHARE]) for _ in range(batch * batches)]
    for (medium, owner), resident in zip(tiers, kept, strict=True):
        while resident:
            events.append(removal(resident, LAST_REMOVAL_BLOCKS, medium, owner))
    source = iter(events)
    return [join_batch(0.0, part, RANK) for part in iter(lambda: list(islice(source, batch)), [])]


def in_cycle(payload: bytes, cycle: int) -> bytes:
    """Return a batch as it is in one cycle: the same, about other blocks.

    Args:
        payload: From `make_cycle`.
        cycle: Which, ≥ 0.
    """
    return payload.replace(CYCLE_MARK, cycle.to_bytes(len(CYCLE_MARK), "big"))


class Worker:
    """One rank: its sockets, its numbers and what it keeps for replay.

    Attributes:
        url: Where it publishes, in every life.
        replay_url: Where it answers replay requests, likewise.
        batches: Batches numbered so far, in all lives.
    """

    def __init__(self, context: ZmqContext, number: int) -> None:
        """Bind it.

        Args:
            context: To open its sockets in.
            number: For its topic.
        """
        self._context = context
        self._topic = b"w%d" % number
        self.url = self.replay_url = "tcp://127.0.0.1:0"
        self.batches = 0
        self._poller = zmq.Poller()
        self.open()

    def open(self) -> bool:
        """Begin a life, with numbers from 0.

        Returns:
            Whether it could; false = its port is not free yet.
        """
        self._pub = self._socket(zmq.XPUB)
        self._router = self._socket(zmq.ROUTER)
        try:
            self._pub.bind(self.url)
            self._router.bind(self.replay_url)
        except zmq.ZMQError as error:
            self.close()
            if error.errno == zmq.EADDRINUSE:
                return False
            raise
        self.url = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_url = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._ring = ReplayRing(RING_BATCHES)
        self._server = ReplayServer(self._ring)
        return True

    def send(self, payload: bytes, is_hole: bool) -> None:
        """Send a batch, or number and keep it only.

        Args:
            payload: The batch.
            is_hole: Whether nobody is to get it.
        """
        seq = self._ring.next_seq
        self._ring.append(seq, self._topic, payload)
        self.batches += 1
        if not is_hole:
            send_frames(self._pub, (self._topic, seq_frame(seq), payload))

    def answer(self, now_ns: int) -> None:
        """Take replay requests, and send a slice.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        if self._poller.poll(0):
            for frames in receive_frames(self._router, 16):
                self._server.receive(frames)
        for turn in self._server.take_slice(now_ns):
            count = 0
            for frames in turn.messages:
                if route_frames(self._router, turn.identity, frames) is not Routed.SENT:
                    break
                count += 1
            self._server.sent(turn, count, now_ns)

    def close(self) -> None:
        """End a life; what is queued still goes out."""
        self._pub.close(LINGER_MS)
        self._router.close(0)

    def _socket(self, kind: int) -> ZmqSocket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, RING_BATCHES)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        return socket


class Engine:
    """All ranks in step.

    Attributes:
        workers: One a rank.
        replays: Their replay URLs.
    """

    def __init__(self, context: ZmqContext, options: BenchOptions, hole_s: float, restart_s: float) -> None:
        """Bind all ranks and make what they send; nothing is sent yet.

        Args:
            context: To open sockets in.
            options: Workers, batch and seed.
            hole_s: Seconds between holes; 0 = none.
            restart_s: Seconds between restarts; 0 = none.
        """
        self._payloads = make_cycle(options.seed, options.batch)
        self._batch = options.batch
        self._hole_ns = round(hole_s * 1e9)
        self._restart_ns = round(restart_s * 1e9)
        self.workers = [Worker(context, number) for number in range(options.workers)]
        self.replays = [worker.replay_url for worker in self.workers]
        self._step_ns = 0.0
        self._due_ns = 0.0
        self._hole_at_ns = self._restart_at_ns = 0
        self._back_at_ns = 0
        self._away: Worker | None = None
        self._step = self._left_out = self._holes = self._restarts = 0
        self._allowed: float = inf
        self._events = 0
        self._rng = random.Random(options.seed)

    def do(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Carry out one command.

        Args:
            do: `go`, with `rate` in batches a second and worker; `allow`, with `steps`: as many as there may be in all, each as
                soon as there is time for it, without holes and restarts; `stop`; or `figures`.
            arguments: Its arguments.

        Returns:
            What has been sent so far.
        """
        now_ns = time.monotonic_ns()
        if do == "go":
            self._step_ns = 1e9 / arguments["rate"]
            self._allowed = inf
            self._due_ns = now_ns
            self._hole_at_ns = now_ns + self._hole_ns
            self._restart_at_ns = now_ns + self._restart_ns
        elif do == "allow":
            self._step_ns = 1.0
            self._allowed = arguments["steps"]
        elif do == "stop":
            self._step_ns = 0.0
        return {
            "steps": self._step,
            "events": self._events,
            "batches": [worker.batches for worker in self.workers],
            "holes": self._holes,
            "restarts": self._restarts,
            "left_out": self._left_out,
            "is_whole": self._away is None,
        }

    def turn(self, now_ns: int) -> None:
        """Do what is due: batches, a restart, replays.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        if self._away is not None:
            self._come_back(now_ns)
        elif self._step_ns:
            if self._allowed < inf:
                self._send_allowed()
            elif self._restart_ns and now_ns >= self._restart_at_ns:
                self._leave(now_ns)
            else:
                self._send(now_ns)
        for worker in self.workers:
            if worker is not self._away:
                worker.answer(now_ns)

    def close(self) -> None:
        """Close all."""
        for worker in self.workers:
            if worker is not self._away:
                worker.close()

    def _send(self, now_ns: int) -> None:
        """Send all batches that are due."""
        late = int((now_ns - self._due_ns) / self._step_ns) - LATE_STEPS_MAX
        if late > 0:
            self._left_out += late
            self._due_ns += late * self._step_ns
        while self._due_ns <= now_ns:
            loser = None
            if self._hole_ns and now_ns >= self._hole_at_ns:
                loser = self._rng.choice(self.workers)
                self._hole_at_ns = now_ns + self._hole_ns
                self._holes += 1
            self._send_step(loser)
            self._due_ns += self._step_ns

    def _send_allowed(self) -> None:
        """Send what is allowed, not too much at a time."""
        for _ in range(LATE_STEPS_MAX):
            if self._step < self._allowed:
                self._send_step(None)

    def _send_step(self, loser: Worker | None) -> None:
        """Send the next batch of all ranks, but that of one to nobody."""
        cycle, index = divmod(self._step, len(self._payloads))
        payload = stamped(in_cycle(self._payloads[index], cycle), time.monotonic())
        self._events += _events_in(payload)
        for worker in self.workers:
            worker.send(payload, worker is loser)
        self._step += 1

    def _leave(self, now_ns: int) -> None:
        """Let one rank end, and all stand still."""
        self._away = self.workers[self._restarts % len(self.workers)]
        self._away.close()
        self._restarts += 1
        self._back_at_ns = now_ns + round(AWAY_S * 1e9)

    def _come_back(self, now_ns: int) -> None:
        """Let it begin again when its time has come and its port is free."""
        if self._away is not None and now_ns >= self._back_at_ns and self._away.open():
            self._away = None
            self._due_ns = now_ns
            self._restart_at_ns = now_ns + self._restart_ns


def _events_in(payload: bytes) -> int:
    """Read how many events a batch made by `join_batch` holds, from the head of its second element."""
    head = payload[10]
    return head & 0x0F if head >> 4 == 0x9 else int.from_bytes(payload[11:13], "big")

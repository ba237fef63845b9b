"""A broker that is killed again and again, its workers, and a subscriber that believes nothing twice, in one process.

The broker is a node and a real journal. A turn is what the loop does: take messages, do what is due, flush when dry, commit,
send. It can be killed at four places of it. What the journal had committed is on the disk, as after `kill -9`; what was on the
way is gone.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from kvbus.broker.journal import Journal
from kvbus.broker.node import BrokerNode, UpstreamRequest
from kvbus.broker.notices import Notice
from kvbus.broker.resume import capture
from kvbus.config import BrokerConfig, parse_worker
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch
from kvbus.wire.codec import decode_batch, encode_batch
from kvbus.wire.frames import live_message, read_replay_request, replay_end, replay_reply

MS = 1_000_000
SECOND = 1_000 * MS

KILLS = ("before commit", "before send", "within send", "after send")


def store(name: int) -> BlockStored:
    """One block of one token."""
    return BlockStored([name], None, [name], 1, medium="GPU")


def remove(name: int) -> BlockRemoved:
    """That block again."""
    return BlockRemoved([name], "GPU")


def script(chance: random.Random, length: int, *, clears: bool) -> list[Event]:
    """What an engine says: blocks come and go, and now and then the cache is reset."""
    held: list[int] = []
    events: list[Event] = []
    for name in range(length):
        if clears and chance.random() < 0.03:
            events.append(AllBlocksCleared())
            held = []
        elif held and chance.random() < 0.4:
            events.append(remove(held.pop(chance.randrange(len(held)))))
        else:
            held.append(name if chance.random() < 0.7 else chance.randrange(max(1, name)))
            events.append(store(held[-1]))
    return events


def fold(held: Counter[int], events: list[Event]) -> None:
    """What a reader that counts makes of events."""
    for event in events:
        if isinstance(event, AllBlocksCleared):
            held.clear()
        elif isinstance(event, BlockStored):
            held.update(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            for name in event.block_hashes:
                if held[name] > 1:
                    held[name] -= 1
                else:
                    del held[name]


class Rank:
    """A worker: what it has still to say, what it has said, and what of it can be asked for again."""

    def __init__(self, index: int, events: list[Event], *, can_replay: bool) -> None:
        self.index = index
        self.topic = b"w%d" % index
        self.ahead = list(events)
        self.can_replay = can_replay
        self.life = 0
        self.held: Counter[int] = Counter()
        self.kept: dict[int, bytes] = {}
        self.next_seq = 0
        self.on_the_way: list[list[bytes]] = []
        self.is_connected = False

    def publish(self, count: int, now_ns: int) -> None:
        """Say the next events, in one batch."""
        events, self.ahead = self.ahead[:count], self.ahead[count:]
        if not events:
            return
        fold(self.held, events)
        payload = encode_batch(EventBatch(now_ns / SECOND + self.life / 64, events, 0))
        if self.is_connected:
            self.on_the_way.append(live_message(self.topic, self.next_seq, payload))
        self.kept[self.next_seq] = payload
        self.next_seq += 1

    def restart(self) -> None:
        """Begin another life: nothing held, nothing kept, numbers from 0."""
        self.life += 1
        self.held.clear()
        self.kept.clear()
        self.next_seq = 0


class Reader:
    """A subscriber that takes each number once, in order, and the same bytes under a number for ever."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []

    def take(self, seq: int, payload: bytes) -> None:
        """Take a batch that came live or by replay; one that is ahead waits for a replay."""
        if seq < len(self.batches):
            assert self.batches[seq] == payload, f"number {seq} was used twice"
        elif seq == len(self.batches):
            self.batches.append(payload)

    def ask(self, node: BrokerNode, now_ns: int) -> None:
        """Ask for everything that is missing, and for the last one that is not, as rule S4 has it."""
        output = node.outputs[0]
        start_seq = max(0, len(self.batches) - 1)
        output.receive_request([b"reader", b"", start_seq.to_bytes(8, "big")])
        while turns := output.replay.take_slice(now_ns):
            for turn in turns:
                for batch in turn.batches:
                    if batch is not None:
                        self.take(batch.seq, batch.payload)
                output.replay.sent(turn, len(turn.messages), now_ns)
        assert node.outputs[0].view.next_seq == len(self.batches), "a number is missing"

    def events(self) -> list[Event]:
        """All events, in order."""
        return [event for payload in self.batches for event in decode_batch(payload).events]


class World:
    """Ranks, a broker with a journal, and a reader."""

    def __init__(
        self,
        path: Path,
        chance: random.Random,
        scripts: list[list[Event]],
        *,
        can_replay: bool = True,
        **config: Any,
    ) -> None:
        self.chance = chance
        self.ranks = [Rank(index, events, can_replay=can_replay) for index, events in enumerate(scripts)]
        suffix = ",replay=inproc://r{0}" if can_replay else ""
        workers = tuple(parse_worker(("w{0}=inproc://{0}" + suffix).format(rank.index)) for rank in self.ranks)
        self.config = BrokerConfig(workers=workers, journal=None if config.pop("off", False) else str(path), **config)
        self.config.validate()
        self.now_ns = 1_000 * SECOND
        self.offset_ns = 0  # this process's clock less the world's
        self.reader = Reader()
        self.notices: list[Notice] = []
        self.kills: Counter[str] = Counter()
        self.answers: dict[int, list[list[bytes]]] = {}
        self.start()

    @property
    def clock_ns(self) -> int:
        """Monotonic time as the broker's process sees it."""
        return self.now_ns + self.offset_ns

    def start(self, offset_ns: int | None = None) -> None:
        """Start the broker; its process has a clock of its own."""
        chosen_ns = self.chance.choice([0, 0, 5 * SECOND, -900 * SECOND])
        self.offset_ns = chosen_ns if offset_ns is None else offset_ns
        seed = self.chance.random()

        def make(recorder: Any = None) -> BrokerNode:
            return BrokerNode(self.config, random.Random(seed), 0, recorder)

        self.journal = None
        if self.config.journal is None:
            self.node = make()
        else:
            self.journal = Journal(self.config, self.notices.append, lambda: self.now_ns)
            self.node = self.journal.open(make, self.clock_ns)
        self.has_connected = False

    def kill(self) -> None:
        """Kill the broker: whatever it had not committed is gone, and whatever was on the way to it."""
        if self.journal is not None:
            self.journal.close()
        self.answers.clear()
        for rank in self.ranks:
            rank.is_connected = False
            rank.on_the_way.clear()

    def turn(self, kill: str | None = None) -> bool:
        """Let the broker turn once. Returns whether input has run dry."""
        node, chance = self.node, self.chance
        self.now_ns += chance.randrange(1, 5) * MS
        if not self.has_connected:
            self.has_connected = True
            for rank in self.ranks:
                rank.is_connected = True
                node.connected(rank.index, self.clock_ns)
        is_dry = True
        for rank in self.ranks:
            count = chance.randrange(0, 4)
            taken, rank.on_the_way = rank.on_the_way[:count], rank.on_the_way[count:]
            for frames in taken:
                node.receive(rank.index, frames, self.clock_ns)
            is_dry = is_dry and not rank.on_the_way
        for key in list(self.answers):
            count = chance.randrange(1, 4)
            taken, self.answers[key] = self.answers[key][:count], self.answers[key][count:]
            for frames in taken:
                node.receive_replay(key, frames, self.clock_ns)
            is_dry = is_dry and not self.answers.get(key)
        node.on_time(self.clock_ns)
        if is_dry:
            node.flush()
        if kill == "before commit":
            return is_dry
        output = node.take_output() if self.journal is None else self.journal.commit(node, self.clock_ns)
        if kill == "before send":
            return is_dry
        for number, (_, frames) in enumerate(output):
            if kill == "within send" and number * 2 >= len(output):
                return is_dry
            self.reader.take(int.from_bytes(frames[1], "big"), frames[2])
        for request in node.take_requests():
            self.request(request)
        self.notices += node.take_notices()
        return is_dry

    def request(self, request: UpstreamRequest) -> None:
        """Answer a request of the broker, in the turns to come."""
        self.answers.pop(request.key, None)
        if request.frames:
            rank = self.ranks[request.source_index]
            start_seq = read_replay_request(request.frames)
            batches = [replay_reply(rank.topic, seq, rank.kept[seq]) for seq in sorted(rank.kept) if seq >= start_seq]
            self.answers[request.key] = [*batches, replay_end()]

    def publish(self) -> None:
        """Let some ranks say something; they are never far apart."""
        shortest = min(len(rank.ahead) for rank in self.ranks)
        for rank in self.ranks:
            if self.chance.random() < 0.7 and len(rank.ahead) < shortest + 12:
                rank.publish(self.chance.randrange(1, 5), self.now_ns)
        for rank in self.ranks:
            if len(rank.ahead) >= shortest + 12:
                rank.publish(self.chance.randrange(1, 5), self.now_ns)

    def die(self, kill: str | None = None) -> None:
        """Kill the broker at some place of a turn, let the ranks go on without it, and start it again."""
        kill = kill or self.chance.choice(KILLS)
        self.kills[kill] += 1
        self.turn(kill)
        self.kill()
        for _ in range(self.chance.randrange(0, 4)):
            self.publish()
            self.now_ns += self.chance.choice([0, MS, 300 * MS])
        self.start()

    def die_and_compare(self, kill: str) -> None:
        """Kill the broker behind a commit, start it on the same clock, and compare all that both of them know."""
        assert kill != "before commit"
        self.kills[kill] += 1
        self.turn(kill)
        before = self.known()
        self.kill()
        self.now_ns += self.chance.choice([0, MS, 700 * MS])
        self.start(offset_ns=self.offset_ns)
        for left, right in zip(before, self.known(), strict=True):
            assert left == right

    def known(self) -> list[Any]:
        """Everything that outlives the process, and what is said when all that was released is handed out."""
        outputs = [(output.capture(), output.view.next_seq, output.oldest_seq) for output in self.node.outputs]
        self.node.flush()
        recorder = self.node.recorder
        assert recorder is not None
        for stream, mark in zip(self.node.streams, recorder.marks, strict=True):
            assert stream.receiver.position == mark.position or not stream.receiver.can_replay
        parts = list(capture(self.node, recorder).parts())
        # What has just been flushed is said by one of them only, and both must say it.
        return [parts, outputs, self.flushed()]

    def flushed(self) -> list[list[bytes]]:
        """What the flush has brought; it is put back, since it is to be sent."""
        output = self.node.take_output()
        self.node._output = output
        return [frames for _, frames in output]

    def restart_rank(self, rank: Rank) -> None:
        """Kill a rank and start it again; what was on the way is lost."""
        rank.restart()
        rank.on_the_way.clear()
        if rank.is_connected:
            self.node.disconnected(rank.index, self.clock_ns)
            self.node.connected(rank.index, self.clock_ns)

    def believed(self) -> Counter[int]:
        """What the reader takes for resident."""
        held: Counter[int] = Counter()
        fold(held, self.reader.events())
        return held

    def assert_truth(self) -> None:
        """Let all ranks say what the one that is ahead has said, and compare what the reader believes with what they hold."""
        shortest = min(len(rank.ahead) for rank in self.ranks)
        for rank in self.ranks:
            rank.publish(len(rank.ahead) - shortest, self.now_ns)
        self.settle()
        for block in self.believed():
            assert all(rank.held[block] for rank in self.ranks), f"block {block} is announced, not every rank holds it"

    def settle(self, seconds: float = 8.0) -> None:
        """Let everything come to rest, and the reader ask for what it has missed."""
        end_ns = self.now_ns + round(seconds * SECOND)
        while self.now_ns < end_ns:
            self.turn()
            due_ns = self.node.deadline_ns
            is_busy = any(rank.on_the_way for rank in self.ranks) or any(self.answers.values())
            if not is_busy and due_ns is not None and due_ns > self.clock_ns:
                self.now_ns = min(end_ns, due_ns - self.offset_ns)
        self.turn()
        self.reader.ask(self.node, self.clock_ns)

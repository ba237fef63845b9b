"""A broker killed with -9, again and again, while four ranks run: what a subscriber ends with is what the ranks hold.

The witnesses know nothing of the broker: each rank writes down what it published, and the worker what its tiers held.
"""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvbus.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event
from kvbus.subscriber import Gap, Received, Restarted, Subscriber
from kvbus.wire.codec import decode_batch
from kvbus.wire.frames import ReplayEnd, read_replay_reply, replay_request
from kvbus.wire.jsonform import event_to_json
from kvbus_cli.children import Child
from tests.waiting import wait_until

ANY = "tcp://127.0.0.1:0"
RANKS = 4
REST_S = 90.0
"""Longest wait for the end of the trace and of the last recovery."""

Key = tuple[str | None, str | None, int | None, BlockHash]


class Follower:
    """A subscriber that keeps everything it is given."""

    def __init__(self, endpoints: dict[str, str]) -> None:
        self.items: list[Received | Gap | Restarted] = []
        self.subscriber = Subscriber(endpoints["pub:all"], endpoints["replay:all"], start=0)
        self.thread = threading.Thread(target=self._follow, name="follower")
        self.thread.start()

    def _follow(self) -> None:
        self.items.extend(self.subscriber)

    def events(self) -> list[Event]:
        """All events, in order."""
        return [event for item in list(self.items) if isinstance(item, Received) for event in item.batch.events]

    def believed(self) -> Counter[Key]:
        """What it takes for resident: after a gap or a restart nothing, until it is told."""
        held: Counter[Key] = Counter()
        for item in list(self.items):
            if isinstance(item, Received):
                for event in item.batch.events:
                    fold(held, event)
            else:
                held.clear()
        return held

    def close(self) -> None:
        self.subscriber.close()
        self.thread.join(60)


def fold(held: Counter[Key], event: Event) -> None:
    """What a router that counts makes of an event."""
    if isinstance(event, AllBlocksCleared):
        held.clear()
    elif isinstance(event, BlockStored | BlockRemoved):
        for block_hash in event.block_hashes:
            key = (event.medium, event.ownership, event.group_idx, block_hash)
            held[key] += 1 if isinstance(event, BlockStored) else -1
            if held[key] <= 0:
                del held[key]


def oracle_content(path: Path) -> Counter[Key]:
    """What the tiers hold, by their own books."""
    held: Counter[Key] = Counter()
    with path.open() as lines:
        for line in lines:
            for medium, ownership, group_idx, block_hash, copies in json.loads(line)["changes"]:
                held[medium, ownership, group_idx, block_hash] = copies
    return +held


def logged_events(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What one rank says that it published, in order."""
    with (folder / f"rank-{rank}.jsonl").open() as lines:
        return [event for line in lines for event in json.loads(line)["events"]]


def trace_flags(folder: Path, name: str, requests: int) -> list[str]:
    """What makes a trace, and where it is written down."""
    flags = ["worker", "--ranks", str(RANKS), "--ownership", "cpu-tier", "--requests", str(requests)]
    flags += ["--gpu-blocks", "300", "--cpu-blocks", "600", "--clears-per-hour", "100", "--skew-ms", "20"]
    return [*flags, "--log-dir", str(folder / f"{name}log"), "--oracle", str(folder / f"{name}oracle")]


class Bus:
    """Four ranks, and a broker that is killed and started again on the ports that it got first."""

    def __init__(self, stack: ExitStack, folder: Path, requests: int, *, has_journal: bool) -> None:
        self.folder = folder
        self.lives = 0
        self._stack = stack
        flags = trace_flags(folder, "", requests)
        flags += ["--speed", "20", "--linger", "600", "--endpoint", ANY, "--replay", ANY, "--wait-subscribers"]
        self.worker = stack.enter_context(Child.that_gets_ready("worker", flags, folder))
        self._flags = ["broker", "--topic", "kv"]
        self._flags += [
            f"--worker=r{rank['tensor_parallel_rank']}={rank['endpoint']},replay={rank['replay_endpoint']}"
            for rank in self.worker.wait_ready()["ranks"]
        ]
        if has_journal:
            self._flags += ["--journal", str(folder / "journal")]
        self.endpoints = {"pub:all": ANY, "replay:all": ANY}
        self.start()

    def start(self) -> None:
        """Start the broker."""
        self.lives += 1
        name = f"broker-{self.lives}"
        ports = ["--pub", self.endpoints["pub:all"], "--replay", self.endpoints["replay:all"]]
        self.broker = self._stack.enter_context(Child.that_gets_ready(name, [*self._flags, *ports], self.folder))
        self.endpoints = self.broker.wait_ready()

    def kill(self) -> None:
        """Kill it with -9 and start another one."""
        self.broker.process.kill()
        self.broker.process.wait()
        self.start()

    def batches(self) -> list[tuple[int, bytes]]:
        """Everything that the broker has to replay: number and payload."""
        found = []
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.rcvtimeo = 60_000
            dealer.connect(self.endpoints["replay:all"])
            dealer.send_multipart(replay_request(0))
            while not isinstance(reply := read_replay_reply(dealer.recv_multipart()), ReplayEnd):
                found.append((reply.seq, reply.payload))
        return found


def wait_for_rest(follower: Follower, folder: Path, *, has_journal: bool) -> None:
    """Wait until the follower holds what the same trace leaves behind when nobody listens; it is played to its end by then."""
    until, content = time.monotonic() + REST_S, oracle_content(folder / "truth-oracle")
    events_count = len(logged_events(folder / "truth-log", 0)) if has_journal else 0
    while len(follower.events()) < events_count or content != follower.believed():
        assert time.monotonic() < until, "it has not come to rest"
        follower.thread.join(0.1)


@contextmanager
def killed(folder: Path, kills: int, requests: int, *, has_journal: bool) -> Iterator[tuple[Bus, Follower]]:
    """Run a trace, kill the broker at random, and wait until all has come to rest."""
    chance = random.Random(kills)
    with ExitStack() as stack:
        truth = [*trace_flags(folder, "truth-", requests), "--speed", "max", "--endpoint", "null"]
        stack.enter_context(Child("truth", truth, folder)).process.wait(60)
        bus = Bus(stack, folder, requests, has_journal=has_journal)
        follower = Follower(bus.endpoints)
        stack.callback(follower.close)
        for _ in range(kills):
            # At any time, and not before it has had some.
            with suppress(subprocess.TimeoutExpired):
                bus.broker.process.wait(chance.uniform(0.05, 1.2))
            bus.kill()
        wait_for_rest(follower, folder, has_journal=has_journal)
        bus.worker.ask_to_end()  # only then is all in its books
        bus.worker.process.wait(60)
        yield bus, follower


def check_with_journal(folder: Path, kills: int, requests: int) -> None:
    """Exactly the oracle's residency, numbers contiguous, nothing twice, nothing lost."""
    with killed(folder, kills, requests, has_journal=True) as (bus, follower):
        emitted = [logged_events(folder / "log", rank) for rank in range(RANKS)]
        assert all(events == emitted[0] for events in emitted)
        wait_until(lambda: len(emitted[0]) <= len(follower.events()), "the follower was not given all")
        assert oracle_content(folder / "oracle") == follower.believed()
        assert [] == [item for item in follower.items if not isinstance(item, Received)]
        assert emitted[0] == [event_to_json(event) for event in follower.events()]
        batches = bus.batches()
        assert list(range(len(batches))) == [seq for seq, _ in batches]
        assert emitted[0] == [event_to_json(event) for _, payload in batches for event in decode_batch(payload).events]


def check_without_journal(folder: Path, kills: int, requests: int) -> None:
    """Told of each new epoch, and the same residency in the end."""
    with killed(folder, kills, requests, has_journal=False) as (_, follower):
        wait_until(lambda: oracle_content(folder / "oracle") == follower.believed(), "they differ in the end")
        assert any(isinstance(item, Restarted) for item in follower.items)


def test_killed_twice_with_a_journal(tmp_path: Path) -> None:
    """Nobody downstream notices more than a pause."""
    check_with_journal(tmp_path, 2, 60)


def test_killed_twice_without_a_journal(tmp_path: Path) -> None:
    """A new epoch, said as such."""
    check_without_journal(tmp_path, 2, 60)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_twenty_times_with_a_journal(tmp_path: Path) -> None:
    """As the fast form, at length."""
    check_with_journal(tmp_path, 20, 700)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_twenty_times_without_a_journal(tmp_path: Path) -> None:
    """As the fast form, at length."""
    check_without_journal(tmp_path, 20, 700)

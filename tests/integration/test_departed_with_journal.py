"""Workers that departed before the broker was killed are still departed for the next one, and join when they are back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kvbus.broker.journal import Journal
from kvbus.broker.node import BrokerNode
from kvbus.config import BrokerConfig, IngestConfig, ViewConfig, parse_worker
from kvbus.events import AllBlocksCleared, BlockStored, Event, EventBatch
from kvbus.wire.codec import decode_batch, encode_batch
from kvbus.wire.frames import live_message

SECOND = 1_000_000_000
ONE, TWO, THREE, FOUR = (BlockStored([number], None, [], 0, medium="CPU") for number in (1, 2, 3, 4))
CLEAR = AllBlocksCleared()


class Lives:
    """A broker with a journal, in one life after another; workers are topics, or sources by their place."""

    def __init__(self, path: Path, **config: Any) -> None:
        view = ViewConfig(endpoint="inproc://out")
        options = {"worker_timeout_s": 10.0, "age_s": 1000.0, "views": (view,), "journal": str(path), **config}
        self.config = BrokerConfig(**options)
        self.config.validate()
        self.now_ns = 1000 * SECOND
        self.seqs: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.config, lambda notice: None, lambda: self.now_ns)
        self.node = self.journal.open(
            lambda recorder: BrokerNode(self.config, random.Random(0), 0, recorder), self.now_ns
        )

    def kill(self) -> None:
        self.journal.close()
        self.start()

    def turn(self) -> list[Event]:
        self.node.on_time(self.now_ns)
        self.node.flush()
        output = self.journal.commit(self.node, self.now_ns)
        return [event for _, frames in output for event in decode_batch(frames[2]).events]

    def wait(self, seconds: int) -> list[Event]:
        events = []
        for _ in range(seconds * 2):
            self.now_ns += SECOND // 2
            events += self.turn()
        return events

    def send(self, source: int, topic: str, *events: Event) -> list[Event]:
        seq = self.seqs.get(topic, 0)
        self.seqs[topic] = seq + 1
        payload = encode_batch(EventBatch(1.0, list(events), 0))
        self.node.receive(source, live_message(topic.encode(), seq, payload), self.now_ns)
        return self.turn()

    def states(self) -> dict[str, str]:
        return {row.worker_id: row.state for row in self.node.status({}).workers}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_a_departed_worker_is_not_waited_for_and_joins_when_it_is_back(path):
    lives = Lives(path, workers=tuple(parse_worker(f"{name}=tcp://h:{port}") for name, port in (("a", 1), ("b", 2))))
    for index, topic in enumerate("ab"):
        lives.node.connected(index, lives.now_ns)
        lives.send(index, topic, ONE)
    lives.node.disconnected(1, lives.now_ns)
    assert [CLEAR] == lives.wait(11)
    lives.kill()
    assert "departed" == lives.states()["b"]
    lives.node.connected(0, lives.now_ns)
    lives.turn()
    lives.wait(2)
    assert [TWO] == lives.send(0, "a", TWO)
    lives.node.connected(1, lives.now_ns)
    assert [CLEAR] == lives.turn()
    lives.send(0, "a", THREE)
    assert [THREE] == lives.send(1, "b", THREE)


def test_a_seat_that_was_given_back_is_free(path):
    lives = Lives(path, ingest=IngestConfig(endpoint="tcp://127.0.0.1:0", workers=2))
    for topic in "xy":
        lives.node.connected(0, lives.now_ns)
        lives.send(0, topic, ONE)
    lives.node.disconnected(0, lives.now_ns)
    lives.wait(1)
    lives.send(0, "x", TWO)
    assert [CLEAR] == lives.wait(11)
    lives.kill()
    lives.node.connected(0, lives.now_ns)
    lives.wait(2)
    assert [THREE] == lives.send(0, "x", THREE)
    lives.node.connected(0, lives.now_ns)
    assert [CLEAR] == lives.send(0, "z", FOUR)
    assert [FOUR] == lives.send(0, "x", FOUR)
    lives.kill()
    assert {"x", "z"} == set(lives.states())


def test_a_seat_that_is_held_is_still_held(path):
    lives = Lives(path, ingest=IngestConfig(endpoint="tcp://127.0.0.1:0", workers=2), on_departure="hold")
    for topic in "xy":
        lives.node.connected(0, lives.now_ns)
        lives.send(0, topic, ONE)
    lives.node.disconnected(0, lives.now_ns)
    lives.wait(1)
    lives.send(0, "x", TWO)
    lives.wait(11)
    assert "departed" == lives.states()["y"]
    lives.kill()
    assert "departed" == lives.states()["y"]
    lives.node.connected(0, lives.now_ns)
    lives.wait(2)
    assert [] == lives.send(0, "x", THREE)
    assert [] == lives.send(0, "z", FOUR)
    assert 1 == lives.node.refusals.counts["no_seat"]
    lives.node.connected(0, lives.now_ns)
    assert [THREE] == lives.send(0, "y", THREE)

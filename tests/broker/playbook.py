"""Frames in, frames out: a broker node with workers by name, driven without a socket."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from kvbus.broker.node import BrokerNode
from kvbus.config import BrokerConfig, IngestConfig, ViewConfig, parse_worker
from kvbus.events import Event, EventBatch
from kvbus.views.filters import EventFilter
from kvbus.wire.codec import decode_batch, encode_batch
from kvbus.wire.frames import live_message, replay_end, replay_reply

SECOND = 1_000_000_000


class Playbook:
    """A node, the workers' next numbers, and what its views have sent so far."""

    def __init__(
        self,
        workers: str = "ab",
        *,
        replay: bool = False,
        views: Sequence[ViewConfig] = (),
        clock_seq: int = 0,
        **config: Any,
    ):
        """Workers are single letters; each is a source, in order."""
        suffix = ",replay=inproc://r-{0}" if replay else ""
        specs = tuple(parse_worker(f"{{0}}=inproc://{{0}}{suffix}".format(name)) for name in workers)
        specs = config.pop("specs", specs)
        options = BrokerConfig(workers=specs, views=tuple(views) or (ViewConfig(topic="out"),), **config)
        options.validate()
        self.node = BrokerNode(options, random.Random(0), clock_seq)
        self.workers = list(workers)
        self.now_ns = SECOND
        self.seqs: dict[tuple[str, Any], int] = {}
        self.sent: dict[int, list[EventBatch]] = {index: [] for index in range(len(options.views))}
        self.frames: dict[int, list[list[bytes]]] = {index: [] for index in range(len(options.views))}

    @classmethod
    def ingest(cls, seats: int, topics: Iterable[str] = (), **config: Any) -> Playbook:
        """A node with one ingest source; workers are then topics."""
        ingest = IngestConfig(endpoint="inproc://in", workers=seats, topics=tuple(topics))
        return cls("", ingest=ingest, **config)

    def send(
        self,
        worker: str,
        *events: Event,
        rank: int | None = 0,
        seq: int | None = None,
        encoding: Any = "map",
        topic: bytes | None = None,
        ts: float = 1.0,
    ) -> list[Event]:
        """Publish one batch as a worker and return what view 0 sends because of it."""
        payload = encode_batch(EventBatch(ts, list(events), rank), encoding)
        return self.send_raw(worker, payload, rank=rank, seq=seq, topic=topic)

    def send_raw(
        self,
        worker: str,
        payload: bytes,
        *,
        rank: int | None = 0,
        seq: int | None = None,
        topic: bytes | None = None,
    ) -> list[Event]:
        """Publish a payload as it is."""
        number = self.seqs.get((worker, rank), 0) if seq is None else seq
        self.seqs[worker, rank] = number + 1
        return self.frames_in(worker, live_message(worker.encode() if topic is None else topic, number, payload))

    def frames_in(self, worker: str, frames: list[bytes]) -> list[Event]:
        """Give the node a message as it is."""
        self.node.receive(self.source(worker), frames, self.now_ns)
        return self.settle()

    def replay_in(
        self, key: int, *batches: tuple[int, EventBatch], end: bool = True, topic: bytes = b"a"
    ) -> list[Event]:
        """Answer a replay request."""
        for seq, batch in batches:
            self.node.receive_replay(key, replay_reply(topic, seq, encode_batch(batch)), self.now_ns)
        if end:
            self.node.receive_replay(key, replay_end(), self.now_ns)
        return self.settle()

    def wait(self, seconds: float) -> list[Event]:
        """Let time pass, stopping at every deadline."""
        end_ns = self.now_ns + round(seconds * SECOND)
        before = len(self.events())
        while (due := self.node.deadline_ns) is not None and due <= end_ns:
            self.now_ns = max(due, self.now_ns)
            self.node.on_time(self.now_ns)
            self.settle()
            if self.node.deadline_ns == due:
                break
        self.now_ns = end_ns
        self.node.on_time(end_ns)
        self.settle()
        return self.events()[before:]

    def settle(self) -> list[Event]:
        """Flush, take what is sent, and return view 0's new events."""
        before = len(self.events())
        self.node.on_time(self.now_ns)
        self.node.flush()
        for view_index, frames in self.node.take_output():
            self.frames[view_index].append(frames)
            self.sent[view_index].append(decode_batch(frames[2]))
        return self.events()[before:]

    def events(self, view: int = 0) -> list[Event]:
        """All events that a view has sent."""
        return [event for batch in self.sent[view] for event in batch.events]

    def source(self, worker: str) -> int:
        """Index of a worker's source; everything arrives at 0 with an ingest socket."""
        return self.workers.index(worker) if worker in self.workers else 0

    def notices(self) -> list[str]:
        """Names of the notices since the last call."""
        return [notice.name for notice in self.node.take_notices()]


def view(name: str, ownership: str | list[str] = "any", **config: Any) -> ViewConfig:
    """A view with an ownership filter."""
    return ViewConfig(
        name=name, endpoint=f"inproc://{name}", filter=EventFilter(ownership=ownership), topic=name, **config
    )

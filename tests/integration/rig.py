"""Publishers, proxies, a real broker and a reader that believes what it is told."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import msgspec
import zmq

from kvbus.broker.notices import Notice
from kvbus.broker.server import Broker
from kvbus.broker.status import BrokerStatus, WorkerStatus
from kvbus.config import BrokerConfig, ViewConfig, WorkerConfig
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvbus.publisher.publisher import Publisher
from kvbus.wire.codec import decode_batch
from tests.integration.proxy import TcpProxy

__all__ = ["ANY", "PATIENCE_S", "Reader", "Rig", "Worker", "large", "stored"]

ANY = "tcp://127.0.0.1:0"

PATIENCE_S = 60.0
"""How long something may take that must come; only a test that fails waits so long."""


def stored(*blocks: int) -> BlockStored:
    """A store of blocks whose content does not matter."""
    return BlockStored(list(blocks), None, [], 0, medium="CPU")


def large(block: int) -> BlockStored:
    """A store of 100 kB that costs nobody much: what no socket's buffers hold many of."""
    return BlockStored([block], None, [], 0, medium="CPU", extra={"padding": "x" * 100_000})


class Worker:
    """A publisher that can die and begin another life at the same place, behind a proxy for each of its sockets."""

    def __init__(self, name: str, *, has_replay: bool = True, **options: Any) -> None:
        self.name = name
        self.has_replay = has_replay
        self._options = options
        self.publisher = Publisher(ANY, replay_endpoint=ANY if has_replay else None, topic=name, **options)
        self.endpoint = str(self.publisher.endpoint)
        self.replay_endpoint = str(self.publisher.replay_endpoint) if has_replay else None
        self.live = TcpProxy(self.endpoint)
        self.replay = TcpProxy(self.replay_endpoint) if self.replay_endpoint else None

    def publish(self, *events: Event) -> None:
        """Publish one batch."""
        self.publisher.publish(list(events))

    def die(self) -> None:
        """End as a process does that is killed: nothing is said, connections are reset."""
        self.publisher.close(timeout_s=0)

    def live_again(self) -> None:
        """Begin another life, numbers from 0."""
        self.publisher = Publisher(
            self.endpoint, replay_endpoint=self.replay_endpoint, topic=self.name, **self._options
        )

    def config(self) -> WorkerConfig:
        """How the broker finds it."""
        replay = self.replay.url if self.replay is not None else None
        return WorkerConfig(worker_id=self.name, endpoint=self.live.url, replay_endpoint=replay)

    def close(self) -> None:
        """End it and its proxies."""
        self.publisher.close(timeout_s=0)
        self.live.close()
        if self.replay is not None:
            self.replay.close()


class Reader:
    """A SUB that folds what it hears: blocks with the number of their copies; a clear takes all."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], url: str) -> None:
        self.socket = context.socket(zmq.SUB)
        self.socket.linger = 0
        self.socket.rcvhwm = 0
        self.socket.subscribe(b"")
        self.socket.connect(url)
        self.events: list[Event] = []
        self.held: Counter[Any] = Counter()
        self.clears = 0
        self.seqs: list[int] = []

    @property
    def blocks(self) -> set[Any]:
        """Blocks that are believed to be there."""
        return set(self.held)

    def until(self, is_so: Callable[[], Any]) -> None:
        """Read until something is so."""
        until = time.monotonic() + PATIENCE_S
        while not is_so():
            if self.socket.poll(20):
                self._take()
            assert time.monotonic() < until, f"it did not happen; held {sorted(self.held)[:20]}, clears {self.clears}"

    def drain(self) -> None:
        """Read what has arrived."""
        while self.socket.poll(0):
            self._take()

    def _take(self) -> None:
        _, seq, payload = self.socket.recv_multipart()
        self.seqs.append(int.from_bytes(seq, "big"))
        for event in decode_batch(payload).events:
            self.events.append(event)
            if isinstance(event, BlockStored):
                self.held.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    self.held[block] -= 1
                self.held = +self.held
            elif isinstance(event, AllBlocksCleared):
                self.held.clear()
                self.clears += 1


class Rig:
    """Workers, a broker that is quick to notice, and a reader that is known to be subscribed. A context manager."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], workers: int = 1, *, has_replay: bool = True, **config: Any
    ) -> None:
        self._context = context
        self._has_replay = has_replay
        self._publisher_options = config.pop("publisher", {})
        self._view = config.pop("view", {})
        self._count = workers
        self._config = {"probe_s": 0.2, "loss_window_s": 0.05, "worker_timeout_s": 60.0, **config}
        self._stack = ExitStack()
        self.workers: list[Worker] = []
        self.notices: list[Notice] = []

    def __enter__(self) -> Rig:
        with self._stack as stack:
            for index in range(self._count):
                worker = Worker(f"w{index}", has_replay=self._has_replay, **self._publisher_options)
                stack.callback(worker.close)
                self.workers.append(worker)
            view = ViewConfig(**{"endpoint": ANY, "replay_endpoint": ANY, "topic": "out", **self._view})
            specs = tuple(worker.config() for worker in self.workers)
            config = BrokerConfig(workers=specs, views=(view,), **self._config)
            self.broker = stack.enter_context(Broker(config, tell=self.notices.append, seed=1))
            self.reader = Reader(self._context, self.broker.endpoints["pub:all"])
            stack.callback(self.reader.socket.close, 0)
            for worker in self.workers:
                assert worker.publisher.wait_for_subscribers(1, PATIENCE_S)
            # Subscriptions take their time: published until one arrives.
            while not self.reader.seqs:
                self.publish(stored(0), BlockRemoved([0], "CPU"))
                if self.reader.socket.poll(20):
                    self.reader.drain()
            # And the last of these are still under way: nothing of them may come once a test has begun to count.
            last = stored(-1)
            self.publish(last, BlockRemoved([-1], "CPU"))
            self.reader.until(lambda: last in self.reader.events and not self.reader.blocks)
            self._stack = stack.pop_all()
        return self

    def publish(self, *events: Event) -> None:
        """Publish one batch from every worker."""
        for worker in self.workers:
            worker.publish(*events)

    def change(self, **config: Any) -> None:
        """Let the broker go on with other policies or time-outs."""
        self.broker.reload(msgspec.structs.replace(self.broker.config, **config))

    def told(self, name: str) -> list[dict[str, Any]]:
        """The fields of every notice of a name so far."""
        return [notice.fields for notice in list(self.notices) if notice.name == name]

    def all_told(self, name: str) -> list[dict[str, Any]]:
        """The same, with those of the turn whose events have just been read: it tells after it has sent."""
        self.broker.status()  # answered between two turns
        return self.told(name)

    @property
    def status(self) -> BrokerStatus:
        """The broker's figures."""
        return self.broker.status()

    def row(self, worker: int = 0) -> WorkerStatus:
        """The broker's figures of one worker."""
        return self.status.workers[worker]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

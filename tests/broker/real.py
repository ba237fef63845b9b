"""A real broker between real sockets, without a sleep: every step waits for what shows that it has happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from kvbus.broker.server import Broker
from kvbus.config import BrokerConfig, ViewConfig, parse_worker
from kvbus.events import Event, EventBatch
from kvbus.wire.codec import decode_batch, encode_batch
from kvbus.wire.frames import live_message
from tests.machine import bind_again

WAIT_MS = 60_000
"""How long something may take that must come; only a test that fails waits so long."""

ANY = "tcp://127.0.0.1:0"


class RealWorker:
    """A PUB of a worker, as plain as an engine's; an XPUB, so that it can wait for the broker."""

    def __init__(self, context: zmq.Context, endpoint: str = ANY, topic: bytes = b"t") -> None:
        self.socket = context.socket(zmq.XPUB)
        self.socket.linger = 0
        self.socket.sndhwm = 0
        self.socket.rcvtimeo = WAIT_MS
        bind_again(lambda: self.socket.bind(endpoint))
        self.url = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.topic = topic
        self.seq = 0

    def wait_for_subscriber(self) -> None:
        assert b"\x01" == self.socket.recv()

    def publish(self, *events: Event, rank: int | None = 0, ts: float = 1.0) -> None:
        payload = encode_batch(EventBatch(ts, list(events), rank))
        self.socket.send_multipart(live_message(self.topic, self.seq, payload))
        self.seq += 1


@contextmanager
def real_broker(
    context: zmq.Context, workers: int = 2, **config
) -> Iterator[tuple[Broker, list[RealWorker], zmq.Socket]]:
    """A started broker that hears its workers, and a SUB.

    The subscription may be on its way still: who wants to hear something publishes until it does.
    """
    sources = [RealWorker(context) for _ in range(workers)]
    view = config.pop("view", ViewConfig(endpoint=ANY, replay_endpoint=ANY, topic="out"))
    specs = tuple(parse_worker(f"w{index}={worker.url}") for index, worker in enumerate(sources))
    sub = context.socket(zmq.SUB)
    sub.linger = 0
    sub.rcvhwm = 0
    sub.rcvtimeo = WAIT_MS
    sub.subscribe(b"")
    try:
        with Broker(BrokerConfig(workers=specs, views=(view,), **config), seed=1) as broker:
            sub.connect(broker.endpoints["pub:all"])
            for worker in sources:
                worker.wait_for_subscriber()
            yield broker, sources, sub
    finally:
        sub.close(0)
        for worker in sources:
            worker.socket.close(0)


def read_until(sub: zmq.Socket, wanted: int) -> list[Event]:
    """Receive batches until so many events have come."""
    events: list[Event] = []
    while len(events) < wanted:
        events += decode_batch(sub.recv_multipart()[2]).events
    return events

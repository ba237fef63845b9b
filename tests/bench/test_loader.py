"""Workers that are played: numbers, topics, times, signals."""

from __future__ import annotations

import time

import pytest
import zmq

from kvbus.bench.load import HELLO, MARK, make_load
from kvbus.bench.loader import Loader, stamped
from kvbus.bench.options import BenchOptions
from kvbus.wire.envelope import split_batch

OPTIONS = BenchOptions(workers=2, batch=4, events=12, resident_blocks=600)


@pytest.fixture
def loader():  # type: ignore[no-untyped-def]
    """Both workers, with their sockets closed at the end."""
    made = Loader(OPTIONS, [0, 1])
    yield made
    made.shut()


def _heard(
    loader: Loader, context: zmq.Context[zmq.Socket[bytes]], commands: list[dict[str, object]]
) -> list[list[bytes]]:
    """What a subscriber of both workers hears of some commands."""
    urls = loader.do("open", url="tcp://127.0.0.1:0")["urls"]
    with context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        for url in urls.values():
            socket.connect(url)
        loader.do("subscribed")
        for command in commands:
            loader.do(**command)  # type: ignore[arg-type]
        loader.do("hello")
        heard: list[list[bytes]] = []
        while sum(HELLO in frames[2] for frames in heard) < 2:
            assert socket.poll(60_000)
            heard.append(socket.recv_multipart())
    return heard


def test_a_backlog_is_everything_and_the_mark(loader: Loader, zmq_context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """In order for each worker, numbered from 0."""
    heard = _heard(loader, zmq_context, [{"do": "fill"}])
    for worker, payloads in enumerate(make_load(OPTIONS).payloads):
        own = [frames for frames in heard if frames[0] == b"w%d" % worker]
        assert [number.to_bytes(8, "big") for number in range(5)] == [frames[1] for frames in own]
        assert payloads == [frames[2] for frames in own[:3]]
        assert MARK in own[3][2]
        assert HELLO in own[4][2]


def test_paced_batches_carry_their_time(loader: Loader, zmq_context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """From the beginning again where there are too few."""
    start_ns = time.monotonic_ns()
    heard = _heard(loader, zmq_context, [{"do": "pace", "rate": 1000.0, "batches": 4, "start_ns": start_ns}])
    batches = [split_batch(frames[2]) for frames in heard if frames[0] == b"w1"][:4]
    assert batches[0].events == batches[3].events
    for step, batch in enumerate(batches):
        assert start_ns + step * 1_000_000 <= batch.ts * 1e9 + 1000
        assert batch.ts <= time.monotonic()


def test_resident_blocks_come_in_shares(loader: Loader, zmq_context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Until there are no more."""
    commands = [{"do": "reside", "batches": 1}, {"do": "reside", "batches": 1}, {"do": "reside", "batches": 1}]
    heard = _heard(loader, zmq_context, commands)
    own = [split_batch(frames[2]).events for frames in heard if frames[0] == b"w0"]
    assert [64, 1, 11, 1, 1, 1] == [len(events) for events in own]


def test_a_stamp_changes_the_time_alone() -> None:
    """Everything else is what was encoded before."""
    payload = make_load(OPTIONS).payloads[0][0]
    was, is_now = split_batch(payload), split_batch(stamped(payload, 12.5))
    assert (0.0, 12.5) == (was.ts, is_now.ts)
    assert was.events == is_now.events

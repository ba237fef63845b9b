"""The ranks of a soak: a cycle that ends where it began, numbers, holes, restarts, replay."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import zmq

from kvbus.bench.options import BenchOptions
from kvbus.bench.soak_worker import LATE_STEPS_MAX, Engine, in_cycle, make_cycle
from kvbus.events import BlockRemoved, BlockStored
from kvbus.wire.codec import decode_event
from kvbus.wire.envelope import split_batch
from kvbus.wire.frames import ReplayBatch, ReplayEnd, read_replay_reply, replay_request

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def cycle() -> list[bytes]:
    """A short one."""
    return make_cycle(1, 8, 300)


@pytest.fixture
def engine(
    zmq_context: zmq.Context[zmq.Socket[bytes]], cycle: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """Two ranks with a hole every two seconds and a restart every five."""
    monkeypatch.setattr("kvbus.bench.soak_worker.make_cycle", lambda seed, batch: cycle)
    made = Engine(zmq_context, BenchOptions(workers=2), 2.0, 5.0)
    yield made
    made.close()


def begin(engine: Engine, rate: float) -> int:
    """Tell it to go, and return the moment that it has taken for its beginning, nanoseconds."""
    engine.do("go", rate=rate)
    return round(engine._due_ns)


def test_a_cycle_removes_all_that_it_stores(cycle: list[bytes]) -> None:
    """So it can be sent over and over without filling anybody's memory."""
    resident: dict[tuple[str | None, object], int] = {}
    owners = set()
    for payload in cycle:
        for raw in split_batch(payload).events:
            event = decode_event(raw)
            assert isinstance(event, BlockStored | BlockRemoved)
            owners.add((event.medium, event.ownership))
            for block_hash in event.block_hashes:
                key = (event.ownership, block_hash)
                resident[key] = resident.get(key, 0) + (1 if isinstance(event, BlockStored) else -1)
    assert {0} == set(resident.values())
    assert {("GPU", None), ("CPU", "cpu-tier")} == owners


def test_no_block_comes_again_in_another_cycle(cycle: list[bytes]) -> None:
    """Else what is left over after a restart would meet its likes again within its age, as no engine's does."""
    hashes: list[set[object]] = []
    for number in (0, 1, 70_000):
        events = [decode_event(raw) for payload in cycle for raw in split_batch(in_cycle(payload, number)).events]
        hashes.append({each for event in events for each in event.block_hashes})  # type: ignore[union-attr]
        assert {len(payload) for payload in cycle} == {len(in_cycle(payload, number)) for payload in cycle}
    assert not hashes[0] & hashes[1] | hashes[1] & hashes[2] | hashes[0] & hashes[2]
    assert len(hashes[0]) == len(hashes[1]) == len(hashes[2]) > 300


def test_all_ranks_send_the_same_at_the_rate(engine: Engine) -> None:
    """Steps that are due, no more; nothing before it is told to go."""
    engine.turn(time.monotonic_ns())
    assert 0 == engine.do("figures")["steps"]
    start_ns = begin(engine, 10.0)
    engine.turn(start_ns + SECOND)
    figures = engine.do("stop")
    assert 11 == figures["steps"]
    assert [figures["steps"]] * 2 == figures["batches"]
    assert 8 * figures["steps"] == figures["events"]
    engine.turn(start_ns + 2 * SECOND)
    assert figures["steps"] == engine.do("figures")["steps"]


def test_after_a_long_stall_steps_are_left_out(engine: Engine) -> None:
    """And counted."""
    engine.turn(begin(engine, 1000.0) + SECOND)
    assert 1000 - LATE_STEPS_MAX == engine.do("figures")["left_out"]


def test_holes_are_numbered_and_kept(engine: Engine, zmq_context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """One rank's batch goes to nobody, and can be had by replay."""
    start_ns = begin(engine, 2.0)
    for second in (1, 2, 3):
        engine.turn(start_ns + second * SECOND)
    assert 1 == engine.do("stop")["holes"]
    with zmq_context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(engine.replays[0])
        dealer.send_multipart(replay_request(1))
        seqs = []
        while True:
            engine.turn(start_ns)
            if dealer.poll(10):
                message = read_replay_reply(dealer.recv_multipart())
                if isinstance(message, ReplayEnd):
                    break
                assert isinstance(message, ReplayBatch)
                seqs.append(message.seq)
    assert list(range(1, engine.do("figures")["steps"])) == seqs


def test_a_rank_restarts_and_all_wait_for_it(engine: Engine) -> None:
    """It is away for a while, then back where it was, with numbers from 0."""
    url = engine.workers[0].url
    start_ns = begin(engine, 1.0)
    engine.turn(start_ns + 6 * SECOND)
    assert (1, False) == (engine.do("figures")["restarts"], engine.do("figures")["is_whole"])
    steps = engine.do("figures")["steps"]
    end_s = time.monotonic() + 60
    while not engine.do("figures")["is_whole"] and time.monotonic() < end_s:
        engine.turn(start_ns + 7 * SECOND)
    assert engine.do("figures")["is_whole"]
    assert url == engine.workers[0].url
    engine.turn(start_ns + 8 * SECOND)
    assert engine.do("figures")["steps"] > steps


def test_what_is_allowed_is_sent_at_once_and_no_more(engine: Engine) -> None:
    """Without holes and restarts, whatever the time; then it goes on at a rate."""
    start_ns = begin(engine, 1.0)
    engine.do("allow", steps=3)
    engine.turn(start_ns + 60 * SECOND)
    engine.do("allow", steps=10**6)
    engine.turn(start_ns + 120 * SECOND)
    figures = engine.do("figures")
    assert (3 + LATE_STEPS_MAX, 0, 0, 0) == tuple(figures[name] for name in ("steps", "holes", "restarts", "left_out"))
    start_ns = begin(engine, 1.0)
    engine.turn(start_ns)
    assert 4 + LATE_STEPS_MAX == engine.do("figures")["steps"]

"""The trace worker on real sockets: what ranks publish is what the engine did, and the files for tests say so."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from kvbus.errors import ConfigError, UsageError
from kvbus.events import EventBatch
from kvbus.offload.engine_options import EngineOptions, TierOptions
from kvbus.offload.ranks import RankOptions
from kvbus.wire.codec import decode_batch
from kvbus.wire.frames import read_live
from kvbus.wire.jsonform import batch_to_json, dumps
from kvbus.worker import RankEndpoints, TraceWorker, TraceWorkerOptions
from tests.offload.folding import Content, fold

ENGINE = EngineOptions(gpu_blocks=400, cpu_blocks=600, groups=(), ownership="cpu-tier")
OPTIONS = TraceWorkerOptions(
    engine=ENGINE,
    ranks=RankOptions(count=3),
    endpoint="tcp://127.0.0.1:0",
    replay_endpoint="tcp://127.0.0.1:0",
    topic="w{rank}",
    speed=float("inf"),
    requests_max=25,
    wait_subscribers=True,
)
NULL = msgspec.structs.replace(OPTIONS, endpoint="null", wait_subscribers=False)


@pytest.fixture
def subscriber(zmq_context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[zmq.Socket[bytes]]:
    with zmq_context.socket(zmq.SUB) as socket_:
        socket_.linger = 0
        socket_.rcvhwm = 0
        socket_.rcvtimeo = 60_000
        socket_.subscribe(b"")
        yield socket_


def receive(subscriber: zmq.Socket[bytes], worker: TraceWorker) -> dict[str, list[tuple[int, EventBatch]]]:
    """Subscribe to every rank and receive until each has sent what it counted."""
    received: dict[str, list[tuple[int, EventBatch]]] = {rank.topic: [] for rank in worker.endpoints}
    for rank in worker.endpoints:
        subscriber.connect(rank.endpoint)
    expected = None
    while expected != sum(map(len, received.values())):
        # The last batch may be here before the worker knows that it was the last.
        if not subscriber.poll(10) and expected is None and worker.wait(0):
            expected = sum(rank.batches for rank in worker.counts().ranks)
            continue
        if expected is not None or subscriber.poll(0):
            topic, seq, payload = read_live(subscriber.recv_multipart())
            received[topic.decode()].append((seq, decode_batch(payload)))
    return received


@pytest.mark.parametrize("speed", [float("inf"), 1.0])
def test_it_can_be_stopped_while_nothing_happens(speed: float) -> None:
    """Requests without end, none of which fits: it used to look for the next event for ever."""
    engine = EngineOptions(gpu_blocks=1, cpu_blocks=0, groups=())
    options = msgspec.structs.replace(NULL, engine=engine, requests_max=None, speed=speed)
    with TraceWorker(options) as worker:
        while not worker.counts().requests:
            assert not worker.wait(0.001)
        assert 0 == worker.counts().block_events
        worker.finish()
        counts = worker.counts()
    assert counts.requests == counts.requests_refused > 0
    assert not counts.is_done


def test_every_rank_publishes_the_same_events_in_its_own_batches(subscriber: zmq.Socket[bytes]) -> None:
    with TraceWorker(OPTIONS) as worker:
        received = receive(subscriber, worker)
        counts = worker.counts()
    events = [[event for _, batch in batches for event in batch.events] for batches in received.values()]
    assert events[0] == events[1] == events[2]
    assert len(events[0]) == counts.ranks[0].events > 50
    for batches in received.values():
        assert list(range(len(batches))) == [seq for seq, _ in batches]
        assert {0} == {batch.data_parallel_rank for _, batch in batches}
    cuts = {tuple(len(batch.events) for _, batch in batches) for batches in received.values()}
    assert 3 == len(cuts)
    assert counts.is_done
    assert 25 == counts.requests == counts.requests_finished


def test_logs_say_what_was_published_and_the_oracle_what_was_true(
    subscriber: zmq.Socket[bytes], tmp_path: Path
) -> None:
    tiers = (TierOptions("disk", "STORAGE", 700),)
    options = msgspec.structs.replace(
        OPTIONS,
        engine=msgspec.structs.replace(ENGINE, tiers=tiers, clears_per_hour=1000),
        log_dir=str(tmp_path),
        oracle_file=str(tmp_path / "oracle.jsonl"),
        requests_max=12,
    )
    with TraceWorker(options) as worker:
        received = receive(subscriber, worker)
    contents = {line["step"]: held for line, held in oracle_contents(tmp_path / "oracle.jsonl")}
    for rank, batches in enumerate(received.values()):
        logged = list(map(json.loads, (tmp_path / f"rank-{rank}.jsonl").read_text().splitlines()))
        assert [line["seq"] for line in logged] == [seq for seq, _ in batches]
        content: Content = {}
        checked_count = 0
        for line, (_, batch) in zip(logged, batches, strict=True):
            assert json.loads(dumps(batch_to_json(batch))).items() <= line.items()
            fold(content, batch.events)
            if line["step"] is not None:
                flat = {(*key, block_hash): n for key, held in content.items() for block_hash, n in held.items()}
                assert contents[line["step"]] == flat
                checked_count += 1
        assert checked_count > 5


def oracle_contents(path: Path) -> Iterator[tuple[dict, Counter]]:
    held: Counter = Counter()
    for text in path.read_text().splitlines():
        line = json.loads(text)
        for *key, copies in line["changes"]:
            held[tuple(key)] = copies
        yield line, +held


def test_array_form(subscriber: zmq.Socket[bytes]) -> None:
    options = msgspec.structs.replace(OPTIONS, encoding="array", ranks=RankOptions(), requests_max=3)
    with TraceWorker(options) as worker:
        [endpoint] = worker.endpoints
        subscriber.connect(endpoint.endpoint)
        _, _, payload = read_live(subscriber.recv_multipart())
    [event, *_] = msgspec.msgpack.decode(payload)[1]
    assert "BlockStored" == event[0]


def test_what_was_published_can_be_replayed_after_the_end(zmq_context: zmq.Context[zmq.Socket[bytes]]) -> None:
    options = msgspec.structs.replace(OPTIONS, ranks=RankOptions(), wait_subscribers=False, requests_max=5)
    with TraceWorker(options) as worker, zmq_context.socket(zmq.DEALER) as dealer:
        assert worker.wait(60)
        worker.finish()
        dealer.linger = 0
        dealer.rcvtimeo = 60_000
        dealer.connect(worker.endpoints[0].replay_endpoint or "")
        dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        seqs = []
        while (seq := dealer.recv_multipart()[2]) != b"\xff" * 8:
            seqs.append(int.from_bytes(seq, "big"))
        assert list(range(worker.counts().ranks[0].batches)) == seqs


def test_null_endpoint_counts_and_opens_nothing() -> None:
    with TraceWorker(NULL) as worker:
        assert [RankEndpoints(rank, f"w{rank}", "null", None) for rank in range(3)] == worker.endpoints
        assert worker.wait(60)
        counts = worker.counts()
    assert 1 == len({rank.events for rank in counts.ranks})
    assert counts.block_events == sum(kind.blocks for kind in counts.ranks[0].by_kind)
    assert 0 < counts.hit_rates.gpu < counts.hit_rates.total < 1


def test_one_seed_one_run() -> None:
    def counts(seed: int) -> object:
        with TraceWorker(msgspec.structs.replace(NULL, seed=seed)) as worker:
            worker.wait(60)
            return msgspec.structs.replace(worker.counts(), elapsed_seconds=0)

    assert counts(1) == counts(1)
    assert counts(1) != counts(2)


def test_stopped_in_the_middle_every_rank_has_said_the_same() -> None:
    endless = msgspec.structs.replace(NULL, requests_max=None, ranks=RankOptions(count=3, lags_ns=((1, 10**10),)))
    with TraceWorker(endless) as worker:
        while worker.counts().ranks[0].events < 500:
            assert not worker.wait(0.001)
    counts = worker.counts()
    assert not counts.is_done
    assert 1 == len({rank.events for rank in counts.ranks})


def test_speed_is_kept() -> None:
    """At a tenth of the pace nothing has ended when the first step is due; told to stop, it does not wait for the rest."""
    slow = msgspec.structs.replace(NULL, speed=0.001)
    with TraceWorker(slow) as worker:
        assert not worker.wait(0.05)
        assert worker.counts().ranks[0].events < 200


def test_it_plays_when_its_subscribers_are_there(subscriber: zmq.Socket[bytes]) -> None:
    """Who gives it so many seconds does not want them spent on waiting."""
    endless = msgspec.structs.replace(OPTIONS, requests_max=None, ranks=RankOptions(count=1), speed=1.0)
    with TraceWorker(endless) as worker:
        assert not worker.wait_for_play(0.01)
        subscriber.connect(worker.endpoints[0].endpoint)
        assert worker.wait_for_play(60)


def test_without_subscribers_it_gives_up() -> None:
    with TraceWorker(msgspec.structs.replace(OPTIONS, wait_subscribers_s=0.01)) as worker:
        with pytest.raises(UsageError, match="nobody subscribed to rank 0"):
            worker.wait(60)
        assert worker.wait_for_play(0)
        assert 0 == worker.counts().requests


def test_a_port_that_is_taken_is_named_and_nothing_stays_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = msgspec.structs.replace(OPTIONS, endpoint=f"tcp://127.0.0.1:{port}", ranks=RankOptions())
        worker = TraceWorker(options)
        with pytest.raises(ConfigError, match=str(port)):
            worker.start()
    assert "kvbus-trace-worker" not in [thread.name for thread in threading.enumerate()]


def test_a_bad_trace_is_named_before_anything_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n{"timestamp": 1}\n')
    worker = TraceWorker(msgspec.structs.replace(NULL, trace=str(path)))
    with pytest.raises(ConfigError, match="trace line 2"):
        worker.start()


def test_misuse() -> None:
    worker = TraceWorker(NULL)
    with pytest.raises(UsageError, match="once it has started"):
        worker.counts()
    with worker, pytest.raises(UsageError, match="starts once"):
        worker.start()
    worker.stop()

"""Parts of the bus without sockets: what one event costs in the codec, in the aggregator and per view.

Every job is run once in each round, in turns; what counts is the CPU time of the thread, and the ratio to the first job of the
table in the same round. Jobs of the aggregator get the batches of all workers in turns, as they would arrive.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from kvbus.aggregate.aggregator import KVEventAggregator
from kvbus.bench.assembly import Agreement, Batch
from kvbus.bench.figures import Spread, ratios, spread
from kvbus.bench.load import make_load
from kvbus.bench.options import BenchOptions
from kvbus.bench.peer import load_peer
from kvbus.broker.node import BrokerNode
from kvbus.config import BrokerConfig, ViewConfig, WorkerConfig
from kvbus.views.filters import EventFilter
from kvbus.wire.codec import decode_batch, encode_batch
from kvbus.wire.envelope import join_batch, split_batch
from kvbus.wire.frames import live_message
from kvbus.wire.head import read_head

__all__ = ["SUBJECTS", "MicroRow", "measure_micro"]

SUBJECTS = ("codec", "aggregator", "views")

NOW_NS = 1_000_000_000
SHARE_MESSAGES = 32
"""Of each worker, taken together: what waits in a socket of a broker that is kept busy."""


class MicroRow(msgspec.Struct, frozen=True, kw_only=True):
    """What all rounds say of one job.

    Attributes:
        job: What it does.
        us: CPU time per event that goes in, µs.
        ratio: To the first job of the table, round by round.
    """

    job: str
    us: Spread
    ratio: Spread


class _Job(NamedTuple):
    """Something to measure: `run` does it once, for so many events."""

    name: str
    run: Callable[[], object]
    events: int


def measure_micro(subject: str, options: BenchOptions) -> list[MicroRow]:
    """Measure the jobs of one table.

    Args:
        subject: From `SUBJECTS`.
        options: Checked; workers, batch, events, mode, rounds, seed and peer count.
    """
    jobs = list({"codec": _codec_jobs, "aggregator": _aggregator_jobs, "views": _view_jobs}[subject](options))
    times: dict[str, list[float | None]] = {job.name: [] for job in jobs}
    for turn in range(options.rounds):
        start = turn % len(jobs)
        for job in (*jobs[start:], *jobs[:start]):
            begin_ns = time.thread_time_ns()
            job.run()
            times[job.name].append((time.thread_time_ns() - begin_ns) / 1e3 / job.events)
    first = times[jobs[0].name]
    rows = []
    for name, found in times.items():
        us, ratio = spread([each for each in found if each is not None]), spread(ratios(found, first))
        assert us is not None
        assert ratio is not None
        rows.append(MicroRow(job=name, us=us, ratio=ratio))
    return rows


def _codec_jobs(options: BenchOptions) -> Iterator[_Job]:
    """Yield what is done to bytes: by the broker, by a full decode, by typed decoders."""
    payloads = make_load(options, [0]).payloads[0]
    envelopes = [split_batch(payload) for payload in payloads]
    batches = [decode_batch(payload) for payload in payloads]
    typed_decode = msgspec.msgpack.Decoder(Batch).decode
    typed_encode = msgspec.msgpack.Encoder().encode
    typed = [typed_decode(payload) for payload in payloads]
    yield _Job("split_batch: where events end", _each(split_batch, payloads), options.events)
    raws = [raw for envelope in envelopes for raw in envelope.events]
    yield _Job("read_head: the fields that views need", _each(read_head, raws), options.events)
    yield _Job(
        "join_batch: raw events to a batch",
        _each(lambda envelope: join_batch(1.0, envelope.events, 0), envelopes),
        options.events,
    )
    yield _Job("decode_batch: every field, judged", _each(decode_batch, payloads), options.events)
    yield _Job("encode_batch", _each(encode_batch, batches), options.events)
    yield _Job("a+: typed decode", _each(typed_decode, payloads), options.events)
    yield _Job("a+: typed encode", _each(typed_encode, typed), options.events)
    if options.peer is not None:
        decode = msgspec.msgpack.Decoder(load_peer(options.peer).KVEventBatch).decode
        yield _Job("peer: typed decode", _each(decode, payloads), options.events)
        yield _Job("peer: typed encode", _each(typed_encode, [decode(each) for each in payloads]), options.events)


def _aggregator_jobs(options: BenchOptions) -> Iterator[_Job]:
    """Yield ways to agree: the whole node from frames to frames, the aggregator of values, dictionaries of others."""
    load = make_load(options)
    arrivals = _arrivals(load.payloads)
    yield _Job("kvbus: frames in, frames out", lambda: _run_node(options.workers, arrivals), load.ingested)
    values = [(f"w{worker}", decode_batch(payload).events) for worker, _, payload in arrivals]
    yield _Job("kvbus.KVEventAggregator of values", lambda: _run_aggregator(options.workers, values), load.ingested)
    decode = msgspec.msgpack.Decoder(Batch).decode
    typed = [(b"%d" % worker, decode(payload).events) for worker, _, payload in arrivals]
    yield _Job("a+: dictionary of decoded events", lambda: _run_agreement(options.workers, typed), load.ingested)
    yield _Job("a+: with decode and encode", lambda: _run_assembly(options.workers, arrivals), load.ingested)
    if options.peer is not None and options.mode == "aligned":
        peer = load_peer(options.peer)
        peer_decode = msgspec.msgpack.Decoder(peer.KVEventBatch).decode
        rounds = [[peer_decode(payload).events for payload in step] for step in zip(*load.payloads, strict=True)]
        yield _Job(
            "peer: its aggregator, decoded events in rounds",
            lambda: _run_rounds(peer.KVEventAggregator(options.workers), rounds),
            load.ingested,
        )


def _view_jobs(options: BenchOptions) -> Iterator[_Job]:
    """Yield views on the events of one worker: how many, and of what kind."""
    load = make_load(options, [0])
    arrivals = _arrivals(load.payloads[:1])
    plain = ViewConfig(snapshot=False)
    for name, views in (
        ("1 view of everything", [plain]),
        ("4 views", [plain] * 4),
        ("16 views", [plain] * 16),
        ("1 view, filtered", [_with(plain, filter=EventFilter(ownership="primary"))]),
        ("1 view of nothing", [_with(plain, filter=EventFilter(ownership="nobody"))]),
        ("1 view, as arrays", [_with(plain, encoding="array")]),
        ("1 view, hashes as uint64", [_with(plain, hashes="uint64")]),
        ("1 view, residency", [_with(plain, snapshot=True)]),
    ):
        yield _Job(name, _node_job(arrivals, views), options.events)


def _node_job(arrivals: Sequence[tuple[int, int, bytes]], views: Sequence[ViewConfig]) -> Callable[[], object]:
    return lambda: _run_node(1, arrivals, views)


def _with(view: ViewConfig, **fields: Any) -> ViewConfig:
    return msgspec.structs.replace(view, **fields)


def _each(function: Callable[[Any], object], arguments: Sequence[Any]) -> Callable[[], None]:
    """Return what calls a function for each argument."""

    def run() -> None:
        for argument in arguments:
            function(argument)

    return run


def _arrivals(payloads: Sequence[Sequence[bytes]]) -> list[tuple[int, int, bytes]]:
    """Return worker, number and payload of all batches, workers in turns."""
    steps = max(map(len, payloads))
    return [
        (worker, seq, batches[seq])
        for seq in range(steps)
        for worker, batches in enumerate(payloads)
        if seq < len(batches)
    ]


def _run_node(
    workers: int,
    arrivals: Sequence[tuple[int, int, bytes]],
    views: Sequence[ViewConfig] = (ViewConfig(snapshot=False),),
) -> None:
    config = BrokerConfig(
        workers=tuple(WorkerConfig(worker_id=f"w{n}", endpoint=f"inproc://w{n}") for n in range(workers)),
        views=tuple(
            _with(view, name=f"v{n}", endpoint=f"inproc://v{n}", replay_endpoint=f"inproc://r{n}")
            for n, view in enumerate(views)
        ),
    )
    node = BrokerNode(config, random.Random(0))
    for index in range(workers):
        node.connected(index, NOW_NS)
    for start in range(0, len(arrivals), SHARE_MESSAGES * workers):
        for index in range(workers):
            share = [
                live_message(b"", seq, payload)
                for worker, seq, payload in arrivals[start : start + SHARE_MESSAGES * workers]
                if worker == index
            ]
            node.receive_all(index, share, NOW_NS)
        node.on_time(NOW_NS)
        node.flush()
        node.take_output()


def _run_aggregator(workers: int, values: Sequence[tuple[str, list[Any]]]) -> None:
    aggregator: KVEventAggregator[Any] = KVEventAggregator([f"w{n}" for n in range(workers)])
    for worker, events in values:
        aggregator.add_events(worker, events, NOW_NS)


def _run_agreement(workers: int, typed: Sequence[tuple[bytes, list[Any]]]) -> None:
    agreement = Agreement(workers)
    for worker, events in typed:
        agreement.add(worker, events)


def _run_assembly(workers: int, arrivals: Sequence[tuple[int, int, bytes]]) -> None:
    agreement = Agreement(workers)
    decode, encode = msgspec.msgpack.Decoder(Batch).decode, msgspec.msgpack.Encoder().encode
    for worker, _, payload in arrivals:
        released = agreement.add(b"%d" % worker, decode(payload).events)
        if released:
            encode(Batch(1.0, released, 0))


def _run_rounds(aggregator: Any, rounds: Sequence[Sequence[list[Any]]]) -> None:
    for step in rounds:
        for events in step:
            aggregator.add_events(events)
        aggregator.get_common_events()
        aggregator.clear_events()

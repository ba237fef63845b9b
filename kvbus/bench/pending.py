"""Many events that wait for one more worker: what they take in memory, and the longest that any call takes meanwhile.

Without sockets, the broker's node in a process of its own is given every event by all workers but one, and then by the last. *In
order* means that all send the same batches; *in any order* that each but the first sends all events in an order of its own.
Memory is what the process has grown by (anonymous pages, so with all that Python's allocator keeps), against the bytes of the
events.

Events come from a file, so that nothing but the node keeps them.
"""

from __future__ import annotations

import mmap
import random
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from kvbus.bench.cpu import anonymous_bytes
from kvbus.bench.load import RANK, make_events
from kvbus.bench.processes import BenchError, Channel, Child
from kvbus.bench.report import table
from kvbus.broker.links import SHARE_MESSAGE_BYTES
from kvbus.broker.loop import SHARE_MESSAGES
from kvbus.broker.node import BrokerNode
from kvbus.config import BrokerConfig, ViewConfig, WorkerConfig
from kvbus.errors import ConfigError, Problem
from kvbus.wire.envelope import join_batch, split_batch
from kvbus.wire.frames import live_message

__all__ = [
    "ORDERS",
    "Order",
    "PendingResult",
    "check_pending",
    "measure_pending",
    "pending_lines",
    "run",
    "write_events",
]

Order: TypeAlias = Literal["in order", "any order"]

ORDERS: tuple[Order, ...] = ("in order", "any order")

EVENTS_MAX = BrokerConfig().pending_events_max
"""More than the broker lets wait would be given up."""

NOW_NS = 1_000_000_000


class PendingResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        order: How workers' orders differ.
        events: Events that were pending at once.
        workers: Workers that must agree.
        batch: Events in a batch.
        payload_bytes: Of the events.
        memory_bytes: By which the process has grown while they were pending.
        ratio: The second over the first.
        fill_us: CPU time per event and worker until all were pending, µs.
        drain_us: CPU time per event of the last worker, µs.
        longest_ms: The longest call, by the clock.
        longest_cpu_ms: The longest call, by the thread's CPU time, which others on the machine do not lengthen.
        is_exact: Whether every event came out, once.
    """

    order: Order
    events: int
    workers: int
    batch: int
    payload_bytes: int
    memory_bytes: int
    ratio: float
    fill_us: float
    drain_us: float
    longest_ms: float
    longest_cpu_ms: float
    is_exact: bool


def measure_pending(
    counts: Sequence[int], orders: Sequence[Order] = ORDERS, *, workers: int = 3, batch: int = 8, seed: int = 1
) -> Iterator[PendingResult]:
    """Measure every count in every order, each in a process of its own.

    Args:
        counts: Events that are pending at once, each ≥ 1.
        orders: How workers' orders differ.
        workers: Workers that must agree, ≥ 2.
        batch: Events in a batch, ≥ 1.
        seed: Same seed, same events.

    Raises:
        BenchError: A process failed.
    """
    with tempfile.TemporaryDirectory(prefix="kvbus-pending-") as name:
        folder = Path(name)
        write_events(folder / "events", max(counts), seed)
        for count in counts:
            for order in orders:
                fields = {"events": count, "order": order, "workers": workers, "batch": batch}
                with Child("pending", "pending", folder, path=str(folder / "events"), **fields) as child:
                    yield msgspec.convert(child.hear(3600.0), PendingResult)


def check_pending(counts: Sequence[int], workers: int, batch: int) -> None:
    """Refuse what cannot be measured.

    Args:
        counts: Events that are pending at once.
        workers: Workers that must agree.
        batch: Events in a batch.

    Raises:
        ConfigError: With each problem.
    """
    problems = [
        Problem("--events", str(count), f"must be between 1 and {EVENTS_MAX}")
        for count in counts
        if not 1 <= count <= EVENTS_MAX
    ]
    if not 2 <= workers <= 64:
        problems.append(Problem("--workers", str(workers), "must be between 2 and 64"))
    if not 1 <= batch <= 10_000:
        problems.append(Problem("--batch", str(batch), "must be between 1 and 10000"))
    if problems:
        raise ConfigError(problems)


def pending_lines(results: Sequence[PendingResult]) -> Iterator[str]:
    """Yield a table.

    Args:
        results: In order.
    """
    rows = [["pending", "bytes of them", "memory", "×", "fill µs", "drain µs", "longest ms", "of it CPU", "exact"]]
    for result in results:
        rows.append(
            [
                f"{result.events}, {result.order}",
                f"{result.payload_bytes / 1e6:.1f} MB",
                f"{result.memory_bytes / 1e6:.1f} MB",
                f"{result.ratio:.2f}",
                f"{result.fill_us:.2f}",
                f"{result.drain_us:.2f}",
                f"{result.longest_ms:.1f}",
                f"{result.longest_cpu_ms:.1f}",
                "yes" if result.is_exact else "NO",
            ]
        )
    yield from table(rows)


def write_events(path: Path, count: int, seed: int) -> None:
    """Write events to a file, each behind its length.

    Args:
        path: Where; it is made or replaced.
        count: How many.
        seed: Same seed, same events.
    """
    with path.open("wb") as file:
        for event in islice(make_events(random.Random(seed)), count):
            file.write(len(event).to_bytes(4, "big") + event)


def run(role: str, channel: Channel, arguments: dict[str, Any]) -> None:
    """Measure once and answer with a `PendingResult`.

    Args:
        role: Not looked at.
        channel: To the parent.
        arguments: `path`, `events`, `order`, `workers`, `batch`.
    """
    with Path(arguments.pop("path")).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as events:
        try:
            channel.write(msgspec.to_builtins(_measure(events, **arguments)))
        except BenchError as error:
            channel.write({"failed": str(error)})


class _Caller:
    """Drives a node as its shell would, and times every call."""

    def __init__(self, workers: int) -> None:
        config = BrokerConfig(
            workers=tuple(WorkerConfig(worker_id=f"w{n}", endpoint=f"inproc://w{n}") for n in range(workers)),
            views=(ViewConfig(endpoint="inproc://out", replay_endpoint="inproc://replay", snapshot=False),),
        )
        config.validate()
        self._node = BrokerNode(config, random.Random(0))
        for index in range(workers):
            self._node.connected(index, NOW_NS)
        self.cpu_ns = self.longest_ns = self.longest_cpu_ns = 0
        self.released = 0

    def play(self, worker: int, batches: Iterator[list[bytes]]) -> None:
        """Give it all of one worker's batches, in shares as the broker takes them from a socket."""
        share: list[list[bytes]] = []
        size = 0
        for seq, events in enumerate(batches):
            payload = join_batch(1.0, events, RANK)
            share.append(live_message(b"", seq, payload))
            size += len(payload)
            if len(share) == SHARE_MESSAGES or size >= SHARE_MESSAGES * SHARE_MESSAGE_BYTES:
                self._take(worker, share)
                share, size = [], 0
        self._take(worker, share)

    def _take(self, worker: int, share: list[list[bytes]]) -> None:
        self._begin()
        self._node.receive_all(worker, share, NOW_NS)
        self._end()
        self._turn()

    def _turn(self) -> None:
        self._begin()
        self._node.on_time(NOW_NS)
        self._node.flush()
        output = self._node.take_output()
        self._end()
        self.released += sum(len(split_batch(frames[2]).events) for _, frames in output)

    def _begin(self) -> None:
        self._wall_ns, self._thread_ns = time.perf_counter_ns(), time.thread_time_ns()

    def _end(self) -> None:
        used_ns = time.thread_time_ns() - self._thread_ns
        self.longest_ns = max(self.longest_ns, time.perf_counter_ns() - self._wall_ns)
        self.longest_cpu_ns = max(self.longest_cpu_ns, used_ns)
        self.cpu_ns += used_ns


def _measure(file: mmap.mmap, events: int, order: Order, workers: int, batch: int) -> PendingResult:
    """Let all workers but one send everything, look, and let the last one send it too."""
    offsets = array("Q", islice(_offsets(file), events + 1))
    if len(offsets) <= events:
        raise BenchError(f"the file has {len(offsets) - 1} events, not {events}")
    orders = [array("L", range(events)) for _ in range(workers)]
    if order == "any order":
        for worker in range(1, workers):
            random.Random(worker).shuffle(orders[worker])
    caller = _Caller(workers)
    # The longest path through a node that is new is not what is asked about.
    caller.longest_ns = caller.longest_cpu_ns = 0
    before = anonymous_bytes()
    for worker in range(workers - 1):
        caller.play(worker, _batches(file, offsets, orders[worker], batch))
    memory_bytes = anonymous_bytes() - before
    fill_ns = caller.cpu_ns
    caller.play(workers - 1, _batches(file, offsets, orders[-1], batch))
    payload_bytes = offsets[events] - offsets[0] - 4 * events
    return PendingResult(
        order=order,
        events=events,
        workers=workers,
        batch=batch,
        payload_bytes=payload_bytes,
        memory_bytes=memory_bytes,
        ratio=memory_bytes / payload_bytes,
        fill_us=fill_ns / 1e3 / events / (workers - 1),
        drain_us=(caller.cpu_ns - fill_ns) / 1e3 / events,
        longest_ms=caller.longest_ns / 1e6,
        longest_cpu_ms=caller.longest_cpu_ns / 1e6,
        is_exact=caller.released == events,
    )


def _offsets(file: mmap.mmap) -> Iterator[int]:
    """Yield where each event's length stands, and the end."""
    at = 0
    while at < len(file):
        yield at
        at += 4 + int.from_bytes(file[at : at + 4], "big")
    yield at


def _batches(file: mmap.mmap, offsets: array[int], order: array[int], batch: int) -> Iterator[list[bytes]]:
    """Yield batches of events, as new objects."""
    for start in range(0, len(order), batch):
        yield [file[offsets[index] + 4 : offsets[index + 1]] for index in order[start : start + batch]]

"""One measurement: load generator, something in the middle, subscribers, each in processes of their own.

**Backlog.** Once every link is up, the middle is stopped where it stands (SIGSTOP). The workers' queues, which have no limit, are
filled, and it is let go: from that moment to the last event at the last subscriber is the drain time, and what its threads
have used meanwhile, by the kernel's account, is what the events have cost. Every variant is stopped and let go in the same way,
and none can tell.

**Latency.** At a rate at which nothing queues, every batch carries the time at which it was sent. A bus that joins workers
writes into what it releases the newest time of the batches that completed it, so that the difference to the time of arrival is
what the way took since the last worker spoke. All clocks are the machine's monotonic one.

**Exactness.** After the clock has stopped, subscribers look into what they got: it must be as many events as had to come out
and, where bytes are passed on, those very events.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import msgspec

from kvbus.bench.cpu import CpuTime, resident_bytes, settled_cpu_time
from kvbus.bench.figures import percentile
from kvbus.bench.load import Expected, Load, make_load
from kvbus.bench.options import BROKERS, BenchOptions
from kvbus.bench.processes import BenchError, Child
from kvbus.security.key_files import new_key_pair

__all__ = ["Measurement", "Rig"]

FORWARDING = frozenset({"proxy", "relay", "discard", "direct"})
"""Variants that pass on every worker's copy, or at least every signal."""

REWRITING = frozenset({"a+", "peer"})
"""Variants whose events are written anew, so that their bytes may differ."""

HELLO_WAIT_S = 0.05
HELLOS_MAX = 200

RESIDENT_BATCHES = 100
"""Batches announced at a time: about 6 MB for each worker."""

SILENCE_S = 60.0
"""How long subscribers may hear nothing before the measurement has failed."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of one variant.

    Attributes:
        variant: What was in the middle.
        round: Which turn, from 0.
        ingested: Events that went in.
        released: Events that each subscriber got, at least.
        is_exact: Whether that was exactly what had to come; `None` where the variant promises nothing for such workers.
        batches: Batches that the first subscriber got.
        cpu_us: CPU time of the middle per event that went in, µs; `None` for `direct`.
        main_us: By its own threads.
        io_us: By ZeroMQ's I/O thread.
        drain_s: From letting go to the last event, seconds.
        rate: Events in per second of that.
        memory_bytes: Of the middle at the end.
        latency_p50_us: Half of the batches took no longer, µs; `None` where not measured.
        latency_p90_us: Likewise, of 90 %.
        latency_p99_us: Likewise, of 99 %.
        longest_us: The longest that the broker stayed away from its sockets, µs; `None` for the others.
    """

    variant: str
    round: int
    ingested: int
    released: int
    is_exact: bool | None
    batches: int
    cpu_us: float | None = None
    main_us: float | None = None
    io_us: float | None = None
    drain_s: float
    rate: float
    memory_bytes: int | None
    latency_p50_us: float | None
    latency_p90_us: float | None
    latency_p99_us: float | None
    longest_us: float | None


class Rig:
    """Both ends of a run, ready for any number of measurements; a context manager that ends all processes."""

    def __init__(self, options: BenchOptions) -> None:
        """Prepare; nothing runs yet.

        Args:
            options: Checked.
        """
        self.options = options
        self.load: Load
        self._stack = ExitStack()
        self._turns = 0

    def __enter__(self) -> Rig:
        """Start load generators and subscribers, and have the load made.

        Raises:
            BenchError: One of them fails.
        """
        with self._stack as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvbus-bench-")))
            # One pair for all: what is measured is the cipher.
            self._keys = new_key_pair(str(self.folder / "keys")).secret_key_file
            options = msgspec.to_builtins(self.options)
            cores = os.cpu_count() or 1
            self._loaders = [
                stack.enter_context(Child(f"load{part}", "loader", self.folder, options=options, workers=workers))
                for part, workers in enumerate(_deal(self.options.workers, cores))
            ]
            self._sinks = [
                stack.enter_context(Child(f"sink{part}", "sink", self.folder))
                for part, _ in enumerate(_deal(self.options.subscribers, cores))
            ]
            # Meanwhile, the same load here, for what has to come out of it.
            load = make_load(self.options, ())
            self.load = load
            for child in (*self._loaders, *self._sinks):
                child.hear()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes and remove their files."""
        self._stack.close()

    def measure(self, variant: str, turn: int) -> Measurement:
        """Take one measurement.

        Args:
            variant: What to put in the middle.
            turn: Number of the round, for the record.

        Raises:
            BenchError: A process failed, or something was lost on the way.
        """
        self._turns += 1
        with ExitStack() as stack:
            keys = self._keys if variant == "curve" else None
            upstream = self._open_workers(keys)
            middle = None if variant == "direct" else stack.enter_context(self._start(variant, upstream, keys))
            outputs = upstream if middle is None else middle.hear()["urls"]
            self._connect(variant, outputs, keys)
            self._greet(variant)
            self._reside(variant)
            costs: dict[str, float] = {}
            longest_us = memory = None
            if middle is None:
                drain_s, counted = self._stream(variant)
            else:
                used, drain_s, counted = self._drain(variant, middle)
                costs = self._costs(used)
                longest_us = _longest_us(variant, middle)
            latencies = self._latencies(variant)
            if middle is not None:
                memory = resident_bytes(middle.pid)
        p50, p90, p99 = (percentile(latencies, percent) if latencies else None for percent in (50, 90, 99))
        return Measurement(
            variant=variant,
            round=turn,
            ingested=self.load.ingested,
            released=min(counted["events"]),
            is_exact=self._is_exact(variant, counted),
            batches=counted["batches"][0],
            drain_s=drain_s,
            rate=self.load.ingested / drain_s,
            memory_bytes=memory,
            latency_p50_us=p50,
            latency_p90_us=p90,
            latency_p99_us=p99,
            longest_us=longest_us,
            **costs,
        )

    def _open_workers(self, keys: str | None) -> list[str]:
        """Open all workers' sockets anew and return their URLs."""
        url = self._url("worker{worker}")
        found: dict[str, str] = {}
        for answer in [loader.ask(do="open", url=url, keys=keys) for loader in self._loaders]:
            found |= answer["urls"]
        return [found[str(worker)] for worker in range(self.options.workers)]

    def _start(self, variant: str, upstream: list[str], keys: str | None) -> Child:
        """Start what stands in the middle."""
        return Child(
            variant,
            variant,
            self.folder,
            options=msgspec.to_builtins(self.options),
            upstream=upstream,
            url=self._url("{name}"),
            journal=str(self.folder / f"journal{self._turns}"),
            keys=keys,
        )

    def _connect(self, variant: str, outputs: list[str], keys: str | None) -> None:
        """Connect the subscribers, dealt out over the views."""
        urls = [
            outputs if variant == "direct" else [outputs[number % len(outputs)]]
            for number in range(self.options.subscribers)
        ]
        dealt = _deal(len(urls), len(self._sinks))
        for sink, numbers in zip(self._sinks, dealt, strict=True):
            sink.ask(do="open", subscribers=[urls[number] for number in numbers], keys=keys)

    def _greet(self, variant: str) -> None:
        """Send batches that say nothing until all links are up."""
        topics = self.options.workers if variant in FORWARDING else 1
        for loader in self._loaders:
            loader.ask(do="subscribed")
        for _ in range(HELLOS_MAX):
            for loader in self._loaders:
                loader.ask(do="hello")
            for sink in self._sinks:
                sink.tell(do="hello", topics=topics, wait_s=HELLO_WAIT_S)
            if sum(sink.hear()["heard"] for sink in self._sinks) == len(self._sinks):
                return
        raise BenchError(f"{variant}: not every subscriber hears every worker")

    def _reside(self, variant: str) -> None:
        """Announce the blocks that are there before anything is measured."""
        sent = RESIDENT_BATCHES if self.options.resident_blocks and variant != "direct" else 0
        while sent == RESIDENT_BATCHES:
            self._watch(variant)
            for loader in self._loaders:
                loader.tell(do="reside", batches=RESIDENT_BATCHES)
            sent = min([loader.hear()["sent"] for loader in self._loaders])
            for sink in self._sinks:
                sink.hear(SILENCE_S * 2)
            self._count()

    def _drain(self, variant: str, middle: Child) -> tuple[CpuTime, float, dict[str, list[int]]]:
        """Let a backlog drain; return what that cost, how long it took, and what came."""
        before = settled_cpu_time(middle.pid)
        middle.pause()
        for loader in self._loaders:
            loader.tell(do="fill")
        for loader in self._loaders:
            loader.hear()
        self._watch(variant)
        start_ns = time.monotonic_ns()
        middle.go_on()
        stop_ns = max(sink.hear(SILENCE_S * 2)["at_ns"] for sink in self._sinks)
        used = settled_cpu_time(middle.pid).since(before)
        return used, (stop_ns - start_ns) / 1e9, self._count()

    def _stream(self, variant: str) -> tuple[float, dict[str, list[int]]]:
        """Send everything with nothing in between."""
        self._watch(variant)
        start_ns = time.monotonic_ns()
        for loader in self._loaders:
            loader.tell(do="fill")
        for loader in self._loaders:
            loader.hear()
        stop_ns = max(sink.hear(SILENCE_S * 2)["at_ns"] for sink in self._sinks)
        return (stop_ns - start_ns) / 1e9, self._count()

    def _latencies(self, variant: str) -> list[float]:
        """Send at a rate and return how long each batch took to each subscriber, µs, ascending."""
        if not self.options.rate or variant == "discard":
            return []
        self._watch(variant)
        start_ns = time.monotonic_ns() + 20_000_000
        for loader in self._loaders:
            loader.tell(do="pace", rate=self.options.rate, batches=self.options.latency_batches, start_ns=start_ns)
        for loader in self._loaders:
            loader.hear(SILENCE_S + self.options.latency_batches / self.options.rate)
        for sink in self._sinks:
            sink.hear(SILENCE_S)
        return sorted(latency_ns / 1e3 for latency_ns in self._count()["latencies_ns"])

    def _watch(self, variant: str) -> None:
        marks = self.options.workers if variant in FORWARDING else 1
        for sink in self._sinks:
            sink.tell(do="watch", marks=marks, timeout_s=SILENCE_S)

    def _count(self) -> dict[str, list[int]]:
        """Have the subscribers look into what they got."""
        joined: dict[str, list[int]] = {}
        for sink in self._sinks:
            sink.tell(do="count")
        for sink in self._sinks:
            for name, numbers in sink.hear().items():
                if name != "done":
                    joined.setdefault(name, []).extend(numbers)
        return joined

    def _costs(self, used: CpuTime) -> dict[str, float]:
        """Return what an event has cost, µs."""
        each_us = 1 / 1e3 / self.load.ingested
        return {
            "cpu_us": used.total_ns * each_us,
            "main_us": used.main_ns * each_us,
            "io_us": used.io_ns * each_us,
        }

    def _is_exact(self, variant: str, counted: dict[str, list[int]]) -> bool | None:
        """Tell whether every subscriber got what it had to."""
        if variant == "peer" and self.options.mode != "aligned":
            return None
        if variant == "discard" or (variant == "a+" and self.options.mode == "noisy"):
            return None
        expected: Expected = self.load.forwarded if variant in FORWARDING else self.load.expected
        is_exact = all(events == expected.events for events in counted["events"])
        if variant not in REWRITING:
            is_exact = is_exact and all(total == expected.checksum for total in counted["checksums"])
        return is_exact

    def _url(self, name: str) -> str:
        if self.options.transport == "tcp":
            return "tcp://127.0.0.1:0"
        return f"ipc://{self.folder}/{self._turns}-{name}"


def _longest_us(variant: str, middle: Child) -> float | None:
    """Ask the broker for its longest absence from its sockets."""
    if variant not in BROKERS:
        return None
    longest_ns = middle.ask(do="longest")["longest_ns"]
    return None if longest_ns is None else longest_ns / 1e3


def _deal(count: int, hands: int) -> list[list[int]]:
    """Deal numbers out, at least one a hand."""
    return [list(range(start, count, min(hands, count))) for start in range(min(hands, count))]

"""The trace worker: plays a trace through a simulated engine in real time and publishes what each rank says."""

from __future__ import annotations

import math
import random
import threading
import time
from contextlib import ExitStack
from types import TracebackType

import msgspec

from kvbus.errors import KvbusError, UsageError
from kvbus.events import EventBatch
from kvbus.offload.engine import Engine
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.ranks import RankBatch, RankSchedule
from kvbus.publisher import Publisher
from kvbus.worker.counts import RankTally, WorkerCounts, hit_rates
from kvbus.worker.options import GENERATED, TraceWorkerOptions
from kvbus.worker.records import OracleFile, RankLogs
from kvbus.worker.traces import TraceSource

__all__ = ["RankEndpoints", "TraceWorker"]

GENERATED_BLOCK_SIZE = 16
"""Block size of the engine under a generated trace; vLLM's default."""

QUEUE_BATCHES_MAX = 1000
"""Batches that may wait in a publisher before a worker at full speed lets it catch up. The publisher's own limit is a hundred
times that; waiting long before it costs nothing and keeps a fast replay from dropping what a real engine would not."""

QUEUE_CHECK_BATCHES = 64
"""How many batches of a rank go between two looks at its queue; a look costs as much as a small batch."""

QUIET_TURNS_MAX = 100
"""Turns of the engine without an event after which we look whether to stop, and let the clock catch up: some milliseconds."""

CATCH_UP_S = 0.002
"""How long it then waits at a time: what the publisher sends meanwhile is a few hundred batches."""


class RankEndpoints(msgspec.Struct, frozen=True):
    """Where one rank can be reached.

    Attributes:
        tensor_parallel_rank: Which rank.
        topic: First frame of its messages.
        endpoint: Where it publishes, with the real port; `null` where it does not.
        replay_endpoint: Where it answers replay requests; `None` = nowhere.
    """

    tensor_parallel_rank: int
    topic: str
    endpoint: str
    replay_endpoint: str | None


class TraceWorker:
    """Plays the ranks of one engine. One thread of its own; every method may be called from any other.

    ```python
    with TraceWorker(TraceWorkerOptions(endpoint="tcp://127.0.0.1:0", ranks=RankOptions(count=4))) as worker:
        worker.wait()
        print(worker.counts())
    ```

    The publishers stay open, and answer replay requests, until `stop`.
    """

    def __init__(self, options: TraceWorkerOptions) -> None:
        """Check the options. Nothing is opened yet.

        Args:
            options: What to play and where to publish it.

        Raises:
            ConfigError: With every problem found.
        """
        options.validate()
        self._options = options
        self._stack = ExitStack()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._begun = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._is_done = False
        self._publishers: list[Publisher] = []
        self._tallies = [RankTally() for _ in range(options.ranks.count)]
        self._engine: Engine | None = None
        self._logs: RankLogs | None = None
        self._oracle: OracleFile | None = None
        self._step_count = 0
        self._trace_ns = 0
        self._started_s = 0.0
        self._ended_s: float | None = None

    def start(self) -> None:
        """Read and check the trace, open files and publishers, and begin to play.

        Raises:
            ConfigError: The trace cannot be used, or a file or an endpoint cannot be opened; nothing is left open then.
            UsageError: Started before.
        """
        if self._thread is not None:
            raise UsageError("a trace worker starts once")
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        self._thread = threading.Thread(target=self._run, name="kvbus-trace-worker", daemon=True)
        self._started_s = time.monotonic()
        self._thread.start()

    @property
    def endpoints(self) -> list[RankEndpoints]:
        """Where each rank can be reached, after `start`."""
        options = self._options
        if options.is_null:
            return [RankEndpoints(rank, options.rank_topic(rank), "null", None) for rank in range(options.ranks.count)]
        return [
            RankEndpoints(rank, options.rank_topic(rank), publisher.endpoint, publisher.replay_endpoint)
            for rank, publisher in enumerate(self._publishers)
        ]

    def wait_for_play(self, timeout_s: float | None = None) -> bool:
        """Wait until it plays: until the subscribers are there that it was to wait for, or it has ended.

        Args:
            timeout_s: Seconds to wait at most; `None` = as long as it takes.

        Returns:
            Whether it plays, or has ended.
        """
        return self._begun.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the trace has been played, or something went wrong.

        Args:
            timeout_s: Seconds to wait at most; `None` = as long as it takes.

        Returns:
            Whether it has ended.

        Raises:
            KvbusError: What went wrong while playing.
        """
        ended = self._ended.wait(timeout_s)
        if ended and self._error is not None:
            raise self._error
        return ended

    def finish(self) -> None:
        """Play no further: every rank says what others may have said already, and the publishers go on serving replay."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Finish, send what is queued, and close sockets and files. Twice is harmless.

        Args:
            timeout_s: Seconds that sending may take at most, for each rank.
        """
        self.finish()
        for publisher in self._publishers:
            publisher.close(timeout_s)
        self._stack.close()

    def counts(self) -> WorkerCounts:
        """Return what it has done so far.

        Raises:
            UsageError: Not started.
        """
        if self._engine is None:
            raise UsageError("a trace worker has counts once it has started")
        with self._lock:
            counts = self._engine.counts
            return WorkerCounts(
                is_done=self._is_done,
                requests=counts.requests,
                requests_refused=counts.requests_refused,
                requests_finished=counts.requests_finished,
                preempted=counts.preempted,
                clears=counts.clears,
                steps=self._step_count,
                trace_seconds=self._trace_ns / 1e9,
                elapsed_seconds=(self._ended_s or time.monotonic()) - self._started_s,
                block_events=counts.block_events,
                hit_rates=hit_rates(counts),
                ranks=[
                    tally.counts(rank, sum(self._publishers[rank].stats.dropped.values()) if self._publishers else 0)
                    for rank, tally in enumerate(self._tallies)
                ],
            )

    def __enter__(self) -> TraceWorker:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def _open(self) -> None:
        """Open everything that can fail, in an order that leaves the ports for last."""
        options = self._options
        source = TraceSource(options)
        engine_options = options.engine
        if not engine_options.groups:
            group = KVCacheGroup("full_attention", self._block_size(source))
            engine_options = msgspec.structs.replace(engine_options, groups=(group,))
        hash_block_size = Engine.hash_block_size_of(engine_options)
        source.check(hash_block_size)
        requests = source.requests(hash_block_size)
        self._stack.callback(requests.close)
        self._engine = Engine(engine_options, requests, random.Random(f"{options.seed}/engine"))
        if options.log_dir is not None:
            self._logs = self._stack.enter_context(RankLogs(options.log_dir, options.ranks.count))
        if options.oracle_file is not None:
            self._oracle = self._stack.enter_context(OracleFile(options.oracle_file))
        if options.is_null:
            return
        for rank in range(options.ranks.count):
            publisher = Publisher(
                options.rank_endpoint(rank),
                topic=options.rank_topic(rank),
                replay_endpoint=options.rank_replay_endpoint(rank),
                data_parallel_rank=options.data_parallel_rank,
                encoding=options.encoding,
                buffer_steps=options.buffer_steps,
                queue_size=options.queue_size,
                hwm=options.hwm,
                offset_by_rank=False,
                curve=options.curve,
            )
            self._publishers.append(publisher)
            self._stack.callback(publisher.close, 0.0)

    def _block_size(self, source: TraceSource) -> int:
        """Return the block size of a model of which nothing was said."""
        if self._options.engine_block_size is not None:
            return self._options.engine_block_size
        return GENERATED_BLOCK_SIZE if self._options.trace == GENERATED else source.block_tokens()

    def _run(self) -> None:
        """Body of the thread."""
        try:
            if self._wait_for_subscribers():
                self._begun.set()
                self._play()
        except KvbusError as error:
            self._error = error
        finally:
            self._ended_s = time.monotonic()
            self._ended.set()
            self._begun.set()

    def _wait_for_subscribers(self) -> bool:
        """Wait for a subscriber of every rank, if that was asked for; tell whether to go on."""
        if not self._options.wait_subscribers:
            return True
        deadline_s = time.monotonic() + self._options.wait_subscribers_s
        for rank, publisher in enumerate(self._publishers):
            while not publisher.wait_for_subscribers(1, 0.1):
                if self._stopping.is_set():
                    return False
                if time.monotonic() >= deadline_s:
                    waited_s = self._options.wait_subscribers_s
                    raise UsageError(f"nobody subscribed to rank {rank} at {publisher.endpoint} within {waited_s:g} s")
        return True

    def _play(self) -> None:
        """Play the trace; when told to stop, every rank still says what the others may have said already."""
        assert self._engine is not None
        schedule = RankSchedule(self._options.ranks, self._options.seed)
        start_s = time.monotonic()
        steps = self._engine.steps(QUIET_TURNS_MAX)
        while not self._stopping.is_set():
            with self._lock:
                step = next(steps, None)
                if step is None:
                    self._is_done = True
                    break
                self._step_count += bool(step.events)
                self._trace_ns = step.time_ns
            if self._oracle is not None and step.events:
                self._oracle.write(step, self._engine.content())
            for batch in schedule.add_step(step) if step.events else schedule.take_due(step.time_ns):
                self._wait_until(start_s + batch.time_ns / 1e9 / self._options.speed)
                self._publish(batch)
            if not step.events:
                self._wait_until(start_s + step.time_ns / 1e9 / self._options.speed)
        for batch in schedule.drain():
            self._wait_until(start_s + batch.time_ns / 1e9 / self._options.speed)
            self._publish(batch)

    def _wait_until(self, due_s: float) -> None:
        """Wait for the time of a batch, not at all when told to stop."""
        if math.isinf(self._options.speed):
            return
        left_s = due_s - time.monotonic()
        if left_s > 0:
            self._stopping.wait(left_s)

    def _publish(self, rank_batch: RankBatch) -> None:
        """Publish one batch and write it down."""
        rank = rank_batch.tensor_parallel_rank
        batch = EventBatch(time.time(), rank_batch.events, self._options.data_parallel_rank)
        seq = None
        if self._publishers:
            publisher = self._publishers[rank]
            if self._tallies[rank].batches % QUEUE_CHECK_BATCHES == 0:
                while publisher.stats.waiting >= QUEUE_BATCHES_MAX and not self._stopping.wait(CATCH_UP_S):
                    pass
            seq = publisher.publish(batch)
        if self._logs is not None:
            self._logs.write(rank_batch, batch, seq)
        with self._lock:
            self._tallies[rank].add(rank_batch.events)

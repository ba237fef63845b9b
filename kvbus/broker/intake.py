"""Where batches come from: sources (sockets), the workers behind them, and the streams in them.

A source is one SUB socket. With `--worker` there is one per worker and declared rank, and the worker is known before a byte
comes. With `--ingest` there is one for all, workers connect by themselves, and a worker is told by its topic (`seats`). In
both, a stream is (source, topic, data-parallel rank), because each rank numbers its own batches (rule S1); numbers are never
compared across streams.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Literal

from kvbus.broker.lag import Lag
from kvbus.broker.mishaps import StreamCounts
from kvbus.broker.presence import Presence
from kvbus.broker.rankgroup import RankGroup
from kvbus.broker.seats import Seats
from kvbus.config import BrokerConfig, IngestConfig, WorkerConfig
from kvbus.endpoints import Endpoint
from kvbus.streams.receiver import ReceiverLimits, StreamReceiver

__all__ = ["Intake", "Source", "Stream"]


class Stream:
    """One ordered run of batches: (source, topic, data-parallel rank).

    Attributes:
        source: Where it arrives.
        topic: Its topic; empty while it is not known.
        is_named: Whether its topic is known; an old replay shows a stream without saying it.
        data_parallel_rank: Its rank.
        worker_id: Whose it is.
        receiver: What its numbers prove.
        rank_group: Where its events are counted.
        number: Its place among all streams, in the order in which they were met.
        counts: What has gone wrong with it so far.
        batches_count: Batches taken from it so far.
        lag: How far behind it is taken.
    """

    __slots__ = (
        "batches_count",
        "counts",
        "data_parallel_rank",
        "is_named",
        "lag",
        "number",
        "rank_group",
        "receiver",
        "source",
        "topic",
        "worker_id",
    )

    def __init__(
        self,
        *,
        source: Source,
        topic: bytes,
        data_parallel_rank: int | None,
        worker_id: str,
        receiver: StreamReceiver,
        rank_group: RankGroup,
        number: int,
    ) -> None:
        """Tie a receiver to a rank group."""
        self.source = source
        self.topic = topic
        self.is_named = True
        self.data_parallel_rank = data_parallel_rank
        self.worker_id = worker_id
        self.receiver = receiver
        self.rank_group = rank_group
        self.number = number
        self.counts = StreamCounts()
        self.batches_count = 0
        self.lag = Lag()


class Source:
    """One SUB socket, the replay endpoint beside it, and the streams seen on it.

    Attributes:
        index: Its place among the broker's sources, from 0.
        endpoint: Where the SUB connects, or binds.
        replay_endpoint: Where the DEALER connects, or `None`.
        binds_by_default: Whether the SUB binds where the endpoint does not say.
        worker_id: Its worker; `None` for the ingest socket.
        group: Worker group.
        data_parallel_rank: The rank that its worker was declared to serve here; `None` = not declared.
        server_key: Public key of its worker, as configured; `None` = it has none of its own.
        presence: Whether its worker is there.
        streams: Streams by topic and rank.
        latest: By topic, the stream that last had a batch that was next in it; a guess where a topic has several ranks.
        discover_at_ns: When to ask what was published before we were there; `None` = a stream is known, or nobody can be asked.
    """

    def __init__(
        self,
        index: int,
        endpoint: Endpoint,
        *,
        replay_endpoint: Endpoint | None,
        binds_by_default: bool,
        worker_id: str | None,
        group: str,
        data_parallel_rank: int | None = None,
        server_key: str | None = None,
    ) -> None:
        """Begin with no stream."""
        self.index = index
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self.binds_by_default = binds_by_default
        self.worker_id = worker_id
        self.group = group
        self.data_parallel_rank = data_parallel_rank
        self.server_key = server_key
        self.presence = Presence()
        self.streams: dict[tuple[bytes, int | None], Stream] = {}
        self.latest: dict[bytes, Stream] = {}
        self.discover_at_ns: int | None = None

    def streams_of_topic(self, topic: bytes) -> list[Stream]:
        """Return the streams of one topic, of whatever rank."""
        return [stream for stream in self.streams.values() if stream.topic == topic]

    def serves(self, data_parallel_rank: int | None) -> bool:
        """Tell whether batches of a rank may come from here.

        Args:
            data_parallel_rank: Rank; `None` = batches without one, which may come from anywhere.
        """
        return (
            self.data_parallel_rank is None
            or data_parallel_rank is None
            or self.data_parallel_rank == data_parallel_rank
            or any(rank == data_parallel_rank for _, rank in self.streams)
        )

    def heard_at_ns(self, topic: bytes) -> int:
        """Return when the last live batch of a topic came; 0 = never."""
        return max((stream.receiver.last_live_ns or 0 for stream in self.streams_of_topic(topic)), default=0)

    def unanswered_since_ns(self) -> int | None:
        """Return since when its replay endpoint has answered nothing while nothing came live.

        Returns:
            Monotonic time, nanoseconds; `None` = it answers, or is not asked.

        Cost: O(streams).
        """
        latest_ns: int | None = None
        for stream in self.streams.values():
            silent_ns = stream.receiver.silent_since_ns
            if silent_ns is None:
                return None
            latest_ns = max(silent_ns, stream.receiver.last_live_ns or 0, latest_ns or 0)
        return latest_ns


class Intake:
    """All sources of a broker, its worker ids, and who may send on them.

    Attributes:
        sources: In order of the configuration, later ones behind.
        by_index: The same by their numbers, of which none is used twice.
        seats: Of the ingest socket, if there is one.
        workers: Worker id → ranks declared for it (`None` = not declared), by group.
    """

    def __init__(self, config: BrokerConfig, rng: random.Random) -> None:
        """Lay out the sources of a configuration.

        Args:
            config: Checked.
            rng: For the jitter of the streams' back-off.
        """
        self._rng = rng
        self._streams_max = config.streams_max
        self._limits = ReceiverLimits(idle_ns=round(config.probe_s * 1e9))
        self._sources_count = 0
        self.sources: list[Source] = []
        self.by_index: dict[int, Source] = {}
        self.workers: dict[str, dict[str, tuple[int, ...] | None]] = {}
        self.seats: Seats | None = None
        for worker in config.workers:
            self.add_worker(worker, self.sources_of(worker))
        if config.ingest is not None:
            self._add_ingest(config.ingest)

    @property
    def names(self) -> dict[str, str]:
        """Worker id → what people call it: its id, or the topic that took its seat."""
        names = {worker_id: worker_id for group in self.workers.values() for worker_id in group}
        if self.seats is not None:
            names.update({seat: topic.decode(errors="replace") for topic, seat in self.seats.taken.items()})
        return names

    def worker_of(self, source: Source, topic: bytes, now_ns: int) -> str | None:
        """Say whose batches of this topic on this source are, taking a free seat for a new topic.

        Args:
            source: Where it arrived.
            topic: Its topic.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            The worker id; `None` when every seat is taken.
        """
        if source.worker_id is not None:
            return source.worker_id
        assert self.seats is not None
        return self.seats.take(topic, now_ns)

    def sources_of(self, worker: WorkerConfig) -> list[Source]:
        """Return new sources for a worker, one for each declared rank; they are not known to anybody yet.

        Args:
            worker: Checked.
        """
        endpoint = Endpoint.parse(worker.endpoint, "--worker")
        replay = None if worker.replay_endpoint is None else Endpoint.parse(worker.replay_endpoint, "--worker,replay=")
        sources = []
        for rank in worker.ranks or (None,):
            offset = 0 if rank is None else rank
            sources.append(
                Source(
                    self._sources_count,
                    endpoint.for_rank(offset),
                    replay_endpoint=None if replay is None else replay.for_rank(offset),
                    binds_by_default=False,
                    worker_id=worker.worker_id,
                    group=worker.group,
                    data_parallel_rank=rank,
                    server_key=worker.server_key,
                )
            )
            self._sources_count += 1
        return sources

    def add_worker(self, worker: WorkerConfig, sources: Iterable[Source]) -> None:
        """Take up a worker.

        Args:
            worker: Checked; its id is new in its group.
            sources: From `sources_of`.
        """
        self.workers.setdefault(worker.group, {})[worker.worker_id] = worker.ranks
        for source in sources:
            self._add_source(source)

    def remove_worker(self, group: str, worker_id: str) -> list[Source]:
        """Forget a worker with its sources and streams.

        Args:
            group: Its group.
            worker_id: Its id.

        Returns:
            The sources, which have no streams any more.
        """
        del self.workers[group][worker_id]
        gone = [source for source in self.sources if (source.group, source.worker_id) == (group, worker_id)]
        for source in gone:
            self.sources.remove(source)
            del self.by_index[source.index]
            source.streams.clear()
            source.latest.clear()
        return gone

    def sources_of_worker(self, group: str, worker_id: str) -> list[Source]:
        """Return where a worker's batches come from; the ingest socket for a seat."""
        return [source for source in self.sources if source.group == group and source.worker_id in (None, worker_id)]

    def release_seat(self, topic: bytes) -> None:
        """Take a topic's seat away and forget its streams.

        Args:
            topic: One that has a seat.
        """
        assert self.seats is not None
        self.seats.release(topic)
        self._forget_topic(topic)

    def has_room(self) -> bool:
        """Tell whether one more stream may be followed."""
        return sum(len(source.streams) for source in self.sources) < self._streams_max

    def open_stream(
        self, source: Source, topic: bytes, *, worker_id: str, rank_group: RankGroup, number: int
    ) -> Stream:
        """Begin to follow a stream.

        Args:
            source: Where it arrives.
            topic: Its topic.
            worker_id: Whose it is.
            rank_group: Where its events are counted; its rank is the stream's.
            number: Its number.

        Returns:
            The stream, known to its source.
        """
        receiver = self.receiver_for(source, "replay")
        stream = Stream(
            source=source,
            topic=topic,
            data_parallel_rank=rank_group.data_parallel_rank,
            worker_id=worker_id,
            receiver=receiver,
            rank_group=rank_group,
            number=number,
        )
        source.streams[topic, rank_group.data_parallel_rank] = stream
        return stream

    def receiver_for(self, source: Source, first_contact: Literal["replay", "live"]) -> StreamReceiver:
        """Return a receiver for a stream of a source.

        Args:
            source: Where the stream arrives.
            first_contact: As in `StreamReceiver`.
        """
        can_replay = source.replay_endpoint is not None
        return StreamReceiver(can_replay=can_replay, limits=self._limits, rng=self._rng, first_contact=first_contact)

    def take_seat(self, topic: bytes, worker_id: str) -> None:
        """Give a topic the seat that it had; whoever has it now loses it.

        Args:
            topic: A topic of the ingest socket.
            worker_id: A seat.
        """
        assert self.seats is not None
        for other in [other for other, seat in self.seats.taken.items() if seat == worker_id and other != topic]:
            self._forget_topic(other)
        self.seats.give(topic, worker_id)

    def _forget_topic(self, topic: bytes) -> None:
        """Forget the streams of a topic of the ingest socket."""
        for source in self.sources:
            if source.worker_id is None:
                source.latest.pop(topic, None)
                for stream in source.streams_of_topic(topic):
                    del source.streams[stream.topic, stream.data_parallel_rank]

    def _add_source(self, source: Source) -> None:
        self.sources.append(source)
        self.by_index[source.index] = source

    def _add_ingest(self, ingest: IngestConfig) -> None:
        """Add the socket that workers connect to, with a seat per worker."""
        self.seats = Seats(ingest)
        self.workers[ingest.group] = dict.fromkeys(self.seats.all)
        self._add_source(
            Source(
                self._sources_count,
                Endpoint.parse(ingest.endpoint, "--ingest"),
                replay_endpoint=None,
                binds_by_default=True,
                worker_id=None,
                group=ingest.group,
            )
        )
        self._sources_count += 1

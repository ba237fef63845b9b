"""Where batches come from: sources (sockets), the workers behind them, and the streams in them.

A source is one SUB socket. With `--worker` there is one per worker and declared rank, and the worker is known before a byte
comes. With `--ingest` there is one for all, workers connect by themselves, and a worker is told by its topic: the first
topics take the seats, further ones are refused. In both, a stream is (source, topic, data-parallel rank), because each rank
numbers its own batches (rule S1); numbers are never compared across streams.
"""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

from kvbus.broker.rankgroup import RankGroup
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
    """

    __slots__ = ("data_parallel_rank", "is_named", "number", "rank_group", "receiver", "source", "topic", "worker_id")

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


class Source:
    """One SUB socket, the replay endpoint beside it, and the streams seen on it.

    Attributes:
        index: Its place among the broker's sources, from 0.
        endpoint: Where the SUB connects, or binds.
        replay_endpoint: Where the DEALER connects, or `None`.
        binds_by_default: Whether the SUB binds where the endpoint does not say.
        worker_id: Its worker; `None` for the ingest socket.
        group: Worker group.
        streams: Streams by topic and rank.
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
    ) -> None:
        """Begin with no stream."""
        self.index = index
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self.binds_by_default = binds_by_default
        self.worker_id = worker_id
        self.group = group
        self.streams: dict[tuple[bytes, int | None], Stream] = {}
        self.discover_at_ns: int | None = None

    def streams_of_topic(self, topic: bytes) -> list[Stream]:
        """Return the streams of one topic, of whatever rank."""
        return [stream for stream in self.streams.values() if stream.topic == topic]


class Seating(NamedTuple):
    """The ingest socket's seats.

    Attributes:
        taken: Worker id by topic.
        free: Worker ids of free seats that any topic may take, in order.
        kept: Worker ids of seats kept for named topics.
    """

    taken: dict[bytes, str]
    free: list[str]
    kept: dict[bytes, str]


class Intake:
    """All sources of a broker, its worker ids, and who may send on them.

    Attributes:
        sources: In order of the configuration.
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
        self._streams_count = 0
        self.sources: list[Source] = []
        self.workers: dict[str, dict[str, tuple[int, ...] | None]] = {}
        self._seating: Seating | None = None
        for worker in config.workers:
            self._add_worker(worker)
        if config.ingest is not None:
            self._add_ingest(config.ingest)

    @property
    def names(self) -> dict[str, str]:
        """Worker id → what people call it: its id, or the topic that took its seat."""
        names = {worker_id: worker_id for group in self.workers.values() for worker_id in group}
        if self._seating is not None:
            names.update({seat: topic.decode(errors="replace") for topic, seat in self._seating.taken.items()})
        return names

    def worker_of(self, source: Source, topic: bytes) -> str | None:
        """Say whose batches of this topic on this source are, taking a free seat for a new topic.

        Args:
            source: Where it arrived.
            topic: Its topic.

        Returns:
            The worker id; `None` when every seat is taken.
        """
        if source.worker_id is not None:
            return source.worker_id
        seating = self._seating
        assert seating is not None
        seat = seating.taken.get(topic)
        if seat is None:
            seat = seating.kept.pop(topic, None) or (seating.free.pop(0) if seating.free else None)
            if seat is not None:
                seating.taken[topic] = seat
        return seat

    def has_room(self) -> bool:
        """Tell whether one more stream may be followed."""
        return self._streams_count < self._streams_max

    def open_stream(
        self, source: Source, topic: bytes, data_parallel_rank: int | None, worker_id: str, rank_group: RankGroup
    ) -> Stream:
        """Begin to follow a stream.

        Args:
            source: Where it arrives.
            topic: Its topic.
            data_parallel_rank: Its rank.
            worker_id: Whose it is.
            rank_group: Where its events are counted.

        Returns:
            The stream, known to its source.
        """
        receiver = self.receiver_for(source, "replay")
        stream = Stream(
            source=source,
            topic=topic,
            data_parallel_rank=data_parallel_rank,
            worker_id=worker_id,
            receiver=receiver,
            rank_group=rank_group,
            number=self._streams_count,
        )
        source.streams[topic, data_parallel_rank] = stream
        self._streams_count += 1
        return stream

    def receiver_for(self, source: Source, first_contact: Literal["replay", "live"]) -> StreamReceiver:
        """Return a receiver for a stream of a source.

        Args:
            source: Where the stream arrives.
            first_contact: As in `StreamReceiver`.
        """
        can_replay = source.replay_endpoint is not None
        return StreamReceiver(
            can_replay=can_replay, limits=ReceiverLimits(), rng=self._rng, first_contact=first_contact
        )

    def take_seat(self, topic: bytes, worker_id: str) -> None:
        """Give a topic the seat that it had.

        Args:
            topic: A topic of the ingest socket.
            worker_id: A seat that is not taken.
        """
        seating = self._seating
        assert seating is not None
        seating.taken[topic] = worker_id
        if worker_id in seating.free:
            seating.free.remove(worker_id)
        seating.kept.pop(topic, None)

    def _add_worker(self, worker: WorkerConfig) -> None:
        """Add one source per rank of a worker."""
        self.workers.setdefault(worker.group, {})[worker.worker_id] = worker.ranks
        endpoint = Endpoint.parse(worker.endpoint, "--worker")
        replay = None if worker.replay_endpoint is None else Endpoint.parse(worker.replay_endpoint, "--worker,replay=")
        for rank in worker.ranks or (0,):
            self.sources.append(
                Source(
                    len(self.sources),
                    endpoint.for_rank(rank),
                    replay_endpoint=None if replay is None else replay.for_rank(rank),
                    binds_by_default=False,
                    worker_id=worker.worker_id,
                    group=worker.group,
                )
            )

    def _add_ingest(self, ingest: IngestConfig) -> None:
        """Add the socket that workers connect to, with a seat per worker."""
        seats = [f"seat-{number}" for number in range(ingest.workers)]
        self.workers[ingest.group] = dict.fromkeys(seats)
        kept = dict(zip((topic.encode() for topic in ingest.topics), seats, strict=False))
        self._seating = Seating(taken={}, free=seats[len(kept) :], kept=kept)
        self.sources.append(
            Source(
                len(self.sources),
                Endpoint.parse(ingest.endpoint, "--ingest"),
                replay_endpoint=None,
                binds_by_default=True,
                worker_id=None,
                group=ingest.group,
            )
        )

"""What the broker follows: streams, the groups in which their events are counted, and who belongs to them.

Streams and groups appear as batches come; workers come and go with the configuration (`change`) and by themselves (`attendance`).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvbus.broker.attendance import Attendance
from kvbus.broker.change import Change
from kvbus.broker.intake import Intake, Source, Stream
from kvbus.broker.notices import Notice
from kvbus.broker.quorums import Quorums
from kvbus.broker.rankgroup import RankGroup
from kvbus.broker.recorder import Recorder, StreamMark
from kvbus.config import BrokerConfig
from kvbus.views.residency import Residency

__all__ = ["Followed"]

NUMBERS_PER_STREAM = 4
"""Streams that have come and gone, for each that may be followed at once."""


class Followed:
    """All streams, groups and workers of a broker.

    Attributes:
        intake: Sources and workers.
        config: As it is now.
        groups: By name and data-parallel rank, in the order in which they were met.
        residencies: Those of the groups that have one.
        descriptions: What is known of blocks, by worker group; `None` where no view asks for it.
        streams: By number, where there is a recorder. One that is not followed any more keeps its number until `change`.
        quorums: Who belongs to which group.
        attendance: Who is there.
    """

    def __init__(self, intake: Intake, config: BrokerConfig, recorder: Recorder | None) -> None:
        """Begin with no stream.

        Args:
            intake: Sources and workers.
            config: Checked.
            recorder: Hears of all that groups are told, or `None`.
        """
        self.config = config
        self.groups: dict[tuple[str, int | None], RankGroup] = {}
        self.residencies: list[Residency] = []
        self.streams: list[Stream] = []
        self.quorums = Quorums(intake, self.groups, lambda group: self.config.policy(group).on_departure)
        self.attendance = Attendance(intake, self.quorums, config)
        self.intake = intake
        self._recorder = recorder
        self.descriptions = {group: RankGroup.descriptions_for(group, config) for group in intake.workers}

    def follow(self, source: Source, topic: bytes, rank: int | None, worker_id: str) -> Stream:
        """Begin to follow a stream whose worker has been seen with that rank.

        Args:
            source: Where it arrives.
            topic: Its topic.
            rank: Its data-parallel rank.
            worker_id: Whose it is.
        """
        group = self._group_of(source.group, rank)
        stream = self.intake.open_stream(source, topic, worker_id=worker_id, rank_group=group, number=len(self.streams))
        if self._recorder is not None:
            self.streams.append(stream)
        return stream

    def has_room(self, group: str, rank: int | None) -> bool:
        """Tell whether one more stream may be followed.

        A seat that changes hands leaves a group and, for the journal, a number behind, until workers are changed by hand. They
        have limits too, far above what any cluster uses up in a year.

        Args:
            group: Its group.
            rank: Its data-parallel rank.
        """
        streams_max = self.config.streams_max
        if (group, rank) not in self.groups and len(self.groups) >= streams_max:
            return False
        return self.intake.has_room() and len(self.streams) < NUMBERS_PER_STREAM * streams_max

    def named(self, source: Source, topic: bytes, rank: int | None) -> Stream | None:
        """Give a stream that was discovered without a topic the one of its first live message.

        It must not be followed twice: every event would be counted for two emissions.

        Args:
            source: Where the message came.
            topic: Its topic.
            rank: Its data-parallel rank.

        Returns:
            The stream, if there is such a one.
        """
        for key, stream in source.streams.items():
            if not stream.is_named and stream.data_parallel_rank == rank:
                del source.streams[key]
                stream.topic, stream.is_named = topic, True
                source.streams[topic, rank] = stream
                if self._recorder is not None:
                    self._recorder.named(stream.number, topic)
                return stream
        return None

    def open_again(self, mark: StreamMark) -> None:
        """Follow a stream that a predecessor followed. What its worker's showing up did to quorums is done by other calls.

        Args:
            mark: Where it stands; its receiver does not know that yet.
        """
        source = self.intake.sources_of_worker(mark.group, mark.worker_id)[mark.source_index]
        seat_topic = None
        if source.worker_id is None:
            self.intake.take_seat(mark.topic, mark.worker_id)
            seat_topic = mark.topic
        if self._recorder is not None:
            self._recorder.opened(mark)
        self.quorums.see(mark.group, mark.worker_id, mark.data_parallel_rank, seat_topic)
        stream = self.follow(source, mark.topic, mark.data_parallel_rank, mark.worker_id)
        stream.is_named = mark.is_named
        stream.rank_group.hear(mark.topic)

    def name_again(self, number: int, topic: bytes | None) -> None:
        """Let a stream have the topic that it came to have.

        Args:
            number: Which stream.
            topic: Its topic; `None` = not known.
        """
        stream = self.streams[number]
        if topic is not None:
            self.named(stream.source, topic, stream.data_parallel_rank)
        else:
            stream.is_named = False
            if self._recorder is not None:
                self._recorder.named(number, None)

    def join_live(self, stream: Stream) -> None:
        """Let a stream begin with whatever comes next, as one of which nobody can say what was missed."""
        stream.receiver = self.intake.receiver_for(stream.source, "live")

    def change(self, change: Change, added: Sequence[Source], now_ns: int) -> tuple[list[Source], list[Notice]]:
        """Let workers and seats go and come, and begin to act by the new policies.

        Args:
            change: What.
            added: Sources of the workers that come, from `Intake.sources_of`.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            Sources that are gone, and lines for the log.
        """
        self.config = self.attendance.config = change.config
        for group in dict.fromkeys(worker.group for worker in change.added):
            self.descriptions.setdefault(group, RankGroup.descriptions_for(group, change.config))
        gone: list[Source] = []
        for worker in change.removed:
            gone += self.intake.remove_worker(worker.group, worker.worker_id)
            self.quorums.remove(worker.group, worker.worker_id, now_ns)
        for worker in change.added:
            sources = [
                source for source in added if (source.group, source.worker_id) == (worker.group, worker.worker_id)
            ]
            self.intake.add_worker(worker, sources)
            self.quorums.add(worker.group, worker.worker_id, worker.ranks, now_ns)
        for group in dict.fromkeys(worker.group for worker in change.removed):
            known = self.descriptions.get(group)
            if known is not None and not self.intake.workers[group]:
                # Where each pod is a group, these would be hundreds of megabytes of one that does not come back.
                known.clear()
        notices = self.attendance.reseat(now_ns)
        self._compact()
        return gone, notices

    def _compact(self) -> None:
        """Forget streams that are not followed any more, and number the others anew."""
        kept = [
            stream
            for stream in self.streams
            if stream.source.streams.get((stream.topic, stream.data_parallel_rank)) is stream
        ]
        if self._recorder is not None:
            self._recorder.keep([stream.number for stream in kept])
        for number, stream in enumerate(kept):
            stream.number = number
        self.streams[:] = kept

    def _group_of(self, group_name: str, rank: int | None) -> RankGroup:
        """Return a group at one rank, a new one if there is none."""
        group = self.groups.get((group_name, rank))
        if group is None:
            quorum = self.quorums.members[group_name].quorum(rank)
            known = self.descriptions[group_name]
            group = RankGroup(group_name, rank, quorum, self.config, self._recorder, descriptions=known)
            self.groups[group_name, rank] = group
            if group.residency is not None:
                self.residencies.append(group.residency)
        return group

"""Workers join quorums and leave them, as they come, go and turn out to serve other ranks (rule A6).

Who *should* be in a quorum follows from two things: whom the rank belongs to (`membership`), and who is there (`presence`). After
each change of either, `settle` compares that with who *is* in it, and tells the aggregators the difference. So there is one
place where workers join and leave, and no order of events that it could get wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvbus.broker.intake import Intake
from kvbus.broker.membership import Membership
from kvbus.broker.rankgroup import RankGroup
from kvbus.config import DeparturePolicy

__all__ = ["Quorums"]


class Quorums:
    """The quorums of all groups and ranks of a broker.

    Attributes:
        members: Whom the ranks of each worker group belong to.
    """

    def __init__(
        self,
        intake: Intake,
        groups: Mapping[tuple[str, int | None], RankGroup],
        on_departure: Callable[[str], DeparturePolicy],
    ) -> None:
        """Every worker counts, seen or not.

        Args:
            intake: Where workers' batches come from.
            groups: By name and rank; grows.
            on_departure: Returns the policy of a worker group, as it is now.
        """
        self.members = {group: Membership(workers) for group, workers in intake.workers.items()}
        self._intake = intake
        self._groups = groups
        self._on_departure = on_departure
        self._seat_topics: dict[str, bytes] = {}
        self._left_seats: set[str] = set()

    def add(self, group: str, worker_id: str, ranks: tuple[int, ...] | None, now_ns: int) -> None:
        """Take up a worker or a seat at run time; it joins the quorums in which it may count.

        Args:
            group: Its group, which may be new.
            worker_id: Who.
            ranks: Declared for it; `None` = not declared.
            now_ns: Monotonic time, nanoseconds.
        """
        self.members.setdefault(group, Membership({})).add(worker_id, ranks)
        self._left_seats.discard(worker_id)
        self.settle(group, worker_id, now_ns)

    def add_left_seat(self, group: str, worker_id: str) -> None:
        """Take up a seat that counts once somebody takes it, and not before.

        Args:
            group: Its group.
            worker_id: The seat.
        """
        self.members[group].add(worker_id, None)
        self._left_seats.add(worker_id)

    def remove(self, group: str, worker_id: str, now_ns: int) -> None:
        """Let go a worker or a seat that is not in the configuration any more.

        Args:
            group: Its group.
            worker_id: Who.
            now_ns: Monotonic time, nanoseconds.
        """
        self.members[group].remove(worker_id)
        self._left_seats.discard(worker_id)
        self.settle(group, worker_id, now_ns)

    def see(self, group: str, worker_id: str, data_parallel_rank: int | None, seat_topic: bytes | None) -> None:
        """Learn which rank a worker serves; `settle` follows.

        Args:
            group: Its group.
            worker_id: Who.
            data_parallel_rank: The rank.
            seat_topic: Its topic, where that is what tells it from others.
        """
        members = self.members[group]
        if seat_topic is not None:
            if self._seat_topics.get(worker_id, seat_topic) != seat_topic:
                members.unsee(worker_id)
                for rank_group in self._groups.values():
                    if rank_group.group == group:
                        rank_group.aggregator.forget(worker_id)
            self._seat_topics[worker_id] = seat_topic
            self._left_seats.discard(worker_id)
        members.see(worker_id, data_parallel_rank)

    def leave_seat(self, worker_id: str) -> None:
        """Note that nobody has a seat any more; `settle` follows."""
        self._left_seats.add(worker_id)

    def return_to_seat(self, worker_id: str) -> None:
        """Note that the worker of a seat that was held is back; `settle` follows."""
        self._left_seats.discard(worker_id)

    def is_left(self, worker_id: str) -> bool:
        """Tell whether a seat had a worker and has none."""
        return worker_id in self._left_seats

    def is_away(self, group: str, worker_id: str) -> bool:
        """Tell whether a worker's place is held at some rank.

        Args:
            group: Its group.
            worker_id: Who.
        """
        return any(
            rank_group.group == group and worker_id in rank_group.aggregator.away
            for rank_group in self._groups.values()
        )

    def is_set_aside(self, group: str, worker_id: str) -> bool:
        """Tell whether a worker is set aside at some rank.

        Args:
            group: Its group.
            worker_id: Who.
        """
        return any(
            rank_group.group == group and worker_id in rank_group.aggregator.set_aside
            for rank_group in self._groups.values()
        )

    def holds(self, group: RankGroup, worker_id: str) -> bool:
        """Tell whether a worker has a say in a group at one rank, or is set aside there."""
        aggregator = group.aggregator
        return worker_id in aggregator.workers or worker_id in aggregator.set_aside

    def settle(self, group: str, worker_id: str, now_ns: int) -> None:
        """Let a worker join the quorums that it belongs to, and leave the others.

        Args:
            group: Its group.
            worker_id: Who; one that has been removed leaves all.
            now_ns: Monotonic time, nanoseconds.
        """
        for (name, _), rank_group in list(self._groups.items()):
            if name == group:
                self._settle(rank_group, worker_id, now_ns)

    def settle_new(self, rank_group: RankGroup, now_ns: int) -> None:
        """Let those leave a new group who are not there. Nothing was announced, so nobody needs to be told.

        Args:
            rank_group: Just made, with everybody to whom the rank belongs.
            now_ns: Monotonic time, nanoseconds.
        """
        policy = self._on_departure(rank_group.group)
        for worker_id in rank_group.aggregator.workers:
            if not self._is_there(rank_group, worker_id):
                rank_group.call("remove_worker", now_ns, worker_id, "hold" if policy == "hold" else "shrink")

    def missing(self, group: str, worker_id: str) -> bool:
        """Tell whether a worker is not in a quorum, or is away from one, that it belongs to."""
        return any(
            rank_group.group == group
            and self.members[group].serves(worker_id, rank_group.data_parallel_rank)
            and (not self.holds(rank_group, worker_id) or worker_id in rank_group.aggregator.away)
            for rank_group in self._groups.values()
        )

    def _settle(self, rank_group: RankGroup, worker_id: str, now_ns: int) -> None:
        is_away = worker_id in rank_group.aggregator.away
        is_member = self.members[rank_group.group].serves(worker_id, rank_group.data_parallel_rank)
        if is_member and self._is_there(rank_group, worker_id):
            if is_away or not self.holds(rank_group, worker_id):
                rank_group.call("add_worker", now_ns, worker_id)
        elif self.holds(rank_group, worker_id):
            policy = self._on_departure(rank_group.group)
            if worker_id not in self._intake.workers.get(rank_group.group, ()):
                # Removed by whoever runs the broker, who does not want to wait for it.
                rank_group.call("remove_worker", now_ns, worker_id, "shrink" if policy == "shrink" else "clear")
            elif not is_member:
                # It was counted only because nobody knew; it has cast no vote here.
                rank_group.call("remove_worker", now_ns, worker_id, "shrink")
            elif not is_away:
                rank_group.call("remove_worker", now_ns, worker_id, policy)

    def _is_there(self, rank_group: RankGroup, worker_id: str) -> bool:
        """Tell whether batches of a worker may come for this rank."""
        if worker_id in self._left_seats:
            return False
        return any(
            source.presence.departed_at_ns is None and source.serves(rank_group.data_parallel_rank)
            for source in self._intake.sources_of_worker(rank_group.group, worker_id)
        )

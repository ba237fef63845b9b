"""Sees workers come, go and come back, and lets them join and leave accordingly (rule A6).

`presence` and `seats` hold the evidence, `quorums` what follows from it; this decides when.
"""

from __future__ import annotations

from kvbus.broker.intake import Intake, Source
from kvbus.broker.notices import Notice
from kvbus.broker.presence import WorkerState
from kvbus.broker.quorums import Quorums
from kvbus.config import BrokerConfig

__all__ = ["Attendance"]

LOOK_NS = 50_000_000
"""How often to look: a departure takes seconds, and a loop that turns a thousand times a second need not ask each time."""


class Attendance:
    """Decides who is there. Every method returns what the log should hear.

    Attributes:
        config: As it is now; may be replaced while the broker runs.
    """

    def __init__(self, intake: Intake, quorums: Quorums, config: BrokerConfig) -> None:
        """Begin before anybody has come.

        Args:
            intake: Sources and seats.
            quorums: Where workers join and leave.
            config: Checked.
        """
        self.config = config
        self._intake = intake
        self._quorums = quorums
        self._next_look_ns = 0
        self._held_seats: set[str] = set()

    def connected(self, source: Source, now_ns: int) -> list[Notice]:
        """Note that a connection has come up; a departed worker is back with it.

        Args:
            source: Whose.
            now_ns: Monotonic time, nanoseconds.
        """
        source.presence.connected()
        notices = [Notice("info", "worker_connected", _names_of(source))]
        if source.worker_id is None:
            assert self._intake.seats is not None
            self._intake.seats.connected()
        elif source.presence.departed_at_ns is not None:
            notices += self._come_back(source, now_ns)
        return notices

    def disconnected(self, source: Source, now_ns: int) -> list[Notice]:
        """Note that a connection has ended.

        Args:
            source: Whose.
            now_ns: Monotonic time, nanoseconds.
        """
        source.presence.disconnected(now_ns)
        if source.worker_id is None:
            assert self._intake.seats is not None
            self._intake.seats.disconnected(now_ns)
        return [Notice("warning", "worker_disconnected", _names_of(source))]

    def heard(self, source: Source, now_ns: int) -> list[Notice]:
        """Note that a departed worker has said something; it is back, unless its connection is down.

        Args:
            source: Where it was heard.
            now_ns: Monotonic time, nanoseconds.
        """
        return self._come_back(source, now_ns) if source.presence.down_since_ns is None else []

    def look(self, now_ns: int) -> list[Notice]:
        """Find out who has departed or is late.

        Args:
            now_ns: Monotonic time, nanoseconds.

        Cost: O(1) most of the time, O(streams) twenty times a second.
        """
        if now_ns < self._next_look_ns:
            return []
        self._next_look_ns = now_ns + LOOK_NS
        notices: list[Notice] = []
        for source in self._intake.sources:
            presence = source.presence
            if source.worker_id is None:
                notices += self._look_at_seats(source, now_ns)
            elif presence.departed_at_ns is None:
                gone_since_ns = presence.gone_since_ns(source.unanswered_since_ns())
                if gone_since_ns is not None and now_ns >= gone_since_ns + self._timeout_ns(source):
                    notices += self._depart(source, now_ns)
            if not presence.is_awaited:
                presence.await_first(now_ns)
            if presence.is_late(now_ns):
                notices += self._late(source)
        return notices

    @property
    def deadline_ns(self) -> int | None:
        """When `look` may have something to do next. Cost: O(streams)."""
        dues = []
        for source in self._intake.sources:
            presence = source.presence
            dues.append(presence.late_at_ns if presence.is_awaited else self._next_look_ns)
            gone_since_ns = None
            if source.worker_id is None:
                assert self._intake.seats is not None
                dropped_at_ns = self._intake.seats.dropped_at_ns
                # Once that has passed, only further batches can make it clear who has gone, and they bring a look along.
                if dropped_at_ns is not None and dropped_at_ns + self._timeout_ns(source) >= self._next_look_ns:
                    gone_since_ns = dropped_at_ns
            elif presence.departed_at_ns is None:
                gone_since_ns = presence.gone_since_ns(source.unanswered_since_ns())
            if gone_since_ns is not None:
                dues.append(gone_since_ns + self._timeout_ns(source))
        soonest = min((due for due in dues if due is not None), default=None)
        return None if soonest is None else max(soonest, self._next_look_ns)

    def reseat(self, now_ns: int) -> list[Notice]:
        """Let the ingest socket have the seats, and keep them for the topics, that the configuration now says.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        seats, ingest = self._intake.seats, self.config.ingest
        if seats is None or ingest is None:
            return []
        source = next(source for source in self._intake.sources if source.worker_id is None)
        group = source.group
        before = list(self._intake.workers[group])
        lost = {topic: seats.taken[topic] for topic in seats.surplus(ingest)}
        for topic in lost:
            self._intake.release_seat(topic)
        seats.reconfigure(ingest)
        self._intake.workers[group] = {seat: None for seat in seats.all if seat not in lost.values()}
        for seat in before:
            if seat not in self._intake.workers[group]:
                self._held_seats.discard(seat)
                self._quorums.remove(group, seat, now_ns)
        self._intake.workers[group] = dict.fromkeys(seats.all)
        for seat in seats.all:
            if seat in lost.values():
                self._quorums.add_left_seat(group, seat)
            elif seat not in before:
                self._quorums.add(group, seat, None, now_ns)
        names = [topic.decode(errors="replace") for topic in lost]
        fields = {"policy": self.config.policy(group).on_departure, "reason": "configuration"}
        return [Notice("warning", "worker_departed", _names_of(source) | {"worker": name} | fields) for name in names]

    def note_departed(self, now_ns: int) -> list[Notice]:
        """Find out who had departed before a predecessor ended, whose state has been taken over.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        for source in self._intake.sources:
            if source.worker_id is not None and self._quorums.missing(source.group, source.worker_id):
                source.presence.departed_at_ns = now_ns
        seats = self._intake.seats
        for source in self._intake.sources if seats is not None else ():
            assert seats is not None
            for topic, seat in list(seats.taken.items()):
                if self._quorums.missing(source.group, seat):
                    self._quorums.leave_seat(seat)
                    if self._quorums.is_away(source.group, seat):
                        self._held_seats.add(seat)
                    else:
                        self._intake.release_seat(topic)
        return []

    def state_of(self, group: str, worker_id: str) -> WorkerState:
        """Say how it stands with a worker.

        Args:
            group: Its group.
            worker_id: Its id, or its seat.
        """
        sources = self._intake.sources_of_worker(group, worker_id)
        seats = self._intake.seats
        if seats is not None:
            return self._state_of_seat(sources[0], worker_id)
        if all(source.presence.departed_at_ns is not None for source in sources):
            return "departed"
        states: list[WorkerState] = []
        for source in sources:
            presence = source.presence
            if presence.has_been_up and not presence.connections:
                states.append("down")
            elif presence.connections or source.endpoint.transport == "inproc":
                states.append("live" if source.streams else "quiet" if presence.connections else "no_peer")
            else:
                states.append("no_peer")
        if self._quorums.is_set_aside(group, worker_id):
            return "set_aside"
        # Of several sockets, the one that needs looking after.
        order: tuple[WorkerState, ...] = ("down", "no_peer", "quiet", "live")
        return next(state for state in order if state in states)

    def _state_of_seat(self, source: Source, seat: str) -> WorkerState:
        seats = self._intake.seats
        assert seats is not None
        topic = next((topic for topic, taken in seats.taken.items() if taken == seat), None)
        if seat in self._held_seats:
            return "departed"
        if topic is None:
            return "departed" if self._quorums.is_left(seat) else "no_peer"
        if self._quorums.is_set_aside(source.group, seat):
            return "set_aside"
        if topic in seats.gone(source.heard_at_ns):
            return "down"
        return "unclear" if topic in seats.unclear(source.heard_at_ns) else "live"

    def _look_at_seats(self, source: Source, now_ns: int) -> list[Notice]:
        """Free the seats of those who have gone; under `hold`, keep them."""
        seats = self._intake.seats
        assert seats is not None
        notices = []
        gone = seats.gone(source.heard_at_ns)
        for seat in [seat for topic, seat in seats.taken.items() if seat in self._held_seats and topic not in gone]:
            self._held_seats.discard(seat)
            self._quorums.return_to_seat(seat)
            self._quorums.settle(source.group, seat, now_ns)
            notices.append(Notice("info", "worker_returned", _names_of(source) | {"worker": self._intake.names[seat]}))
        if gone and seats.dropped_at_ns is not None and now_ns >= seats.dropped_at_ns + self._timeout_ns(source):
            for topic in gone:
                if seats.taken[topic] not in self._held_seats:
                    notices.append(self._leave_seat(source, topic, now_ns))
        return notices

    def _leave_seat(self, source: Source, topic: bytes, now_ns: int) -> Notice:
        """Let the worker of a taken seat depart."""
        seats = self._intake.seats
        assert seats is not None
        seat, policy = seats.taken[topic], self.config.policy(source.group).on_departure
        name = self._intake.names[seat]
        self._quorums.leave_seat(seat)
        if policy == "hold":
            self._held_seats.add(seat)
        else:
            self._intake.release_seat(topic)
        self._quorums.settle(source.group, seat, now_ns)
        fields = {"worker": name, "policy": policy, "reason": "connection"}
        return Notice("warning", "worker_departed", _names_of(source) | fields)

    def _depart(self, source: Source, now_ns: int) -> list[Notice]:
        presence = source.presence
        presence.departed_at_ns = now_ns
        assert source.worker_id is not None
        self._quorums.settle(source.group, source.worker_id, now_ns)
        reason = "connection" if presence.down_since_ns is not None else "unanswered"
        policy = self.config.policy(source.group).on_departure
        return [Notice("warning", "worker_departed", _names_of(source) | {"policy": policy, "reason": reason})]

    def _come_back(self, source: Source, now_ns: int) -> list[Notice]:
        source.presence.departed_at_ns = None
        assert source.worker_id is not None
        self._quorums.settle(source.group, source.worker_id, now_ns)
        return [Notice("info", "worker_returned", _names_of(source))]

    def _late(self, source: Source) -> list[Notice]:
        """Say that nothing has come yet, as far as that is strange."""
        presence, seats = source.presence, self._intake.seats
        fields: dict[str, object] = _names_of(source)
        if source.worker_id is None:
            assert seats is not None
            if not seats.free_count:
                return []
            fields |= {"seats": len(seats.all), "free": seats.free_count, "connections": seats.connections}
            if seats.taken:
                return [Notice("warning", "workers_not_seen_yet", fields)]
        elif source.streams:
            presence.late_at_ns = None
            return []
        if not presence.connections and not presence.has_been_up:
            fields["binds"] = source.endpoint.binds(source.binds_by_default)
            return [Notice("warning", "no_peer_yet", fields)]
        # Connected and silent is how an idle engine starts. It is strange when the others of its group have something to say.
        others = [other for other in self._intake.sources if other.group == source.group and other.streams]
        return [Notice("warning", "worker_not_seen_yet", fields)] if others else []

    def _timeout_ns(self, source: Source) -> int:
        return round(self.config.policy(source.group).worker_timeout_s * 1e9)


def _names_of(source: Source) -> dict[str, object]:
    """Return what tells a source from others in the log."""
    endpoint: dict[str, object] = {"endpoint": source.endpoint.url}
    return endpoint if source.worker_id is None else {"worker": source.worker_id, **endpoint}

"""The seats of the ingest socket: which topic is which worker, and which worker has gone.

Workers connect by themselves, all to one socket, and a worker is told by its topic: topics take seats, and the seats are the
quorum. A seat that has been given back is taken by the next new topic.

**What can be known of a departure** (rule A6: a connection that is down, never silence). ZeroMQ tells that a connection of the
socket ended, and not whose it was. So:

* Nobody is connected: all have gone.
* Fewer are connected than topics have been heard, where there was a connection for each before: so many have gone, and they are
  among the topics that have been silent since the last connection ended. When just so many are silent, it is those. When more
  are, nobody can tell yet, and no seat is given back; the silent ones show as `unclear`, and every batch makes it clearer.
* Topics that found no seat count as well: a worker that comes back under a new name takes the place of its old name.

It rests on one topic per connection. Several publishers under one topic (the ranks of one engine) hide a departure among them
until all have gone; several topics over one connection from the start switch the second rule off. Where this is not enough,
name the topics in the configuration and read it again: a topic that is no longer named loses its seat.
"""

from __future__ import annotations

from collections.abc import Callable

from kvbus.config import IngestConfig

__all__ = ["Seats"]

STRANGERS_MAX = 256
"""Topics without a seat that are remembered. Past it departures are noticed later; a peer that makes up topics costs no more."""


class Seats:
    """The seats of one ingest socket. Numbers of connections and times come from outside.

    Attributes:
        taken: Seat by topic, in the order in which they were taken.
        connections: Peers connected now.
        dropped_at_ns: When the last connection ended; `None` = none has.
    """

    def __init__(self, config: IngestConfig) -> None:
        """Begin with every seat free, or kept for its topic.

        Args:
            config: Checked.
        """
        self.taken: dict[bytes, str] = {}
        self.connections = 0
        self.dropped_at_ns: int | None = None
        self._config = config
        self._seats = [f"seat-{number}" for number in range(config.workers)]
        self._strangers: dict[bytes, int] = {}
        self._has_one_each = False

    @property
    def all(self) -> list[str]:
        """Every seat, in order."""
        return list(self._seats)

    @property
    def free_count(self) -> int:
        """Seats that nobody has."""
        return len(self._seats) - len(self.taken)

    def take(self, topic: bytes, now_ns: int) -> str | None:
        """Return a topic's seat; a new topic takes one.

        Args:
            topic: Of a batch.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            The seat; `None` when there is none for it.
        """
        seat = self.taken.get(topic)
        if seat is not None:
            return seat
        named = [name.encode() for name in self._config.topics]
        kept_count = sum(name not in self.taken for name in named)
        if topic not in named and self.free_count <= kept_count:
            if topic in self._strangers or len(self._strangers) < STRANGERS_MAX:
                self._strangers[topic] = now_ns
            return None
        free = [seat for seat in self._seats if seat not in self.taken.values()]
        # A named topic has the seat of its place, unless that was taken by another before it was named.
        place = self._seats[named.index(topic)] if topic in named else free[kept_count]
        self.give(topic, place if place in free else free[0])
        return self.taken[topic]

    def give(self, topic: bytes, seat: str) -> None:
        """Give a topic a certain seat; whoever had it loses it.

        Args:
            topic: Which.
            seat: One of `all`.
        """
        for other in [other for other, has in self.taken.items() if has == seat]:
            self.release(other)
        self.taken[topic] = seat
        self._strangers.pop(topic, None)
        self._has_one_each = self.connections >= len(self.taken)

    def release(self, topic: bytes) -> None:
        """Take a topic's seat away.

        Args:
            topic: One that has a seat.
        """
        del self.taken[topic]

    def connected(self) -> None:
        """Note that a connection has come up."""
        self.connections += 1
        self._has_one_each = self._has_one_each or self.connections >= len(self.taken) > 0

    def disconnected(self, now_ns: int) -> None:
        """Note that a connection has ended.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        self.connections = max(0, self.connections - 1)
        self.dropped_at_ns = now_ns

    def gone(self, heard_at_ns: Callable[[bytes], int]) -> list[bytes]:
        """Return the topics whose workers have no connection since `dropped_at_ns`, as far as can be known.

        Args:
            heard_at_ns: When the last batch of a topic with a seat came.
        """
        silent = self.unclear(heard_at_ns)
        if silent and self.connections and (not self._has_one_each or len(silent) != self._missing()):
            return []
        return silent

    def unclear(self, heard_at_ns: Callable[[bytes], int]) -> list[bytes]:
        """Return the topics of which it is not certain that their workers are connected; empty when nobody is missing.

        Args:
            heard_at_ns: As in `gone`.
        """
        dropped_at_ns = self.dropped_at_ns
        if dropped_at_ns is None or self._missing() <= 0:
            return []
        return [topic for topic in self.taken if heard_at_ns(topic) <= dropped_at_ns]

    def surplus(self, config: IngestConfig) -> list[bytes]:
        """Return the topics that would have no seat any more: those without room beside the named ones, the latest first.

        Args:
            config: What is going to hold; checked.
        """
        named = {name.encode() for name in config.topics}
        others = [topic for topic in self.taken if topic not in named]
        return others[max(config.workers - len(named), 0) :][::-1]

    def reconfigure(self, config: IngestConfig) -> None:
        """Change the number of seats and the topics for which they are kept.

        Args:
            config: Checked; leaves no `surplus`.
        """
        assert not self.surplus(config)
        self._config = config
        # Those that stay keep their seats, whatever their numbers; what is added or taken away is free.
        used = list(self.taken.values())
        free = [seat for number in range(config.workers + len(used)) if (seat := f"seat-{number}") not in used]
        seats = used + free[: config.workers - len(used)]
        self._seats = sorted(seats, key=lambda seat: int(seat.removeprefix("seat-")))

    def _missing(self) -> int:
        """Return how many workers with seats are not connected, by counting."""
        assert self.dropped_at_ns is not None
        strangers = sum(at_ns > self.dropped_at_ns for at_ns in self._strangers.values())
        return len(self.taken) - max(0, self.connections - strangers)

"""What a broker measures beside counting: how old events are when they go out, and how long it took itself.

Plain lists of numbers, filled once a batch by the loop's thread. Whoever wants them as metrics reads them there.

**Two clocks.** Engines stamp batches with their wall clock, the broker counts with a monotonic one. The shell says how far the
two are apart; a node without a shell (simulation, tests) has no meter and measures nothing. A batch from the future comes from a
clock that runs ahead: its age is unknown, not 0, so it is counted apart and is in no bucket. So is one without a stamp, or with
one that is no wall clock's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from kvbus.broker.rankgroup import MILLISECONDS_FROM

__all__ = ["AGE_BOUNDS_S", "FORWARD_BOUNDS_S", "TURN_S", "Histogram", "Meter"]

AGE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""From a rank in lockstep on the same machine to the age at which a vote does not count any more."""

FORWARD_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""From a turn of the loop that had one message to one that somebody has to look into."""

AHEAD_S = 0.001
"""A stamp up to so far in the future counts as now: wall clocks of one machine read a moment apart need not agree better."""

TURN_S = 0.05
"""The same for a time that is only known as that of a turn's beginning: what came during the turn may have been stamped later."""

NO_CLOCK_S = 1e8
"""Three years: a batch as old as that was stamped by no wall clock, and one time of day of it would spoil every average."""


class Histogram:
    """Numbers by size.

    Attributes:
        bounds: Upper bounds, ascending, each included.
        counts: Numbers in each bucket, not cumulative; one more than bounds, for what is above the last.
        total: Their sum.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Begin empty.

        Args:
            bounds: Ascending.
        """
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a number.

        Args:
            value: What.
            times: How often, ≥ 0.
        """
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Meter:
    """Ages and times of one broker. Owned by the loop's thread.

    Attributes:
        wall_ns: What to add to monotonic nanoseconds to get those since the epoch; the shell keeps it up to date.
        ages: Engine time of the batch that completed an event → its release, seconds, by worker group; counted in events.
        unknown: Events whose age is not known, by worker group: their engine's clock is `ahead` of ours, or there is
            `no_clock` in their stamps. They are in no bucket.
        forwards: Time from taking the first message behind an output batch to handing that to ZeroMQ, seconds, by view.
    """

    def __init__(self, wall_ns: int = 0, clock: Callable[[], float] | None = None) -> None:
        """Begin with nothing measured.

        Args:
            wall_ns: Distance of the two clocks.
            clock: Tells the wall clock's time, seconds since the epoch, more exactly than the beginning of a turn does.
        """
        self.wall_ns = wall_ns
        self._clock = clock
        self.ages: dict[str, Histogram] = {}
        self.unknown: dict[str, dict[str, int]] = {}
        self.forwards: dict[int, Histogram] = {}
        self._unsent: list[tuple[int, int]] = []

    def released(self, group: str, ts: float, events: int, now_ns: int) -> None:
        """Note that a batch has completed events.

        Args:
            group: Worker group.
            ts: Engine time of the batch, seconds since the epoch.
            events: How many.
            now_ns: Monotonic time, nanoseconds.

        Cost: under a microsecond a batch.
        """
        now_s = (now_ns + self.wall_ns) / 1e9 if self._clock is None else self._clock()
        age_s = now_s - (ts if ts < MILLISECONDS_FROM else ts / 1000)
        if not -AHEAD_S <= age_s < NO_CLOCK_S:
            unknown = self.unknown.setdefault(group, {"ahead": 0, "no_clock": 0})
            unknown["ahead" if age_s < -AHEAD_S else "no_clock"] += events
            return
        ages = self.ages.get(group)
        if ages is None:
            ages = self.ages[group] = Histogram(AGE_BOUNDS_S)
        ages.observe(max(age_s, 0.0), events)

    def publishing(self, view_index: int, since_ns: int) -> None:
        """Note that an output batch is about to be sent.

        Args:
            view_index: Which view.
            since_ns: When the first message behind it was taken, monotonic nanoseconds.
        """
        self._unsent.append((view_index, since_ns))

    def sent(self, now_ns: int) -> None:
        """Note that all output batches have been handed to ZeroMQ.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        for view_index, since_ns in self._unsent:
            forwards = self.forwards.get(view_index)
            if forwards is None:
                forwards = self.forwards[view_index] = Histogram(FORWARD_BOUNDS_S)
            forwards.observe((now_ns - since_ns) / 1e9)
        self._unsent.clear()

"""The ranks of one engine: all say the same events, each in its own time and in its own batches.

Tensor-parallel ranks execute one schedule, so what they emit is equal, event for event and in order. What differs is when: each
runs a little behind the engine, by an amount that changes from batch to batch, and one may lag far behind. And how it is
cut: a rank sends what has gathered since its last batch, which may be several steps, or part of one.
"""

from __future__ import annotations

import heapq
import random
from typing import NamedTuple

import msgspec

from kvbus.errors import UsageError
from kvbus.events import Event

__all__ = ["EngineStep", "RankBatch", "RankOptions", "RankSchedule"]

HELD_STEPS_MAX = 8
"""A rank that has gathered so many steps sends them in any case, so that no draw of numbers withholds events for long."""


class EngineStep(NamedTuple):
    """What one step of an engine did.

    Attributes:
        step_index: Number of the step among those with events, from 0.
        time_ns: When, nanoseconds from the start of the trace.
        events: What happened, in order; empty only where the caller of `Engine.steps` has asked for that.
    """

    step_index: int
    time_ns: int
    events: list[Event]


class RankBatch(NamedTuple):
    """One batch that a rank sends.

    Attributes:
        time_ns: When, nanoseconds from the start of the trace.
        tensor_parallel_rank: Which rank.
        events: Its events, in order; never empty.
        events_stop: How many events this rank has sent with this batch and all before it.
        step_index: The engine's step whose end this batch ends with; `None` where it ends inside a step.
    """

    time_ns: int
    tensor_parallel_rank: int
    events: list[Event]
    events_stop: int
    step_index: int | None


class RankOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How far the ranks of one engine drift apart.

    Attributes:
        count: Number of ranks, ≥ 1.
        skew_ns: A rank is up to this far behind the engine, drawn anew for each batch; ≥ 0. 5 ms: about one step.
        hold_probability: Probability that a rank keeps a step's events for its next batch, in [0, 1].
        split_probability: Probability that a rank cuts a batch inside a step, in [0, 1].
        lags_ns: (rank, nanoseconds) for ranks that are that much further behind, always.
    """

    count: int = 1
    skew_ns: int = 5_000_000
    hold_probability: float = 0.25
    split_probability: float = 0.1
    lags_ns: tuple[tuple[int, int], ...] = ()


class _Rank:
    """One rank: what it has gathered, and where its clock stands."""

    __slots__ = ("gathered", "held_steps", "lag_ns", "last_time_ns", "rng", "sent_count")

    def __init__(self, lag_ns: int, rng: random.Random) -> None:
        self.rng = rng
        self.lag_ns = lag_ns
        self.last_time_ns = 0
        self.gathered: list[Event] = []
        self.held_steps = 0
        self.sent_count = 0


class RankSchedule:
    """Cuts an engine's steps into the batches of its ranks and orders them in time.

    Invariant: at the end each rank has sent all events of all steps, in order.
    """

    def __init__(self, options: RankOptions, seed: int) -> None:
        """Start at time 0.

        Args:
            options: How many ranks and how far apart.
            seed: Same seed, same steps: same batches. Each rank draws from its own numbers, so that one rank's batches do not
                depend on how many others there are.

        Raises:
            UsageError: No rank, a negative time, a probability outside [0, 1] or a lag of a rank that is not there.
        """
        lags_ns = dict(options.lags_ns)
        if options.count < 1 or options.skew_ns < 0 or any(lag_ns < 0 for lag_ns in lags_ns.values()):
            raise UsageError("at least one rank, and no negative times")
        if not (0 <= options.hold_probability <= 1 and 0 <= options.split_probability <= 1):
            raise UsageError("a probability lies between 0 and 1")
        if any(not 0 <= rank < options.count for rank in lags_ns):
            raise UsageError(f"a lag names a rank outside 0 to {options.count - 1}")
        self._options = options
        self._ranks = [
            _Rank(lags_ns.get(number, 0), random.Random(f"{seed}/{number}")) for number in range(options.count)
        ]
        self._waiting: list[tuple[int, int, int, RankBatch]] = []
        self._last_step_index: int | None = None

    def add_step(self, step: EngineStep) -> list[RankBatch]:
        """Take one step of the engine.

        Args:
            step: Not before the last one; with events.

        Returns:
            Batches that no later step can precede, in order of time. The rest waits; `drain` returns it.

        Cost: holds the batches of the longest lag.
        """
        self._last_step_index = step.step_index
        for number, rank in enumerate(self._ranks):
            self._gather(number, rank, step)
        return self.take_due(step.time_ns)

    def take_due(self, time_ns: int) -> list[RankBatch]:
        """Return the batches of which the time has come, in order.

        Args:
            time_ns: Not before the last step; no later step is earlier.
        """
        due: list[RankBatch] = []
        while self._waiting and self._waiting[0][0] <= time_ns:
            due.append(heapq.heappop(self._waiting)[-1])
        return due

    def drain(self) -> list[RankBatch]:
        """Return all that waits, in order of time, and what each rank has gathered as its last batch."""
        for number, rank in enumerate(self._ranks):
            if rank.gathered:
                self._cut(number, rank, rank.last_time_ns, self._last_step_index)
        return [heapq.heappop(self._waiting)[-1] for _ in range(len(self._waiting))]

    def _gather(self, number: int, rank: _Rank, step: EngineStep) -> None:
        """Add a step to what a rank has gathered, and cut batches from it as chance has it."""
        events = step.events
        if len(events) > 1 and rank.rng.random() < self._options.split_probability:
            split_index = rank.rng.randrange(1, len(events))
            rank.gathered += events[:split_index]
            self._cut(number, rank, step.time_ns, None)
            events = events[split_index:]
        rank.gathered += events
        rank.held_steps += 1
        if rank.held_steps >= HELD_STEPS_MAX or rank.rng.random() >= self._options.hold_probability:
            self._cut(number, rank, step.time_ns, step.step_index)

    def _cut(self, number: int, rank: _Rank, time_ns: int, step_index: int | None) -> None:
        """Make one batch of what a rank has gathered; it goes out after the rank's last one."""
        late_ns = rank.lag_ns + rank.rng.randint(0, self._options.skew_ns)
        rank.last_time_ns = max(rank.last_time_ns, time_ns + late_ns)
        rank.sent_count += len(rank.gathered)
        batch = RankBatch(rank.last_time_ns, number, rank.gathered, rank.sent_count, step_index)
        heapq.heappush(self._waiting, (batch.time_ns, number, batch.events_stop, batch))
        rank.gathered = []
        rank.held_steps = 0

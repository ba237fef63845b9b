"""One engine with its ranks, restarted as often as it dies: what happens to blocks, and which rank says it when.

The engine is the offloading engine of `kvbus.offload`, with pools so small that it evicts all the time. It is asked things until
the quiet phase begins; then a little, so that everybody speaks once more; and near the end of the run about prompts that nobody
has ever asked before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec

from kvbus.events import Event
from kvbus.offload.engine import Engine
from kvbus.offload.generate import generate_requests
from kvbus.offload.ranks import EngineStep, RankBatch, RankSchedule
from kvbus.offload.trace import TraceRequest
from kvbus.sim.clock import Clock
from kvbus.sim.plan import EnginePlan

__all__ = ["EngineHost", "LoadTimes"]


class LoadTimes(msgspec.Struct, frozen=True):
    """When engines are asked something.

    Attributes:
        stop_ns: End of the ordinary load.
        wake_start_ns: Begin of a short load that makes everybody speak: what no probe can find out shows then.
        wake_stop_ns: Its end.
        fresh_start_ns: Begin of the load at the end, with prompts never seen before.
        fresh_stop_ns: Its end.
    """

    stop_ns: int
    wake_start_ns: int
    wake_stop_ns: int
    fresh_start_ns: int
    fresh_stop_ns: int


class EngineHost:
    """Runs one engine and hands each rank its batches when it is time.

    Attributes:
        plan: What it is like.
        is_running: Whether an engine is alive.
        is_done: Whether the engine has nothing more to say.
    """

    def __init__(
        self, clock: Clock, plan: EnginePlan, seed: str, times: LoadTimes, deliver: Callable[[int, list[Event]], None]
    ) -> None:
        """Prepare an engine; `start` runs it.

        Args:
            clock: Time.
            plan: What it is like.
            seed: Of its load.
            times: When it is asked something.
            deliver: Takes a tensor-parallel rank and the events of its next batch.
        """
        self.plan = plan
        self.is_running = False
        self.is_done = False
        self._clock = clock
        self._seed = seed
        self._times = times
        self._deliver = deliver
        self._life = 0
        self._start_ns = 0

    def start(self) -> None:
        """Begin a life with empty caches."""
        self._life += 1
        self.is_running, self.is_done = True, False
        self._start_ns = self._clock.now_ns
        rng = random.Random(f"{self._seed}/{self._life}")
        self._engine = Engine(self.plan.options, self._requests(rng), rng)
        self._steps = self._engine.steps()
        self._schedule = RankSchedule(self.plan.ranks, rng.randrange(1 << 30))
        self._advance(self._life)

    def stop(self) -> None:
        """Die; what was not said yet is never said."""
        self._life += 1
        self.is_running = False

    def _advance(self, life: int) -> None:
        """Take the next step and plan what becomes certain with it."""
        if life != self._life:
            return
        step: EngineStep | None = next(self._steps, None)
        batches = self._schedule.drain() if step is None else self._schedule.add_step(step)
        for batch in batches:
            self._clock.at(self._start_ns + batch.time_ns, lambda batch=batch: self._hand_out(batch, life))  # type: ignore[misc]
        if step is not None:
            self._clock.at(self._start_ns + step.time_ns, lambda: self._advance(life))
        else:
            last_ns = max((batch.time_ns for batch in batches), default=0)
            self._clock.at(self._start_ns + last_ns, lambda: self._end(life))

    def _hand_out(self, batch: RankBatch, life: int) -> None:
        if life == self._life:
            self._deliver(batch.tensor_parallel_rank, batch.events)

    def _end(self, life: int) -> None:
        if life == self._life:
            self.is_done = True

    def _requests(self, rng: random.Random) -> Iterator[TraceRequest]:
        """Yield all loads, one after the other; arrivals count from the start of this life."""
        times = self._times
        name = f"{self.plan.group}/{self.plan.data_parallel_rank}"
        load = self.plan.load
        # Steps enough that no rank can hold back what it has to say for all of them.
        busy = msgspec.structs.replace(load, conversations_per_second=4.0)
        for scope, start_ns, stop_ns in (
            (name, self._start_ns, times.stop_ns),
            (f"{name}/wake", max(times.wake_start_ns, self._start_ns), times.wake_stop_ns),
            (f"{name}/fresh", max(times.fresh_start_ns, self._start_ns), times.fresh_stop_ns),
        ):
            for request in generate_requests(rng, busy if scope.endswith("wake") else load):
                arrival_ns = start_ns + request.arrival_ns
                if arrival_ns >= stop_ns:
                    break
                yield msgspec.structs.replace(request, arrival_ns=arrival_ns - self._start_ns, scope=scope)

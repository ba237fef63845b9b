"""What goes wrong, when: each kind of fault strikes at random, and ends before the quiet phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kvbus.sim.broker_process import BrokerProcess
from kvbus.sim.clock import MS, SECOND
from kvbus.sim.plan import FaultPlan
from kvbus.sim.process import Process, Stage
from kvbus.sim.subscriber_process import ReaderProcess
from kvbus.sim.worker_process import WorkerProcess
from kvbus.sim.workload import EngineHost

__all__ = ["Injector"]


class Injector:
    """Breaks things until the quiet phase.

    Attributes:
        counts: How often each fault struck.
    """

    def __init__(
        self,
        stage: Stage,
        plan: FaultPlan,
        *,
        stop_ns: int,
        broker: BrokerProcess,
        engines: dict[EngineHost, list[WorkerProcess]],
        readers: list[ReaderProcess],
        tell: Callable[[str], None],
    ) -> None:
        """Plan the first fault of each kind.

        Args:
            stage: Time, the network, and what strikes when and whom.
            plan: How often.
            stop_ns: When all is over and everything runs again.
            broker: To be broken.
            engines: To be broken, with the publishers of each.
            readers: To be broken.
            tell: Takes a line for the trace.
        """
        self.counts: Counter[str] = Counter()
        self._clock = stage.clock
        self._rng = stage.rng
        self._network = stage.network
        self._stop_ns = stop_ns
        self._broker = broker
        self._engines = engines
        self._readers = readers
        self._tell = tell
        for name in plan.__struct_fields__:
            rate = getattr(plan, name)
            if rate and name != "pause_probability":
                self._plan_next(name, rate)

    def _plan_next(self, name: str, rate: float) -> None:
        """Draw when a kind of fault strikes next."""
        when_ns = self._clock.now_ns + int(self._rng.expovariate(rate) * SECOND)
        if when_ns < self._stop_ns:
            self._clock.at(when_ns, lambda: self._strike(name, rate))

    def _strike(self, name: str, rate: float) -> None:
        if getattr(self, f"_{name}")():
            self.counts[name] += 1
        self._plan_next(name, rate)

    def _end_ns(self, least_ms: int, most_ms: int) -> int:
        """Draw when a fault ends; at the latest when all is over."""
        return min(self._stop_ns, self._clock.now_ns + self._rng.randrange(least_ms, most_ms) * MS)

    def _told_ns(self) -> int:
        """Draw how much later peers hear of a death: mostly at once, sometimes as if a machine had vanished."""
        return self._rng.randrange(6 * SECOND) if self._rng.random() < 0.15 else 0

    def _sever(self) -> bool:
        connections = self._network.connections
        if not connections:
            return False
        connection = self._rng.choice(connections)
        self._tell(f"sever {connection.connector.kind} {connection.connector.name}")
        self._network.sever(connection, self._told_ns())
        return True

    def _partition(self) -> bool:
        connections = self._network.connections
        if not connections:
            return False
        name = self._rng.choice(connections).connector.name
        self._tell(f"partition {name}")
        self._network.block(name, self._end_ns(200, 6000))
        for connection in [each for each in connections if each.connector.name == name]:
            self._network.sever(connection, self._told_ns())
        return True

    def _hold_back(self) -> bool:
        connections = self._network.connections
        if not connections:
            return False
        connection = self._rng.choice(connections)
        self._tell(f"hold back {connection.connector.kind} {connection.connector.name}")
        self._network.hold_back(connection, self._end_ns(50, 4000))
        return True

    def _worker_crash(self) -> bool:
        workers = [worker for workers in self._engines.values() for worker in workers if worker.is_running]
        if not workers:
            return False
        worker = self._rng.choice(workers)
        worker.is_whole = False
        self._restart(worker, self._end_ns(100, 5000))
        return True

    def _engine_crash(self) -> bool:
        hosts = [host for host in self._engines if host.is_running]
        if not hosts:
            return False
        host = self._rng.choice(hosts)
        self._tell(f"engine {host.plan.group}.{host.plan.data_parallel_rank} dies")
        host.stop()
        back_ns = self._end_ns(200, 5000)
        for worker in self._engines[host]:
            # Its publishers die within a moment of each other, and are back before it says anything.
            self._clock.after(self._rng.randrange(100 * MS), lambda worker=worker: self._restart(worker, back_ns))  # type: ignore[misc]
        self._clock.at(back_ns + 200 * MS, lambda: self._revive(host))
        return True

    def _revive(self, host: EngineHost) -> None:
        for worker in self._engines[host]:
            worker.is_whole = True
        host.start()

    def _worker_stall(self) -> bool:
        workers = [worker for workers in self._engines.values() for worker in workers]
        return self._stall(self._rng.choice(workers), 5000)

    def _broker_crash(self) -> bool:
        if not self._broker.is_running:
            return False
        self._restart(self._broker, self._end_ns(50, 4000))
        return True

    def _broker_stall(self) -> bool:
        return self._stall(self._broker, 3000)

    def _subscriber_crash(self) -> bool:
        readers = [reader for reader in self._readers if reader.is_running]
        if not readers:
            return False
        self._restart(self._rng.choice(readers), self._end_ns(50, 4000))
        return True

    def _subscriber_stall(self) -> bool:
        return self._stall(self._rng.choice(self._readers), 5000)

    def _mute(self) -> bool:
        workers = [worker for workers in self._engines.values() for worker in workers if worker.plan.replay != "none"]
        if not workers:
            return False
        worker = self._rng.choice(workers)
        self._tell(f"mute {worker.name}")
        worker.mute_until_ns = self._end_ns(500, 10_000)
        return True

    def _stall(self, process: Process, most_ms: int) -> bool:
        """Let a process stand still."""
        if not process.is_running:
            return False
        self._tell(f"{process.name} stands still")
        process.stand_still(self._end_ns(50, most_ms))
        return True

    def _restart(self, process: Process, back_ns: int) -> None:
        """Kill a process and let it come back."""
        if not process.is_running:
            return
        self._tell(f"{process.name} dies")
        process.kill(self._told_ns())
        self._clock.at(back_ns, lambda: self._start(process))

    def _start(self, process: Process) -> None:
        if not process.is_running:
            self._tell(f"{process.name} starts")
            process.start()

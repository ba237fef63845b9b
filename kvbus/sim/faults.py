"""What goes wrong, when: each kind of fault strikes at random, and ends before the quiet phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from kvbus.config import BrokerConfig
from kvbus.sim.broker_process import BrokerProcess
from kvbus.sim.clock import MS, SECOND
from kvbus.sim.plan import FaultPlan
from kvbus.sim.process import Process, Stage
from kvbus.sim.subscriber_process import ReaderProcess
from kvbus.sim.worker_process import WorkerProcess
from kvbus.sim.workload import EngineHost

__all__ = ["ONCE", "Injector"]

ONCE = frozenset({"deaf_tail", "pause_probability", "reconfigure", "tail_stall", "unseen_restart"})
"""Figures of a plan that are no rates."""


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
        tail_ns: int,
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
            tail_ns: When the load ends.
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
            if rate and name not in ONCE:
                self._plan_next(name, rate)
        length_ns = tail_ns - self._clock.now_ns
        if self._rng.random() < plan.unseen_restart:
            self._clock.after(self._rng.randrange(length_ns // 8, length_ns // 3), lambda: self._once("unseen_restart"))
        if self._rng.random() < plan.tail_stall:
            self._tail_end_ns = min(stop_ns, tail_ns + SECOND)
            self._clock.at(tail_ns - self._rng.randrange(2 * SECOND), lambda: self._once("tail_stall"))
        if self._rng.random() < plan.deaf_tail:
            self._clock.at(tail_ns - self._rng.randrange(2 * SECOND), lambda: self._once("deaf_tail"))
        if self._rng.random() < plan.reconfigure:
            self._clock.after(self._rng.randrange(length_ns), lambda: self._once("reconfigure"))

    def _plan_next(self, name: str, rate: float) -> None:
        """Draw when a kind of fault strikes next."""
        when_ns = self._clock.now_ns + int(self._rng.expovariate(rate) * SECOND)
        if when_ns < self._stop_ns:
            self._clock.at(when_ns, lambda: self._strike(name, rate))

    def _strike(self, name: str, rate: float) -> None:
        self._once(name)
        self._plan_next(name, rate)

    def _once(self, name: str) -> None:
        """Let a fault strike, if there is somebody whom it can strike."""
        if getattr(self, f"_{name}")():
            self.counts[name] += 1

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

    def _unseen_restart(self) -> bool:
        """Restart somebody out of sight of those who read it, and keep it so until the new life has overtaken the old one."""
        if self._rng.random() < 0.3:
            return self._broker.is_running and self._hide_broker()
        host, workers = self._rng.choice(list(self._engines.items()))
        if not host.is_running or not all(worker.is_running for worker in workers):
            return False
        if self._rng.random() < 0.3:
            workers = [self._rng.choice(workers)]
            workers[0].is_whole = False
        else:
            host.stop()
            self._clock.after(300 * MS, lambda: self._revive(host))
        for worker in workers:
            old_seq = worker.truth.next_seq
            self._hide(worker.plan.endpoint, lambda worker=worker, old_seq=old_seq: worker.truth.next_seq > old_seq)  # type: ignore[misc]
            self._restart(worker, self._end_ns(100, 200))
        return True

    def _hide_broker(self) -> bool:
        """Restart the broker out of sight of its readers."""
        outputs = self._broker.node.outputs
        old_seqs = [output.view.next_seq for output in outputs]
        for index, view in enumerate(self._broker.node.views):
            old_seq = old_seqs[index]
            self._hide(view.endpoint, lambda index=index, old_seq=old_seq: self._has_overtaken(index, old_seq))  # type: ignore[misc]
        self._restart(self._broker, self._end_ns(50, 200))
        return True

    def _has_overtaken(self, view_index: int, old_seq: int) -> bool:
        return self._broker.is_running and self._broker.node.outputs[view_index].view.next_seq > old_seq

    def _hide(self, name: str, is_over: Callable[[], bool]) -> None:
        """Keep an endpoint out of reach until something has happened, or all is over."""
        for connection in [each for each in self._network.connections if each.connector.name == name]:
            self._network.sever(connection)
        self._keep_hidden(name, is_over)

    def _keep_hidden(self, name: str, is_over: Callable[[], bool]) -> None:
        now_ns = self._clock.now_ns
        if now_ns < self._stop_ns and not is_over():
            self._network.block(name, now_ns + 100 * MS)
            self._clock.after(50 * MS, lambda: self._keep_hidden(name, is_over))

    def _tail_stall(self) -> bool:
        """Let the broker miss what engines say last, where high-water marks are low."""
        self._tell("broker stands still to the end of the load")
        self._broker.stand_still(self._tail_end_ns)
        return self._broker.is_running

    def _deaf_tail(self) -> bool:
        """Let subscribers that cannot ask miss what engines say last, whatever their high-water marks."""
        deaf = [reader for reader in self._readers if reader.is_running and not reader.plan.has_replay]
        for reader in deaf:
            self._tell(f"{reader.name} is cut off and stands still to the end")
            reader.cut_off()
            reader.stand_still(self._stop_ns)
        return bool(deaf)

    def _reconfigure(self) -> bool:
        """Take a worker out of the configuration, and put it back in after a while."""
        whole = self._broker.config
        groups = Counter(worker.group for worker in whole.workers)
        taken = [worker for worker in whole.workers if groups[worker.group] > 1]
        if not taken or not self._broker.can_change:
            return False
        gone = self._rng.choice(taken)
        rest = tuple(worker for worker in whole.workers if worker is not gone)
        self._tell(f"{gone.worker_id} is taken out of the configuration")
        self._broker.reconfigure(msgspec.structs.replace(whole, workers=rest))
        self._clock.at(self._end_ns(100, 8000), lambda: self._put_back(whole))
        return True

    def _put_back(self, whole: BrokerConfig) -> None:
        self._tell("the configuration is whole again")
        self._broker.reconfigure(whole)

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

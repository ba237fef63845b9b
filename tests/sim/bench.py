"""Small runs for tests: parts of a world, put together by hand."""

from __future__ import annotations

import random

from kvbus.config import BrokerConfig, WorkerConfig
from kvbus.events import Event
from kvbus.sim.broker_process import BrokerHooks, BrokerProcess
from kvbus.sim.clock import MS, SECOND, Clock
from kvbus.sim.network import Network
from kvbus.sim.pipe import LinkOptions
from kvbus.sim.plan import FaultPlan, Plan, SubscriberPlan, WorkerPlan
from kvbus.sim.process import Stage
from kvbus.sim.worker_process import WorkerProcess
from kvbus.views.config import ViewConfig
from kvbus.views.filters import EventFilter


def worker_plan(name: str, replay: str | None = "fair") -> WorkerPlan:
    """A worker of group `a`, named by one letter and a number."""
    return WorkerPlan(
        worker_id=name,
        group="a",
        data_parallel_rank=0,
        tensor_parallel_rank=int(name[1:]),
        endpoint=f"inproc://{name}",
        replay_endpoint=None if replay is None else f"inproc://replay-{name}",
        replay=replay or "none",
    )


VIEW = ViewConfig(endpoint="inproc://view", replay_endpoint="inproc://replay-view", topic="out")


def plan_of(workers: list[WorkerPlan], views: tuple[ViewConfig, ...] = (VIEW,), **changes) -> Plan:
    """A plan without faults and engines."""
    specs = tuple(
        WorkerConfig(
            worker_id=each.worker_id, endpoint=each.endpoint, replay_endpoint=each.replay_endpoint, group=each.group
        )
        for each in workers
    )
    values = {
        "seed": 0,
        "broker": BrokerConfig(workers=specs, views=views),
        "workers": tuple(workers),
        "engines": (),
        "subscribers": (),
        "links": LinkOptions(),
        "faults": FaultPlan(),
        "has_journal": False,
        "broker_hwm": 1000,
        "broker_share": 64,
        "turn_ns": MS,
        "safety_ns": SECOND,
        "load_ns": SECOND,
    }
    return Plan(**(values | changes))


class Bench:
    """Workers and a broker, and what the broker was seen to do."""

    def __init__(self, *workers: WorkerPlan, views: tuple[ViewConfig, ...] = (VIEW,)) -> None:
        self.plan = plan_of(list(workers), views)
        self.clock = Clock()
        self.network = Network(self.clock, random.Random(1), self.plan.links)
        self.workers = [WorkerProcess(self.stage(), each) for each in workers]
        self.seen: list[str] = []
        self.broker = BrokerProcess(
            self.stage(),
            self.plan,
            BrokerHooks(
                on_life=lambda is_resumed: self.seen.append("life"),
                on_change=lambda worker_ids: self.seen.append(f"changes {sorted(worker_ids)}"),
                on_live=lambda index, frames: None,
                on_output=lambda index, frames: self.seen.append(f"sends {int.from_bytes(frames[1], 'big')}"),
                on_reply=lambda index, identity, frames: self.seen.append("replies"),
                on_notice=lambda notice: self.seen.append(notice.name),
                on_turn=lambda: None,
            ),
        )

    def stage(self) -> Stage:
        """What a process stands on."""
        return Stage(self.clock, self.network, random.Random(3), MS)

    def start(self) -> None:
        """Bring everybody to life and let them connect."""
        for worker in self.workers:
            worker.start()
        self.broker.start()
        self.run()

    def run(self, seconds: float = 1.0) -> None:
        """Let time pass."""
        until_ns = self.clock.now_ns + int(seconds * SECOND)
        while self.clock.run_next(until_ns):
            pass

    def say(self, *events: Event) -> None:
        """Let every worker say the same."""
        for worker in self.workers:
            worker.publish(list(events))
        self.run()


def subscriber_plan(kind: str = "node", **changes) -> SubscriberPlan:
    """A reader of the only view."""
    values = {
        "name": "s0",
        "view_index": 0,
        "kind": kind,
        "has_replay": True,
        "event_filter": EventFilter(),
        "hwm": 1000,
        "joins_at_ns": 0,
    }
    return SubscriberPlan(**(values | changes))

"""What goes wrong, when."""

import random

import pytest

from kvbus.sim.clock import SECOND
from kvbus.sim.faults import ONCE, Injector
from kvbus.sim.plan import EnginePlan, FaultPlan
from kvbus.sim.process import Stage
from kvbus.sim.subscriber_process import SubscriberProcess
from kvbus.sim.workload import EngineHost, LoadTimes
from tests.sim.bench import Bench, subscriber_plan, worker_plan
from tests.sim.test_workload import PLAN

KINDS = [name for name in FaultPlan.__struct_fields__ if name not in ONCE]


def run(plan: FaultPlan, seed: int = 1, *, has_replay: bool = True) -> tuple[Injector, list[str], Bench]:
    """Let a small bus suffer for half a minute, and then a minute more."""
    bench = Bench(worker_plan("a0"), worker_plan("a1"))
    reader = SubscriberProcess(bench.stage(), subscriber_plan(has_replay=has_replay), bench.plan.broker.views[0])
    reader.on_begin = lambda: None
    reader.on_item = lambda item: None
    engine: EnginePlan = PLAN
    times = LoadTimes(20 * SECOND, 35 * SECOND, 36 * SECOND, 40 * SECOND, 41 * SECOND)
    host = EngineHost(bench.clock, engine, "x", times, lambda rank, events: bench.workers[rank].publish(events))
    bench.start()
    reader.start()
    host.start()
    told: list[str] = []
    injector = Injector(
        Stage(bench.clock, bench.network, random.Random(seed), 0),
        plan,
        stop_ns=30 * SECOND,
        tail_ns=20 * SECOND,
        broker=bench.broker,
        engines={host: bench.workers},
        readers=[reader],
        tell=told.append,
    )
    bench.run(90)
    processes = [bench.broker, reader, *bench.workers]
    assert all(process.is_running for process in processes), "all are back before the quiet phase"
    assert bench.plan.broker is bench.broker.config
    assert host.is_running
    return injector, told, bench


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_strikes_and_is_over_in_time(kind: str) -> None:
    """At its rate, and everything runs again afterwards."""
    injector, told, _ = run(FaultPlan(**{kind: 0.5}))
    assert 3 < injector.counts[kind] < 40
    assert told


@pytest.mark.parametrize("kind", ["reconfigure", "tail_stall", "unseen_restart"])
def test_some_faults_strike_once_or_not_at_all(kind: str) -> None:
    """These need their moment."""
    assert {0, 1} >= {run(FaultPlan(**{kind: 1.0}), seed)[0].counts[kind] for seed in range(3)}
    assert any(run(FaultPlan(**{kind: 1.0}), seed)[0].counts[kind] for seed in range(3))


def test_who_cannot_ask_misses_the_tail() -> None:
    """And whoever can is left alone."""
    injector, told, _ = run(FaultPlan(deaf_tail=1.0), has_replay=False)
    assert 1 == injector.counts["deaf_tail"]
    assert told == ["subscriber s0 is cut off and stands still to the end"]
    assert 0 == run(FaultPlan(deaf_tail=1.0))[0].counts["deaf_tail"]


def test_without_faults_nothing_strikes() -> None:
    """Zero is a legal rate."""
    injector, told, bench = run(FaultPlan())
    assert ({}, []) == (dict(injector.counts), told)
    assert 1 == bench.broker.lives


def test_a_seed_decides_what_strikes_when() -> None:
    """The same line for the same seed."""
    plan = FaultPlan(sever=0.3, worker_stall=0.3, broker_crash=0.1)
    assert run(plan, 1)[1] == run(plan, 1)[1] != run(plan, 2)[1]

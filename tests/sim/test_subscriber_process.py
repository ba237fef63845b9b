"""Our subscriber with pretend sockets."""

from kvbus.events import BlockStored
from kvbus.sim.clock import SECOND
from kvbus.sim.subscriber_process import SubscriberProcess
from kvbus.subscriber.items import Item, Received
from tests.sim.bench import Bench, subscriber_plan, worker_plan


def bench_with_reader(**changes) -> tuple[Bench, SubscriberProcess, list[Item]]:
    bench, items = Bench(worker_plan("a0")), []
    reader = SubscriberProcess(bench.stage(), subscriber_plan(**changes), bench.plan.broker.views[0])
    reader.on_begin = lambda: None
    reader.on_item = items.append
    bench.start()
    return bench, reader, items


def seqs(items: list[Item]) -> list[int]:
    return [item.seq for item in items if isinstance(item, Received)]


def test_it_gets_what_came_before_and_what_comes() -> None:
    """By replay and live."""
    bench, reader, items = bench_with_reader()
    bench.say(BlockStored([1]))
    reader.start()
    bench.run()
    bench.say(BlockStored([2]))
    assert [0, 1] == seqs(items)
    assert reader.is_settled


def test_without_a_replay_endpoint_it_gets_what_comes() -> None:
    """And never asks."""
    bench, reader, items = bench_with_reader(has_replay=False)
    bench.say(BlockStored([1]))
    reader.start()
    bench.run()
    bench.say(BlockStored([2]))
    assert [1] == seqs(items)


def test_what_it_lost_while_it_stood_still_is_asked_for() -> None:
    """Its own high-water mark and the view's together are passed."""
    bench, reader, items = bench_with_reader(hwm=2)
    reader.start()
    bench.run()
    for connection in bench.network.connections:
        if connection.connector.name == "inproc://view":
            connection.pipe_to(connection.connector)._hwm = 3
    reader.stand_still(bench.clock.now_ns + 20 * SECOND)
    for number in range(10):
        bench.say(BlockStored([number]))
    assert [] == seqs(items)
    bench.run(30)
    assert list(range(10)) == seqs(items)
    assert bench.network.counts["dropped at the high-water mark"] > 0


def test_pauses_within_a_turn_change_nothing_that_matters() -> None:
    """They only delay."""
    bench, reader, items = bench_with_reader()
    reader.pause_probability = 1.0
    reader.start()
    bench.say(BlockStored([1]))
    bench.run(5)
    assert [0] == seqs(items)

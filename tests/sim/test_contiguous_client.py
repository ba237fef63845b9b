"""A client that insists on one number after the other."""

import msgspec

from kvbus.events import BlockStored
from kvbus.sim.clock import SECOND
from kvbus.sim.contiguous_client import ContiguousClient
from tests.sim.bench import VIEW, Bench, subscriber_plan, worker_plan


def bench_with_client(**view) -> tuple[Bench, ContiguousClient, list[str]]:
    bench, told = Bench(worker_plan("a0"), views=(msgspec.structs.replace(VIEW, **view),)), []
    client = ContiguousClient(bench.stage(), subscriber_plan("contiguous"), bench.plan.broker.views[0])
    client.on_forget = told.append
    client.on_batch = lambda seq, batch: told.append(f"{seq}")
    bench.start()
    return bench, client, told


def test_it_replays_from_the_beginning_and_goes_on_live() -> None:
    """Whenever its connection comes up."""
    bench, client, told = bench_with_client()
    bench.say(BlockStored([1]))
    client.start()
    bench.run()
    bench.say(BlockStored([2]))
    assert ["began", "connected", "0", "1"] == told
    assert client.is_settled
    bench.network.sever(next(each for each in bench.network.connections if each.connector is client._live))
    bench.run(2)
    assert ["connected", "0", "1"] == told[4:]


def test_an_answer_in_the_old_form_is_of_no_use_to_it() -> None:
    """It is deaf for half a minute, and tries again."""
    bench, client, told = bench_with_client(old_replay_form=True)
    bench.say(BlockStored([1]))
    client.start()
    bench.run()
    assert ["began", "connected", "old form"] == told
    assert not client.is_settled
    bench.run(31)
    assert ["not deaf any more", "old form"] == told[3:]


def test_an_answer_that_begins_late_is_of_no_use_to_it() -> None:
    """Which is why a view answers with a snapshot that fills the numbers in front."""
    bench, client, told = bench_with_client(buffer_batches=2, snapshot=False)
    for number in range(4):
        bench.say(BlockStored([number]))
    client.start()
    bench.run()
    assert ["began", "connected", "the answer begins late"] == told
    bench, client, told = bench_with_client(buffer_batches=2)
    for number in range(4):
        bench.say(BlockStored([number]))
    client.start()
    bench.run()
    assert ["0", "1"] == told[2:4]


def test_three_requests_without_an_answer_are_enough() -> None:
    """It waits two seconds for each."""
    bench, client, told = bench_with_client()
    client.start()
    bench.run()
    bench.broker.stand_still(bench.clock.now_ns + 60 * SECOND)
    bench.network.sever(next(each for each in bench.network.connections if each.connector is client._live))
    bench.run(10)
    assert "no answer" == told[-1]

"""The broker with pretend sockets."""

import msgspec

from kvbus.events import BlockStored
from kvbus.sim.clock import SECOND
from tests.sim.bench import Bench, worker_plan


def test_it_joins_its_workers() -> None:
    """As with real sockets: what both have said goes out."""
    bench = Bench(worker_plan("a0"), worker_plan("a1"))
    bench.start()
    bench.workers[0].publish([BlockStored([1])])
    bench.run()
    assert "sends 0" not in bench.seen
    bench.workers[1].publish([BlockStored([1])])
    bench.run()
    assert 1 == bench.seen.count("sends 0")


def test_it_asks_for_what_it_missed() -> None:
    """A DEALER is opened for the request and closed when it is over."""
    bench = Bench(worker_plan("a0"))
    bench.workers[0].start()
    bench.workers[0].publish([BlockStored([1])])
    bench.run()
    bench.broker.start()
    bench.run(3)
    assert "sends 0" in bench.seen
    assert 0 == bench.broker.dealers_count


def test_a_new_life_knows_nothing() -> None:
    """It numbers from 0 again and asks its workers for everything."""
    bench = Bench(worker_plan("a0"))
    bench.start()
    bench.say(BlockStored([1]))
    bench.broker.kill()
    bench.run()
    bench.broker.start()
    bench.run(3)
    assert 2 == bench.seen.count("life")
    assert 2 == bench.seen.count("sends 0")


def test_its_configuration_changes_between_two_turns() -> None:
    """Who is taken out is not waited for; who is put in joins, and its life is asked for from the beginning."""
    bench = Bench(worker_plan("a0"), worker_plan("a1"))
    bench.start()
    bench.say(BlockStored([1]))
    whole = bench.broker.config
    bench.broker.reconfigure(msgspec.structs.replace(whole, workers=whole.workers[:1]))
    bench.run()
    assert [["a0"]] == [group.quorum for group in bench.broker.node.status({}).groups]
    bench.workers[0].publish([BlockStored([2])])
    bench.run()
    bench.broker.reconfigure(whole)
    bench.run(3)
    assert [["a0", "a1"]] == [group.quorum for group in bench.broker.node.status({}).groups]
    assert ["changes ['a1']"] * 2 == [each for each in bench.seen if each.startswith("changes")]
    assert bench.broker.can_change


def test_a_changed_file_is_read_at_the_next_start() -> None:
    """If nobody is there to be told."""
    bench = Bench(worker_plan("a0"), worker_plan("a1"))
    whole = bench.broker.config
    bench.broker.reconfigure(msgspec.structs.replace(whole, workers=whole.workers[:1]))
    bench.start()
    bench.workers[0].publish([BlockStored([1])])
    bench.run()
    assert "sends 0" in bench.seen


def test_what_arrives_while_it_stands_still_is_read_afterwards() -> None:
    """Unless a high-water mark has been passed."""
    bench = Bench(worker_plan("a0"))
    bench.start()
    bench.broker.stand_still(bench.clock.now_ns + 4 * SECOND)
    bench.say(BlockStored([1]))
    assert "sends 0" not in bench.seen
    bench.run(4)
    assert "sends 0" in bench.seen


def test_pauses_within_a_turn_change_nothing_that_matters() -> None:
    """They only delay."""
    bench = Bench(worker_plan("a0"))
    bench.broker.pause_probability = 1.0
    bench.start()
    bench.say(BlockStored([1]))
    bench.run(5)
    assert "sends 0" in bench.seen
    assert bench.network.counts["broker stopped within a turn"] > 0

"""Connections that are cut, delayed, swallowed and too slow: real sockets, and nothing is lost in silence."""

from __future__ import annotations

import pytest
import zmq

from kvbus.connections import ConnectionChange
from kvbus.endpoints import Endpoint
from kvbus.events import BlockRemoved, BlockStored
from kvbus.sockets import SocketOptions, open_socket
from kvbus.subscriber.items import Gap, Received, Restarted
from kvbus.subscriber.subscriber import Subscriber
from tests.integration.proxy import SwallowedPort, TcpProxy
from tests.integration.rig import PATIENCE_S, Rig, large, stored
from tests.waiting import wait_until

BIG = 20_000


def numbers(reader) -> list:
    """Blocks stored, in the order in which they came, without those of the rig's beginning."""
    stores = [event for event in reader.events if isinstance(event, BlockStored)]
    return [event.block_hashes[0] for event in stores if event.block_hashes[0] >= 100]


def test_g61_a_half_open_connection_loses_nothing(zmq_context):
    """The peer believes that it sends, nothing arrives, and no connection ends. Probes find the tail through replay."""
    with Rig(zmq_context) as rig:
        (worker,) = rig.workers
        rig.publish(stored(1))
        rig.reader.until(lambda: 1 in rig.reader.blocks)
        worker.live.swallow()
        for block in range(2, 20):
            rig.publish(stored(block))
        rig.reader.until(lambda: rig.reader.blocks == set(range(1, 20)))
        worker.live.cut()
        worker.live.swallow(False)
        rig.publish(BlockRemoved([1], "CPU"))
        rig.reader.until(lambda: rig.reader.blocks == set(range(2, 20)))
        assert (0, 0) == (rig.reader.clears, rig.row().losses)


def test_cut_in_the_middle_of_a_burst_every_batch_comes_once_and_in_order(zmq_context):
    with Rig(zmq_context, workers=2) as rig:
        for block in range(100, 1100):
            rig.publish(stored(block))
            if block in {300, 500, 800}:
                rig.workers[block % 2].live.cut()
        rig.reader.until(lambda: 1099 in rig.reader.blocks)
        assert list(range(100, 1100)) == numbers(rig.reader)
        assert (0, [0, 0]) == (rig.reader.clears, [rig.row(index).losses for index in range(2)])


def test_g29_a_batch_counts_once_however_often_it_comes(zmq_context):
    """Live, by replay after a gap, and as the witness of every probe: the figures know it once."""
    with Rig(zmq_context) as rig:
        before = rig.row().received
        rig.publish(stored(1))
        rig.workers[0].live.cut()
        rig.publish(stored(2))
        rig.reader.until(lambda: rig.reader.blocks == {1, 2})
        wait_until(lambda: rig.status.refused["duplicate"] >= 3, "no probe has come")
        row = rig.row()
        assert (before + 2, before + 2) == (row.received, row.released)


def test_a_replay_that_answers_late_is_waited_for(zmq_context):
    """G24: what came live behind the hole waits too."""
    with Rig(zmq_context) as rig:
        (worker,) = rig.workers
        worker.replay.delay(0.05)
        worker.live.swallow()
        rig.publish(stored(1))
        rig.publish(BlockRemoved([1], "CPU"))
        worker.live.cut()
        worker.live.swallow(False)
        assert worker.publisher.wait_for_subscribers(1, PATIENCE_S)
        rig.publish(stored(2))
        rig.reader.until(lambda: 2 in rig.reader.blocks)
        assert ({2}, 0) == (rig.reader.blocks, rig.reader.clears)


@pytest.mark.slow
def test_a_replay_endpoint_that_is_gone_makes_a_gap_a_declared_loss(zmq_context):
    """S5: never guess that nothing was lost. What comes afterwards is believed again."""
    with Rig(zmq_context) as rig:
        (worker,) = rig.workers
        rig.publish(stored(1))
        rig.reader.until(lambda: 1 in rig.reader.blocks)
        worker.replay.refuse()
        worker.replay.cut()
        worker.live.swallow()
        rig.publish(BlockRemoved([1], "CPU"))
        wait_until(lambda: worker.live.swallowed_bytes, "it was not sent")
        worker.live.cut()
        worker.live.swallow(False)
        rig.reader.until(lambda: rig.reader.clears == 1)
        rig.publish(stored(2))
        rig.reader.until(lambda: rig.reader.blocks == {2})


def test_g42_a_broker_that_cannot_keep_up_with_a_worker_gets_the_rest_by_replay(zmq_context):
    """Past the worker's high-water mark batches are dropped for us in silence; the numbers tell, and memory stays bounded."""
    with Rig(zmq_context, publisher={"hwm": 10}) as rig:
        (worker,) = rig.workers
        worker.live.stall()
        for block in range(100, 400):
            worker.publish(large(block))
        wait_until(lambda: worker.publisher.stats.published >= 300, "the queue was not drained")
        worker.live.stall(False)
        rig.reader.until(lambda: rig.reader.blocks == set(range(100, 400)))
        assert (0, 0) == (rig.reader.clears, rig.row().losses)


@pytest.mark.slow
def test_a_subscriber_behind_a_slow_link_loses_nothing_and_costs_the_others_nothing(zmq_context):
    """Past the view's high-water mark ZeroMQ drops for it in silence; it repairs that by replay.

    Slow, because only the idle probe finds the tail.
    """
    with Rig(zmq_context, view={"hwm": 10, "buffer_batches": 1000}) as rig:
        slow = TcpProxy(rig.broker.endpoints["pub:all"])
        with slow, Subscriber(slow.url, replay_endpoint=rig.broker.endpoints["replay:all"]) as subscriber:
            items = iter(subscriber)
            while not isinstance(next(items), Received):
                pass
            slow.stall()
            for block in range(100, 300):
                rig.publish(large(block))
                rig.reader.until(lambda block=block: block in rig.reader.blocks)
            slow.stall(False)
            seen = set()
            while 299 not in seen:
                item = next(items)
                assert not isinstance(item, Gap | Restarted)
                seen |= {event.block_hashes[0] for event in item.batch.events}
            assert set(range(100, 300)) <= seen


def test_g62_a_swallowed_syn_does_not_hold_the_reconnect_for_minutes(zmq_context):
    """The system alone would try for two minutes; then the service is back, and we should have been."""
    options = SocketOptions(connect_timeout_ms=200, reconnect_min_ms=10, reconnect_max_ms=50, subscriptions=(b"",))
    port = SwallowedPort()
    with open_socket(zmq_context, zmq.SUB, Endpoint.parse(port.url), options, watches=True) as sub:
        assert not sub.watch.socket.poll(300)
        port.close()
        with open_socket(zmq_context, zmq.XPUB, Endpoint.parse(port.url)) as pub:
            # An attempt under way while somebody began to listen says that it failed, which is no change.
            changes = []
            while not changes:
                assert sub.watch.socket.poll(PATIENCE_S * 1000)
                changes = sub.watch.take_changes()
            assert [ConnectionChange.UP] == changes
            assert pub.socket.poll(PATIENCE_S * 1000)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_cut_again_and_again_for_a_while(zmq_context):
    """The long form: live and replay of two workers are cut while thousands of batches pass."""
    with Rig(zmq_context, workers=2) as rig:
        for block in range(100, BIG):
            rig.publish(stored(block))
            if block % 397 == 0:
                worker = rig.workers[block // 397 % 2]
                (worker.live if block % 2 else worker.replay).cut()
            if block % 100 == 0 and block > 3000:  # the workers keep 10 000 batches
                rig.reader.until(lambda block=block: block - 2900 in rig.reader.blocks or rig.told("batches_lost"))
        rig.reader.until(lambda: BIG - 1 in rig.reader.blocks or rig.told("batches_lost"))
        assert [] == rig.all_told("batches_lost")
        assert list(range(100, BIG)) == numbers(rig.reader)
        assert 0 == rig.reader.clears

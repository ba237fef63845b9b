"""Workers that restart under a running broker, and a broker that restarts under running workers: nothing stale remains.

Must show 3: a worker restarted in the middle, its first new batches lost.
"""

from __future__ import annotations

import os
from contextlib import closing

import pytest

from kvbus.broker.server import Broker
from kvbus.config import BrokerConfig, ViewConfig, parse_worker
from kvbus.errors import UsageError
from kvbus.subscriber.items import Received, Restarted
from kvbus.subscriber.subscriber import Subscriber
from tests.integration.rig import ANY, PATIENCE_S, Rig, Worker, stored
from tests.waiting import wait_until


def restart_with_its_first_batches_lost(rig: Rig, lost: int) -> None:
    """The old life ends; of the new one the first batches reach nobody, and the rest does."""
    (worker,) = rig.workers
    worker.live.refuse()
    worker.live.cut()
    worker.die()
    worker.live_again()
    for block in range(1000, 1000 + lost):
        worker.publish(stored(block))
    worker.live.refuse(False)
    assert worker.publisher.wait_for_subscribers(1, PATIENCE_S)


def begun(rig: Rig, batches: int = 10) -> int:
    """Publish so many batches of the old life, and return the number wanted next."""
    for block in range(1, batches + 1):
        rig.publish(stored(block))
    rig.reader.until(lambda: rig.reader.blocks == set(range(1, batches + 1)))
    return rig.row().streams[0].position


@pytest.mark.parametrize("surplus", [-5, -1, 0, 1, 5])
def test_with_a_replay_endpoint_no_stale_block_remains_whatever_the_numbers(zmq_context, surplus):
    """S4: the batch at the watermark is asked for again, and is another one. Fewer, as many, more batches than before."""
    with Rig(zmq_context) as rig:
        count = begun(rig) + surplus
        restart_with_its_first_batches_lost(rig, count)
        rig.publish(stored(2000))
        rig.reader.until(lambda: rig.reader.blocks == {*range(1000, 1000 + count), 2000})
        assert 1 == len(rig.all_told("worker_restarted"))


@pytest.mark.parametrize("surplus", [-5, -1, 1, 5])
def test_without_one_no_stale_block_remains_unless_the_numbers_go_on_exactly(zmq_context, surplus):
    """A number that goes back is a restart, one that jumps a loss. What was lost of the new life nobody can bring back."""
    with Rig(zmq_context, has_replay=False) as rig:
        restart_with_its_first_batches_lost(rig, begun(rig) + surplus)
        rig.publish(stored(2000))
        rig.reader.until(lambda: 2000 in rig.reader.blocks)
        assert {2000} == rig.reader.blocks
        told = rig.all_told("worker_restarted" if surplus < 0 else "batches_lost")
        assert 1 == len(told)


def test_without_one_numbers_that_go_on_exactly_cannot_be_told_from_the_same_life(zmq_context):
    """The limit of S4, and why a replay endpoint is worth having: of all numbers just this one is the next of the old life."""
    with Rig(zmq_context, has_replay=False) as rig:
        restart_with_its_first_batches_lost(rig, begun(rig))
        rig.publish(stored(2000))
        rig.reader.until(lambda: 2000 in rig.reader.blocks)
        assert {*range(1, 11), 2000} == rig.reader.blocks


def test_of_two_workers_one_restarts_and_both_begin_a_new_segment(zmq_context):
    """Votes of before are void: what one of them had said is not waited for any more."""
    with Rig(zmq_context, workers=2) as rig:
        one, two = rig.workers
        begun(rig)
        one.publish(stored(50))
        two.die()
        two.live_again()
        wait_until(lambda: rig.told("worker_restarted"))
        rig.reader.until(lambda: rig.reader.clears == 1)
        assert set() == rig.reader.blocks
        assert two.publisher.wait_for_subscribers(1, PATIENCE_S)
        rig.publish(stored(51))
        rig.reader.until(lambda: 51 in rig.reader.blocks)
        assert {51} == rig.reader.blocks


@pytest.mark.parametrize("policy", ["clear", "hold"])
def test_a_worker_that_stays_away_departs_and_joins_again(zmq_context, policy):
    with Rig(zmq_context, workers=2, on_departure=policy) as rig:
        one, two = rig.workers
        begun(rig)
        two.die()
        rig.change(worker_timeout_s=0.4)  # from the start it would also meet one that a busy machine keeps waiting
        wait_until(lambda: rig.told("worker_departed"))
        assert "departed" == rig.row(1).state
        one.publish(stored(60))
        if policy == "clear":
            rig.reader.until(lambda: rig.reader.blocks == {60})
        rig.change(worker_timeout_s=60.0)
        two.live_again()
        wait_until(lambda: rig.told("worker_returned") and rig.told("worker_restarted"))
        assert two.publisher.wait_for_subscribers(1, PATIENCE_S)
        rig.publish(stored(61))
        rig.reader.until(lambda: 61 in rig.reader.blocks)
        assert {61} == rig.reader.blocks


def test_g31_a_restart_of_the_broker_alone_ends_with_the_same_blocks(zmq_context, tmp_path):
    """The engines' buffers bring everything back. A subscriber is told, unless every number has the same bytes as before."""
    view = ViewConfig(endpoint=f"ipc://{tmp_path}/pub", replay_endpoint=f"ipc://{tmp_path}/replay", topic="out")
    blocks = set(range(1, 50))
    seen: set = set()

    def take(item) -> None:
        if isinstance(item, Restarted):
            seen.clear()
        else:
            assert isinstance(item, Received)
            seen.update(event.block_hashes[0] for event in item.batch.events)

    with closing(Worker("w")) as worker, Subscriber(view.endpoint, replay_endpoint=view.replay_endpoint) as subscriber:
        config = BrokerConfig(workers=(worker.config(),), views=(view,), probe_s=0.2)
        with Broker(config):
            for block in blocks:
                worker.publish(stored(block))
            while blocks != seen:
                take(subscriber.receive(PATIENCE_S))
        worker.publish(stored(50))
        with Broker(config):
            while 50 not in seen:
                take(subscriber.receive(PATIENCE_S))
            assert blocks | {50} == seen


def test_g59_a_broker_is_of_use_in_the_process_that_started_it(zmq_context):
    """Made before a fork, started behind it: works. Started before: says so in the child, at once."""
    config = BrokerConfig(
        workers=(parse_worker("tcp://127.0.0.1:9"),), views=(ViewConfig(endpoint=ANY, replay_endpoint=ANY),)
    )
    unstarted = Broker(config)
    with Broker(config) as started:
        child = os.fork()
        if not child:
            code = 1
            try:
                with unstarted:
                    code = 2 if unstarted.status().workers else 3
                started.status()
            except UsageError as error:
                code = 0 if "another process" in str(error) and code == 2 else 4
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert 0 == os.waitstatus_to_exitcode(status)
        assert started.status().workers

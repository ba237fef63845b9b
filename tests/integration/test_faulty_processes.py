"""Real processes that are killed and stopped, workers and subscribers, under a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from kvbus.broker.server import Broker
from kvbus.config import BrokerConfig, ViewConfig, WorkerConfig
from kvbus.events import BlockRemoved
from tests.integration.processes import PublishProcess, TailProcess
from tests.integration.rig import ANY, Reader, Rig, large, stored
from tests.machine import free_ports
from tests.waiting import wait_until


class Place:
    """Where a worker process is, in all its lives."""

    def __init__(self) -> None:
        port = free_ports(2)
        self.endpoint, self.replay_endpoint = f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}"

    def start(self) -> PublishProcess:
        return PublishProcess(self.endpoint, self.replay_endpoint)

    def config(self) -> WorkerConfig:
        return WorkerConfig(worker_id="w", endpoint=self.endpoint, replay_endpoint=self.replay_endpoint)


@contextmanager
def broker_for(context: zmq.Context, place: Place, **options) -> Iterator[tuple[Broker, Reader, list]]:
    """A broker for one worker process, and a reader; both are there before the worker."""
    notices: list = []
    view = ViewConfig(endpoint=ANY, replay_endpoint=ANY, topic="out")
    config = BrokerConfig(workers=(place.config(),), views=(view,), probe_s=0.2, loss_window_s=0.05, **options)
    with Broker(config, tell=notices.append, seed=1) as broker:
        reader = Reader(context, broker.endpoints["pub:all"])
        with closing(reader.socket):
            yield broker, reader, notices


def wait_for_the_absent(broker: Broker, worker_timeout_s: float) -> None:
    """Go on with another time-out: a short one from the start would also meet a worker that a busy machine keeps waiting."""
    broker.reload(msgspec.structs.replace(broker.config, worker_timeout_s=worker_timeout_s))


def state(broker: Broker) -> str:
    return broker.status().workers[0].state


def told(notices: list, name: str) -> list:
    return [notice for notice in list(notices) if notice.name == name]


def test_a_worker_that_is_killed_departs_and_its_next_life_begins_anew(zmq_context):
    """`kill -9` in the middle of publishing. After the time-out nothing of it is believed; then its next life is."""
    place = Place()
    with broker_for(zmq_context, place, worker_timeout_s=60.0) as (broker, reader, _):
        with place.start() as worker:
            worker.publish(*(stored(block) for block in range(1, 200)))
            reader.until(lambda: reader.blocks == set(range(1, 200)))
            worker.publish(*(stored(block) for block in range(200, 300)))
            worker.kill()
        wait_for_the_absent(broker, 0.5)
        reader.until(lambda: reader.clears >= 1)
        wait_until(lambda: state(broker) == "departed")
        reader.drain()
        assert set() == reader.blocks
        wait_for_the_absent(broker, 60.0)
        with place.start() as worker:
            worker.publish(stored(1000), stored(1001), BlockRemoved([1000], "CPU"), stored(1002))
            reader.until(lambda: 1002 in reader.blocks)
            assert {1001, 1002} == reader.blocks
            assert "live" == state(broker)


def test_a_worker_that_hangs_departs_and_is_back_when_it_answers(zmq_context):
    """SIGSTOP: connections stay up and nobody answers. Then SIGCONT, and it goes on with what it was about to say."""
    place = Place()
    with broker_for(zmq_context, place, worker_timeout_s=60.0) as (broker, reader, notices), place.start() as worker:
        worker.publish(stored(1), stored(2))
        reader.until(lambda: reader.blocks == {1, 2})
        worker.stop()
        wait_for_the_absent(broker, 0.5)
        wait_until(lambda: state(broker) == "departed")
        (departure,) = told(notices, "worker_departed")
        assert "unanswered" == departure.fields["reason"]
        reader.until(lambda: reader.clears == 1)
        wait_for_the_absent(broker, 60.0)
        worker.publish(stored(3))
        worker.go_on()
        wait_until(lambda: told(notices, "worker_returned"))
        worker.publish(stored(4))
        reader.until(lambda: 4 in reader.blocks)
        assert reader.blocks <= {3, 4}
        assert "live" == state(broker)


def test_a_short_stop_of_a_worker_is_nothing(zmq_context):
    """Shorter than the time-out: not a line, not a clear."""
    place = Place()
    with broker_for(zmq_context, place, worker_timeout_s=60.0) as (broker, reader, notices), place.start() as worker:
        worker.publish(stored(1))
        reader.until(lambda: reader.blocks == {1})
        worker.stop()
        worker.publish(stored(2))
        before = broker.status().batches
        worker.go_on()
        reader.until(lambda: reader.blocks == {1, 2})
        assert before < broker.status().batches
        assert (0, []) == (reader.clears, told(notices, "worker_departed"))


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_a_subscriber_that_dies_or_hangs_costs_nobody_anything(zmq_context, tmp_path: Path, fault):
    """Its queue fills up to the view's high-water mark; the others hear everything, in order, and the broker goes on."""
    with Rig(zmq_context, view={"hwm": 50, "buffer_batches": 100}) as rig:
        endpoints = rig.broker.endpoints
        with TailProcess(tmp_path / "tail.jsonl", endpoints["pub:all"], "--replay", endpoints["replay:all"]) as tail:
            while not tail.text():
                rig.publish(stored(1))
                rig.reader.drain()
            tail.kill() if fault == "kill" else tail.stop()
            for block in range(100, 300):
                rig.publish(large(block))
                rig.reader.until(lambda block=block: block in rig.reader.blocks)
            first = rig.reader.seqs[0]
            assert list(range(first, first + len(rig.reader.seqs))) == rig.reader.seqs


@pytest.mark.slow
def test_a_subscriber_that_hung_is_told_what_it_missed(zmq_context, tmp_path: Path):
    """SIGCONT after more than the view keeps: it asks, and says what nobody can bring any more."""
    with Rig(zmq_context, view={"hwm": 10, "buffer_batches": 20, "snapshot": False}) as rig:
        endpoints = rig.broker.endpoints
        with TailProcess(tmp_path / "tail.jsonl", endpoints["pub:all"], "--replay", endpoints["replay:all"]) as tail:
            while not tail.text():
                rig.publish(stored(1))
                rig.reader.drain()
            tail.stop()
            for block in range(100, 400):
                rig.publish(large(block))
                rig.reader.until(lambda block=block: block in rig.reader.blocks)
            tail.go_on()
            wait_until(lambda: '"gap"' in tail.text() and "399" in tail.text(), "no gap was told")

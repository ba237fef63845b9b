"""Publishers."""

import random

import msgspec

from kvbus.events import BlockStored
from kvbus.sim.clock import MS, SECOND, Clock
from kvbus.sim.network import Network
from kvbus.sim.pipe import LinkOptions
from kvbus.sim.plan import WorkerPlan
from kvbus.sim.process import Stage
from kvbus.sim.worker_process import WorkerProcess
from kvbus.wire.codec import decode_batch
from kvbus.wire.frames import ReplayEnd, read_live, read_replay_reply, replay_request

PLAN = WorkerPlan(
    worker_id="a0",
    group="a",
    data_parallel_rank=0,
    tensor_parallel_rank=0,
    endpoint="live",
    replay_endpoint="replay",
    replay="fair",
    hwm=0,
)


class Bench:
    """One publisher, and a reader of both its sockets."""

    def __init__(self, **changes) -> None:
        self.clock = Clock()
        self.network = Network(self.clock, random.Random(1), LinkOptions())
        plan = msgspec.structs.replace(PLAN, **changes)
        self.worker = WorkerProcess(Stage(self.clock, self.network, random.Random(2), MS), plan)
        self.worker.start()
        self.sub = self.network.open("sub", "live", binds=False, hwm=2, wake=lambda: None)
        self.dealer = self.network.open("dealer", "replay", binds=False, hwm=2, wake=lambda: None)
        self.run()

    def run(self) -> None:
        until_ns = self.clock.now_ns + SECOND
        if self.worker.lives > 1:
            self.network.touch(self.sub)
        while self.clock.run_next(until_ns):
            pass

    def publish(self, *hashes: int) -> None:
        for each in hashes:
            self.worker.publish([BlockStored([each])])
        self.run()

    def live(self) -> list[int]:
        self.run()
        return [read_live(frames)[1] for frames in self.sub.inbox.take(100)]

    def replayed(self, start_seq: int = 0) -> list[int | str]:
        self.network.send(self.dealer, replay_request(start_seq))
        got: list[int | str] = []
        for _ in range(20):
            self.run()
            messages = [read_replay_reply(frames) for frames in self.dealer.inbox.take(100)]
            got += ["end" if isinstance(message, ReplayEnd) else message.seq for message in messages]
        return got


def test_it_numbers_densely_from_its_first_number() -> None:
    """0, or 1 as one producer does."""
    assert [0, 1, 2] == (bench := Bench(), bench.publish(7, 8, 9), bench.live())[2]
    assert [1, 2] == (bench := Bench(first_seq=1), bench.publish(7, 8), bench.live())[2]


def test_it_answers_with_what_it_keeps_and_the_end_mark() -> None:
    """Also to a reader that is slow: nothing is dropped."""
    bench = Bench(kept_batches=20, hwm=1)
    bench.publish(*range(30))
    assert [*range(10, 30), "end"] == bench.replayed()
    assert ["end"] == bench.replayed(30)


def test_an_engine_of_old_drops_for_a_slow_reader() -> None:
    """The end mark too, and in silence."""
    bench = Bench(replay="dump", hwm=1)
    bench.publish(*range(9))
    assert [0, 1, 2] == bench.replayed()
    assert bench.network.counts["reply dropped"] > 0


def test_a_new_life_begins_with_nothing() -> None:
    """Numbers, ring and content."""
    bench = Bench()
    bench.publish(1, 2)
    bench.worker.kill()
    bench.publish(3)
    bench.worker.start()
    bench.run()
    bench.publish(4)
    assert [0, 1, 0] == bench.live()
    assert [4] == [block.block_hash for block in bench.worker.truth.content.copies]
    assert 2 == len(set(bench.worker.truth.life_of.values()))


def test_a_skipped_number_is_a_hole_for_good() -> None:
    """What was in it has happened all the same."""
    bench = Bench(skip_probability=1.0)
    bench.publish(1)
    bench.worker.may_fail = False
    bench.publish(2)
    assert [1] == bench.live()
    assert [1, "end"] == bench.replayed()
    assert 2 == len(bench.worker.truth.content.copies)


def test_a_mute_endpoint_takes_requests_and_says_nothing() -> None:
    """Until it speaks again."""
    bench = Bench()
    bench.publish(1)
    bench.worker.mute_until_ns = bench.clock.now_ns + 30 * SECOND
    assert [] == bench.replayed()
    bench.run()
    bench.clock.run_next(60 * SECOND)
    assert [0, "end"] == bench.replayed()


def test_payloads_name_their_life() -> None:
    """The oracle tells two lives apart by them, so no two may be equal."""
    bench = Bench()
    bench.publish(1, 1, 1)
    assert 3 == len(bench.worker.truth.life_of)
    assert {1} == {len(decode_batch(payload).events) for payload in bench.worker.truth.life_of}

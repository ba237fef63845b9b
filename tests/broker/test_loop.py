"""The loop: work from other threads, an end that loses nothing, and no descriptor left."""

from __future__ import annotations

import os
import threading

import pytest

from kvbus.broker import loop as loop_module
from kvbus.broker.links import Links
from kvbus.broker.loop import BrokerLoop
from kvbus.broker.node import BrokerNode, UpstreamRequest
from kvbus.config import BrokerConfig, ViewConfig, parse_worker
from kvbus.errors import ConfigError, Problem
from tests.broker.real import ANY, RealWorker


def loop_of(**view):
    views = (ViewConfig(**{"endpoint": ANY, "replay_endpoint": ANY, **view}),)
    return BrokerLoop(
        BrokerConfig(workers=(parse_worker("tcp://127.0.0.1:9"),), views=views), lambda notice: None, seed=1
    )


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_real_ports_are_known_once_it_is_entered():
    with loop_of() as loop:
        assert {"pub:all", "replay:all"} == set(loop.endpoints)
        assert not any(url.endswith(":0") for url in loop.endpoints.values())


def test_calls_run_between_turns_and_are_refused_after_the_end():
    done = threading.Event()
    with loop_of() as loop:
        assert loop.call(done.set)
        assert loop.call(loop.stop)
        loop.run()
        assert done.is_set()
    assert not loop.call(done.set)


def test_a_call_that_came_too_late_for_a_turn_is_still_done():
    """The caller waits for it."""
    done = threading.Event()
    with loop_of() as loop:
        loop.stop()
        loop.run()
        loop.call(done.set)
    assert done.is_set()


def test_a_question_that_cannot_be_asked_is_a_line_in_the_log_and_no_end(monkeypatch):
    """A process without files left, say. The stream waits for its answer in vain, and declares a loss."""

    def refuse(links, request):
        raise ConfigError([Problem("replay", "tcp://127.0.0.1:9", "too many open files")])

    told = []
    config = BrokerConfig(workers=(parse_worker("tcp://127.0.0.1:9"),), views=(ViewConfig(endpoint=ANY),))
    monkeypatch.setattr(Links, "request", refuse)
    monkeypatch.setattr(BrokerNode, "take_requests", lambda node: [UpstreamRequest(0, 1, [b"", bytes(8)])])
    with BrokerLoop(config, told.append, seed=1) as loop:
        loop.stop()
        loop.run()
    assert [("warning", "replay_not_asked")] == [(each.level, each.name) for each in told]
    assert "too many open files" in told[0].fields["problem"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc, which this system lacks")
def test_g63_starting_and_stopping_leaves_no_descriptor():
    with loop_of():
        pass
    before = descriptors()
    for _ in range(10):
        with loop_of():
            pass
        with (
            pytest.raises(ConfigError),
            loop_of(endpoint="tcp://127.0.0.255:1", replay_endpoint="tcp://10.255.255.1:1"),
        ):
            pass
    assert before == descriptors()


def test_a_stop_that_comes_late_writes_to_nobody_elses_file():
    """The system gives a closed descriptor's number to the next file that is opened."""
    with loop_of() as loop:
        pass
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    try:
        for _ in range(3):
            loop.stop()
        with pytest.raises(BlockingIOError):
            os.read(read_end, 1)
    finally:
        os.close(read_end)
        os.close(write_end)


def test_sources_that_have_to_wait_are_left_for_later_turns(zmq_context, monkeypatch):
    """Without a busy loop where there is nothing else; and the input is not taken to have run dry."""
    worker = RealWorker(zmq_context)
    naps: list[float] = []
    monkeypatch.setattr(loop_module.time, "sleep", naps.append)
    config = BrokerConfig(workers=(parse_worker(worker.url),), views=(ViewConfig(endpoint=ANY),))
    with BrokerLoop(config, lambda notice: None, seed=1) as loop:
        while not worker.socket.poll(0):
            loop._turn(10)
        assert b"\x01" == worker.socket.recv()
        while loop._poller.poll(0):
            loop._turn(0)
        with monkeypatch.context() as patch:
            patch.setattr(Links, "waiting_among", lambda links, ready, now_ns: set(ready))
            worker.socket.send_multipart([b"t", bytes(8), b"no batch"])
            for _ in range(60_000):
                if not loop._turn(0) and naps:
                    break
                threading.Event().wait(0.001)
            assert [loop_module.NAP_S] == naps
            assert 0 == sum(loop.node.refusals.counts.values())
        while not sum(loop.node.refusals.counts.values()):
            loop._turn(0)
        assert [loop_module.NAP_S] == naps
    worker.socket.close(0)

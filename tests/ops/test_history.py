"""The last half hour, in a few numbers."""

from __future__ import annotations

import threading

import msgspec

from kvbus.events import BlockStored
from kvbus.ops.history import PLACES_MAX, SAMPLES_MAX, Held, History, Sample
from kvbus.ops.report import Report
from tests.broker.playbook import Playbook
from tests.ops.standin import WAIT_S, StandIn


def test_a_sample_adds_up_all_groups_and_ranks() -> None:
    book = Playbook("a")
    for rank in (0, 1):
        book.send("a", BlockStored([1, 2], None, [], 0, medium="CPU", ownership="tier"), rank=rank)
    book.send("a", BlockStored([1], None, [], 0, medium="GPU"))
    sample = Sample.of(StandIn(book).report())
    assert (3, [Held("tier", "CPU", 4), Held(None, "GPU", 1)]) == (sample.released, sample.held)
    assert [sample] == msgspec.json.decode(msgspec.json.encode([sample]), type=list[Sample])


def test_a_broker_that_does_not_answer_leaves_a_hole() -> None:
    sample = Sample.of(StandIn(silence_s=60.0).report())
    assert (None, []) == (sample.released, sample.held)


def test_a_sample_is_bounded_whatever_peers_make_up() -> None:
    book = Playbook("a")
    for number in range(100):
        book.send("a", BlockStored(list(range(number + 1)), None, [], 0, medium=str(number)))
    held = Sample.of(StandIn(book).report()).held
    assert PLACES_MAX == len(held)
    assert Held(None, "99", 100) == held[0]


def test_samples_are_taken_by_themselves_and_the_oldest_go() -> None:
    report, taken, is_full = StandIn().report(), 0, threading.Event()

    def take() -> Report:
        nonlocal taken
        taken += 1
        if taken > SAMPLES_MAX + 5:
            is_full.set()
        return msgspec.structs.replace(report, at_s=float(taken))

    with History(take, period_s=0.0) as history:
        assert is_full.wait(WAIT_S)
    samples = history.samples()
    assert SAMPLES_MAX == len(samples)
    assert samples[0].at_s > 1.0
    history.close()

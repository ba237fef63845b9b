"""The thread that looks: at once, again at the interval, and never a word after it was stopped."""

from __future__ import annotations

import queue
import threading

import msgspec

from kvbus.config.discovery import parse_discovery
from kvbus.config.workers import parse_worker
from kvbus.discovery.answers import AnswerError
from kvbus.discovery.lookups import Found
from kvbus.discovery.watch import DiscoveryWatch

A, B = parse_worker("a=tcp://h:1"), parse_worker("b=tcp://h:2")
FAST = 0.001
WAIT_S = 60


class Script:
    """Answers one after the other, the last one for ever."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.before = []

    def __call__(self, place, before):
        self.before.append(before)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, str):
            raise AnswerError(answer)
        return Found(answer)


def watch(script, *places, interval_s=FAST):
    """A watch that puts what it says into queues."""
    changes, told = queue.Queue(), queue.Queue()
    configs = tuple(
        msgspec.structs.replace(parse_discovery(place), interval_s=interval_s) for place in places or ["dns:x:1"]
    )
    made = DiscoveryWatch(configs, lambda: changes.put(made.workers), told.put, script)
    return made, changes, told


def test_changes_are_said_and_nothing_else():
    script = Script((A,), (A,), (A, B), "down", "down", (B,))
    made, changes, told = watch(script)
    with made:
        assert [(A,), (A, B), (B,)] == [changes.get(timeout=WAIT_S) for _ in range(3)]
        assert ["discovery_failed", "discovery_works_again"] == [told.get(timeout=WAIT_S).name for _ in range(2)]
    assert changes.empty()
    assert [(), (A,), (A,), (A, B), (A, B), (A, B)] == script.before[:6]


def test_the_first_look_is_waited_for_and_what_it_found_is_there():
    made, _, _ = watch(Script((A,)), interval_s=60.0)
    with made:
        assert made.wait_first(WAIT_S)
        assert 1 == made.status[0].looks


def test_who_waits_for_the_first_look_sees_who_was_found():
    """A start that looks a moment too early would begin without workers, and a journal not go on where it was."""
    made, _, _ = watch(Script((A,)), interval_s=60.0)
    seen = []
    tell_all = made._has_looked.set
    made._has_looked.set = lambda: (seen.append(made.workers), tell_all())
    with made:
        assert made.wait_first(WAIT_S)
    assert [(A,)] == seen


def test_a_place_that_takes_its_time_is_not_waited_for_for_ever():
    entered, release = threading.Event(), threading.Event()

    def slow(place, before):
        entered.set()
        release.wait(WAIT_S)
        return Found((A,))

    made, changes, _ = watch(slow)
    with made:
        assert entered.wait(WAIT_S)
        assert not made.wait_first(0)
        release.set()
        assert (A,) == changes.get(timeout=WAIT_S)


def test_once_stopped_it_says_nothing_any_more():
    entered, release = threading.Event(), threading.Event()

    def slow(place, before):
        entered.set()
        release.wait(WAIT_S)
        return Found((A,))

    made, changes, told = watch(slow)
    made.start()
    assert entered.wait(WAIT_S)
    stopper = threading.Thread(target=made.stop)
    stopper.start()
    while not made._stop.is_set():
        stopper.join(0.001)
    release.set()
    stopper.join()
    made.stop()
    assert changes.empty()
    assert told.empty()


def test_it_may_be_stopped_before_it_was_started():
    watch(Script((A,)))[0].stop()


def test_every_place_has_its_own_interval():
    asked = queue.Queue()

    def count(place, before):
        asked.put(place.shown)
        return Found(())

    places = tuple(
        msgspec.structs.replace(parse_discovery(f"dns:{name}:1"), interval_s=interval_s)
        for name, interval_s in (("often", FAST), ("seldom", 60.0))
    )
    with DiscoveryWatch(places, lambda: None, lambda _: None, count):
        found = [asked.get(timeout=WAIT_S) for _ in range(5)]
    assert ["often", "seldom", "often", "often", "often"] == found

"""Turns of a process."""

import random
from collections.abc import Iterator

from kvbus.sim.clock import MS, SECOND, Clock
from kvbus.sim.network import Network
from kvbus.sim.pipe import LinkOptions
from kvbus.sim.process import Process, Stage


class Diary(Process):
    """Writes down when it has a turn."""

    def __init__(self, pause_ns: int = 0) -> None:
        self.clock = Clock()
        network = Network(self.clock, random.Random(1), LinkOptions())
        super().__init__(Stage(self.clock, network, random.Random(2), MS), "diary")
        self.pause_ns = pause_ns
        self.due_ns: int | None = None
        self.lines: list[tuple[str, int]] = []

    def open(self) -> None:
        self.lines.append(("open", self.clock.now_ns))

    def close(self, told_ns: int) -> None:
        self.lines.append(("close", self.clock.now_ns))

    @property
    def deadline_ns(self) -> int | None:
        return self.due_ns

    def turn(self) -> Iterator[int]:
        self.lines.append(("turn", self.clock.now_ns))
        self.due_ns = None
        yield self.pause_ns
        if self.pause_ns:
            self.lines.append(("went on", self.clock.now_ns))

    def run(self, until_ns: int) -> list[str]:
        while self.clock.run_next(until_ns):
            pass
        return [what for what, _ in self.lines]


def test_it_wakes_for_what_arrives_and_for_its_deadline() -> None:
    """Once for several things at a time."""
    diary = Diary()
    diary.start()
    diary.wake()
    diary.due_ns = 3 * SECOND
    assert ["open", "turn"] == diary.run(2 * SECOND)
    diary.due_ns = 5 * SECOND
    diary.wake()
    diary.run(6 * SECOND)
    assert 3 == len(diary.lines)


def test_it_does_nothing_while_it_stands_still() -> None:
    """And then at once."""
    diary = Diary()
    diary.start()
    diary.stand_still(5 * SECOND)
    assert ["open"] == diary.run(4 * SECOND)
    assert ["open", "turn"] == diary.run(6 * SECOND)


def test_what_wakes_it_within_a_turn_gives_it_another() -> None:
    """Or a message that comes while it is stopped would wait for the next one."""
    diary = Diary(pause_ns=SECOND)
    diary.start()
    diary.clock.after(500 * MS, diary.wake)
    assert ["open", "turn", "went on", "turn", "went on"] == diary.run(10 * SECOND)


def test_a_turn_ends_with_the_life_that_it_belongs_to() -> None:
    """A process that dies in the middle never comes back to it."""
    diary = Diary(pause_ns=SECOND)
    diary.start()
    diary.clock.after(500 * MS, diary.kill)
    assert ["open", "turn", "close"] == diary.run(10 * SECOND)
    diary.pause_ns = 0
    diary.start()
    assert ["open", "turn", "close", "open", "turn"] == diary.run(20 * SECOND)
    assert 2 == diary.lives

"""Seats of the ingest socket, and what can be known of who left one."""

from __future__ import annotations

import itertools

import pytest

from kvbus.broker.seats import STRANGERS_MAX, Seats
from kvbus.config import IngestConfig


class Room:
    """Seats, and when each topic was last heard."""

    def __init__(self, seats: int, topics: tuple[str, ...] = ()):
        self.seats = Seats(IngestConfig(workers=seats, topics=topics))
        self.now_ns = 0
        self.heard: dict[bytes, int] = {}

    def connect(self, count: int = 1) -> None:
        for _ in range(count):
            self.seats.connected()

    def drop(self) -> None:
        self.now_ns += 1
        self.seats.disconnected(self.now_ns)

    def reconfigure(self, config: IngestConfig) -> list[bytes]:
        lost = self.seats.surplus(config)
        for topic in lost:
            self.seats.release(topic)
        self.seats.reconfigure(config)
        return lost

    def hear(self, *topics: str) -> list[str | None]:
        self.now_ns += 1
        for topic in topics:
            self.heard[topic.encode()] = self.now_ns
        return [self.seats.take(topic.encode(), self.now_ns) for topic in topics]

    def gone(self) -> list[str]:
        return [topic.decode() for topic in self.seats.gone(lambda topic: self.heard.get(topic, 0))]

    def unclear(self) -> list[str]:
        return [topic.decode() for topic in self.seats.unclear(lambda topic: self.heard.get(topic, 0))]


def test_the_first_topics_take_the_seats_and_keep_them():
    room = Room(2)
    assert ["seat-0", "seat-1", None, "seat-0"] == room.hear("x", "y", "z", "x")


def test_named_topics_keep_the_seats_of_their_places():
    room = Room(3, ("x", "y"))
    assert ["seat-2", None, "seat-1", "seat-0"] == room.hear("stranger", "another", "y", "x")


def test_nobody_connected_means_that_all_have_gone():
    room = Room(2)
    room.connect(2)
    room.hear("x", "y")
    assert [] == room.gone()
    room.drop()
    room.drop()
    assert ["x", "y"] == room.gone()


def test_one_connection_less_and_one_silent_since_is_that_one():
    room = Room(3)
    room.connect(3)
    room.hear("x", "y", "z")
    room.drop()
    assert ["x", "y", "z"] == room.unclear()
    assert [] == room.gone(), "silence alone is none"
    room.hear("x", "z")
    assert ["y"] == room.gone() == room.unclear()


def test_a_worker_that_connects_again_has_not_gone():
    room = Room(2)
    room.connect(2)
    room.hear("x", "y")
    room.drop()
    room.connect()
    room.hear("x")
    assert [] == room.gone() == room.unclear()


def test_a_worker_that_comes_back_under_a_new_name_takes_the_place_of_its_old_one():
    """A pod that is replaced has a new name, and its topic with it. Connections are as many as before."""
    room = Room(2)
    room.connect(2)
    room.hear("x", "y")
    room.drop()
    room.connect()
    assert [None] == room.hear("y-2")
    room.hear("x")
    assert ["y"] == room.gone()
    room.seats.release(b"y")
    assert ["seat-1"] == room.hear("y-2")
    assert [] == room.gone()


def test_several_topics_over_one_connection_say_nothing():
    """Fewer connections than topics from the start: there is no telling, until nobody is connected."""
    room = Room(3)
    room.connect(2)
    room.hear("x", "y", "z")
    room.drop()
    room.hear("x", "y")
    assert [] == room.gone()
    room.drop()
    assert ["x", "y", "z"] == room.gone()


def test_ranks_under_one_topic_have_gone_when_the_last_one_has():
    room = Room(1)
    room.connect(4)
    room.hear("x")
    for _ in range(3):
        room.drop()
        assert [] == room.gone()
    room.drop()
    assert ["x"] == room.gone()


@pytest.mark.parametrize("count", [2, 3, 4])
def test_nobody_who_is_connected_is_ever_taken_for_gone(count):
    """Exhaustive: any of the workers leave, any of the others speak afterwards, one connection each."""
    names = "abcd"[:count]
    for leaves in itertools.product([False, True], repeat=count):
        for speaks in itertools.product([False, True], repeat=count):
            room = Room(count)
            room.connect(count)
            room.hear(*names)
            for leaving in leaves:
                if leaving:
                    room.drop()
            present = [name for name, leaving in zip(names, leaves, strict=True) if not leaving]
            room.hear(*(name for name, loud in zip(names, speaks, strict=True) if loud and name in present))
            gone = room.gone()
            assert not set(gone) & set(present)
            if all(loud for name, loud in zip(names, speaks, strict=True) if name in present):
                assert [name for name in names if name not in present] == gone


def test_topics_that_a_peer_makes_up_are_remembered_up_to_a_limit():
    room = Room(1)
    room.hear("x")
    for number in range(2 * STRANGERS_MAX):
        room.hear(f"made-up-{number}")
    assert len(room.seats._strangers) == STRANGERS_MAX


class TestReconfigure:
    def test_more_seats_are_free(self):
        room = Room(1)
        room.hear("x")
        assert [] == room.reconfigure(IngestConfig(workers=3))
        assert ["seat-0", "seat-1", "seat-2"] == room.seats.all
        assert ["seat-0", "seat-1"] == room.hear("x", "y")

    def test_fewer_seats_first_cost_the_latest_that_are_not_named(self):
        room = Room(3)
        room.hear("x", "y", "z")
        assert [b"y", b"x"] == room.reconfigure(IngestConfig(workers=1, topics=("z",)))
        assert ["seat-2"] == room.seats.all
        assert ["seat-2", None] == room.hear("z", "x")

    def test_naming_the_topics_that_are_there_frees_the_seat_of_one_that_is_not(self):
        """The explicit way to say who has gone."""
        room = Room(2)
        room.hear("x", "y")
        assert [b"y"] == room.reconfigure(IngestConfig(workers=2, topics=("x", "w")))
        assert ["seat-0", "seat-1", None] == room.hear("x", "w", "y")

"""Ports that two options would share are found before ZeroMQ is asked, ranks and wildcards included."""

from __future__ import annotations

import pytest

from kvbus.config.places import Place, collisions, place_of
from kvbus.endpoints import Endpoint


def place(field: str, text: str, count: int = 1) -> Place:
    return Place(field, Endpoint.parse(text), tuple(range(count)))


def reasons(*places: Place, others: list[Place] | None = None) -> list[str]:
    return [f"{problem.field}: {problem.reason}" for problem in collisions(places, others)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("tcp://127.0.0.1:5600", "tcp://127.0.0.1:5600"),
        ("tcp://127.0.0.1:5600", "tcp://localhost:5600"),
        ("tcp://*:5600", "tcp://10.0.0.1:5600"),
        ("tcp://10.0.0.1:5600", "bind:tcp://0.0.0.0:5600"),
        ("tcp://[::]:5600", "tcp://127.0.0.1:5600"),
    ],
)
def test_two_bound_sockets_on_one_port(first, second):
    assert ["b: port 5600 is also that of a"] == reasons(place("a", first), place("b", second))


def test_one_path_or_name_too():
    assert ["b: ipc:///run/x is also that of a"] == reasons(place("a", "ipc:///run/x"), place("b", "bind:ipc:///run/x"))
    assert ["b: inproc://x_dp1 (rank 1) is also that of a"] == reasons(
        place("a", "inproc://x_dp1"), place("b", "inproc://x", 2)
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("tcp://127.0.0.1:5600", "tcp://127.0.0.1:5601"),
        ("tcp://127.0.0.1:5600", "tcp://127.0.0.2:5600"),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
        ("ipc:///run/x", "inproc:///run/x"),
    ],
)
def test_what_does_not_meet(first, second):
    assert [] == reasons(place("a", first), place("b", second))


def test_ranges_of_ranks_meet_though_the_options_differ():
    """WIRE, ranks: replay one port above events is too near for two ranks."""
    assert ["replay: port 5558 (rank 0) is also that of events (rank 1)"] == reasons(
        place("events", "tcp://h:5557", 2), place("replay", "tcp://h:5558", 2)
    )
    assert [] == reasons(place("events", "tcp://h:5557", 2), place("replay", "tcp://h:5559", 2))


def test_each_pair_is_told_once():
    views = [place("a", "tcp://*:1", 3), place("b", "tcp://*:2", 3), place("c", "tcp://*:3", 3)]
    assert 3 == len(reasons(*views))


def test_who_connects_meets_what_is_bound_on_that_host_only():
    """A central broker may publish on every interface at the port that an engine elsewhere has."""
    bound = [place("pub", "tcp://*:5557")]
    assert ["engine: port 5557 is also that of pub"] == reasons(place("engine", "tcp://127.0.0.1:5557"), others=bound)
    assert [] == reasons(place("engine", "tcp://10.0.0.7:5557"), others=bound)


def test_what_cannot_be_read_is_nowhere():
    assert [] == list(place_of("x", "nonsense"))
    assert [] == list(place_of("x", None))
    (found,) = place_of("x", "tcp://h:65535", (0, 1))
    assert {"port 65535": 0} == found.spots()

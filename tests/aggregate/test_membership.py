"""Seats, bits and accounts of workers."""

from __future__ import annotations

import pytest

from kvbus.aggregate.membership import DEPARTED_MAX, MINUTE_NS, Roster, Worker
from kvbus.errors import UsageError


def bits(roster: Roster) -> list[int]:
    return [worker.bit for worker in roster]


def test_a6_a_worker_named_twice_has_one_seat() -> None:
    """The quorum is of distinct workers."""
    roster = Roster(["a", "b", "a"])
    assert ["a", "b"] == [worker.worker_id for worker in roster]
    assert (2, 0b11) == (len(roster), roster.quorum)


def test_a_free_bit_is_used_again() -> None:
    """Bits stay few where workers come and go, and sets of voters stay small integers."""
    roster = Roster(["a", "b", "c"])
    roster.depart(roster.present("b"), 0)
    assert 0b101 == roster.quorum
    roster.join("d", 0)
    assert [0b1, 0b100, 0b10] == bits(roster)
    roster.join("e", 0)
    assert 0b1111 == roster.quorum


def test_released_votes_are_those_since_the_worker_joined() -> None:
    """Each release takes one vote of everybody who is there, and of nobody else."""
    roster = Roster(["a"])
    late = roster.join("b", 10)
    assert (12, 2) == (roster.present("a").released(12), late.released(12))
    roster.depart(late, 15)
    assert 5 == late.released(100)
    roster.join("b", 200)
    assert 6 == late.released(201)


def test_accounts_outlive_a_departure_but_not_without_limit() -> None:
    """Whoever reads the figures later finds them, and worker names cannot fill the memory."""
    roster = Roster(f"w{number}" for number in range(DEPARTED_MAX + 2))
    first, second = roster.present("w0"), roster.present("w1")
    for worker in list(roster):
        roster.depart(worker, 0)
    assert roster.known("w2").worker_id == "w2"
    for worker in (first, second):
        with pytest.raises(UsageError):
            roster.known(worker.worker_id)
    assert (0, 0) == (len(roster), roster.quorum)


def test_a_worker_that_comes_back_keeps_its_account() -> None:
    """Else a reconnecting worker would look like one that never sent anything."""
    roster = Roster(["a"])
    worker = roster.present("a")
    worker.received, worker.is_heard, worker.position = 7, True, 3
    roster.depart(worker, 0)
    assert worker is roster.join("a", 0)
    assert (7, False, 0) == (worker.received, worker.is_heard, worker.position)


def test_an_account_begins_anew_when_the_name_goes_to_somebody_else() -> None:
    """Of a worker that is there nothing is forgotten."""
    roster = Roster(["a", "b"])
    for worker in list(roster):
        worker.received = 7
    roster.depart(roster.present("a"), 0)
    for name in "ab":
        roster.forget(name)
    assert [0, 7] == [roster.join("a", 0).received, roster.present("b").received]


def test_a_worker_set_aside_is_present_without_a_say() -> None:
    """It shows as such, and what it sends does not count."""
    roster = Roster(["a", "b"])
    worker = roster.present("b")
    roster.set_aside(worker, 0)
    assert (0b1, 0, [worker]) == (roster.quorum, worker.bit, roster.all_aside())
    assert worker is roster.present("b")
    assert worker is roster.aside("b")
    assert roster.member("b") is None
    roster.depart(worker, 0)
    assert [] == roster.all_aside()
    with pytest.raises(UsageError):
        roster.present("b")


def test_away_is_about_any_member() -> None:
    """One absent worker is enough to hold everybody."""
    roster = Roster(["a", "b"])
    assert not roster.is_any_away()
    roster.present("b").is_away = True
    assert roster.is_any_away()
    roster.depart(roster.present("b"), 0)
    assert not roster.is_any_away()


def test_s5_losses_are_counted_within_a_minute() -> None:
    """Six are borne, the seventh within a minute is one too many."""
    worker = Worker("a")
    assert [False] * 6 + [True] == [worker.note_loss(number, 6) for number in range(7)]
    worker = Worker("a")
    assert [False] * 6 == [worker.note_loss(number, 6) for number in range(6)]
    assert not worker.note_loss(MINUTE_NS, 6)
    assert worker.note_loss(MINUTE_NS, 6)
    assert 2 * MINUTE_NS == worker.quiet_at_ns


def test_s5_losses_within_a_window_are_one() -> None:
    """However long the window is."""
    worker = Worker("a")
    assert not any(worker.note_loss(number, 1, window_ns=10) for number in range(10))
    assert worker.note_loss(10, 1, window_ns=10)
    worker = Worker("a")
    assert not any(worker.note_loss(minute * MINUTE_NS, 1, window_ns=10 * MINUTE_NS) for minute in range(5))


def test_s5_without_a_limit_no_loss_is_too_many() -> None:
    """Setting aside is an option."""
    worker = Worker("a")
    assert not any(worker.note_loss(0, None) for _ in range(100))

"""Occurrences and the line behind the first of them."""

from __future__ import annotations

import gc

from kvbus.aggregate.description import Kind
from kvbus.aggregate.occurrence import Occurrence, Repeats


def occurrence(voters: int = 0) -> Occurrence[str]:
    return Occurrence("x", voters, 0, Kind.STORE, None, 1)


def test_occurrences_are_told_apart_by_identity() -> None:
    """Two occurrences of one event look alike, and are two things."""
    assert occurrence() != occurrence()


def test_the_garbage_collector_does_not_track_them() -> None:
    """With a million of them pending, a full collection would pause the broker for seconds."""
    assert not gc.is_tracked(occurrence())


def test_a_worker_takes_numbers_in_order() -> None:
    """Its next vote is for the occurrence behind its last one."""
    repeats: Repeats[str] = Repeats()
    assert [1, 2, 3] == [repeats.take_number(1) for _ in range(3)]
    assert 1 == repeats.take_number(2)


def test_a_number_out_of_date_means_the_one_behind_the_front() -> None:
    """A worker that slept while occurrences were settled goes on at the front."""
    repeats: Repeats[str] = Repeats()
    assert 1 == repeats.take_number(1)
    repeats.later = {1: occurrence(), 2: occurrence(), 3: occurrence()}
    for _ in range(3):
        repeats.take_front()
    assert 4 == repeats.take_number(1)


def test_front_and_last_leave_the_line_at_their_ends() -> None:
    """The front goes when it is settled, the last one when its only voter departs."""
    repeats: Repeats[str] = Repeats()
    first, second, third = occurrence(), occurrence(), occurrence()
    repeats.later = {1: first, 2: second, 3: third}
    assert first is repeats.take_front()
    assert third is repeats.drop_last()
    assert second is repeats.take_front()
    assert {} == repeats.later

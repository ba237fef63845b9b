"""Refusals are counted always and told once."""

from __future__ import annotations

from kvbus.broker.notices import REASONS, Refusals


def test_every_reason_is_there_from_the_start():
    """A dashboard needs the zero as much as the one."""
    assert dict.fromkeys(REASONS, 0) == Refusals().counts


def test_the_first_of_a_kind_and_place_is_told_and_all_are_counted():
    """A peer that sends garbage a thousand times a second must not fill the disk."""
    refusals = Refusals()
    told = [refusals.count("frame_count", "tcp://a") for _ in range(1000)]
    assert 1 == sum(notice is not None for notice in told)
    assert refusals.count("frame_count", "tcp://b") is not None
    assert 1001 == refusals.counts["frame_count"]


def test_what_every_recovery_brings_is_counted_silently():
    refusals = Refusals()
    assert refusals.count("duplicate", "tcp://a") is None
    assert 1 == refusals.counts["duplicate"]


def test_made_up_places_cannot_grow_the_memory():
    refusals = Refusals()
    told = sum(refusals.count("no_seat", f"topic-{number}") is not None for number in range(10_000))
    assert told < 5_000
    assert 10_000 == refusals.counts["no_seat"]

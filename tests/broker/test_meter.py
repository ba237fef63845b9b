"""Ages and times are truthful, or are not told."""

from __future__ import annotations

import math

import pytest

from kvbus.broker.meter import AGE_BOUNDS_S, FORWARD_BOUNDS_S, Histogram, Meter

S = 1_000_000_000
MS = 1_000_000


def test_a_histogram_counts_each_number_in_one_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value, times in ((0.5, 1), (1.0, 2), (1.5, 1), (7.0, 3)):
        histogram.observe(value, times)
    assert [3, 1, 3] == histogram.counts
    assert 0.5 + 2.0 + 1.5 + 21.0 == histogram.total


def test_the_age_of_an_event_is_told_by_the_wall_clock() -> None:
    """1.2 s: between the bounds 1 and 2.5."""
    meter = Meter(wall_ns=1_000 * S)
    meter.released("g", 1_000.0, 5, 1_200 * MS)
    counts = meter.ages["g"].counts
    assert (5, 5) == (sum(counts), counts[AGE_BOUNDS_S.index(2.5)])
    assert pytest.approx(6.0) == meter.ages["g"].total
    assert {} == meter.unknown


def test_milliseconds_are_understood() -> None:
    meter = Meter(wall_ns=1_700_000_000 * S)
    meter.released("g", 1_700_000_000_000.0, 1, 0)
    assert [1] == [count for count in meter.ages["g"].counts if count]


@pytest.mark.parametrize(
    ("ts", "reason"),
    [(1_001.0, "ahead"), (math.inf, "ahead"), (-math.inf, "no_clock"), (math.nan, "no_clock"), (-2e8, "no_clock")],
)
def test_an_age_that_cannot_be_is_counted_apart(ts: float, reason: str) -> None:
    """A clock that runs ahead does not make events young, and a stamp that is none does not make them old."""
    meter = Meter(wall_ns=1_000 * S)
    meter.released("g", ts, 3, 0)
    assert {} == meter.ages
    assert {"ahead": 0, "no_clock": 0} | {reason: 3} == meter.unknown["g"]


def test_clocks_read_a_moment_apart_agree() -> None:
    meter = Meter(wall_ns=1_000 * S)
    meter.released("g", 1_000.0005, 1, 0)
    assert (1, 0.0) == (meter.ages["g"].counts[0], meter.ages["g"].total)


def test_the_time_to_forward_ends_when_the_batch_is_sent() -> None:
    meter = Meter()
    meter.publishing(1, 5 * MS)
    meter.publishing(0, 6 * MS)
    assert {} == meter.forwards
    meter.sent(7 * MS)
    assert 1 == meter.forwards[1].counts[FORWARD_BOUNDS_S.index(0.0025)]
    assert 1 == meter.forwards[0].counts[FORWARD_BOUNDS_S.index(0.001)]
    meter.sent(9 * MS)
    assert 2 == sum(sum(forwards.counts) for forwards in meter.forwards.values())


def test_what_is_stamped_during_a_turn_is_not_from_the_future() -> None:
    """A turn under load takes milliseconds, and a batch that came in the middle of it was stamped after its beginning."""
    meter = Meter(wall_ns=1_000 * S, clock=lambda: 1_000.02)
    meter.released("g", 1_000.01, 1, 0)
    assert {} == meter.unknown
    assert 1 == meter.ages["g"].counts[AGE_BOUNDS_S.index(0.01)]

"""Medians, ranges and ratios."""

from __future__ import annotations

from kvbus.bench.figures import Spread, percentile, ratios, spread


def test_a_spread_is_median_and_range() -> None:
    """In any order; of nothing there is none."""
    assert Spread(2.0, 1.0, 9.0) == spread([9.0, 1.0, 2.0])
    assert spread([]) is None


def test_ratios_are_taken_within_a_round() -> None:
    """What was not measured, or is nothing, says nothing."""
    assert [2.0, 0.5] == ratios([4.0, None, 1.0, 3.0], [2.0, 1.0, 2.0, 0.0])


def test_percentiles_are_numbers_that_were_there() -> None:
    """The last one is the largest."""
    numbers = [float(number) for number in range(100)]
    assert [0.0, 50.0, 99.0, 99.0] == [percentile(numbers, percent) for percent in (0, 50, 99, 100)]

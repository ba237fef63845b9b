"""Curves, of two points each."""

from __future__ import annotations

import pytest

from kvbus.bench.options import BenchOptions
from kvbus.bench.scaling import QUANTITIES, Curve, Point, curve_lines, measure_curve, plottable
from tests.machine import needs_linux

pytestmark = needs_linux

OPTIONS = BenchOptions(workers=2, batch=2, events=10, rounds=1)


@pytest.mark.parametrize("quantity", ["views", "resident"])
def test_a_curve_has_its_points(quantity: str) -> None:
    """Each is a run of real processes."""
    told: list[Point] = []
    curve = measure_curve(quantity, OPTIONS, [2], told.append)
    assert told == curve.points
    assert [(2, "yes")] == [(point.value, point.figures["exact"]) for point in curve.points]
    assert ("proxy" in curve.points[0].medians) == (quantity == "views")


@pytest.mark.slow
def test_every_quantity_can_be_measured() -> None:
    """The names are those of options."""
    for quantity in QUANTITIES:
        assert 1 == len(measure_curve(quantity, OPTIONS, [2]).points)


def test_pending_events_are_a_curve_too() -> None:
    """Of memory, in both orders."""
    curve = measure_curve("pending", OPTIONS, [20])
    assert ["in order", "any order"] == list(curve.points[0].medians)
    assert "memory / payload" == curve.measured


def test_a_curve_is_a_table_and_lines_of_a_picture() -> None:
    """A row a point, a line a variant."""
    points = [Point(value=value, figures={"CPU": f"{value}.0"}, medians={"kvbus": float(value)}) for value in (1, 10)]
    curve = Curve(quantity="views", measured="CPU", points=points)
    assert ["views   CPU", "1       1.0", "10     10.0"] == list(curve_lines(curve))
    assert {"views": ("CPU", {"kvbus": [(1.0, 1.0), (10.0, 10.0)]})} == plottable([curve])

"""How the cost grows with one quantity at a time: workers, batch, pending events, views, subscribers, resident blocks.

Each point is a configuration of its own, in which the broker and libzmq's proxy take turns; all else stays as it is. Pending
events are measured without sockets, see `pending`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from kvbus.bench.options import BenchOptions
from kvbus.bench.pending import ORDERS, measure_pending
from kvbus.bench.report import number, table
from kvbus.bench.series import Case, Summary, measure_case

__all__ = ["QUANTITIES", "Curve", "Point", "curve_lines", "measure_curve", "plottable"]

QUANTITIES: Mapping[str, tuple[int, ...]] = {
    "workers": (1, 2, 4, 8, 16),
    "batch": (1, 4, 16, 64, 256),
    "pending": (10_000, 100_000, 1_000_000),
    "views": (1, 2, 4, 8, 16, 32),
    "subscribers": (1, 2, 4, 8, 16),
    "resident": (10_000, 100_000, 1_000_000),
}
"""What may grow, and the points that are measured."""

_FIELDS = {"resident": "resident_blocks"}


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a curve.

    Attributes:
        value: Of the quantity.
        figures: Median, least and most by what was measured, as text for a table.
        medians: Medians by line, for a picture.
    """

    value: int
    figures: dict[str, str]
    medians: dict[str, float]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """How figures grow with one quantity.

    Attributes:
        quantity: From `QUANTITIES`.
        measured: What the medians are.
        points: In order of the quantity.
    """

    quantity: str
    measured: str
    points: list[Point]


def measure_curve(
    quantity: str,
    options: BenchOptions,
    values: Sequence[int] | None = None,
    tell: Callable[[Point], None] | None = None,
) -> Curve:
    """Measure one curve.

    Args:
        quantity: From `QUANTITIES`.
        options: Everything else; checked.
        values: Points; default: those of `QUANTITIES`.
        tell: Hears of every point.

    Raises:
        BenchError: A process failed, or something was lost on the way.
    """
    chosen = QUANTITIES[quantity] if values is None else values
    measure = _pending_points if quantity == "pending" else _points
    points = []
    for point in measure(quantity, options, chosen):
        points.append(point)
        if tell is not None:
            tell(point)
    measured = "memory / payload" if quantity == "pending" else "CPU µs per event in"
    return Curve(quantity=quantity, measured=measured, points=points)


def curve_lines(curve: Curve) -> Iterator[str]:
    """Yield a table.

    Args:
        curve: Measured.
    """
    heads = list(curve.points[0].figures)
    yield from table(
        [[curve.quantity, *heads]]
        + [[f"{point.value}", *(point.figures[head] for head in heads)] for point in curve.points]
    )


def plottable(curves: Sequence[Curve]) -> dict[str, tuple[str, dict[str, list[tuple[float, float]]]]]:
    """Return curves as `plot.draw_curves` takes them.

    Args:
        curves: Measured.
    """
    return {
        curve.quantity: (
            curve.measured,
            {
                line: [(float(point.value), point.medians[line]) for point in curve.points]
                for line in curve.points[0].medians
            },
        )
        for curve in curves
    }


def _points(quantity: str, options: BenchOptions, values: Sequence[int]) -> Iterator[Point]:
    for value in values:
        field = _FIELDS.get(quantity, quantity)
        changes: dict[str, object] = {field: value, "variants": ("kvbus", "proxy"), "rate": 0.0}
        if quantity == "resident":
            changes |= {"residency": True, "variants": ("kvbus",)}
        if quantity == "batch":
            # Enough batches to see a backlog in.
            changes["events"] = max(options.events, 50 * value)
        case_options = msgspec.structs.replace(options, **changes)
        case_options.validate()
        yield _point(value, measure_case(case_options))


def _point(value: int, case: Case) -> Point:
    figures: dict[str, str] = {}
    medians: dict[str, float] = {}
    for summary in case.summaries:
        figures[f"{summary.variant} CPU µs/event"] = number(summary.cpu_us)
        figures[f"{summary.variant} 1000/s"] = number(summary.rate, 1000)
        assert summary.cpu_us is not None
        medians[summary.variant] = summary.cpu_us.median
    subject: Summary = case.summaries[0]
    figures |= {f"CPU × {each.other}": number(each.cpu) for each in case.comparisons}
    figures["kvbus MB"] = number(subject.memory_bytes, 1e6)
    figures["exact"] = "yes" if subject.is_exact else "NO"
    return Point(value=value, figures=figures, medians=medians)


def _pending_points(quantity: str, options: BenchOptions, values: Sequence[int]) -> Iterator[Point]:
    results = measure_pending(values, ORDERS, batch=options.batch, seed=options.seed)
    for value in values:
        figures: dict[str, str] = {}
        medians: dict[str, float] = {}
        for order, result in zip(ORDERS, results, strict=False):
            figures |= {
                f"{order}: memory ×": f"{result.ratio:.2f}",
                f"{order}: fill, drain µs": f"{result.fill_us:.2f}, {result.drain_us:.2f}",
                f"{order}: longest ms (CPU)": f"{result.longest_ms:.1f} ({result.longest_cpu_ms:.1f})",
            }
            medians[order] = result.ratio
        yield Point(value=value, figures=figures, medians=medians)

"""Pictures of what was measured. matplotlib is an extra, loaded only when a picture is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvbus.bench.figures import Spread
from kvbus.bench.series import Case
from kvbus.errors import ConfigError, Problem

__all__ = ["check_plot", "draw_cases", "draw_curves"]

DPI = 120


def check_plot(path: str) -> None:
    """Refuse before anything is measured what could not be drawn afterwards.

    Args:
        path: File to write.

    Raises:
        ConfigError: matplotlib is missing, or cannot write such a file.
    """
    figure = _figure("--plot", path, 1)[0]
    kinds = figure.canvas.get_supported_filetypes()
    kind = path.rpartition(".")[2].lower() if "." in path else ""
    if kind not in kinds:
        raise ConfigError([Problem("--plot", path, f"must end in one of .{', .'.join(sorted(kinds))}")])


def draw_cases(cases: Sequence[Case], path: str) -> None:
    """Draw CPU time per event and drain rate of every variant, a group of bars a configuration.

    Args:
        cases: Measured.
        path: File to write; its ending says the kind.

    Raises:
        ConfigError: matplotlib is missing.
        OSError: The file cannot be written.
    """
    figure, (left, right) = _figure("--plot", path, 2)
    variants = list(dict.fromkeys(name for case in cases for name in case.options.variants if name != "direct"))
    labels = [f"{case.options.mode}\nN={case.options.workers} B={case.options.batch}" for case in cases]
    for axes, name, title, unit in (
        (left, "cpu_us", "CPU of the bus per event that goes in, µs", 1.0),
        (right, "rate", "Backlog drained, 1000 events a second", 1000.0),
    ):
        width = 0.8 / len(variants)
        for place, variant in enumerate(variants):
            spreads = [_of(case, variant, name) for case in cases]
            known = [(index, each) for index, each in enumerate(spreads) if each is not None]
            axes.bar(
                [index + (place - (len(variants) - 1) / 2) * width for index, _ in known],
                [each.median / unit for _, each in known],
                width,
                yerr=[
                    [(each.median - each.least) / unit for _, each in known],
                    [(each.most - each.median) / unit for _, each in known],
                ],
                label=variant,
                error_kw={"elinewidth": 0.8},
            )
        axes.set_xticks(range(len(cases)), labels)
        axes.set_title(title, fontsize=10)
        axes.grid(axis="y", alpha=0.3)
    left.legend(fontsize=8)
    figure.savefig(path, dpi=DPI)


def draw_curves(curves: Mapping[str, tuple[str, Mapping[str, Sequence[tuple[float, float]]]]], path: str) -> None:
    """Draw how figures grow, one field a quantity.

    Args:
        curves: By the quantity on the x axis: what is on the y axis, and the points of each line by its name.
        path: File to write; its ending says the kind.

    Raises:
        ConfigError: matplotlib is missing.
        OSError: The file cannot be written.
    """
    figure, fields = _figure("--plot", path, len(curves))
    for axes, (quantity, (measured, lines)) in zip(fields, curves.items(), strict=True):
        for name, points in lines.items():
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3, label=name)
        values = sorted({x for points in lines.values() for x, _ in points})
        axes.set_xscale("log")
        axes.set_xticks(values, [f"{value:,.0f}".replace(",", " ") for value in values], fontsize=8)
        axes.set_xticks([], minor=True)
        axes.set_ylim(0, 1.1 * max(y for points in lines.values() for _, y in points))
        axes.set_xlabel(quantity, fontsize=9)
        axes.set_ylabel(measured, fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=DPI)


def _of(case: Case, variant: str, name: str) -> Spread | None:
    for summary in case.summaries:
        if summary.variant == variant:
            figure: Spread | None = getattr(summary, name)
            return figure
    return None


def _figure(field: str, path: str, count: int) -> tuple[Any, list[Any]]:
    """Return an empty figure and its fields, at most three in a row."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError([Problem(field, path, "needs matplotlib: pip install 'kvbus[plot]'")]) from None
    across = min(count, 3)
    down = -(-count // across)
    figure = Figure(figsize=(5.2 * across, 3.6 * down), layout="constrained")
    FigureCanvasAgg(figure)
    fields = figure.subplots(down, across, squeeze=False)
    flat = [axes for row in fields for axes in row]
    for axes in flat[count:]:
        axes.set_axis_off()
    return figure, flat[:count]

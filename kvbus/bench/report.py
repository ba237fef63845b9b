"""What was measured, as text for people and as lines of JSON for machines."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version

import msgspec

from kvbus.bench.figures import Spread
from kvbus.bench.options import BenchOptions
from kvbus.bench.series import Case, Summary

__all__ = ["case_lines", "describe_case", "json_lines", "machine", "number", "table"]


def machine() -> str:
    """Describe where this runs, in a line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cores} cores, {platform.system()} {platform.machine()}, {platform.python_implementation()} "
        f"{platform.python_version()}, pyzmq {version('pyzmq')}, msgspec {version('msgspec')}"
    )


def describe_case(options: BenchOptions, event_bytes: float) -> str:
    """Describe a configuration in a line.

    Args:
        options: Of the run.
        event_bytes: Mean size of an event.
    """
    extra = [
        name
        for name, is_on in (
            (f"{options.views} views", options.views > 1),
            (f"{options.subscribers} subscribers", options.subscribers > 1),
            ("residency", options.residency),
            ("journal", options.journal),
            (f"{options.resident_blocks} resident blocks", options.resident_blocks > 0),
        )
        if is_on
    ]
    return ", ".join(
        [
            f"N = {options.workers}",
            f"B = {options.batch}",
            options.mode,
            options.transport,
            *extra,
            f"{options.events} events a worker of {event_bytes:.0f} bytes",
            f"{options.rounds} rounds",
        ]
    )


def case_lines(case: Case) -> Iterator[str]:
    """Yield the tables of one configuration, as lines.

    Args:
        case: Measured.
    """
    yield describe_case(case.options, case.event_bytes)
    yield ""
    head = ["", "CPU µs/event", "program", "I/O", "1000 events/s", "p50 µs", "p90 µs", "p99 µs", "longest ms", "exact"]
    yield from table([head, *(_summary_row(summary) for summary in case.summaries)])
    if case.comparisons:
        yield ""
        head = ["kvbus against", "CPU ×", "drain rate ×", "latency p50 ×", "added latency ×"]
        rows = [
            [each.other, *(number(figure) for figure in (each.cpu, each.rate, each.latency, each.added))]
            for each in case.comparisons
        ]
        yield from table([head, *rows])


def json_lines(cases: Iterable[Case]) -> Iterator[str]:
    """Yield one object a line: the machine, then for each configuration its options, measurements, summaries and comparisons.

    Args:
        cases: Measured.
    """
    yield _json({"kind": "machine", "machine": machine()})
    for case in cases:
        yield _json({"kind": "case", "event_bytes": case.event_bytes, **msgspec.to_builtins(case.options)})
        for kind, rows in (
            ("measurement", case.measurements),
            ("summary", case.summaries),
            ("comparison", case.comparisons),
        ):
            for row in rows:
                yield _json({"kind": kind, **msgspec.to_builtins(row)})


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield lines with the first column to the left and the others to the right.

    Args:
        rows: Cells; all rows of one length.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()


def number(figure: Spread | None, unit: float = 1.0) -> str:
    """Write a median with its range.

    Args:
        figure: What to write; `None` = a dash.
        unit: What counts as one.
    """
    if figure is None:
        return "–"
    least, middle, most = (_short(value / unit) for value in (figure.least, figure.median, figure.most))
    return middle if least == most else f"{middle} ({least}…{most})"


def _short(value: float) -> str:
    """Write three digits that count."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _summary_row(summary: Summary) -> list[str]:
    verdict = {None: "–", True: "yes", False: "NO"}[summary.is_exact]
    return [
        summary.variant,
        number(summary.cpu_us),
        number(summary.main_us),
        number(summary.io_us),
        number(summary.rate, 1000),
        number(summary.latency_p50_us),
        number(summary.latency_p90_us),
        number(summary.latency_p99_us),
        number(summary.longest_us, 1000),
        verdict,
    ]


def _json(row: object) -> str:
    return msgspec.json.encode(row).decode()

"""One frame of `kvbus top`: what a broker's reports say, laid out for a terminal of any width.

Names come from the wire: control characters in them are replaced, so that nobody writes to the terminal but us, and no markup in
them is understood. Where not all rows fit, those with trouble come first, and the last line says how many are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvbus.broker.status import BrokerStatus, GroupStatus, ViewStatus, WorkerStatus
from kvbus.ops.asking import Silence
from kvbus.ops.report import Report
from kvbus.ops.trend import Place, Trend

__all__ = ["clean", "frame", "quantity", "span"]

WIDE = 110
"""Columns from which there is room for everything."""

AIRY = 30
"""Lines from which tables are set apart."""

NAME_CHARS = 28
BARS = "▁▂▃▄▅▆▇█"

_STATES = {
    "live": ("live", "green"),
    "quiet": ("quiet", "cyan"),
    "no_peer": ("never seen", "bold red"),
    "down": ("not connected", "bold red"),
    "unclear": ("may have gone", "yellow"),
    "departed": ("departed", "yellow"),
    "set_aside": ("set aside", "yellow"),
}


class _Column(NamedTuple):
    title: str
    cell: Callable[[Any], tuple[str, str] | str]
    is_text: bool = False
    is_wide: bool = False


def frame(trend: Trend, address: str, silence: Silence | None, width: int, height: int | None) -> RenderableType:
    """Return one frame.

    Args:
        trend: What the broker has said.
        address: Where it was asked.
        silence: Set while it does not answer.
        width: Columns of the terminal.
        height: Its lines; `None` = as many as it takes.
    """
    report = trend.last
    parts: list[RenderableType] = [_heading(report, address, silence)]
    if silence is not None:
        parts.append(Text(f" {clean(silence.reason, 200)}", "red"))
    status = None if report is None else report.status
    if report is None or status is None:
        return Group(*parts)
    is_wide, dim = width >= WIDE, "dim" if silence is not None else ""
    blocks = list(trend.blocks[-1].items()) if trend.blocks else []
    most = max((count for _, count in blocks), default=1)
    parts += [*_reasons(report), Text(""), *_figures(trend, status), Text("")]
    tables: list[tuple[Sequence[_Column], Sequence[Any]]] = [
        (_worker_columns(trend), status.workers),
        (_view_columns(trend, status), status.views),
        (_group_columns(), status.groups),
        (_block_columns(trend, most, width), blocks),
    ]
    gap = [Text("")] if height is None or height >= AIRY else []
    wanted = [max(1, len(rows)) for _, rows in tables]
    room = None if height is None else height - len(parts) - len(tables) - (len(tables) - 1) * len(gap)
    for index, ((columns, rows), lines) in enumerate(zip(tables, _shares(wanted, room), strict=True)):
        shown = rows if lines >= len(rows) else _by_trouble(rows)[: max(1, lines - 1)]
        parts += gap if index else []
        parts.append(_table(columns, shown, is_wide, dim))
        if len(shown) < len(rows):
            parts.append(Text(f"   and {len(rows) - len(shown)} more", "dim"))
    return Group(*parts)


def clean(text: str, chars: int = NAME_CHARS) -> str:
    """Make a name fit to be printed: no control characters, and not too long."""
    printable = "".join(char if char.isprintable() else "\ufffd" for char in text[: 4 * chars])
    return printable if len(printable) <= chars else printable[: chars - 1] + "…"


def quantity(number: float) -> str:
    """Write a count in at most six characters or so."""
    if abs(number) < 10_000:
        return f"{number:.0f}"
    per, unit = next(
        (per, unit) for per, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G")) if abs(number) < 1e3 * per or unit == "G"
    )
    size = number / per
    return f"{size:.1f}{unit}" if abs(size) < 99.95 else f"{size:.0f}{unit}"


def span(seconds: float | None) -> str:
    """Write a time in at most seven characters; a minus says that it is in the future."""
    if seconds is None:
        return "–"
    size, sign = abs(seconds), "-" if seconds < 0 else ""
    for below, per, unit in (
        (1e-3, 1e-6, "µs"),
        (1, 1e-3, "ms"),
        (100, 1, "s"),
        (6000, 60, "min"),
        (172800, 3600, "h"),
    ):
        if size < below:
            number = size / per
            return f"{sign}{number:.1f}{unit}" if number < 10 and unit in ("ms", "s") else f"{sign}{number:.0f}{unit}"
    return f"{sign}{size / 86400:.0f}d" if size != float("inf") else "∞"


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.1f}" if 0 < rate < 10 else quantity(rate)


def _heading(report: Report | None, address: str, silence: Silence | None) -> Text:
    """Return the first line: who, how it is, since when."""
    line = Text.assemble((" kvbus ", "bold reverse"), f" {clean(address, 60)}  ")
    if silence is not None:
        clock = time.strftime("%H:%M:%S", time.localtime(silence.since_s))
        line.append(f"no answer since {clock}", "bold red")
    elif report is not None:
        is_ready = report.readiness.is_ready
        words = "ready" if is_ready else "not ready" if report.state == "running" else report.state
        line.append(words, "bold green" if is_ready else "bold yellow" if report.state == "running" else "bold red")
    if report is not None:
        line.append(f"  up {span(report.at_s - report.started_s)}  version {clean(report.version)}", "dim")
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _reasons(report: Report) -> list[Text]:
    """Return why the broker is not ready, or what is worth knowing; at most four lines."""
    reasons = [(reason, "yellow") for reason in report.readiness.reasons]
    reasons += [(note, "dim") for note in report.readiness.notes]
    if len(reasons) > 4:
        reasons = [*reasons[:3], (f"and {len(reasons) - 3} more", "dim")]
    return [Text(f" • {clean(text, 200)}", style, no_wrap=True, overflow="ellipsis") for text, style in reasons]


def _figures(trend: Trend, status: BrokerStatus) -> list[Text]:
    """Return the figures of the whole broker, two lines."""
    released = trend.rate(lambda each: sum(group.released for group in each.groups))
    received = trend.rate(lambda each: each.batches)
    pending = sum(group.pending_events for group in status.groups)
    oldest_s = max((group.pending_age_s for group in status.groups), default=0.0)
    lost = sum(worker.lost_batches for worker in status.workers)
    refused = {reason: count for reason, count in status.refused.items() if count}
    first = [
        ("released", f"{_rate(released)}/s"),
        ("batches in", f"{_rate(received)}/s"),
        ("waiting", quantity(pending)),
    ]
    if pending:
        first.append(("oldest", span(oldest_s)))
    first.append(("lost batches", quantity(lost)))
    second = [
        ("age p50", span(trend.quantile(lambda each: each.ages, 0.5))),
        ("p99", span(trend.quantile(lambda each: each.ages, 0.99))),
        ("broker p50", span(trend.quantile(lambda each: each.forwards, 0.5))),
        ("p99", span(trend.quantile(lambda each: each.forwards, 0.99))),
    ]
    if status.journal is not None:
        second.append(("journal", status.journal.state))
    if refused:
        worst = max(refused, key=lambda reason: refused[reason])
        second.append(("turned away", f"{quantity(sum(refused.values()))} (most: {worst})"))
    return [_pairs(first), _pairs(second)]


def _pairs(pairs: Sequence[tuple[str, str]]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for name, value in pairs:
        line.append(f" {name} " if not line else f"   {name} ", "dim")
        line.append(value, "bold")
    return line


def _worker_columns(trend: Trend) -> list[_Column]:
    def rate(worker: WorkerStatus) -> str:
        def received(status: BrokerStatus) -> int | None:
            names = ((each.group, each.worker_id) == (worker.group, worker.worker_id) for each in status.workers)
            return next((each.received for each, is_it in zip(status.workers, names, strict=False) if is_it), None)

        return _rate(trend.rate(received))

    def lag(worker: WorkerStatus) -> tuple[str, str]:
        lags = [stream.lag_s for stream in worker.streams if stream.lag_s is not None]
        worst = max(lags, default=None)
        return span(worst), "yellow" if worst is not None and not -0.001 <= worst <= 5 else ""

    def missing(worker: WorkerStatus) -> tuple[str, str]:
        return _alarm(sum(stream.has_gap for stream in worker.streams), "bold red")

    return [
        _Column("WORKER", lambda each: clean(each.worker_id), is_text=True),
        _Column("GROUP", lambda each: clean(each.group, 12) or "–", is_text=True, is_wide=True),
        _Column("STATE", lambda each: _STATES.get(each.state, (each.state, "")), is_text=True),
        _Column("EV/S", rate),
        _Column("LAG", lag),
        _Column("IDLE", lambda each: span(min((s.age_s for s in each.streams if s.age_s is not None), default=None))),
        _Column("WAITING", lambda each: quantity(each.pending)),
        _Column("MISSING", missing),
        _Column("GAPS", lambda each: quantity(each.gaps), is_wide=True),
        _Column("LOST", lambda each: _alarm(each.lost_batches, "red")),
        _Column("RESTARTS", lambda each: _alarm(each.restarts, "yellow")),
        _Column("RECEIVED", lambda each: quantity(each.received), is_wide=True),
        _Column("VOID", lambda each: quantity(each.void), is_wide=True),
        _Column("GIVEN UP", lambda each: _alarm(each.given_up, "yellow"), is_wide=True),
        _Column("REJECTED", lambda each: _alarm(each.rejected, "red"), is_wide=True),
    ]


def _view_columns(trend: Trend, status: BrokerStatus) -> list[_Column]:
    peers = {socket.name: socket.connections for socket in status.sockets}

    def rate(view: ViewStatus) -> str:
        def sent(status: BrokerStatus) -> int | None:
            return next((each.sent for each in status.views if each.name == view.name), None)

        return _rate(trend.rate(sent))

    return [
        _Column("VIEW", lambda each: clean(each.name), is_text=True),
        _Column("PUBLISHES AT", lambda each: clean(each.endpoint, 40), is_text=True, is_wide=True),
        _Column("EV/S", rate),
        _Column("SENT", lambda each: quantity(each.sent)),
        _Column("FILTERED", lambda each: quantity(each.filtered)),
        _Column("DROPPED", lambda each: _alarm(each.dropped, "red")),
        _Column("NEXT", lambda each: str(each.next_seq)),
        _Column("KEPT", lambda each: quantity(each.buffer_batches)),
        _Column("SUBSCR", lambda each: str(peers.get(f"pub:{each.name}", "–"))),
        _Column("REPLAYED", lambda each: quantity(each.replayed), is_wide=True),
        _Column("SNAPSHOTS", lambda each: quantity(each.snapshots)),
    ]


def _group_columns() -> list[_Column]:
    def oldest(group: GroupStatus) -> tuple[str, str]:
        return (
            (span(group.pending_age_s), "yellow" if group.pending_age_s > 5 else "")
            if group.pending_events
            else ("–", "")
        )

    return [
        _Column("GROUP", lambda each: clean(each.group) or "–", is_text=True),
        _Column("RANK", lambda each: "–" if each.data_parallel_rank is None else str(each.data_parallel_rank)),
        _Column("QUORUM", lambda each: str(len(each.quorum))),
        _Column("RELEASED", lambda each: quantity(each.released)),
        _Column("WAITING", lambda each: quantity(each.pending_events)),
        _Column("OLDEST", oldest),
        _Column("GIVEN UP", lambda each: _alarm(each.stores_given_up, "yellow")),
        _Column("CLEARS", lambda each: _alarm(sum(each.clears.values()), "yellow")),
        _Column("BLOCKS", lambda each: quantity(each.resident_blocks)),
        _Column("WITHDRAWN", lambda each: _alarm(each.withdrawn_blocks, "yellow"), is_wide=True),
    ]


def _block_columns(trend: Trend, most: int, width: int) -> list[_Column]:
    room = max(8, min(60, width - 62))

    def course(row: tuple[Place, int]) -> str:
        counts = [blocks.get(row[0], 0) for blocks in list(trend.blocks)[-room:]]
        top = max(*counts, 1) if len(counts) > 1 else max(most, 1)
        return "".join(BARS[min(7, n * 8 // (top + 1))] if n else " " for n in counts)

    return [
        _Column("OWNER", lambda row: clean(row[0][0], 20), is_text=True),
        _Column("MEDIUM", lambda row: clean(row[0][1], 14), is_text=True),
        _Column("BLOCKS", lambda row: quantity(row[1])),
        _Column(
            "", lambda row: ("█" * max(1, round(10 * row[1] / max(most, 1))) if row[1] else "", "blue"), is_text=True
        ),
        _Column("LATELY", lambda row: (course(row), "cyan"), is_text=True),
    ]


def _alarm(number: int, style: str) -> tuple[str, str]:
    return quantity(number), style if number else "dim"


def _table(columns: Sequence[_Column], rows: Sequence[Any], is_wide: bool, style: str) -> Table:
    """Return a table of the columns for which there is room."""
    columns = [column for column in columns if is_wide or not column.is_wide]
    table = Table(box=None, padding=(0, 1), header_style="bold dim", style=style, pad_edge=True)
    for column in columns:
        table.add_column(column.title, justify="left" if column.is_text else "right", no_wrap=True, overflow="ellipsis")
    for row in rows:
        cells = []
        for column in columns:
            cell = column.cell(row)
            cells.append(Text(cell) if isinstance(cell, str) else Text(*cell))
        table.add_row(*cells)
    if not rows:
        table.add_row(*[Text("–", "dim") for _ in columns])
    return table


def _shares(wanted: Sequence[int], room: int | None) -> list[int]:
    """Share lines out, one to each in turn until all have what they want or nothing is left."""
    if room is None:
        return list(wanted)
    shares = [0] * len(wanted)
    while room > 0 and shares != list(wanted):
        for index, want in enumerate(wanted):
            if shares[index] < want and room > 0:
                shares[index] += 1
                room -= 1
    return shares


def _by_trouble(rows: Sequence[Any]) -> Sequence[Any]:
    """Put workers that need looking after first; all others stay in their order."""
    if not rows or not isinstance(rows[0], WorkerStatus):
        return rows
    return sorted(rows, key=lambda each: each.state == "live" and not any(stream.has_gap for stream in each.streams))

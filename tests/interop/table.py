"""What the consumers said in each scenario, for the README."""

from __future__ import annotations

from collections import Counter

from tests.interop.consumers import Verdict

_rows: dict[tuple[str, str], dict[str, Counter[Verdict]]] = {}


def record(scenario: str, consumer: str, reports: dict[str, Counter[Verdict]]) -> None:
    """Keep the verdicts of one scenario."""
    _rows[scenario, consumer] = reports


def lines() -> list[str]:
    """The table: of all prompts, how many were judged rightly, and for how many too much was credited."""
    found = [f"{'scenario':<34} {'consumer':<12} {'attached to the engine':>32} {'behind the broker':>32}"]
    for (scenario, consumer), reports in sorted(_rows.items()):
        cells = [_cell(reports[name]) for name in ("direct", "broker")]
        found.append(f"{scenario:<34} {consumer:<12} {cells[0]:>32} {cells[1]:>32}")
    return found if _rows else []


def _cell(report: Counter[Verdict]) -> str:
    text = f"{report['right']} of {report.total()} right"
    return text + (f", {report['too much']} too much" if report["too much"] else "")

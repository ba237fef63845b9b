"""What the consumers said in each scenario, for the README."""

from __future__ import annotations

from collections import Counter

from tests.interop.consumers import Verdict

_rows: dict[tuple[str, str], dict[str, Counter[Verdict]]] = {}


def record(scenario: str, consumer: str, reports: dict[str, Counter[Verdict]]) -> None:
    """Keep the verdicts of one scenario."""
    _rows[scenario, consumer] = reports


def lines() -> list[str]:
    """The table, in Markdown: `3 → 40` = right about so many prompts attached to the engines, and behind the broker."""
    scenarios = sorted({scenario for scenario, _ in _rows}, key=lambda each: int(each.split()[0]))
    consumers = sorted({consumer for _, consumer in _rows})
    found = ["| Scenario | " + " | ".join(consumers) + " |"]
    for scenario in scenarios:
        cells = [_cell(_rows.get((scenario, consumer))) for consumer in consumers]
        found.append(f"| {scenario.partition(' ')[2]} | " + " | ".join(cells) + " |")
    return found if _rows else []


def _cell(reports: dict[str, Counter[Verdict]] | None) -> str:
    return " → ".join(map(_figure, (reports or {}).values()))


def _figure(report: Counter[Verdict]) -> str:
    return f"{report['right']}" + (f" ({report['too much']} too much)" if report["too much"] else "")

"""Tables that line up, and lines that a machine reads."""

from __future__ import annotations

import json

from kvbus.bench.figures import Spread
from kvbus.bench.options import BenchOptions
from kvbus.bench.report import case_lines, describe_case, json_lines, machine, number, table
from kvbus.bench.series import Case, compare, summarise
from tests.bench.test_series import MEASURED

CASE = Case(
    options=BenchOptions(variants=("kvbus", "proxy", "direct"), rounds=2),
    event_bytes=455.4,
    measurements=MEASURED,
    summaries=summarise(("kvbus", "proxy", "direct"), MEASURED),
    comparisons=compare(("kvbus", "proxy", "direct"), MEASURED),
)


def test_numbers_have_three_digits_and_a_range() -> None:
    """Where there is one."""
    assert ["–", "1.23", "12.3 (1.00…1234)", "2.00"] == [
        number(None),
        number(Spread(1.234, 1.233, 1.229)),
        number(Spread(12.34, 1.0, 1234.4)),
        number(Spread(2000.0, 2000.0, 2000.0), 1000),
    ]


def test_columns_line_up() -> None:
    """Names to the left, figures to the right."""
    assert ["a     1", "long  9"] == list(table([["a", "1"], ["long", "9"]]))


def test_a_case_is_two_tables_under_a_line() -> None:
    """What was measured, each variant, each comparison."""
    lines = list(case_lines(CASE))
    assert "N = 4, B = 8, aligned, tcp, 20000 events a worker of 455 bytes, 2 rounds" == lines[0]
    assert ["kvbus", "proxy", "direct"] == [line.split()[0] for line in lines[3:6]]
    assert lines[7].startswith("kvbus against")
    assert "1.00 (0.50…1.50)" in lines[8]


def test_what_differs_from_the_plain_case_is_named() -> None:
    """A table without its conditions is worth nothing."""
    options = BenchOptions(views=2, subscribers=3, residency=True, journal=True, resident_blocks=5)
    assert "2 views, 3 subscribers, residency, journal, 5 resident blocks" in describe_case(options, 1.0)


def test_json_is_one_object_a_line() -> None:
    """Everything that was measured is in it."""
    rows = [json.loads(line) for line in json_lines([CASE])]
    assert ["machine", "case", *["measurement"] * 6, *["summary"] * 3, *["comparison"] * 2] == [
        row["kind"] for row in rows
    ]
    assert {"median": 2.5, "least": 2.0, "most": 3.0} == rows[8]["cpu_us"]
    assert 4 == rows[1]["workers"]


def test_the_machine_is_described() -> None:
    """Cores, system, Python and libraries."""
    assert "cores" in machine()
    assert "pyzmq" in machine()

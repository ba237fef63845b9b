"""Pending events, few of them: the process answers, and all come out."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from kvbus.bench.pending import _measure, check_pending, measure_pending, pending_lines, write_events
from kvbus.bench.processes import BenchError
from kvbus.errors import ConfigError
from tests.machine import needs_linux

pytestmark = needs_linux


def test_events_that_waited_all_come_out_in_either_order() -> None:
    """In processes of their own, so that memory is theirs."""
    results = list(measure_pending([50], workers=3, batch=4))
    assert [("in order", True), ("any order", True)] == [(result.order, result.is_exact) for result in results]
    for result in results:
        assert (50, 3, 4) == (result.events, result.workers, result.batch)
        assert 15_000 < result.payload_bytes < 35_000
        assert result.memory_bytes == round(result.ratio * result.payload_bytes)
        assert 0 < result.longest_cpu_ms
    lines = list(pending_lines(results))
    assert ["50, in order", "50, any order"] == [line[:13].strip() for line in lines[1:]]


def test_a_file_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    """Fewer events would be cheaper."""
    write_events(tmp_path / "events", 3, 1)
    with (tmp_path / "events").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as events:
        assert _measure(events, 3, "in order", 2, 2).is_exact
        with pytest.raises(BenchError, match="the file has 3 events, not 4"):
            _measure(events, 4, "in order", 2, 2)


def test_wrong_counts_are_named() -> None:
    """All at once."""
    check_pending([1, 1_000_000], 2, 1)
    with pytest.raises(ConfigError) as caught:
        check_pending([0, 1, 2_000_000], 1, 0)
    assert ["--events", "--events", "--workers", "--batch"] == [problem.field for problem in caught.value.problems]

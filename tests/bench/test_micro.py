"""Every job of the microbenchmarks runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbus.bench.micro import SUBJECTS, measure_micro
from kvbus.bench.options import BenchOptions, Mode
from tests.bench.vllm_like import write_vllm_like


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_job_is_measured_in_every_round(subject: str) -> None:
    """The first one is what the others are compared with."""
    rows = measure_micro(subject, BenchOptions(workers=2, batch=4, events=20, rounds=2))
    assert len(rows) >= 4
    assert (1.0, 1.0, 1.0) == (rows[0].ratio.least, rows[0].ratio.median, rows[0].ratio.most)
    assert all(0 < row.us.least <= row.us.median <= row.us.most for row in rows)


@pytest.mark.parametrize(("mode", "jobs"), [("aligned", 1), ("shuffled", 0)])
def test_a_peer_takes_part_where_it_is_right(tmp_path: Path, mode: Mode, jobs: int) -> None:
    """Its aggregator counts in rounds, which are right for aligned workers only."""
    options = BenchOptions(workers=2, batch=4, events=20, rounds=1, mode=mode, peer=str(write_vllm_like(tmp_path)))
    assert jobs == sum("peer" in row.job for row in measure_micro("aggregator", options))
    assert 2 == sum("peer" in row.job for row in measure_micro("codec", options))

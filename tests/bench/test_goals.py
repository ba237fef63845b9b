"""Goals: what was measured, beside its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbus.bench.figures import Spread
from kvbus.bench.goals import GOALS, Check, check_goals, check_lines
from kvbus.bench.options import BenchOptions
from tests.bench.vllm_like import write_vllm_like
from tests.machine import needs_linux

pytestmark = needs_linux

TINY = BenchOptions(events=40, rounds=1, latency_batches=3)


def _check(value: float | None, limit: float, is_least: bool = False) -> Check:
    figure = None if value is None else Spread(value, value, value)
    return Check(goal=1, what="something", figure=figure, limit=limit, is_least=is_least)


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        (_check(0.9, 1.0), "met"),
        (_check(1.1, 1.0), "met within slack"),
        (_check(1.3, 1.0), "not met"),
        (_check(10.0, 8.0, True), "met"),
        (_check(7.0, 8.0, True), "met within slack"),
        (_check(6.0, 8.0, True), "not met"),
        (_check(None, 1.0), "not measured"),
        (Check(goal=1, what="floor", figure=Spread(9.0, 9.0, 9.0), limit=1.0, is_floor=True), "(floor)"),
    ],
)
def test_a_limit_counts_as_kept_within_a_fifth(check: Check, verdict: str) -> None:
    """In either direction."""
    assert verdict == check.verdict


def test_checks_are_a_table() -> None:
    """With the direction of the limit."""
    assert [
        "goal          measured  limit       verdict",
        "1  something      0.25  ≤ 0.5           met",
        "1  something         –    ≥ 8  not measured",
    ] == list(check_lines([_check(0.25, 0.5), _check(None, 8.0, True)]))


def test_a_goal_that_needs_a_peer_is_not_measured_without() -> None:
    """The rest of it is."""
    checks = list(check_goals([9], TINY))
    assert [True, False] == [check.verdict == "not measured" for check in checks]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_goal_is_measured(tmp_path: Path) -> None:
    """Tiny, with a peer; what is exact must be so in every run."""
    options = BenchOptions(events=40, rounds=1, latency_batches=50, peer=str(write_vllm_like(tmp_path)))
    checks = list(check_goals(GOALS, options, pending_events=100))
    assert list(GOALS) == sorted({check.goal for check in checks})
    exactness = [check for check in checks if "not exact" in check.what]
    assert 6 == len(exactness)
    assert all(check.verdict == "met" for check in exactness)

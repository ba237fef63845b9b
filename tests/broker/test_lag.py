"""How long batches wait is known in spite of what clocks say."""

from __future__ import annotations

import pytest

from kvbus.broker.lag import WINDOW_NS, Lag

SECOND = 1_000_000_000


def fed(offset_s: float, *delays_s: float) -> tuple[Lag, int]:
    """A stream whose clock is wrong by so much, and whose batches of each second took so long."""
    lag, now_ns = Lag(), 0
    for number, delay_s in enumerate(delays_s):
        now_ns = round((100 + number + delay_s) * SECOND)
        lag.see(100 + number + offset_s, now_ns)
    return lag, now_ns


def test_before_the_first_batch_nothing_waits() -> None:
    assert 0 == Lag().behind_ns(5 * SECOND)


@pytest.mark.parametrize("offset_s", [0.0, -86_400.0, 1.7e9])
def test_what_waits_longer_than_it_ever_had_to_is_behind(offset_s: float) -> None:
    """Whatever the difference of the clocks."""
    lag, now_ns = fed(offset_s, 0.3, 0.01, 0.5, 2.01)
    assert pytest.approx(2 * SECOND, abs=1e4) == lag.behind_ns(now_ns)
    assert pytest.approx(3 * SECOND, abs=1e4) == lag.behind_ns(now_ns + SECOND)


def test_what_comes_at_once_is_not_behind() -> None:
    lag, now_ns = fed(5.0, *[0.01] * 200)
    assert pytest.approx(0, abs=1e4) == lag.behind_ns(now_ns)


def test_a_clock_that_is_set_back_is_believed_after_a_while() -> None:
    """For one window it seems to be behind, which only means that it goes first."""
    lag, now_ns = fed(0.0, 0.01)
    for _ in range(4):
        now_ns += WINDOW_NS // 2 + 1
        lag.see(now_ns / SECOND - 30, now_ns)
    assert pytest.approx(0, abs=SECOND) == lag.behind_ns(now_ns)


def test_any_finite_time_is_taken() -> None:
    lag = Lag()
    for ts in (1e308, -1e308, 0.0):
        lag.see(ts, SECOND)
    assert not lag.behind_ns(SECOND) < 0

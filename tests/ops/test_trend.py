"""What changes between two reports."""

from __future__ import annotations

import math

import msgspec
import pytest

from kvbus.broker.status import BrokerStatus, HistogramStatus
from kvbus.events import BlockStored
from kvbus.ops.report import Report
from kvbus.ops.trend import SAMPLES_MAX, Trend, blocks_of
from tests.broker.playbook import Playbook
from tests.ops.standin import StandIn

BASE = StandIn().report()


def report(at_s: float, *, started_s: float = 0.0, **status: object) -> Report:
    assert BASE.status is not None
    return msgspec.structs.replace(
        BASE, at_s=at_s, started_s=started_s, status=msgspec.structs.replace(BASE.status, **status)
    )


def batches(status: BrokerStatus) -> int:
    return status.batches


def ages(status: BrokerStatus) -> list[HistogramStatus]:
    return status.ages


def test_a_rate_is_of_the_last_seconds() -> None:
    trend = Trend()
    assert trend.rate(batches) is None
    for second, count in enumerate([0, 1000, 1010, 1020, 1030, 1040, 1050]):
        trend.note(report(float(second), batches=count))
    assert 10.0 == trend.rate(batches)


def test_one_report_makes_no_rate_and_neither_does_a_count_that_went_back() -> None:
    trend = Trend()
    trend.note(report(1.0, batches=10))
    assert trend.rate(batches) is None
    trend.note(report(2.0, batches=5))
    assert trend.rate(batches) is None
    assert trend.rate(lambda status: None) is None


@pytest.mark.parametrize(("at_s", "started_s"), [(3.0, 2.5), (1.0, 0.0)])
def test_another_life_and_a_clock_that_goes_back_begin_anew(at_s: float, started_s: float) -> None:
    trend = Trend()
    trend.note(report(1.5, batches=10))
    trend.note(report(2.0, batches=20))
    trend.note(report(at_s, started_s=started_s, batches=25))
    assert trend.rate(batches) is None
    assert 1 == len(trend.blocks)


def test_a_broker_that_does_not_answer_changes_nothing() -> None:
    trend = Trend()
    trend.note(report(1.0))
    trend.note(StandIn(silence_s=60.0).report())
    assert trend.last is not None
    assert 1.0 == trend.last.at_s


def test_quantiles_are_of_the_last_minute_and_within_their_bucket() -> None:
    def histogram(*counts: int) -> list[HistogramStatus]:
        return [HistogramStatus(name="g", bounds=(1.0, 2.0), counts=list(counts), total=0.0)]

    trend = Trend()
    assert trend.quantile(ages, 0.5) is None
    trend.note(report(1.0, ages=histogram(100, 0, 0)))
    assert 0.5 == trend.quantile(ages, 0.5), "since the start, where there is but one report"
    trend.note(report(2.0, ages=histogram(100, 10, 0)))
    assert 1.5 == trend.quantile(ages, 0.5)
    trend.note(report(3.0, ages=histogram(100, 10, 90)))
    assert math.inf == trend.quantile(ages, 0.99)
    trend.note(report(100.0, ages=histogram(100, 10, 90)))
    trend.note(report(101.0, ages=histogram(100, 10, 90)))
    assert trend.quantile(ages, 0.5) is None


def test_what_is_kept_is_bounded() -> None:
    trend = Trend()
    for number in range(2 * SAMPLES_MAX):
        trend.note(report(number / 10, batches=number))
    assert SAMPLES_MAX == len(trend.blocks)
    assert len(trend._reports) < 700


def test_blocks_are_added_up_by_owner_and_medium() -> None:
    book = Playbook("a")
    for rank in (0, 1):
        book.send("a", BlockStored([1, 2], None, [], 0, medium="CPU", ownership="tier"), rank=rank)
    book.send("a", BlockStored([3], None, [], 0))
    assert {("primary", "none"): 1, ("tier", "CPU"): 4} == blocks_of(book.node.status({}))

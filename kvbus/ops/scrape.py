"""What Prometheus gets: the table of metrics filled with one moment.

Labels come from the configuration (worker, group, view) or from closed sets, but for media, owners and data-parallel ranks,
which are what peers say. So every metric shows at most `SERIES_MAX` series, and a label value at most `LABEL_CHARS` characters.
A worker that leaves the configuration, and a topic that loses its seat, take their series along.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kvbus.broker.status import HistogramStatus
from kvbus.ops.figures import Row
from kvbus.ops.metrics import METRICS
from kvbus.ops.report import Report

if TYPE_CHECKING:
    from prometheus_client.core import Metric as MetricFamily

__all__ = ["LABEL_CHARS", "SERIES_MAX", "scrape"]

SERIES_MAX = 2_000
"""Series of one metric: a thousand workers and their outcomes, and no more than a Prometheus takes from one target."""

LABEL_CHARS = 128
"""Longest label value."""


def scrape(report: Report, accept: str = "") -> tuple[str, bytes]:
    """Write every metric of the table, and the process's own where the system tells them.

    Args:
        report: One moment.
        accept: What the asker can read, as in HTTP.

    Returns:
        Media type and body: OpenMetrics where asked for, else the classic text.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(report))
    ProcessCollector(registry=registry)
    encode, media_type = choose_encoder(accept)
    return media_type, encode(registry)


class _Collector(Collector):
    """Makes metric families of a report."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def collect(self) -> Iterator[MetricFamily]:
        """Return one family per metric, also where it has no series now."""
        for metric in METRICS:
            rows = _bounded(metric.read(self._report))
            if metric.kind == "histogram":
                histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
                for labels, value in rows.items():
                    assert isinstance(value, HistogramStatus)
                    histograms.add_metric(labels, _cumulative(value), value.total)
                yield histograms
            else:
                make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = make(metric.name, metric.help, labels=metric.labels)
                for labels, value in rows.items():
                    assert not isinstance(value, HistogramStatus)
                    family.add_metric(labels, float(value))
                yield family


def _bounded(rows: Iterable[Row]) -> dict[tuple[str, ...], float | HistogramStatus]:
    """Return each label set once, so many of them and so long; what falls together is added up."""
    bounded: dict[tuple[str, ...], float | HistogramStatus] = {}
    for labels, value in rows:
        key = tuple(label[:LABEL_CHARS] for label in labels)
        known = bounded.get(key)
        if known is None:
            if len(bounded) < SERIES_MAX:
                bounded[key] = value
        elif not isinstance(known, HistogramStatus) and not isinstance(value, HistogramStatus):
            bounded[key] = known + value
    return bounded


def _cumulative(histogram: HistogramStatus) -> list[tuple[str, float]]:
    """Return buckets as Prometheus wants them."""
    buckets, below = [], 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets

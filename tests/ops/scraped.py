"""What is scraped, as figures that can be added up."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from kvbus.ops.report import Report
from kvbus.ops.scrape import scrape


class Scraped:
    """One scrape, read back."""

    @classmethod
    def of(cls, report: Report) -> Scraped:
        """What a scrape shows of a report."""
        return cls(scrape(report)[1].decode())

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self._series: dict[str, dict[frozenset[tuple[str, str]], float]] = defaultdict(dict)
        for family in self.families:
            for sample in family.samples:
                self._series[sample.name][frozenset(sample.labels.items())] = sample.value

    def series(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        """Samples by their labels."""
        return self._series.get(name, {})

    def total(self, name: str, **labels: str) -> float:
        """Sum of the series with these labels."""
        return sum(value for key, value in self.series(name).items() if labels.items() <= dict(key).items())


def check_funnel(scraped: Scraped) -> None:
    """Every vote and every event is somewhere, by the metrics alone."""
    for key, received in scraped.series("kvbus_worker_votes_received_total").items():
        labels = dict(key)
        settled = scraped.total("kvbus_worker_votes_total", **labels)
        assert received == settled + scraped.total("kvbus_worker_votes_pending", **labels)
    released = scraped.total("kvbus_group_released_events_total") + scraped.total("kvbus_announced_clears_total")
    waiting = scraped.total("kvbus_group_waiting_events")
    offered = scraped.series("kvbus_view_offered_events_total")
    assert offered
    for key, events in offered.items():
        assert released == events + waiting
        assert events == scraped.total("kvbus_view_events_total", **dict(key))
    assert released - waiting == scraped.total("kvbus_released_events_total")

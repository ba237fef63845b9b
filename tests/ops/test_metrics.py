"""The table of metrics keeps Prometheus's rules, and the README says what it says."""

from __future__ import annotations

import re

from kvbus.ops.metrics import METRICS, metrics_table
from tests.shared_data import CHECKOUT


def test_names_and_labels_follow_the_conventions() -> None:
    """Counters end with `_total` and nothing else does; base units; names and labels once each."""
    names = [metric.name for metric in METRICS]
    assert sorted(set(names)) == sorted(names)
    for metric in METRICS:
        assert re.fullmatch(r"kvbus_[a-z_]+", metric.name)
        assert (metric.kind == "counter") is metric.name.endswith("_total"), metric.name
        assert not re.search(r"_(ms|milliseconds|ns|kb|mb|count|sum|bucket)(_|$)", metric.name), metric.name
        assert len(set(metric.labels)) == len(metric.labels)
        assert all(
            re.fullmatch(r"[a-z_]+", label) and label not in ("le", "job", "instance") for label in metric.labels
        )
        assert metric.help.endswith("."), metric.name
        assert "|" not in metric.help, "it stands in a table"


def test_the_readme_has_the_table() -> None:
    """Made from the same lines; where they differ, this shows what the README should say."""
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert metrics_table() in readme

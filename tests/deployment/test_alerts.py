"""Every alert speaks of metrics that exist, fires in its unit test, and has a section in the runbook."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import yaml

from kvbus.broker.notices import REASONS
from kvbus.ops.metrics import METRICS
from kvbus.security.refusals import PEER_REFUSALS
from tests.shared_data import CHECKOUT, program

PROMETHEUS = CHECKOUT / "deploy" / "prometheus"
RUNBOOK = CHECKOUT / "deploy" / "RUNBOOK.md"

NAMES = {metric.name: metric for metric in METRICS}


def _alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return [alert for group in groups for alert in group["rules"]]


def _tests() -> list[dict[str, Any]]:
    tests = yaml.safe_load((PROMETHEUS / "alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    assert isinstance(tests, list)
    return tests


def _selected(expression: str) -> list[tuple[str, set[str]]]:
    """Return the metrics of an expression, with the labels that are matched of each."""
    found = re.findall(r"\b(kvbus_\w+)(\{[^}]*\})?", expression)
    return [(name, set(re.findall(r"(\w+)(?:=~|!~|!=|=)", labels))) for name, labels in found]


@pytest.mark.parametrize("alert", _alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_speaks_of_metrics_that_exist(alert: dict[str, Any]) -> None:
    """A typing error in a rule is a silence that nobody notices."""
    selected = _selected(alert["expr"])
    assert selected or alert["expr"].startswith("up{")
    for name, labels in selected:
        metric = NAMES[re.sub(r"_bucket$", "", name)]
        assert ("histogram" == metric.kind) == name.endswith("_bucket")
        assert labels <= set(metric.labels)


@pytest.mark.parametrize("alert", _alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_what_to_do(alert: dict[str, Any]) -> None:
    """Its section has what it means, where to look and what to do."""
    name = alert["alert"]
    assert f"RUNBOOK.md#{name.lower()}" == alert["annotations"]["runbook"]
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert section is not None
    assert all(f"**{part}**" in section[1] for part in ("Means.", "Look.", "Do."))
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}


def test_the_runbook_has_no_section_without_an_alert() -> None:
    sections = re.findall(r"^## (Kvbus\w+)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == [alert["alert"] for alert in _alerts()]


def test_every_alert_is_fired_and_kept_quiet() -> None:
    """One test has a broker that is well; each of the others has what an alert is for."""
    names = [alert["alert"] for alert in _alerts()]
    well, *ill = _tests()
    assert names == [case["alertname"] for case in well["alert_rule_test"] if case["exp_alerts"] == []]
    assert names == [case["alertname"] for test in ill for case in test["alert_rule_test"] if case["exp_alerts"]]


def test_label_values_of_the_tests_are_real() -> None:
    """A rule for a reason that the broker never gives could not fire in earnest."""
    reasons = {*REASONS, *PEER_REFUSALS, "ahead", "no_clock", "loss"}
    for test in _tests():
        for series in test["input_series"]:
            reason = re.search(r'reason="(\w+)"', series["series"])
            assert reason is None or reason[1] in reasons
            name = series["series"].partition("{")[0]
            labels = set(re.findall(r"(\w+)=", series["series"])) - {"instance", "le", "job"}
            assert "up" == name or labels == set(NAMES[re.sub(r"_bucket$", "", name)].labels)


def test_promtool_accepts_the_rules_and_their_tests() -> None:
    """The judge is Prometheus itself."""
    for arguments in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run(
            [program("promtool"), *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
        )
        assert (0, True) == (done.returncode, "SUCCESS" in done.stdout), done.stdout + done.stderr


def test_promtool_accepts_the_configuration() -> None:
    done = subprocess.run(
        [program("promtool"), "check", "config", "prometheus.yml"],
        cwd=PROMETHEUS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, True) == (done.returncode, "SUCCESS" in done.stdout), done.stdout + done.stderr

"""Every query of the Grafana dashboard is answered by a Prometheus that scrapes a broker at work."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
import zmq

from kvbus.config import ViewConfig
from kvbus.events import BlockRemoved, BlockStored
from kvbus.ops.metrics import METRICS
from kvbus.ops.site import open_site
from tests.broker.real import ANY, read_until, real_broker
from tests.machine import free_ports
from tests.shared_data import CHECKOUT, program

DASHBOARD = json.loads((CHECKOUT / "deploy" / "grafana" / "kvbus.json").read_text(encoding="utf-8"))

WAIT_S = 60.0

_never = threading.Event()


def _queries() -> list[tuple[str, str]]:
    """Return title and query of every panel."""
    return [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def _filled_in(expression: str) -> str:
    """Fill in the dashboard's variables, as Grafana does when everything is chosen."""
    return re.sub(r"\$(instance|group)\b", ".*", expression).replace("$__rate_interval", "1m")


def test_queries_speak_of_metrics_that_exist() -> None:
    names = {metric.name for metric in METRICS}
    used = {name for _, query in _queries() for name in re.findall(r"\bkvbus_\w+", query)}
    assert used <= names | {f"{name}_bucket" for name in names}


def test_every_panel_says_what_it_shows() -> None:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert [] == [panel["title"] for panel in panels if not panel.get("description") or not panel["targets"]]
    assert len(DASHBOARD["panels"]) == len({panel["id"] for panel in DASHBOARD["panels"]})


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


@contextmanager
def _prometheus(folder: Path, target: str) -> Iterator[str]:
    """Run a Prometheus that scrapes one target several times a second."""
    command = program("prometheus")
    config = {
        "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms"},
        "scrape_configs": [{"job_name": "kvbus", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{free_ports(1)}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                command,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(60)


def _ask(url: str, query: str) -> list[Any] | None:
    """Return the result of a query; `None` while nobody answers."""
    question = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(question, timeout=10) as answer:
            told = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 503:  # not ready yet
            return None
        raise AssertionError(f"{query}: {error.read().decode()}") from error
    except urllib.error.URLError:
        return None
    assert "success" == told["status"], query
    result = told["data"]["result"]
    assert isinstance(result, list)
    return result


@pytest.mark.timeout(180)
def test_prometheus_answers_every_query(tmp_path: Path) -> None:
    """None is refused, and each has at least one series once everything that it speaks of has happened."""
    program("prometheus")
    view = ViewConfig(name="all", endpoint=ANY, replay_endpoint=ANY, topic="out")
    journal = str(tmp_path / "journal")
    with (
        zmq.Context() as context,
        real_broker(context, workers=2, view=view, journal=journal) as (broker, workers, sub),
        open_site(broker, "127.0.0.1:0") as site,
        _prometheus(tmp_path, site.observer.endpoints["http"].removeprefix("http://")) as url,
    ):
        missing = dict.fromkeys(_queries())
        number, until = 0, time.monotonic() + WAIT_S
        while missing:
            assert time.monotonic() < until, list(missing)
            events = BlockStored([number], None, [1, 2], 2, medium="GPU"), BlockRemoved([number - 3], "GPU")
            for worker in workers:
                worker.publish(*events, ts=time.time())
            read_until(sub, 2)
            number += 1
            for title, query in list(missing):
                if _ask(url, _filled_in(query)):
                    del missing[title, query]
            _never.wait(0.2)

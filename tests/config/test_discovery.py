"""Places where workers are looked for: how they are typed, and what cannot be one."""

from __future__ import annotations

import pytest

from kvbus.config.broker import BrokerConfig
from kvbus.config.discovery import Address, DiscoveryConfig, parse_discovery
from kvbus.config.groups import GroupConfig
from kvbus.config.workers import IngestConfig
from kvbus.errors import ConfigError
from kvbus.views.config import ViewConfig


@pytest.mark.parametrize(
    ("text", "place", "shown", "address"),
    [
        ("file:/etc/kvbus/workers.toml", {"kind": "file", "target": "/etc/kvbus/workers.toml"}, "workers.toml", None),
        (
            "dns:vllm-headless:5557,replay=5558,ranks=0-1,group=g,name=n",
            {
                "kind": "dns",
                "target": "vllm-headless:5557",
                "replay_port": 5558,
                "ranks": (0, 1),
                "group": "g",
                "name": "n",
            },
            "n",
            Address("vllm-headless", 5557),
        ),
        ("dns:[fd00::1]:5557", {"kind": "dns", "target": "[fd00::1]:5557"}, "fd00::1", Address("fd00::1", 5557)),
        ("vllm:http://a", {"kind": "vllm", "target": "http://a"}, "a", Address("a", 80, "http")),
        (
            "vllm:https://a.b/x/",
            {"kind": "vllm", "target": "https://a.b/x/"},
            "a.b",
            Address("a.b", 443, "https", "/x"),
        ),
        (
            "sglang:http://[::1]:30000",
            {"kind": "sglang", "target": "http://[::1]:30000"},
            "::1",
            Address("::1", 30000, "http"),
        ),
    ],
)
def test_a_place_as_typed(text, place, shown, address):
    config = parse_discovery(text)
    assert DiscoveryConfig(**place) == config
    assert shown == config.shown
    if address is not None:
        assert address == config.address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected file:PATH"),
        ("consul:x", "expected file:PATH"),
        ("file:", "must be the path of a file"),
        ("dns:host", "port is missing"),
        ("dns:*:5557", "must be HOST:PORT"),
        ("dns:h:0", "must be HOST:PORT"),
        ("dns:h:1,replay=x", "must be a port"),
        ("dns:h:1,replay=70000", "must be from 1 to 65535"),
        ("dns:h:1,ranks=3-1", "runs backwards"),
        ("dns:h:1,a=b", "unknown option 'a'; known are name=, replay=, ranks= and group="),
        ("dns:h:1,name=a,name=b", "given twice"),
        ("vllm:h:8000", "must be the URL of a server"),
        ("vllm:http://u:p@h", "must be the URL of a server"),
        ("vllm:http://h:99999", "port 99999 is past"),
        ("vllm:http://h?x=1", "must be the URL of a server"),
        ("vllm:http://0.0.0.0:8000", "nobody can be asked there"),
        ("vllm:http://h,replay=5", "is for dns only"),
        ("file:x,group=g", "says the group of each worker itself"),
    ],
)
def test_what_is_no_place_is_refused_with_the_reason(text, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_discovery(text)
    assert all(problem.field.startswith("--discover") for problem in caught.value.problems)


def test_numbers_of_a_place_have_ranges():
    place = DiscoveryConfig(kind="x", target="", interval_s=0, timeout_s=float("inf"), workers_max=0)  # type: ignore[arg-type]
    fields = [problem.field for problem in place.problems("discovery[0].")]
    assert [f"discovery[0].{name}" for name in ("kind", "interval_s", "timeout_s", "workers_max")] == fields


def test_engines_that_are_asked_are_groups_of_their_own():
    """Two replicas need not agree about anything; the ranks behind one name must."""
    assert "pod-1" == parse_discovery("vllm:http://h").group_of("pod-1", "10.0.0.1")
    assert "" == parse_discovery("dns:h:1").group_of("pod-1", "10.0.0.1")
    assert "e-pod-1" == parse_discovery("dns:h:1,group=e-{worker}").group_of("pod-1", "10.0.0.1")
    assert "10.0.0.1" == parse_discovery("dns:h:1,group={address}").group_of("pod-1", "10.0.0.1")


def test_a_broker_may_begin_with_nobody_where_it_looks_for_workers():
    """And groups that nobody is in yet may be named."""
    places = (parse_discovery("dns:h:1,group=g"),)
    views = (ViewConfig(groups=("g",)),)
    BrokerConfig(discovery=places, groups=(GroupConfig(name="g"),), views=views).validate()


def test_places_have_names_of_their_own_and_no_ingest_socket_beside_them():
    bad = BrokerConfig(discovery=(parse_discovery("dns:h:1"), parse_discovery("dns:h:2")), ingest=IngestConfig())
    with pytest.raises(ConfigError) as caught:
        bad.validate()
    assert ["ingest.endpoint", "discovery[1].name"] == [problem.field for problem in caught.value.problems]

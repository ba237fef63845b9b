"""Variables: which option they mean, what their text is, and what is said of those that mean nothing."""

from __future__ import annotations

import pytest

from kvbus.config import BrokerConfig
from kvbus.settings.environment import read_environment, variable
from kvbus.settings.layers import ONLY


def read(**variables):
    return read_environment({f"KVBUS_{name}": text for name, text in variables.items()}, BrokerConfig, {"KVBUS_OURS"})


@pytest.mark.parametrize(
    ("name", "text", "path", "value"),
    [
        ("AGE_S", "12", ("age_s",), 12),
        ("AGE_S", "1e1", ("age_s",), 10.0),
        ("AGE_S", "soon", ("age_s",), "soon"),
        ("PENDING_EVENTS_MAX", "1_000", ("pending_events_max",), 1000),
        ("JOURNAL_RESET", "true", ("journal_reset",), True),
        ("JOURNAL_RESET", "yes", ("journal_reset",), "yes"),
        ("JOURNAL", "/run/1", ("journal",), "/run/1"),
        ("JOURNAL", "12", ("journal",), "12"),
        ("ON_LOSS", "ignore", ("on_loss",), "ignore"),
        ("INGEST__WORKERS", "3", ("ingest", "workers"), 3),
        ("INGEST__TOPICS", '["a", "b"]', ("ingest", "topics"), ["a", "b"]),
        ("INGEST", "{ workers = 2 }", ("ingest",), {"workers": 2}),
        ("INGEST", '{"workers": 2}', ("ingest",), {"workers": 2}),
        ("WORKERS", "['a=tcp://h:1']", ("workers",), ["a=tcp://h:1"]),
        ("WORKERS", "a=tcp://h:1", ("workers",), "a=tcp://h:1"),
        ("WORKERS", "[", ("workers",), "["),
        ("WORKERS", "[" * 100_000, ("workers",), "[" * 100_000),
        ("WORKERS__0__ENDPOINT", "tcp://h:1", ("workers", 0, "endpoint"), "tcp://h:1"),
        ("VIEWS__1__TOPIC", "[x", ("views", 1, "topic"), "[x"),
        ("VIEWS__0__MEDIUM", '["GPU", "none"]', ("views", 0, "medium"), ["GPU", "none"]),
        ("VIEWS__0__GROUP_IDX", "0", ("views", 0, "group_idx"), 0),
        ("GROUPS__0__QUORUM", "2", ("groups", 0, "quorum"), 2),
        ("GROUPS__0__QUORUM", "any", ("groups", 0, "quorum"), "any"),
        ("PUB", "tcp://*:1", ("views", ONLY, "endpoint"), "tcp://*:1"),
        ("REPLAY", "none", ("views", ONLY, "replay_endpoint"), "none"),
        ("TOPIC", "7", ("views", ONLY, "topic"), "7"),
    ],
)
def test_a_variable_means_an_option(name, text, path, value):
    found = read(**{name: text})
    ((said, got, origin),) = found.settings
    assert (path, value, type(value)) == (said, got, type(got))
    assert ("environment", f"KVBUS_{name}") == origin
    assert [] == list(found.strangers)


def test_whole_tables_come_before_their_parts():
    found = read(VIEWS__0__TOPIC="t", VIEWS="[{}]", AGE_S="1")
    assert [("age_s",), ("views",), ("views", 0, "topic")] == [setting.path for setting in found.settings]


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("AGEE_S", "did you mean KVBUS_AGE_S?"),
        ("HWM", "did you mean KVBUS_VIEWS__0__HWM?"),
        ("VIEWS__3__TOPICC", "did you mean KVBUS_VIEWS__0__TOPIC?"),
        ("VIEWS__0", "did you mean KVBUS_VIEWS?"),
        ("AGE_S__X", "did you mean KVBUS_AGE_S?"),
        ("VIEWS__X__TOPIC", "did you mean"),
        ("QQQQ", "`kvbus config show` lists all options"),
    ],
)
def test_a_variable_that_means_nothing_is_told_with_a_suggestion(name, suggestion):
    found = read(**{name: "1"})
    (stranger,) = found.strangers
    assert [] == list(found.settings)
    assert f"KVBUS_{name}" == stranger.field
    assert suggestion in stranger.reason


@pytest.mark.parametrize(
    "name",
    [
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_PUB",
        "PORT",
        "PORT_5600_TCP",
        "PORT_5600_TCP_ADDR",
        "BROKER_SERVICE_HOST",
        "BROKER_PORT_5600_TCP_PROTO",
        "OURS",
    ],
)
def test_what_kubernetes_sets_for_a_service_called_kvbus_is_no_mistake(name):
    assert ((), ()) == tuple(map(tuple, read(**{name: "tcp://10.0.0.1:5600"})))


def test_other_programs_variables_are_not_ours():
    assert ((), ()) == tuple(map(tuple, read_environment({"PATH": "x", "XKVBUS_AGE_S": "1"}, BrokerConfig)))


def test_the_name_of_a_variable_can_be_told():
    assert "KVBUS_VIEWS__0__TOPIC" == variable(("views", 0, "topic"))

"""A configuration file is read strictly: what is misspelt or of another type is named by its key."""

from __future__ import annotations

import re
import sys

import msgspec
import pytest

from kvbus.config import BrokerConfig, GroupConfig, IngestConfig, ViewConfig, WorkerConfig
from kvbus.errors import ConfigError
from kvbus.settings.file import broker_config, with_flags
from kvbus.views.filters import EventFilter
from tests.shared_data import CHECKOUT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def problems(document) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        broker_config(document)
    return [str(problem) for problem in caught.value.problems]


def test_an_empty_file_says_nothing():
    assert BrokerConfig() == broker_config({})


def test_every_part_can_be_written():
    document = {
        "workers": [
            "w0=tcp://h:1,replay=tcp://h:2",
            {"worker_id": "w1", "endpoint": "tcp://h:10", "ranks": "0-2", "group": "g"},
            {"worker_id": "w2", "endpoint": "tcp://h:20", "ranks": [4, 5]},
        ],
        "groups": [{"name": "g", "on_departure": "hold", "worker_timeout_s": 3}],
        "views": [
            {"name": "v", "ownership": "primary", "medium": ["GPU", "none"], "ranks": [0, "none"], "hwm": 7},
        ],
        "on_loss": "ignore",
        "age_s": 12,
        "streams_max": 9,
    }
    config = broker_config(document)
    config.validate()
    assert (
        WorkerConfig(worker_id="w0", endpoint="tcp://h:1", replay_endpoint="tcp://h:2"),
        WorkerConfig(worker_id="w1", endpoint="tcp://h:10", ranks=(0, 1, 2), group="g"),
        WorkerConfig(worker_id="w2", endpoint="tcp://h:20", ranks=(4, 5)),
    ) == config.workers
    assert (GroupConfig(name="g", on_departure="hold", worker_timeout_s=3.0),) == config.groups
    wanted = EventFilter(ownership="primary", medium=["GPU", "none"])
    assert (ViewConfig(name="v", filter=wanted, ranks=(0, None), hwm=7),) == config.views
    assert ("ignore", 12.0, 9) == (config.on_loss, config.age_s, config.streams_max)


def test_ingest_is_a_table():
    config = broker_config({"ingest": {"workers": 3, "topics": ["x", "y"]}})
    assert IngestConfig(workers=3, topics=("x", "y")) == config.ingest


def test_a_profile_fills_in_what_is_not_said():
    (view,) = broker_config({"views": [{"profile": "dynamo", "hwm": 5}]}).views
    assert ViewConfig.of_profile("dynamo", hwm=5) == view


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"agE_s": 1}, "agE_s: unknown key; did you mean age_s?"),
        ({"zzz": 1}, "zzz: unknown key; known are workers,"),
        ({"age_s": "30"}, "age_s: expected float, got str (got '30')"),
        ({"streams_max": 1.5}, "streams_max: expected int, got float"),
        ({"streams_max": True}, "streams_max: expected int, got bool"),
        ({"on_loss": "forget"}, "on_loss: must be one of clear, ignore (got 'forget')"),
        ({"workers": "w0=tcp://h:1"}, "workers: must be a list"),
        ({"workers": [7]}, "workers[0]: must be a table (got '7')"),
        ({"workers": ["h:1"]}, "workers[0]: expected [id=]endpoint"),
        ({"workers": [{"worker_id": "a"}]}, "workers[0].endpoint: is missing"),
        ({"workers": [{"worker_id": "a", "endpoint": "tcp://h:1", "ranks": "3-1"}]}, "workers[0].ranks: "),
        ({"workers": [{"worker_id": "a", "endpoint": "tcp://h:1", "rank": 1}]}, "workers[0].rank: unknown key"),
        ({"ingest": []}, "ingest: must be a table"),
        ({"ingest": {"worker": 2}}, "ingest.worker: unknown key; did you mean workers?"),
        ({"groups": [{"on_loss": "clear"}]}, "groups[0].name: is missing"),
        ({"groups": [{"name": "g", "on_departure": 1}]}, "groups[0].on_departure: must be one of clear, shrink, hold"),
        ({"views": [{"endpoint": 5600}]}, "views[0].endpoint: expected str, got int (got '5600')"),
        ({"views": [{}, {"filter": {}}]}, "views[1].filter: "),
        ({"views": [{"ownership": ""}]}, "views[0].ownership: "),
        ({"views": [{"profile": "nobody"}]}, "views[0].profile: "),
        ({"views": [{"ranks": ["all"]}]}, "views[0].ranks: "),
    ],
)
def test_what_is_wrong_is_named_by_its_key(document, line):
    (found,) = problems(document)
    assert found.startswith(line)


def test_everything_wrong_is_shown_at_once():
    document = {"age_s": "x", "nothing": 1, "views": [{"hwm": "x"}], "workers": ["x", "y"]}
    assert 5 == len(problems(document))


def test_every_option_but_the_filter_can_be_written():
    """An option that a file cannot say would need a flag and a restart."""
    for kind, path in ((BrokerConfig, ()), (ViewConfig, ("views",)), (IngestConfig, ("ingest",))):
        for field in msgspec.structs.fields(kind):
            table = {field.name: object()}
            document = {path[0]: [table] if path == ("views",) else table} if path else table
            reasons = problems(document)
            assert (field.name == "filter") == any("unknown key" in reason for reason in reasons), field.name


def test_the_examples_of_the_readme_can_be_read():
    """They are copied before they are understood."""
    blocks = re.findall(r"^```toml\n(.*?)^```", (CHECKOUT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        broker_config(tomllib.loads(block))


class TestFlags:
    def test_a_flag_counts_more_than_the_file(self):
        assert {"age_s": 5.0, "on_loss": "ignore"} == with_flags(
            {"age_s": 1.0, "on_loss": "ignore"}, {"age_s": 5.0}, {}
        )

    def test_workers_replace_all_workers_of_the_file(self):
        assert {"workers": ["b"]} == with_flags({"workers": ["a"], "ingest": {}}, {"workers": ["b"]}, {})

    def test_flags_of_the_ingest_socket_go_into_the_files(self):
        merged = with_flags({"ingest": {"endpoint": "e", "workers": 2}}, {"ingest": {"workers": 3}}, {})
        assert {"ingest": {"endpoint": "e", "workers": 3}} == merged
        assert {"ingest": {"endpoint": "e"}} == with_flags({"workers": ["a"]}, {"ingest": {"endpoint": "e"}}, {})

    def test_workers_and_ingest_by_flag_are_both_left_for_the_check(self):
        merged = with_flags({}, {"workers": ["a"], "ingest": {"endpoint": "e"}}, {})
        assert {"workers": ["a"], "ingest": {"endpoint": "e"}} == merged

    def test_flags_of_the_view_go_into_the_only_one(self):
        assert {"views": [{"topic": "t", "hwm": 2}]} == with_flags(
            {"views": [{"topic": "t", "hwm": 1}]}, {}, {"hwm": 2}
        )
        assert {"views": [{"hwm": 2}]} == with_flags({}, {}, {"hwm": 2})

    def test_with_several_views_they_say_nothing(self):
        with pytest.raises(ConfigError, match="the file has 2 views"):
            with_flags({"views": [{}, {}]}, {}, {"hwm": 2})

"""A configuration file is read strictly: what is misspelt or of another type is named by its key."""

from __future__ import annotations

import re
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.config import BrokerConfig, DiscoveryConfig, GroupConfig, IngestConfig, ViewConfig, WorkerConfig
from kvbus.errors import ConfigError
from kvbus.settings.catalogue import options_of
from kvbus.settings.file import broker_config, broker_problems, readable_broker_config
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
        ({"views": [5]}, "views[0]: must be a table (got '5')"),
        ({"views": [{"ownership": "none", "topic": 5}]}, "views[0].topic: expected str"),
        ({"on_loss": "none"}, "on_loss: must be one of"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(document, line):
    (found,) = problems(document)
    assert found.startswith(line)


def test_everything_wrong_is_shown_at_once():
    document = {"age_s": "x", "nothing": 1, "views": [{"hwm": "x"}], "workers": ["x", "y"]}
    assert 5 == len(problems(document))


def test_nothing_has_a_word():
    """TOML cannot say null, and what the environment sets a flag must be able to unset."""
    config = broker_config(
        {
            "journal": "none",
            "ingest": "none",
            "views": [{"replay_endpoint": "none", "profile": "vllm-router", "fill_rank": "none", "topic": "none"}],
        }
    )
    assert (None, None) == (config.journal, config.ingest)
    (view,) = config.views
    assert (None, None, "none") == (view.replay_endpoint, view.fill_rank, view.topic)
    asks_for_absent = broker_config({"views": [{"medium": "none"}]}).views[0].filter
    assert EventFilter(medium="none") == asks_for_absent


def test_what_the_reader_and_what_the_check_finds_come_together():
    """A file is mended once, not once per kind of mistake."""
    document = {
        "age_s": 0,
        "agee": 1,
        "workers": ["a=tcp://h:1,replay=tcp://h:2,ranks=0-1", {"worker_id": "b", "endpoint": "x"}],
        "views": [{"hwm": "x", "buffer_batches": 0}, {"name": "v", "endpoint": "tcp://127.0.0.1:5600", "on_many": 1}],
    }
    assert [
        "agee",
        "views[0].hwm",
        "views[1].on_many",
        "workers[1].endpoint",
        "views[0].buffer_batches",
        "views[1].endpoint",
        "workers[0].replay_endpoint",
        "age_s",
    ] == [problem.field for problem in broker_problems(document)]


@pytest.mark.parametrize(
    "document",
    [
        {"workers": [7]},
        {"workers": ["x", "tcp://h:1"], "groups": [{"name": "g"}], "views": [{"groups": ["g"]}]},
        {"workers": [{"worker_id": "a", "endpoint": 5}, {"worker_id": "a", "endpoint": 6}]},
        {"workers": ["tcp://h:1"], "views": [{"endpoint": 1, "replay_endpoint": "tcp://127.0.0.1:5600"}]},
        {"workers": ["tcp://h:1"], "views": "v"},
        {"ingest": 5, "groups": [{"name": "g"}]},
        {"workers": ["tcp://h:1"], "probe_s": "x", "worker_timeout_s": 7},
    ],
)
def test_no_conclusion_is_drawn_from_what_could_not_be_read(document):
    """One mistake is one line, not one line and its shadows."""
    reasons = ("no worker is", "give at least", "given twice", "is also that of")
    assert [] == [problem for problem in broker_problems(document) if problem.reason.startswith(reasons)]
    readable_broker_config(document)


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


NAMES = st.sampled_from(
    [
        option.name
        for kind in (BrokerConfig, ViewConfig, WorkerConfig, IngestConfig, GroupConfig, DiscoveryConfig)
        for option in options_of(kind)
    ]
)
VALUES = st.recursive(
    st.sampled_from(["none", "", "tcp://h:1", "a=tcp://h:1", "dns:h:1", "dynamo", "all", "0-1", "x"])
    | st.booleans()
    | st.integers(-1, 70_000)
    | st.floats()
    | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=25,
)


@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_any_document_is_a_configuration_or_problems(document):
    """Whatever stands in a file, `kvbus config check` says what is wrong with it, and never fails itself."""
    found = broker_problems(document)
    assert all(problem.reason for problem in found)
    if not found:
        broker_config(document).validate()

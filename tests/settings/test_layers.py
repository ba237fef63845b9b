"""Which of several places counts, and who is blamed."""

from __future__ import annotations

import pytest

from kvbus.errors import Problem
from kvbus.settings.file import readable_broker_config
from kvbus.settings.layers import DEFAULT, ONLY, Layers, Origin, Setting, path_in

FLAG = Origin("flag", "--x")
FLAGS = {"--age": ("age_s",), "--pub": ("views", ONLY, "endpoint"), "--worker": ("workers",)}


def layers(document, *settings, lines=None):
    found = Layers(document, "f.toml", lines)
    found.put([Setting(path, value, FLAG) for path, value in settings])
    return found


def test_what_is_put_on_top_counts_and_the_file_is_left_alone():
    document = {"age_s": 1.0, "on_loss": "ignore", "views": [{"topic": "a"}]}
    found = layers(document, (("age_s",), 5.0), (("views", ONLY, "topic"), "b"))
    assert {"age_s": 5.0, "on_loss": "ignore", "views": [{"topic": "b"}]} == found.document
    assert {"age_s": 1.0, "on_loss": "ignore", "views": [{"topic": "a"}]} == document
    assert FLAG == found.origin(("age_s",))
    assert Origin("file", "f.toml") == found.origin(("on_loss",))
    assert DEFAULT == found.origin(("probe_s",))


def test_the_nearest_table_around_says_where_a_value_comes_from():
    found = layers({"views": [{"topic": "a"}]}, lines={("views",): 3, ("views", 0): 3, ("views", 0, "topic"): 4})
    wheres = [found.origin(path).where for path in [("views", 0, "topic"), ("views", 0, "hwm"), ("views", 7)]]
    assert ["f.toml:4", "f.toml:3", "f.toml:3"] == wheres


def test_a_list_takes_the_place_of_a_list():
    found = layers({"workers": ["a", "b"]}, (("workers",), ["c"]), lines={("workers", 1): 2})
    assert ["c"] == found.document["workers"]
    assert FLAG == found.origin(("workers", 1))


def test_workers_and_ingest_take_each_others_place():
    assert {"workers": ["b"]} == layers({"ingest": {"workers": 1}}, (("workers",), ["b"])).document
    assert {"ingest": {"endpoint": "e"}} == layers({"workers": ["a"]}, (("ingest", "endpoint"), "e")).document
    both = layers({"ingest": {"topics": ["t"]}}, (("workers",), ["a"]), (("ingest", "endpoint"), "e"))
    assert {"workers": ["a"], "ingest": {"endpoint": "e"}} == both.document
    seats = layers({"ingest": {"endpoint": "e", "workers": 2}}, (("ingest", "workers"), 3))
    assert {"ingest": {"endpoint": "e", "workers": 3}} == seats.document


def test_an_element_may_be_added_but_none_left_out():
    assert [{}, {"topic": "t"}] == layers({"views": [{}]}, (("views", 1, "topic"), "t")).document["views"]
    (problem,) = layers({"views": [{}]}, (("views", 2, "topic"), "t")).problems
    assert "there are only 1 of views so far" == problem.reason


@pytest.mark.parametrize(
    ("document", "path", "reason"),
    [
        ({"views": [{}, {}]}, ("views", ONLY, "topic"), "there are 2 views in the file: say it there"),
        ({"workers": ["tcp://h:1"]}, ("workers", 0, "group"), "workers[0] is written in another form"),
        ({"ingest": 5}, ("ingest", "workers"), "ingest is written in another form"),
        ({"views": 5}, ("views", ONLY, "topic"), "views is written in another form"),
    ],
)
def test_what_cannot_be_put_there_is_told(document, path, reason):
    (problem,) = layers(document, (path, 1)).problems
    assert ("--x", True) == (problem.field, problem.reason.startswith(reason))


@pytest.mark.parametrize(
    ("field", "blamed"),
    [
        ("age_s", "f.toml:2: age_s"),
        ("--age", "f.toml:2: --age"),
        ("probe_s", "probe_s"),
        ("views[0].endpoint", "KVBUS_PUB: views[0].endpoint"),
        ("--pub", "KVBUS_PUB: --pub"),
        ("clear_wait_s", "KVBUS_CLEAR_WAIT_S"),
        ("workers[3],replay=", "--worker"),
        ("--other", "--other"),
    ],
)
def test_the_one_who_said_it_is_blamed(field, blamed):
    found = Layers({"age_s": 1}, "f.toml", {("age_s",): 2})
    found.put([Setting(("views", ONLY, "endpoint"), "e", Origin("environment", "KVBUS_PUB"))])
    found.put([Setting(("clear_wait_s",), 1, Origin("environment", "KVBUS_CLEAR_WAIT_S"))])
    found.put([Setting(("workers",), ["x"], Origin("flag", "--worker"))])
    assert blamed == found.blame(Problem(field, "v", "r"), FLAGS).field


def test_rows_say_of_every_option_what_holds_and_who_said_so():
    document = {
        "age_s": 3,
        "workers": ["w=tcp://h:1,ranks=0-1", {"worker_id": "x", "endpoint": "tcp://h:9"}],
        "views": [{"profile": "llm-d", "topic": "t", "medium": "GPU"}],
    }
    found = layers(document, (("clear_wait_s",), 2.0))
    rows = {row.option: (row.value, str(row.origin)) for row in found.rows(readable_broker_config(found.document))}
    expected = {
        "age_s": (3.0, "f.toml"),
        "probe_s": (5.0, "default"),
        "clear_wait_s": (2.0, "--x"),
        "ingest": (None, "default"),
        "groups": ([], "default"),
        "workers[0].worker_id": ("w", "f.toml"),
        "workers[0].ranks": ([0, 1], "f.toml"),
        "workers[0].group": ("", "default"),
        "workers[1].endpoint": ("tcp://h:9", "f.toml"),
        "workers[1].replay_endpoint": (None, "default"),
        "views[0].profile": ("llm-d", "f.toml"),
        "views[0].medium": ("GPU", "f.toml"),
        "views[0].ownership": ("primary", "profile llm-d"),
        "views[0].on_many": ("epoch", "profile llm-d"),
        "views[0].hwm": (100_000, "default"),
    }
    assert expected == {option: rows[option] for option in expected}


def test_fields_are_read_as_paths():
    assert ("views", 0, "endpoint") == path_in("views[0].endpoint")
    assert ("workers", 1) == path_in("workers[1],replay=")
    assert () == path_in("--age")

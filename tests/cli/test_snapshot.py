"""`kvbus snapshot`: what it prints of a broker's view, and how it ends."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kvbus.config import ViewConfig
from kvbus.events import BlockRemoved, BlockStored
from kvbus_cli.exits import Exit
from kvbus_cli.main import app
from tests.broker.real import ANY, read_until, real_broker

SECRET = 424242


def run(*arguments):
    return CliRunner().invoke(app, ["snapshot", *arguments])


@pytest.fixture
def broker(zmq_context):
    """A broker with one worker that has published more than its buffer of ten batches holds."""
    view = ViewConfig(endpoint=ANY, replay_endpoint=ANY, topic="out", buffer_batches=10)
    with real_broker(zmq_context, workers=1, view=view, flush_events=1) as (broker, (worker,), sub):
        last, seen = BlockRemoved([999], "GPU"), []
        while last not in seen:
            worker.publish(last)
            seen = read_until(sub, 1) if sub.poll(20) else []
        events = [BlockStored([1, 2, 3], None, [SECRET] * 48, 16, medium="GPU", group_idx=0)]
        events += [BlockStored([b"\xaa" * 32], medium="CPU", ownership="cpu-tier", group_idx=0)]
        events += [BlockStored([2], 1, [SECRET] * 16, 16, medium="GPU", group_idx=0)]
        events += [BlockRemoved([1000 + number], "GPU") for number in range(20)]
        worker.publish(*events)
        seen = []
        while BlockRemoved([1019], "GPU") not in seen:
            seen += read_until(sub, 1)
        yield broker


def test_the_table_says_who_holds_what(broker):
    result = run(broker.endpoints["replay:all"])
    assert Exit.OK == result.exit_code, result.output
    assert [
        ["topic", "rank", "medium", "ownership", "group", "blocks", "references", "described"],
        ["out", "0", "GPU", "primary", "0", "3", "4", "3"],
        ["out", "0", "CPU", "cpu-tier", "0", "1", "1", "0"],
        ["total", "4", "5", "3"],
    ] == [line.split() for line in result.stdout.splitlines()]
    assert "incomplete" not in result.stderr
    assert broker.endpoints["replay:all"] in result.stderr


def test_json_is_one_object_a_block_without_token_ids(broker):
    result = run(broker.endpoints["replay:all"], "--json")
    blocks = [json.loads(line) for line in result.stdout.splitlines()]
    assert [1, 2, 3, {"hex": "aa" * 32}] == [block["block_hash"] for block in blocks]
    assert {
        "topic": "out",
        "data_parallel_rank": 0,
        "medium": "GPU",
        "ownership": None,
        "locality": None,
        "group_idx": 0,
        "block_hash": 2,
        "parent_block_hash": 1,
        "block_size": 16,
        "references": 2,
    } == blocks[1]
    assert str(SECRET) not in result.output


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--ownership", "primary"], 3),
        (["--medium", "CPU"], 1),
        (["--group-idx", "none"], 0),
        (["--locality", "none"], 4),
    ],
)
def test_filters_choose(broker, flags, expected):
    assert expected == len(run(broker.endpoints["replay:all"], "--json", *flags).stdout.splitlines())


def test_the_endpoint_may_be_where_the_view_publishes(broker):
    """As for `kvbus tail`, with where it answers replay beside it."""
    result = run(broker.endpoints["pub:all"], "--replay", broker.endpoints["replay:all"])
    assert Exit.OK == result.exit_code


def test_nobody_there_is_said_with_what_was_tried():
    result = run("tcp://127.0.0.1:9", "--timeout", "0.1")
    assert Exit.FAILED == result.exit_code
    assert "tcp://127.0.0.1:9" in result.stderr
    assert "tcp://127.0.0.1:109" in result.stderr


def test_all_that_is_wrong_is_told_at_once():
    result = run("nonsense", "--timeout", "0", "--medium", "")
    assert Exit.USAGE == result.exit_code
    assert 3 == len(result.stderr.splitlines())


def test_a_view_that_has_published_nothing_is_no_failure(zmq_context):
    view = ViewConfig(endpoint=ANY, replay_endpoint=ANY)
    with real_broker(zmq_context, workers=1, view=view) as (broker, _, _):
        result = run(broker.endpoints["replay:all"])
        assert Exit.OK == result.exit_code
        assert "0 batches" in result.stderr

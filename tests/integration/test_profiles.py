"""Every payload of the collection, sent through a broker with a consumer's profile, comes out as that consumer takes it."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest

from kvbus.broker.node import BrokerNode
from kvbus.config import BrokerConfig, ViewConfig, parse_worker
from kvbus.events import Event, UnknownEvent, facets_of
from kvbus.views.profiles import PROFILES
from kvbus.wire.codec import decode_batch
from kvbus.wire.frames import live_message
from tests.integration.acceptance import CONSUMERS, RECORDS, refusal
from tests.shared_data import vectors
from tests.wire.golden_vectors import Vector, every, golden

JUDGED_DIFFERENTLY = {
    # Payloads that no reading is right for, and that the broker never passes on; what a decoder says to them is its own affair.
    ("dynamo", "synthetic/block-size-negative"),
    ("dynamo", "synthetic/trailing-byte"),
    ("llm-d", "synthetic/batch-is-map"),
    ("llm-d", "synthetic/trailing-byte"),
    ("llm-d", "synthetic/ts-null"),
    ("vllm", "synthetic/group-idx-negative"),
}


@cache
def records() -> dict[str, dict[str, str]]:
    rows = map(json.loads, (vectors() / "acceptance.jsonl").read_text(encoding="utf-8").splitlines())
    return {row["name"]: row for row in rows}


@cache
def collection() -> tuple[Vector, ...]:
    return (*every(), *every(malformed=True))


def through(profile: str, payload: bytes, **options: Any) -> list[bytes]:
    """Send a payload of one worker through a broker whose view has a profile, and return what the view sends."""
    view = ViewConfig.of_profile(profile, endpoint="inproc://v", **{"split": "none", "numbers_from": "zero"} | options)
    config = BrokerConfig(workers=(parse_worker("a=inproc://a"),), views=(view,))
    config.validate()
    node = BrokerNode(config, random.Random(0))
    node.receive(0, live_message(b"t", 0, payload), 1)
    node.flush()
    return [out.frames[2] for out in node.take_output()]


@pytest.mark.parametrize("profile", RECORDS)
def test_the_oracle_says_what_the_consumers_own_decoder_said(profile: str) -> None:
    """Else the tests below would prove nothing."""
    differs = [
        (profile, vector.name)
        for vector in collection()
        if (refusal(profile, vector.payload) is None) != (records()[vector.name][RECORDS[profile]] == "ok")
    ]
    assert set(differs) <= JUDGED_DIFFERENTLY


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_every_input_comes_out_as_its_consumer_takes_it(profile: str) -> None:
    """One batch that a router cannot read is a hole in what it knows, for ever."""
    refused = {}
    for vector in collection():
        for payload in through(profile, vector.payload):
            if (reason := refusal(profile, payload)) is not None:
                refused[vector.name] = reason
    assert {} == refused


@pytest.mark.parametrize("profile", PROFILES)
def test_the_golden_payloads_come_out_as_each_consumer_takes_them(profile: str) -> None:
    """The same for what is part of the checkout."""
    for vector in golden():
        assert {None} >= {refusal(profile, payload) for payload in through(profile, vector.payload)}, vector.name


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_what_passes_a_profiles_filter_is_not_lost(profile: str) -> None:
    """Being taken must not be had by sending nothing: every wanted store and removal names the same blocks as before."""
    view = ViewConfig.of_profile(profile)
    for vector in collection():
        if vector.scope is not None or vector.expect is None:
            continue
        before = [event for event in decode_batch(vector.payload).events if wanted(view, event)]
        sent = through(profile, vector.payload, copies="passthrough")
        after = [event for payload in sent for event in decode_batch(payload).events]
        assert blocks(before) == blocks(after), vector.name


def wanted(view: ViewConfig, event: Event) -> bool:
    return not isinstance(event, UnknownEvent) and view.filter.accepts(facets_of(event))


def blocks(events: list[Event]) -> list[tuple[str, int]]:
    """Type and folded hash of each block, in order."""
    return [
        (type(event).__name__, each % 2**64 if isinstance(each, int) else int.from_bytes(each[-8:], "big"))
        for event in events
        for each in getattr(event, "block_hashes", ())
    ]


@pytest.mark.slow
def test_ranks_are_filled_and_times_are_floats() -> None:
    """AIBrix ends its subscription for either."""
    for name in PROFILES:
        for vector in golden():
            for payload in through(name, vector.payload):
                batch = decode_batch(payload)
                assert isinstance(batch.ts, float)
                assert name == "vllm" or batch.data_parallel_rank is not None


@pytest.mark.slow
def test_the_table_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    """Printed with `-s`: how many of the payloads each consumer takes from the worker, and from the broker."""
    lines = [f"{'consumer':<12} {'payloads':>8} {'taken before':>13} {'batches after':>14} {'taken after':>12}"]
    for profile in CONSUMERS:
        taken = sum(refusal(profile, vector.payload) is None for vector in collection())
        after = [payload for vector in collection() for payload in through(profile, vector.payload)]
        good = sum(refusal(profile, payload) is None for payload in after)
        lines.append(f"{profile:<12} {len(collection()):>8} {taken:>13} {len(after):>14} {good:>12}")
        assert good == len(after) > 0
    with capsys.disabled():
        print("", *lines, sep="\n")

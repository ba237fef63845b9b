"""Events as JSON: exact, complete, and readable back."""

from __future__ import annotations

import gc
import json
import sys
from datetime import datetime, timezone
from typing import Any

import msgspec
import pytest

from kvbus.errors import DecodeError, UsageError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, Rejected, UnknownEvent
from kvbus.wire.jsonform import batch_to_json, dumps, event_from_json, event_to_json


def test_a_batch_shows_its_parts_in_order() -> None:
    """Time is a float there, whatever it was on the wire; `rejected` appears only when something was."""
    batch = EventBatch(1764400000250, [AllBlocksCleared()], None)
    line = '{"ts":1764400000250.0,"data_parallel_rank":null,"events":[{"type":"AllBlocksCleared"}]}'
    assert line == dumps(batch_to_json(batch))
    batch = EventBatch(1.0, [], 3, [Rejected(0, "$[1][0]", "an event is an array or a map")])
    rejected = '"rejected":[{"index":0,"path":"$[1][0]","reason":"an event is an array or a map"}]'
    assert f'{{"ts":1.0,"data_parallel_rank":3,"events":[],{rejected}}}' == dumps(batch_to_json(batch))


def test_every_known_field_is_shown() -> None:
    """Null when unset."""
    assert {
        "type": "BlockRemoved",
        "block_hashes": [1],
        "medium": None,
        "group_idx": None,
        "locality": None,
        "ownership": None,
    } == event_to_json(BlockRemoved([1]))
    names = [name for name in BlockStored.__struct_fields__ if name not in ("extra", "surplus")]
    assert ["type", *names] == list(event_to_json(BlockStored([1])))


def test_integers_are_exact() -> None:
    """A float in between would change hashes above 2⁵³."""
    hashes: list[int | bytes] = [2**64 - 1, 2**53 + 1, -(2**63)]
    shown = dumps(event_to_json(BlockRemoved(hashes)))
    assert '"block_hashes":[18446744073709551615,9007199254740993,-9223372036854775808]' in shown
    assert hashes == json.loads(shown)["block_hashes"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\x01\xff", {"hex": "01ff"}),
        ([b"", [b"\0"]], [{"hex": ""}, [{"hex": "00"}]]),
        ({"a": b"\0"}, {"a": {"hex": "00"}}),
        ({1: "x", b"\x0a": "y", (1, 2): "z"}, {"1": "x", "0a": "y", "(1, 2)": "z"}),
        (msgspec.msgpack.Ext(5, b"\x01"), {"ext": 5, "hex": "01"}),
        ("适配器", "适配器"),
        (1.5, 1.5),
    ],
)
def test_values_of_other_fields(value: Any, shown: Any) -> None:
    """Whatever msgpack can carry can be shown."""
    assert {"x": shown} == json.loads(dumps(event_to_json(BlockRemoved([1], extra={"x": value}))))["extra"]


def test_a_time_is_shown_as_text() -> None:
    """msgpack has an extension for it."""
    when = datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert '"x":"2026-01-01T00:00:00Z"' in dumps(event_to_json(BlockRemoved([1], extra={"x": when})))


def test_an_unknown_event_is_marked() -> None:
    """Its fields, none for the array form: slots have no name to be shown under."""
    assert {"type": "x", "unknown_type": True, "fields": {"a": 1}} == event_to_json(UnknownEvent("x", {"a": 1}))
    assert {"type": "x", "unknown_type": True, "fields": {}} == event_to_json(UnknownEvent("x", {}, (1,), True))


@pytest.mark.parametrize(
    "event",
    [
        BlockStored([1, b"\xff" * 32], b"\0", [1, [2, 3], "x"], 3, 4, "CPU", "l", [["a", b"\0"], None], 0, "mamba", 8),
        BlockStored([1], locality="LOCAL", ownership="k", session_id="s", lookahead_token_ids=[[1]], cache_salt="x"),
        BlockStored([], None, None, None, extra={"x": {"a": [b"\0", None]}}),
        BlockRemoved([-1], "GPU", 0, "LOCAL", "k", {"x": 1}),
        AllBlocksCleared(),
        AllBlocksCleared({"medium": "CPU"}),
        UnknownEvent("x", {"a": b"\0"}),
    ],
)
def test_events_read_back(event: Event) -> None:
    """`kvbus tail --json | kvbus publish`."""
    assert event == event_from_json(json.loads(dumps(event_to_json(event))))


@pytest.mark.parametrize(
    ("shown", "event"),
    [
        ({"type": "BlockStored", "block_hashes": [1]}, BlockStored([1])),
        ({"type": "BlockRemoved", "block_hashes": [{"hex": "0A"}]}, BlockRemoved([b"\n"])),
        ({"type": "AllBlocksCleared", "extra": None}, AllBlocksCleared()),
        ({"type": "x"}, UnknownEvent("x")),
    ],
)
def test_a_person_may_leave_things_out(shown: Any, event: Event) -> None:
    """What has a default need not be typed."""
    assert event == event_from_json(shown)


@pytest.mark.parametrize(
    ("shown", "path", "reason"),
    [
        (5, "$", "an event is an object"),
        ([], "$", "an event is an object"),
        ({}, "$.type", "no type"),
        ({"type": 1}, "$.type", "not text"),
        ({"type": "BlockRemoved"}, "$.block_hashes", "expected an array"),
        ({"type": "BlockStored", "block_hashes": 1}, "$.block_hashes", "expected an array"),
        ({"type": "BlockRemoved", "block_hashes": ["1"]}, "$.block_hashes[0]", "expected int | bytes, got str"),
        ({"type": "BlockRemoved", "block_hashes": [1.5]}, "$.block_hashes[0]", "expected int | bytes, got float"),
        ({"type": "BlockRemoved", "block_hashes": [2**64]}, "$", "block_hashes holds an integer outside 64 bits"),
        ({"type": "BlockRemoved", "block_hashes": [{"hex": "0"}]}, "$.block_hashes", "hexadecimal"),
        ({"type": "BlockRemoved", "block_hashes": [1], "lora_id": 1}, "$['lora_id']", "belong into `extra`"),
        ({"type": "BlockRemoved", "block_hashes": [1], "extra": 1}, "$.extra", "expected an object"),
        ({"type": "BlockRemoved", "block_hashes": [1], "extra": {"medium": "x"}}, "$", "extra field 'medium'"),
        ({"type": "BlockStored", "block_hashes": [1], "token_ids": [-1]}, "$.token_ids[0]", "expected int >= 0"),
        ({"type": "BlockStored", "block_hashes": [1], "surplus": []}, "$['surplus']", "no field of BlockStored"),
        ({"type": "AllBlocksCleared", "medium": "CPU"}, "$['medium']", "belong into `extra`"),
        ({"type": "x", "a": 1}, "$.a", "in `fields`"),
    ],
)
def test_what_is_no_event_is_refused(shown: Any, path: str, reason: str) -> None:
    """With the field, so that the line can be mended."""
    with pytest.raises(DecodeError) as caught:
        event_from_json(shown)
    assert path == caught.value.path
    assert reason in caught.value.reason


def test_deep_json_is_refused() -> None:
    """Not a matter of the interpreter's stack."""
    nested: Any = 0
    for _ in range(5_000):
        nested = [nested]
    with pytest.raises(DecodeError, match="nested too deeply"):
        event_from_json({"type": "x", "fields": {"a": nested}})
    while nested:
        nested = nested.pop()


def test_no_json_for_what_json_cannot_carry() -> None:
    """Put in by hand: the caller's fault."""
    with pytest.raises(UsageError):
        dumps({"x": object()})


@pytest.mark.parametrize(
    "batches", [3_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_g64_rendering_leaks_nothing(batches: int) -> None:
    """A tail may run for weeks. The short way to builtins leaked a reference per array-form struct in msgspec 0.21.1."""
    stores: list[Event] = [BlockStored([1, b"\x02"], 3, [4, 5], 2, medium="CPU"), BlockRemoved([1]), AllBlocksCleared()]
    batch = EventBatch(1.0, stores, 0, [Rejected(3, "$[1][3]", "an event is an array or a map")])
    for _ in range(100):
        dumps(batch_to_json(batch))
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(batches):
        dumps(batch_to_json(batch))
    gc.collect()
    assert sys.getallocatedblocks() - before < 500

"""One event of any producer, from bytes to a value."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvbus.errors import DecodeError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, UnknownEvent
from kvbus.wire.limits import EVENT_FIELDS_MAX, TooDeepError
from kvbus.wire.reading import decode_event, is_container, open_event, read_by_field, read_by_type, unwrap

STORE = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": 9, "token_ids": [7], "block_size": 1}


def encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def read(value: Any) -> Event:
    return decode_event(encode(value))


def refusal(value: Any) -> tuple[str, str]:
    """Return path and reason of the refusal."""
    with pytest.raises(DecodeError) as caught:
        decode_event(encode(value), "$[1][3]")
    return caught.value.path, caught.value.reason


@pytest.mark.parametrize(
    ("value", "event"),
    [
        (STORE, BlockStored([1], 9, [7], 1)),
        (STORE | {"cache_salt": "s", "session_id": "x"}, BlockStored([1], 9, [7], 1, session_id="x", cache_salt="s")),
        (STORE | {"future": [1, {}]}, BlockStored([1], 9, [7], 1, extra={"future": [1, {}]})),
        (STORE | {"future": None}, BlockStored([1], 9, [7], 1)),
        (STORE | {"extra": 1, "surplus": 2}, BlockStored([1], 9, [7], 1, extra={"extra": 1, "surplus": 2})),
        (STORE | {"parent_block_hash": 0}, BlockStored([1], 0, [7], 1)),
        (STORE | {"block_hashes": [1, 9]}, BlockStored([1, 9], 9, [7], 1)),
        ({"type": "BlockStored", "block_hashes": []}, BlockStored([], None, None, None)),
        (
            STORE | {"extra_keys": [["a", b"\xff"], None]},
            BlockStored([1], 9, [7], 1, extra_keys=[["a", b"\xff"], None]),
        ),
        (STORE | {"extra_keys": [[{"a": 1}]]}, BlockStored([1], 9, [7], 1, extra_keys=[[{"a": 1}]])),
        (STORE | {"kvbus_slots": [1, None]}, BlockStored([1], 9, [7], 1, surplus=(1,))),
        (STORE | {"kvbus_slots": "x"}, BlockStored([1], 9, [7], 1, extra={"kvbus_slots": "x"})),
        ({"type": "BlockRemoved", "block_hashes": [1]}, BlockRemoved([1])),
        (
            {"type": "BlockRemoved", "block_hashes": [1], "block_size": 16},
            BlockRemoved([1], extra={"block_size": 16}),
        ),
        ({"type": "AllBlocksCleared"}, AllBlocksCleared()),
        ({"type": "AllBlocksCleared", "medium": "CPU"}, AllBlocksCleared({"medium": "CPU"})),
        ({"type": "AllBlocksCleared", "medium": None}, AllBlocksCleared()),
        ({"type": "AllBlocksCleared", "medium": 7}, AllBlocksCleared({"medium": 7})),
        ({"type": "BlockPinned", "x": 1}, UnknownEvent("BlockPinned", {"x": 1})),
        ({"type": "BlockPinned", "kvbus_slots": [1]}, UnknownEvent("BlockPinned", {}, (1,), True)),
        ({"type": "BlockPinned", "kvbus_slots": []}, UnknownEvent("BlockPinned", {}, (), True)),
    ],
)
def test_map_events(value: Any, event: Event) -> None:
    """W1: every known field by its type, every other one kept."""
    assert event == read(value)


TAIL = [None, "GPU", None, None, None, None, None]  # lora_id to the sliding window


@pytest.mark.parametrize(
    ("value", "event"),
    [
        (["BlockStored", [1], 9, [7], 1], BlockStored([1], 9, [7], 1)),
        (["BlockStored", [1], 9, [7], 1, 3], BlockStored([1], 9, [7], 1, 3)),
        (["BlockStored", [1], 0, [7], 1], BlockStored([1], None, [7], 1)),
        (["BlockStored", [1], b"\0", [7], 1], BlockStored([1], b"\0", [7], 1)),
        (["BlockStored", [1], 9, [[5, 9]], 1], BlockStored([1], 9, [[5, 9]], 1)),
        (
            ["BlockStored", [1], 9, [7], 1, None, "GPU", {"cache_salt": "s", "more": 1}],
            BlockStored([1], 9, [7], 1, medium="GPU", cache_salt="s", extra={"more": 1}),
        ),
        (["BlockStored", [1], 9, [7], 1, None, "GPU", {}], BlockStored([1], 9, [7], 1, medium="GPU")),
        (
            ["BlockStored", [1], 9, [7], 1, *TAIL, "LOCAL", "kvcr", "sess", [[1]]],
            BlockStored(
                [1],
                9,
                [7],
                1,
                medium="GPU",
                locality="LOCAL",
                ownership="kvcr",
                session_id="sess",
                lookahead_token_ids=[[1]],
            ),
        ),
        (
            ["BlockStored", [1], 9, [7], 1, *TAIL, 48],
            BlockStored([1], 9, [7], 1, medium="GPU", extra={"token_offset": 48}),
        ),
        (
            ["BlockStored", [1], 9, [7], 1, *TAIL, [1], 5, "sess"],
            BlockStored([1], 9, [7], 1, medium="GPU", session_id="sess", extra={"slot_12": [1], "slot_13": 5}),
        ),
        (
            ["BlockStored", [1], 9, [7], 1, *TAIL, None, None, None, None, {"new": 1}, None],
            BlockStored([1], 9, [7], 1, medium="GPU", surplus=({"new": 1},)),
        ),
        (
            ["BlockStored", [1], 0, [7], 1, {"kvbus_fields": {"parent_block_hash": 0, "cache_salt": "s", "x": 1}}],
            BlockStored([1], 0, [7], 1, cache_salt="s", extra={"x": 1}),
        ),
        (["BlockRemoved", [1]], BlockRemoved([1])),
        (["BlockRemoved", [1], None, 0, "LOCAL", "k"], BlockRemoved([1], None, 0, "LOCAL", "k")),
        (["BlockRemoved", [1], None, 0, 7], BlockRemoved([1], None, 0, extra={"slot_4": 7})),
        (["BlockRemoved", [1], None, None, None, None, 7], BlockRemoved([1], surplus=(7,))),
        (["AllBlocksCleared"], AllBlocksCleared()),
        (["AllBlocksCleared", None], AllBlocksCleared()),
        (["AllBlocksCleared", "CPU"], AllBlocksCleared({"medium": "CPU"})),
        (["AllBlocksCleared", 7, "x"], AllBlocksCleared({"slot_1": 7}, ("x",))),
        (["AllBlocksCleared", {"kvbus_fields": {"ownership": "k"}}], AllBlocksCleared({"ownership": "k"})),
        (["BlockTransferred", [1], "GPU", None], UnknownEvent("BlockTransferred", {}, ([1], "GPU", None), True)),
        (["BlockTransferred"], UnknownEvent("BlockTransferred", is_array=True)),
        (["BlockPinned", {"kvbus_fields": {"x": 1}}], UnknownEvent("BlockPinned", {"x": 1})),
        (["BlockPinned", {"kvbus_fields": {}}], UnknownEvent("BlockPinned")),
        (["BlockPinned", 1, {"kvbus_fields": {"x": 1}}], UnknownEvent("BlockPinned", {"x": 1}, (1,), True)),
    ],
)
def test_array_events(value: Any, event: Event) -> None:
    """W1: by place, with the slots that engines use in ways of their own."""
    assert event == read(value)


def test_a_trimmed_array_is_read() -> None:
    """Not only with all slots, nor only without."""
    full = ["BlockStored", [1], None, [7], 1, None, "GPU", None, None, 0, None, None]
    events = [read(full[:count]) for count in range(5, 13)]
    assert [None, None, "GPU", "GPU", "GPU", "GPU", "GPU", "GPU"] == [event.medium for event in events]  # type: ignore[union-attr]
    assert [None] * 5 + [0] * 3 == [event.group_idx for event in events]  # type: ignore[union-attr]


def test_an_event_in_a_bin_is_read() -> None:
    """llm-d's filesystem backend; an array or a map, one bin deep."""
    assert BlockRemoved([1], "X") == read(encode(["BlockRemoved", [1], "X"]))
    assert BlockRemoved([1], "X") == read(encode({"type": "BlockRemoved", "block_hashes": [1], "medium": "X"}))
    assert ("$[1][3]", "a bin that holds neither an array nor a map") == refusal(encode(encode(["BlockRemoved", [1]])))
    assert ("$[1][3]", "input data was truncated") == refusal(b"")
    assert ("$[1][3]", "input data was truncated") == refusal(b"\xdd\xff\xff\xff\xff\xacBlockRemoved")


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (5, "", "an event is an array or a map"),
        (None, "", "an event is an array or a map"),
        ("BlockRemoved", "", "an event is an array or a map"),
        ([], "", "an empty array is no event"),
        ({}, "", "no type key"),
        ({"type": None}, ".type", "the tag is not text"),
        ([1, [2]], "[0]", "the tag is not text"),
        ({1: 2, "type": "x"}, "", "expected str, got int"),
        ({"type": "BlockRemoved"}, "", "no block_hashes"),
        (["BlockRemoved"], "", "no block_hashes"),
        (["BlockRemoved", ["x"]], "[1][0]", "expected int | bytes, got str"),
        (["BlockRemoved", [1], 7], "[2]", "expected str | null, got int"),
        ({"type": "BlockStored", "block_hashes": None}, ".block_hashes", "expected array, got None"),
        (["BlockStored", [1], None, [7]], "", "a store of 4 slots, at least 5 are needed"),
        (STORE | {"block_size": None}, "", "of token_ids and block_size only one is nil"),
        (STORE | {"token_ids": None}, "", "of token_ids and block_size only one is nil"),
        (STORE | {"token_ids": [1, -1]}, ".token_ids[1]", "expected int >= 0"),
        (STORE | {"block_size": -1}, ".block_size", "expected int >= 0"),
        (STORE | {"group_idx": -1}, ".group_idx", "expected int >= 0"),
        (STORE | {"extra_keys": [7]}, ".extra_keys", "expected nil or a list of lists and nils"),
        (STORE | {"extra_keys": {}}, ".extra_keys", "expected nil or a list of lists and nils"),
        (STORE | {"block_hashes": [1, 2, 1]}, ".block_hashes", "a hash is repeated within one store"),
        (STORE | {"block_hashes": [9]}, ".parent_block_hash", "a block is its own parent"),
        (["BlockStored", [1], 1, [7], 1], ".parent_block_hash", "a block is its own parent"),
        (["BlockStored", [1], None, [7], 1, None, None, {"cache_salt": 5}], "[7].cache_salt", "expected text or nil"),
        (["BlockStored", [1], None, [7], 1, None, None, {"medium": "x"}], "[7]", ...),
        (["BlockRemoved", [1], {"kvbus_fields": {"medium": "x"}}], "", "kvbus_fields holds a field that has a slot"),
        (["BlockRemoved", [1], {"kvbus_fields": 5}], "[2]", ...),
        (["BlockRemoved", [1], {"kvbus_fields": {1: 2}}], "[2].kvbus_fields", ...),
    ],
)
def test_refusals_name_place_and_reason(value: Any, path: str, reason: Any) -> None:
    """Someone has to find the producer's bug with it."""
    found_path, found_reason = refusal(value)
    assert f"$[1][3]{path}" == found_path.replace("[...]", ".kvbus_fields")
    if reason is not ...:
        assert reason == found_reason


def test_refusals_quote_no_content() -> None:
    """Token ids are prompt content; field names are cut."""
    secret = "s3cret" * 50
    for value in (
        STORE | {"token_ids": [[secret]]},
        STORE | {"token_ids": [{secret: 1}]},
        STORE | {"medium": [secret]},
        {"type": [secret]},
        STORE | {"x" * 500: [[[[[0]]]] * 3], "medium": 1},
    ):
        path, reason = refusal(value)
        assert "s3cret" not in path + reason
        assert len(path + reason) < 200


def test_invalid_text_is_refused() -> None:
    """Bytes that are not UTF-8 where text belongs."""
    for raw in (
        b"\x83\xa4type\xacBlockRemoved\xacblock_hashes\x91\x01\xa6medium\xa1\xff",
        b"\x93\xacBlockRemoved\x91\x01\xa1\xff",
        b"\x81\xa4type\xa1\xff",
        b"\x82\xa4type\xa1x\xa1\xff\x01",
    ):
        with pytest.raises(DecodeError, match="UTF-8"):
            decode_event(raw)


def test_a_refused_extension_is_refused() -> None:
    """A timestamp that is none; the event cannot be passed on by value."""
    raw = encode(["BlockPinned"])[:-12] + b"\x92\xa1x\xd7\xff" + b"\xff" * 8
    with pytest.raises(DecodeError):
        decode_event(raw)


def test_the_number_of_fields_is_bounded() -> None:
    """Each costs a hundred bytes before it is looked at."""
    names = {str(index): 0 for index in range(EVENT_FIELDS_MAX - 1)}
    assert UnknownEvent("x", names) == read({"type": "x"} | names)
    for value in (
        {"type": "x", "more": 0} | names,
        ["x"] + [0] * EVENT_FIELDS_MAX,
        ["x", {"kvbus_fields": {"more": 0, "most": 0} | names}],
    ):
        assert f"at most {EVENT_FIELDS_MAX}" in refusal(value)[1]


def test_nesting_costs_the_event_or_the_batch() -> None:
    """A little too deep is one event's fault; far too deep is an attack."""
    nested: Any = 0
    for _ in range(70):
        nested = [nested]
    assert ("$[1][3]['x']", "nested deeper than 64") == refusal(STORE | {"x": nested})
    for raw in (b"\x91" * 600 + b"\x00", b"\x91" * 100_000 + b"\x00"):
        with pytest.raises(TooDeepError):
            decode_event(raw)


def test_the_short_way_gives_up_where_it_must() -> None:
    """`None` means that the long way decides."""
    assert read_by_type(encode(STORE), "$") == read_by_field(encode(STORE), "$")
    for value in (STORE | {"x": 1}, {"type": "BlockPinned"}, ["BlockStored"], STORE | {"block_size": -1}):
        assert None is read_by_type(encode(value), "$")


def test_opening_reads_no_field() -> None:
    """The head of an unknown event needs no more."""
    tag, fields, slots = open_event(encode({"type": "x", "a": 1}), "$")
    assert ("x", ["a"], None) == (tag, list(fields or ()), slots)
    tag, fields, slots = open_event(encode(["x", 1, {"kvbus_fields": {"a": 1}}]), "$")
    assert ("x", ["a"], 2) == (tag, list(fields or ()), len(slots or ()))
    assert None is open_event(encode(["x", 1]), "$").fields


def test_unwrapping_leaves_an_event_as_it_is() -> None:
    """Only a bin is opened."""
    raw = encode(STORE)
    assert raw is unwrap(raw, "$")
    assert raw == unwrap(encode(raw), "$")


def test_containers_are_known_by_their_first_byte() -> None:
    """All of msgpack's heads of arrays and maps, and no others."""
    expected = [isinstance(value, list | dict) for first in range(256) for value in [_first_of(first)]]
    assert expected == [is_container(first) for first in range(256)]


def _first_of(first: int) -> Any:
    """Return an empty container if the byte begins one."""
    try:
        return msgspec.msgpack.decode(bytes((first,)) + bytes(64), type=list[int] | dict[int, int])
    except msgspec.ValidationError:
        return None
    except msgspec.DecodeError:
        return [] if 0x80 <= first < 0xA0 or 0xDC <= first < 0xE0 else None

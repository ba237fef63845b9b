"""One event, from a value to bytes: vLLM's bytes, and nothing lost."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbus.errors import UsageError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, UnknownEvent
from kvbus.wire.reading import decode_event
from kvbus.wire.writing import encode_event


def written(event: Event, encoding: str = "map") -> Any:
    """Return what the encoded event holds, as plain values."""
    return msgspec.msgpack.decode(encode_event(event, encoding))  # type: ignore[arg-type]


def test_a_store_writes_required_keys_and_omits_defaults() -> None:
    """vLLM: fields without a default are always there, the others when set, in declared order."""
    required = [
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
    ]
    assert required == list(written(BlockStored([1])))
    full = BlockStored([1], 2, [3], 4, 5, "GPU", "l", [None], 0, "mamba", 8, "LOCAL", "k", "s", [[1]])
    assert [
        *required,
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
        "locality",
        "ownership",
        "session_id",
        "lookahead_token_ids",
    ] == list(written(full))


def test_a_store_has_a_wide_map_head() -> None:
    """msgspec reserves room for all sixteen keys; vLLM's bytes do so too."""
    assert b"\xde\x00\x08" == encode_event(BlockStored([1]))[:3]
    assert b"\xde\x00\x09" == encode_event(BlockStored([1], cache_salt="s"))[:3]
    assert b"\x83" == encode_event(BlockRemoved([1]))[:1]


def test_a_removal_writes_its_medium_always() -> None:
    """It has no default in vLLM."""
    assert {"type": "BlockRemoved", "block_hashes": [1], "medium": None} == written(BlockRemoved([1]))
    full = BlockRemoved([1], "CPU", 0, "LOCAL", "k")
    assert ["type", "block_hashes", "medium", "group_idx", "locality", "ownership"] == list(written(full))


def test_a_clear_is_its_type() -> None:
    """Fifteen more bytes would be a different event to a strict reader."""
    assert b"\x81\xa4type\xb0AllBlocksCleared" == encode_event(AllBlocksCleared())
    assert b"\x91\xb0AllBlocksCleared" == encode_event(AllBlocksCleared(), "array")


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        (BlockStored([1], cache_salt="s"), {"cache_salt": "s"}),
        (BlockStored([1], extra={"b": 1, "a": None}), {"b": 1}),
        (BlockStored([1], surplus=(None, 1)), {"kvbus_slots": [None, 1]}),
        (BlockRemoved([1], extra={"block_size": 16}), {"block_size": 16}),
        (BlockRemoved([1], extra={str(index): index for index in range(20)}), {"19": 19}),
        (AllBlocksCleared({"medium": "CPU", "ownership": "k"}), {"medium": "CPU", "ownership": "k"}),
        (UnknownEvent("x", {"a": 1}), {"type": "x", "a": 1}),
        (UnknownEvent("x", {"a": 1}, (2,), True), {"a": 1, "kvbus_slots": [2]}),
    ],
)
def test_map_form_carries_what_has_no_place(event: Event, fields: dict[str, Any]) -> None:
    """Unknown fields stand behind the known ones; slots get a name."""
    found = written(event)
    assert fields.items() <= found.items()
    assert event == decode_event(encode_event(event))


@pytest.mark.parametrize(
    ("event", "slots"),
    [
        (BlockStored([1], 2, [3], 4), [[1], 2, [3], 4, *[None] * 7]),
        (BlockStored([1], locality="LOCAL"), [[1], None, [], 0, *[None] * 7, "LOCAL"]),
        (BlockStored([1], lookahead_token_ids=[[5]]), [[1], None, [], 0, *[None] * 10, [[5]]]),
        (BlockStored([1], extra={"token_offset": 48}), [[1], None, [], 0, *[None] * 7, 48]),
        (
            BlockStored([1], locality="LOCAL", extra={"token_offset": 48}),
            [[1], None, [], 0, *[None] * 7, "LOCAL", None, None, None, {"kvbus_fields": {"token_offset": 48}}],
        ),
        (
            BlockStored([1], 0, cache_salt="s"),
            [[1], 0, [], 0, *[None] * 11, {"kvbus_fields": {"parent_block_hash": 0, "cache_salt": "s"}}],
        ),
        (BlockStored([1], surplus=(7,)), [[1], None, [], 0, *[None] * 11, 7]),
        (BlockRemoved([1]), [[1], None, None]),
        (BlockRemoved([1], "CPU", 0), [[1], "CPU", 0]),
        (BlockRemoved([1], ownership="k"), [[1], None, None, None, "k"]),
        (BlockRemoved([1], extra={"x": 1}), [[1], None, None, None, None, {"kvbus_fields": {"x": 1}}]),
        (AllBlocksCleared({"medium": "CPU"}), ["CPU"]),
        (AllBlocksCleared({"medium": 7}), [None, {"kvbus_fields": {"medium": 7}}]),
        (AllBlocksCleared({"ownership": "k"}), [None, {"kvbus_fields": {"ownership": "k"}}]),
        (AllBlocksCleared(surplus=(7,)), [None, 7]),
        (UnknownEvent("x", slots=(1, None), is_array=True), [1, None]),
        (UnknownEvent("x", {"a": None, "b": 1}), [{"kvbus_fields": {"b": 1}}]),
        (UnknownEvent("x"), [{"kvbus_fields": {}}]),
    ],
)
def test_array_form_carries_what_has_no_slot(event: Event, slots: list[Any]) -> None:
    """vLLM 0.23's slots when nothing else is set; further ones in declared order; the rest by name in the last."""
    assert slots == written(event, "array")[1:]
    assert event == decode_event(encode_event(event, "array"))


HASHES = st.integers(-(2**63), 2**64 - 1) | st.binary(min_size=1, max_size=32)
TEXT = st.none() | st.text(max_size=5)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
EXTRA = st.dictionaries(
    st.text(max_size=3) | st.sampled_from(["token_offset", "slot_12", "kvbus_fields"]), VALUES, max_size=2
)
SURPLUS = st.lists(VALUES, max_size=2).map(tuple)
TOKENS = st.lists(
    st.integers(0, 2**64 - 1) | st.text(max_size=3) | st.lists(st.integers(0, 9), min_size=2, max_size=2), max_size=4
)
STORES = st.builds(
    BlockStored,
    st.lists(HASHES, max_size=3, unique=True),
    st.none(),
    TOKENS,
    st.integers(0, 2**64 - 1),
    st.none() | st.integers(-1, 9),
    TEXT,
    TEXT,
    st.none() | st.lists(st.none() | st.lists(VALUES, max_size=2), max_size=2),
    st.none() | st.integers(0, 3),
    TEXT,
    st.none() | st.integers(0, 4096),
    TEXT,
    TEXT,
    TEXT,
    st.none() | st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2),
    TEXT,
    EXTRA,
    SURPLUS,
)
REMOVALS = st.builds(
    BlockRemoved, st.lists(HASHES, max_size=3), TEXT, st.none() | st.integers(0, 3), TEXT, TEXT, EXTRA, SURPLUS
)
CLEARS = st.builds(
    AllBlocksCleared, EXTRA | st.fixed_dictionaries({}, optional={"medium": VALUES, "ownership": VALUES}), SURPLUS
)
UNKNOWNS = st.builds(UnknownEvent, st.text(max_size=3), EXTRA) | st.builds(
    UnknownEvent, st.text(max_size=3), st.just({}), SURPLUS, st.just(True)
)
EVENTS = STORES | REMOVALS | CLEARS | UNKNOWNS


@given(EVENTS)
@settings(max_examples=15)
def test_whatever_is_written_reads_back(event: Event) -> None:
    """W2 and A1 for our own output: equal, in both forms."""
    assert event == decode_event(encode_event(event, "map"))
    assert event == decode_event(encode_event(event, "array"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(EVENTS)
@settings(max_examples=5_000)
def test_whatever_is_written_reads_back_at_length(event: Event) -> None:
    """The same, with rare combinations."""
    assert event == decode_event(encode_event(event, "map"))
    assert event == decode_event(encode_event(event, "array"))


@pytest.mark.parametrize("encoding", ["map", "array"])
@pytest.mark.parametrize(
    ("event", "text"),
    [
        (BlockStored([2**64]), "BlockStored.block_hashes holds an integer outside 64 bits"),
        (BlockStored([1], -(2**63) - 1), "BlockStored.parent_block_hash holds an integer outside 64 bits"),
        (BlockRemoved([1], extra={"x": [2**64]}), "BlockRemoved.extra holds an integer outside 64 bits"),
        (BlockStored([1], token_ids=[object()]), "BlockStored.token_ids holds what msgpack cannot carry"),
        (BlockStored([1], medium="\ud800"), "BlockStored.medium holds what msgpack cannot carry"),
        (BlockRemoved([1], extra={"type": 1}), "extra field 'type'"),
        (BlockRemoved([1], extra={"medium": "x"}), "extra field 'medium'"),
        (BlockRemoved([1], extra={1: "x"}), "extra field 1"),  # type: ignore[dict-item]
        (BlockStored([1], extra={"cache_salt": "x"}), "extra field 'cache_salt'"),
        (AllBlocksCleared({"type": "x"}), "extra field 'type'"),
        (UnknownEvent("x", {"type": "y"}), "extra field 'type'"),
        (UnknownEvent("BlockStored", {"x": 1}), "an UnknownEvent of the known type BlockStored"),
        (UnknownEvent("AllBlocksCleared", is_array=True), "an UnknownEvent of the known type AllBlocksCleared"),
    ],
)
def test_g10_what_cannot_be_carried_is_the_callers_fault(event: Event, encoding: str, text: str) -> None:
    """Named by field, and never with its content."""
    with pytest.raises(UsageError, match=re.escape(text)):
        encode_event(event, encoding)  # type: ignore[arg-type]


def test_slots_without_a_name_do_not_replace_a_field() -> None:
    """The key that carries them is taken."""
    with pytest.raises(UsageError, match="kvbus_slots"):
        encode_event(BlockRemoved([1], extra={"kvbus_slots": 1}, surplus=(2,)))


def test_deep_values_are_the_callers_fault() -> None:
    """Not the interpreter's."""
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(UsageError):
        encode_event(BlockRemoved([1], extra={"x": nested}))
    while nested:  # Taken apart by hand: the interpreter would recurse.
        nested = nested.pop()


@pytest.mark.parametrize("encoding", ["map", "array"])
@pytest.mark.parametrize("thing", [None, 7, "BlockStored", {"type": "BlockStored"}, BlockStored, object()])
def test_what_is_no_event_is_the_callers_mistake(thing: Any, encoding: str) -> None:
    """A slip in somebody's offloading code must name itself, not an attribute of ours."""
    with pytest.raises(UsageError, match="is no event"):
        encode_event(thing, encoding)  # type: ignore[arg-type]

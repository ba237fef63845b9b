"""The tables of fields agree with the nouns, with each other and with what msgspec accepts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvbus.events import BlockRemoved, BlockStored
from kvbus.wire import dialects as d


def test_slots_stand_in_the_order_of_the_nouns() -> None:
    """The codec hands fields over by place."""
    assert [*d.STORED_SLOTS, "cache_salt", "extra", "surplus"] == list(BlockStored.__struct_fields__)
    assert [*d.REMOVED_SLOTS, "extra", "surplus"] == list(BlockRemoved.__struct_fields__)


@pytest.mark.parametrize(
    ("struct", "names"),
    [
        (d.StoredMap, (*d.STORED_SLOTS, "cache_salt")),
        (d.StoredArray, d.STORED_SLOTS),
        (d.StoredWritten, d.STORED_SLOTS),
        (d.RemovedMap, d.REMOVED_SLOTS),
        (d.RemovedArray, d.REMOVED_SLOTS),
        (d.RemovedWritten, d.REMOVED_SLOTS),
    ],
)
def test_every_struct_has_the_fields_of_its_event(struct: type[msgspec.Struct], names: tuple[str, ...]) -> None:
    """One that lacks a field would lose it."""
    assert names == struct.__struct_fields__


@pytest.mark.parametrize("struct", [d.StoredMap, d.StoredArray, d.RemovedMap, d.RemovedArray])
def test_structs_and_single_fields_have_the_same_types(struct: type[msgspec.Struct]) -> None:
    """The short way and the long way must refuse the same values."""
    for field in msgspec.structs.fields(struct):
        assert d.FIELD_TYPES[field.name] == field.type, field.name


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("block_hashes", [[], [0, 2**64 - 1, -(2**63)], [b"x" * 8, b"y" * 32], [1, b"x"]]),
        ("parent_block_hash", [None, 0, -1, b"x"]),
        ("token_ids", [None, [], [0, 2**40], [[5, 9]], ["digest", 7]]),
        ("block_size", [None, 0, 528]),
        ("lora_id", [None, 0, -1]),
        ("medium", [None, "", "GPU", "ä"]),
        ("extra_keys", [None, [], [None], [["lora", ["id", -3], "salt"]]]),
        ("group_idx", [None, 0, 7]),
        ("kv_cache_spec_sliding_window", [None, 4096]),
        ("lookahead_token_ids", [None, [], [[1, 2], []]]),
    ],
)
def test_values_that_engines_send_are_accepted(name: str, values: list[Any]) -> None:
    """WIRE: ints, pairs, text; int or bytes; nil."""
    for value in values:
        assert value == msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=d.FIELD_TYPES[name])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("block_hashes", [None, 1, [None], ["1"], [1.0], [True], [b""], [[1]]]),
        ("parent_block_hash", ["1", 1.0, False, [1], b""]),
        ("token_ids", [1, "x", [-1], [[1]], [[1, 2, 3]], [[1, -2]], [["a", 1]], [1.0], [None], [b"x"]]),
        ("block_size", [-1, 1.0, "16", True]),
        ("medium", [1, b"GPU", ["GPU"]]),
        ("group_idx", [-1, 0.0, False]),
        ("lookahead_token_ids", [[1], [[-1]], [None]]),
    ],
)
def test_values_that_no_engine_sends_are_refused(name: str, values: list[Any]) -> None:
    """A text hash or a negative token is a fault of the sender, and is said to be one (G09)."""
    for value in values:
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=d.FIELD_TYPES[name])

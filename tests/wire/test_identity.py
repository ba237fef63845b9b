"""Whether two encoded events say the same (A1)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from kvbus.errors import DecodeError
from kvbus.events import Event
from kvbus.wire.identity import identity_of, same_event
from kvbus.wire.writing import encode_event
from tests.wire.test_writing import EVENTS


def encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


REMOVAL = ["BlockRemoved", [5], "GPU"]


@pytest.mark.parametrize(
    "other",
    [
        encode(REMOVAL),
        encode([*REMOVAL, None, None]),
        encode({"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU"}),
        encode({"medium": "GPU", "group_idx": None, "future": None, "block_hashes": [5], "type": "BlockRemoved"}),
        encode(encode(REMOVAL)),
        b"\x93\xacBlockRemoved\x91\xcf\0\0\0\0\0\0\0\x05\xa3GPU",
        b"\xdc\x00\x03\xd9\x0cBlockRemoved\xdd\x00\x00\x00\x01\xd3\0\0\0\0\0\0\0\x05\xda\x00\x03GPU",
    ],
)
def test_same_in_every_form(other: bytes) -> None:
    """Array, map or bin, absent or nil, whatever the width and the order of keys."""
    assert same_event(encode(REMOVAL), other)
    assert same_event(other, encode(REMOVAL))
    assert identity_of(other) == identity_of(encode(REMOVAL))


@pytest.mark.parametrize(
    "other",
    [
        ["BlockRemoved", [6], "GPU"],
        ["BlockRemoved", [5, 5], "GPU"],
        ["BlockRemoved", [b"\x05"], "GPU"],
        ["BlockRemoved", [5], "gpu"],
        ["BlockRemoved", [5], "GPU", 0],
        ["BlockRemoved", [5], "GPU", None, "LOCAL"],
        ["BlockRemoved", [5], "GPU", None, None, ""],
        ["BlockRemoved", [5], "GPU", None, None, None, 1],
        {"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU", "future": 0},
        ["BlockDropped", [5], "GPU"],
    ],
)
def test_not_the_same(other: Any) -> None:
    """Every field counts, unknown ones included."""
    assert not same_event(encode(REMOVAL), encode(other))


def test_the_same_block_under_two_owners_stays_apart() -> None:
    """The engine and a tier can both hold a hash in the same medium."""
    removal = {"type": "BlockRemoved", "block_hashes": [5], "medium": "CPU"}
    raws = [encode(removal), encode(removal | {"ownership": "kvcr"}), encode(removal | {"ownership": ""})]
    assert [(0, 0), (1, 1), (2, 2)] == [(i, j) for i in range(3) for j in range(3) if same_event(raws[i], raws[j])]


def test_an_unreadable_event_equals_only_its_own_bytes() -> None:
    """A head may be readable where the event is not; nothing is raised for it."""
    raw, wide = encode(["BlockStored", [1], None, [-1], 1]), b"\x95\xabBlockStored\x91\xcc\x01\xc0\x91\xff\x01"
    assert same_event(raw, raw)
    assert not same_event(raw, wide)
    assert not same_event(raw, encode(REMOVAL))
    with pytest.raises(DecodeError):
        identity_of(raw)


@given(EVENTS, EVENTS)
@settings(max_examples=15)
def test_same_means_equal_values(a: Event, b: Event) -> None:
    """Whatever the form of either."""
    for first in (encode_event(a, "map"), encode_event(a, "array")):
        for second in (encode_event(b, "map"), encode_event(b, "array")):
            assert (a == b) == same_event(first, second)
        assert same_event(first, encode_event(a, "map"))

"""What the broker reads of an event: enough to decide, and the same whatever the form."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvbus.errors import DecodeError
from kvbus.events import EventKind, Facets
from kvbus.wire import head as head_module
from kvbus.wire.head import Form, Head, form_of, read_head

STORE = {"type": "BlockStored", "block_hashes": [1, b"x"], "parent_block_hash": 9, "token_ids": [7], "block_size": 1}
PLACED = {"medium": "CPU", "ownership": "kvcr", "locality": "LOCAL", "group_idx": 0, "kv_cache_spec_kind": "mamba"}
TAIL = [None, "CPU", None, None, 0, "mamba", None, "LOCAL", "kvcr"]


def encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def head(value: Any) -> Head:
    return read_head(encode(value))


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (STORE | PLACED, Form.MAP),
        (STORE | PLACED | {"future": [[[]]]}, Form.MAP),
        (["BlockStored", [1, b"x"], 9, [7], 1, *TAIL], Form.ARRAY),
        (["BlockStored", [1, b"x"], 9, [7], 1, *TAIL, 7, 7, 7, 7], Form.ARRAY),
        (encode(STORE | PLACED), Form.NESTED),
        (encode(["BlockStored", [1, b"x"], 9, [7], 1, *TAIL]), Form.NESTED),
    ],
)
def test_a_stores_head_is_the_same_in_every_form(value: Any, form: Form) -> None:
    """Facets, hashes and parent; the form is told beside them."""
    facets = Facets(EventKind.STORED, "CPU", "kvcr", "LOCAL", 0, "mamba")
    assert Head(facets, "BlockStored", form, [1, b"x"], 9, False) == head(value)
    assert form is form_of(encode(value))


@pytest.mark.parametrize(
    "value",
    [
        {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"},
        ["BlockRemoved", [1], "GPU"],
        ["BlockRemoved", [1], "GPU", None, None, None, "more"],
        encode(["BlockRemoved", [1], "GPU"]),
    ],
)
def test_a_removals_head(value: Any) -> None:
    """No kind: that is learned from stores."""
    found = head(value)
    assert (Facets(EventKind.REMOVED, "GPU"), "BlockRemoved", [1], None, False) == (
        found.facets,
        found.type,
        found.block_hashes,
        found.parent_block_hash,
        found.is_scoped_clear,
    )


def test_a_removal_may_name_its_kind() -> None:
    """Some producer adds it; any other value in that field is not a kind."""
    removal = {"type": "BlockRemoved", "block_hashes": [1]}
    assert "mamba" == head(removal | {"kv_cache_spec_kind": "mamba"}).facets.spec_kind
    assert None is head(removal | {"kv_cache_spec_kind": 7}).facets.spec_kind


@pytest.mark.parametrize(
    ("value", "facets", "is_scoped"),
    [
        ({"type": "AllBlocksCleared"}, Facets(EventKind.CLEARED), False),
        ({"type": "AllBlocksCleared", "medium": "CPU"}, Facets(EventKind.CLEARED, "CPU"), True),
        ({"type": "AllBlocksCleared", "ownership": ""}, Facets(EventKind.CLEARED, None, ""), True),
        ({"type": "AllBlocksCleared", "medium": 7}, Facets(EventKind.CLEARED), False),
        ({"type": "AllBlocksCleared", "reason": "x"}, Facets(EventKind.CLEARED), False),
        (["AllBlocksCleared"], Facets(EventKind.CLEARED), False),
        (["AllBlocksCleared", None], Facets(EventKind.CLEARED), False),
        (["AllBlocksCleared", "CPU"], Facets(EventKind.CLEARED, "CPU"), True),
        (["AllBlocksCleared", 7], Facets(EventKind.CLEARED), False),
        (["AllBlocksCleared", "CPU", 1], Facets(EventKind.CLEARED, "CPU"), True),
    ],
)
def test_a_clears_head(value: Any, facets: Facets, is_scoped: bool) -> None:
    """A clear with a scope of its own closes no segment (A4)."""
    found = head(value)
    assert (facets, is_scoped, []) == (found.facets, found.is_scoped_clear, found.block_hashes)


@pytest.mark.parametrize(
    ("value", "facets"),
    [
        ({"type": "BlockPinned"}, Facets(EventKind.UNKNOWN)),
        ({"type": "BlockPinned"} | PLACED, Facets(EventKind.UNKNOWN, "CPU", "kvcr", "LOCAL", 0, "mamba")),
        ({"type": "BlockPinned", "medium": 7, "group_idx": "x"}, Facets(EventKind.UNKNOWN)),
        (["BlockPinned", "CPU"], Facets(EventKind.UNKNOWN)),
        (["BlockPinned", {"kvbus_fields": {"medium": "CPU"}}], Facets(EventKind.UNKNOWN, "CPU")),
    ],
)
def test_an_unknown_events_head(value: Any, facets: Facets) -> None:
    """It is filtered by the fields that it shares with the known ones."""
    found = head(value)
    assert (facets, "BlockPinned") == (found.facets, found.type)


def test_a_parent_of_zero_is_none_in_arrays_only() -> None:
    """Go producers; in a map 0 is a hash like any other."""
    assert None is head(["BlockStored", [1], 0, [], 0]).parent_block_hash
    assert 0 == head({"type": "BlockStored", "block_hashes": [1], "parent_block_hash": 0}).parent_block_hash
    assert [0] == head(["BlockStored", [0], 0, [], 0]).block_hashes


@pytest.mark.parametrize(
    "value",
    [
        5,
        [],
        {},
        {"type": 1},
        ["BlockStored", [1]],
        {"type": "BlockRemoved"},
        {"type": "BlockRemoved", "block_hashes": ["x"]},
        {"type": "BlockRemoved", "block_hashes": [1], "ownership": 7},
        STORE | {"group_idx": -1},
        STORE | {"block_size": -1},
        STORE | {"block_hashes": [1, 1]},
        STORE | {"block_hashes": [9, 1]},
        ["BlockStored", [1, 1], None, [], 0],
        encode(5),
    ],
)
def test_what_the_broker_cannot_use_is_refused(value: Any) -> None:
    """It judges the fields that it uses (W3)."""
    with pytest.raises(DecodeError):
        head(value)


def test_an_empty_event_is_refused() -> None:
    """`split_batch` never cuts one."""
    with pytest.raises(DecodeError):
        read_head(b"")


def test_what_the_broker_does_not_use_is_not_judged() -> None:
    """Token ids are stepped over: that is what makes a head cheap."""
    assert [1, b"x"] == head(STORE | {"token_ids": [-1], "session_id": 7}).block_hashes
    assert [1] == head(["BlockStored", [1], None, [-1], 1, "x", None, 7, 7]).block_hashes


def test_equal_facets_are_one_object() -> None:
    """Views keep a verdict for each."""
    first, second = head(STORE | PLACED), head(["BlockStored", [5], None, [], 0, *TAIL])
    assert first.facets is second.facets


def test_facets_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that makes up media must not fill our memory."""
    monkeypatch.setattr(head_module, "_interned", {})
    monkeypatch.setattr(head_module, "_INTERNED_MAX", 10)
    for index in range(25):
        assert f"m{index}" == head({"type": "BlockRemoved", "block_hashes": [1], "medium": f"m{index}"}).facets.medium
    assert 5 == len(head_module._interned)
    assert "x" * 1_000 == head(["BlockRemoved", [1], "x" * 1_000]).facets.medium
    assert 5 == len(head_module._interned)

"""Equality on the bus, kinds and facets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventKind,
    Facets,
    UnknownEvent,
    facets_of,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (BlockRemoved([1]), BlockRemoved([1], None, None)),
        (BlockStored([1], token_ids=[[5, 9]]), BlockStored([1], token_ids=[(5, 9)])),
        (BlockRemoved([1], extra={"a": None}), BlockRemoved([1])),
        (BlockRemoved([1], extra={"a": 1, "b": 2}), BlockRemoved([1], extra={"b": 2, "a": 1})),
        (BlockRemoved([1], extra={"a": {"x": 1, "y": 2}}), BlockRemoved([1], extra={"a": {"y": 2, "x": 1}})),
        (BlockRemoved([1], extra={"a": {1: 1, "y": 2}}), BlockRemoved([1], extra={"a": {"y": 2, 1: 1}})),
        (BlockRemoved([1], surplus=(1, None)), BlockRemoved([1], surplus=(1,))),
        (UnknownEvent("x", {"a": None}), UnknownEvent("x")),
        (AllBlocksCleared(), AllBlocksCleared({})),
    ],
)
def test_what_says_the_same_is_equal(a: Event, b: Event) -> None:
    """Absent or nil, in whatever order."""
    assert a == b
    assert hash(a) == hash(b)
    assert len({a, b}) == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (BlockRemoved([1]), BlockRemoved([True])),
        (BlockRemoved([1]), BlockRemoved([1.0])),  # type: ignore[list-item]
        (BlockRemoved([-1]), BlockRemoved([2**64 - 1])),
        (BlockRemoved([2**64 - 1]), BlockRemoved([b"\xff" * 8])),
        (BlockRemoved([b"a"]), BlockRemoved(["a"])),  # type: ignore[list-item]
        (BlockRemoved([1, 2]), BlockRemoved([2, 1])),
        (BlockRemoved([1], group_idx=0), BlockRemoved([1])),
        (BlockRemoved([1], ownership=""), BlockRemoved([1])),
        (BlockRemoved([1], "GPU"), BlockRemoved([1], "gpu")),
        (BlockStored([1], token_ids=None, block_size=None), BlockStored([1])),
        (BlockStored([1], extra_keys=[]), BlockStored([1])),
        (BlockStored([1]), BlockRemoved([1])),
        (BlockRemoved([1], extra={"a": {"x": None}}), BlockRemoved([1], extra={"a": {}})),
        (BlockRemoved([1], surplus=(None, 1)), BlockRemoved([1], surplus=(1,))),
        (BlockRemoved([1], extra={"a": {1: 2}}), BlockRemoved([1], extra={"a": {"1": 2}})),
        (BlockRemoved([1], extra={"a": {1: 2}}), BlockRemoved([1], extra={"a": [[1, 2]]})),
        (UnknownEvent("x", slots=(1,), is_array=True), UnknownEvent("x", slots=(1,))),
        (AllBlocksCleared({"medium": "CPU"}), AllBlocksCleared()),
    ],
)
def test_what_says_something_else_is_not_equal(a: Event, b: Event) -> None:
    """Plain Python equality would call the first of these equal."""
    assert a != b
    assert len({a, b}) == 2


def test_an_event_is_not_equal_to_anything_else() -> None:
    """Comparing with a stranger is no error."""
    assert BlockRemoved([1]) != [1]


@given(VALUES, VALUES)
def test_equal_means_equal_in_msgpack(a: object, b: object) -> None:
    """Whatever an engine may put into a field of its own."""
    first, second = BlockRemoved([1], extra={"a": a}), BlockRemoved([1], extra={"a": b})
    assert (first == second) == (first.identity() == second.identity())
    assert first == BlockRemoved([1], extra={"a": a})
    if first == second:
        assert hash(first) == hash(second)
        assert a == b


@pytest.mark.parametrize(
    ("event", "facets"),
    [
        (
            BlockStored([1], medium="CPU", ownership="kvcr", locality="LOCAL", group_idx=0, kv_cache_spec_kind="mamba"),
            Facets(EventKind.STORED, "CPU", "kvcr", "LOCAL", 0, "mamba"),
        ),
        (BlockStored([1]), Facets(EventKind.STORED)),
        (BlockRemoved([1], "GPU", 1, "REMOTE", ""), Facets(EventKind.REMOVED, "GPU", "", "REMOTE", 1)),
        (
            BlockRemoved([1], extra={"kv_cache_spec_kind": "mamba"}),
            Facets(EventKind.REMOVED, spec_kind="mamba"),
        ),
        (BlockRemoved([1], extra={"kv_cache_spec_kind": 7}), Facets(EventKind.REMOVED)),
        (AllBlocksCleared(), Facets(EventKind.CLEARED)),
        (AllBlocksCleared({"medium": "CPU", "ownership": "k"}), Facets(EventKind.CLEARED, "CPU", "k")),
        (UnknownEvent("x", {"medium": "GPU", "group_idx": 2}), Facets(EventKind.UNKNOWN, "GPU", group_idx=2)),
        (UnknownEvent("x", {"medium": 1, "group_idx": True}), Facets(EventKind.UNKNOWN)),
        (UnknownEvent("x", slots=("GPU",), is_array=True), Facets(EventKind.UNKNOWN)),
    ],
)
def test_facets(event: Event, facets: Facets) -> None:
    """What filters look at; group 0 and an empty owner are something."""
    assert facets == facets_of(event)


@pytest.mark.parametrize(
    ("extra", "is_scoped"),
    [
        ({}, False),
        ({"medium": "CPU"}, True),
        ({"ownership": ""}, True),
        ({"medium": 3}, False),
        ({"reason": "x"}, False),
    ],
)
def test_a_clear_is_scoped_only_by_text(extra: dict[str, object], is_scoped: bool) -> None:
    """A scope that cannot be understood clears everything, which is safe."""
    assert is_scoped is AllBlocksCleared(extra).is_scoped


def test_a_store_without_tokens_is_a_placeholder() -> None:
    """With a block size or without, with an empty list or none."""
    assert BlockStored([1]).is_placeholder
    assert BlockStored([1], token_ids=[], block_size=16).is_placeholder
    assert BlockStored([1], token_ids=None, block_size=None).is_placeholder
    assert not BlockStored([1], token_ids=[7], block_size=1).is_placeholder

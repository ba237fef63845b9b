"""What the aggregator is told about values of `kvbus.events`."""

from __future__ import annotations

import pytest

from kvbus.aggregate.description import Kind, describe_event
from kvbus.errors import DecodeError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, UnknownEvent


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (BlockStored([1]), Kind.STORE),
        (BlockRemoved([1]), Kind.REMOVAL),
        (AllBlocksCleared(), Kind.CLEAR),
        (AllBlocksCleared(extra={"reason": "reset"}), Kind.CLEAR),
        (AllBlocksCleared(extra={"medium": "CPU"}), Kind.REMOVAL),
        (AllBlocksCleared(extra={"ownership": "tier"}), Kind.REMOVAL),
        (UnknownEvent("BlockMoved"), Kind.OTHER),
    ],
)
def test_kinds_of_events(event: Event, expected: Kind) -> None:
    """A clear with a scope of its own closes no segment, but it only takes away, as a removal does."""
    assert expected is describe_event(event).kind


def test_only_what_takes_away_is_safe_alone() -> None:
    """An unknown event may announce something, so it is held to the rule of stores."""
    assert [Kind.REMOVAL, Kind.CLEAR] == [kind for kind in Kind if kind.is_safe_alone]


def test_the_size_grows_with_the_event() -> None:
    """Pending events are bounded by their bytes."""
    small, large = BlockStored([1], token_ids=[1] * 16), BlockStored([1], token_ids=[1] * 1600)
    assert describe_event(small).size_bytes + 1000 < describe_event(large).size_bytes


def test_values_need_no_bucket() -> None:
    """They compare by value, whatever encoding they came in."""
    assert describe_event(BlockStored([1])).bucket is None


@pytest.mark.parametrize("event", [None, b"raw", BlockStored([2**64]), BlockStored([1], extra={"x": object()})])
def test_what_is_no_event_is_a_fault_of_the_sender(event: Event) -> None:
    """The aggregator counts it as rejected and goes on."""
    with pytest.raises(DecodeError):
        describe_event(event)

"""What is kept of a block."""

from __future__ import annotations

from kvbus.events import BlockStored, facets_of
from kvbus.views.origin import Origin, Place
from kvbus.wire.writing import encode_event


def origin_of(event: BlockStored) -> Origin:
    return Origin(encode_event(event), tuple(event.block_hashes), event.parent_block_hash, facets_of(event))


def test_the_parent_of_a_block_is_the_one_before_it():
    """The first one's is said by the event."""
    origin = origin_of(BlockStored([1, 2], 7, [5, 6], 1))
    assert [7, 1] == [origin.parent_of(index) for index in range(2)]
    assert None is origin_of(BlockStored([1], None, [5], 1)).parent_of(0)


def test_an_event_without_tokens_describes_nothing():
    """A placeholder gives way to an event that says more; whether it is one is found out once."""
    assert origin_of(BlockStored([1], None, [5], 1)).is_described
    assert not origin_of(BlockStored([1], None, [], 0)).is_described


def test_absent_is_not_zero_nor_empty():
    """Two places are equal only when every field is."""
    assert Place("GPU", None, None, None) != Place("GPU", None, None, 0)
    assert Place("GPU", None, None, 0) != Place("GPU", "", None, 0)

"""What a manager tells."""

from kvbus.offload.events import OffloadingEvent
from kvbus.offload.keys import make_offload_key


def test_an_event_has_no_block_size() -> None:
    """Blocks of different sizes share an event, so a size in it could only be wrong for some of them."""
    assert ("keys", "medium", "removed", "locality", "ownership") == OffloadingEvent.__struct_fields__


def test_locality_and_ownership_are_unsaid_unless_given() -> None:
    event = OffloadingEvent([make_offload_key(1)], "CPU", False)
    assert (None, None) == (event.locality, event.ownership)

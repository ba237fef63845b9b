"""A copy of a residency says what the residency said, whatever becomes of it."""

from __future__ import annotations

from kvbus.events import AllBlocksCleared, BlockStored
from kvbus.views.filters import EventFilter
from kvbus.views.frozen import FrozenResidency
from kvbus.views.residency import Residency
from tests.views.folding import encoded


def test_a_copy_does_not_follow_the_residency() -> None:
    """A snapshot is of one number, however long it takes to build."""
    residency = Residency("g", 3, model="m")
    residency.worker_topic = b"t"
    residency.fold(*encoded([BlockStored([1, 2], None, [5, 6], 1, medium="GPU")]), 7.0)
    frozen = residency.freeze(EventFilter())
    residency.fold(*encoded([AllBlocksCleared()]), 8.0)
    assert isinstance(frozen, FrozenResidency)
    assert ("g", 3, 7.0, b"t", "m") == (*frozen[:3], frozen.worker_topic, frozen.model)
    assert [[1, 2]] == [list(shelf.blocks) for shelf in frozen.shelves]

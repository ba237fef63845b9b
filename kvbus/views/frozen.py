"""A residency at one moment, copied so that a snapshot can be built of it while the residency goes on changing."""

from __future__ import annotations

from typing import NamedTuple

from kvbus.events import BlockHash
from kvbus.views.origin import Origin, Place
from kvbus.views.placeholders import Descriptions
from kvbus.wire.head import Form

__all__ = ["FrozenResidency", "FrozenShelf"]


class FrozenShelf(NamedTuple):
    """Copy of the blocks of one place.

    Attributes:
        place: Which.
        blocks: Origin by hash, oldest first; belongs to the receiver.
        copies: References by hash, where there is more than one.
    """

    place: Place
    blocks: dict[BlockHash, Origin]
    copies: dict[BlockHash, int]


class FrozenResidency(NamedTuple):
    """Copy of a residency at one moment.

    Attributes:
        group: Worker group.
        data_parallel_rank: Rank.
        ts: Newest engine time folded, seconds since the epoch.
        form: Form of the newest event.
        shelves: Places with blocks, in the order in which they were first used.
        worker_topic: As in `Residency`.
        model: As in `Residency`.
        descriptions: As in `Residency`.
    """

    group: str
    data_parallel_rank: int | None
    ts: float
    form: Form
    shelves: list[FrozenShelf]
    worker_topic: bytes = b""
    model: str = ""
    descriptions: Descriptions | None = None

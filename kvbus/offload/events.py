"""What an offloading manager tells: these keys came into a medium, or left it.

There is no block size in it. Keys of several KV-cache groups, and so blocks of several sizes, may share one event; whoever wants
the size knows it from the primary tier's own events.
"""

from __future__ import annotations

import msgspec

from kvbus.offload.keys import OffloadKey

__all__ = ["OffloadingEvent"]


class OffloadingEvent(msgspec.Struct, frozen=True):
    """A change of what a tier holds (vLLM `OffloadingEvent`).

    Attributes:
        keys: Blocks in the order in which they came or went; any groups and sizes together, never empty from our managers.
        medium: Where: `CPU`, `STORAGE`, …
        removed: True if the blocks left, False if they can be loaded from now on.
        locality: `LOCAL`, `REMOTE` or unsaid.
        ownership: Secondary tier that speaks; `None` = the primary, the engine itself.
    """

    keys: list[OffloadKey]
    medium: str
    removed: bool
    locality: str | None = None
    ownership: str | None = None

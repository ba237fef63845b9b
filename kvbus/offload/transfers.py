"""What managers and schedulers answer: what is there, what to copy, and where.

A *job* is a copy that somebody has to carry out. It has ended when the one who does says so; until then its blocks stay put.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kvbus.offload.keys import OffloadKey

__all__ = ["CPULoadStoreSpec", "LoadJob", "LookupResult", "PrepareStoreOutput", "StoreJob"]


class LookupResult(Enum):
    """What `CPUOffloadingManager.lookup` found (vLLM `LookupResult`, without its `RETRY`, which a pure pool never says)."""

    MISS = "miss"
    """Not in the pool."""
    HIT = "hit"
    """Can be loaded now."""
    HIT_PENDING = "hit pending"
    """Its store has begun and not ended: ask again later."""


class CPULoadStoreSpec(NamedTuple):
    """Where blocks lie in the pool (vLLM `CPULoadStoreSpec`).

    Attributes:
        block_ids: Slots in [0, num_blocks), one a key, in the order of the keys.
    """

    block_ids: list[int]


class PrepareStoreOutput(NamedTuple):
    """What a store has to copy (vLLM `PrepareStoreOutput`).

    Attributes:
        keys_to_store: Keys to copy, in the order of the call; those already in the pool or not yet worth it are left out.
        store_spec: Where to, one slot a key.
        evicted_keys: Keys driven out for it, in order; they cannot be loaded any more.
    """

    keys_to_store: list[OffloadKey]
    store_spec: CPULoadStoreSpec
    evicted_keys: list[OffloadKey]


class LoadJob(NamedTuple):
    """Blocks that a request takes from the pool instead of computing them.

    Attributes:
        request_id: The request; ended with its id.
        keys: Blocks, in the order of the tokens at which they end.
        load_spec: Where they lie, one slot a key.
        num_tokens: Tokens that need not be computed, a multiple of the scheduler's block size.
    """

    request_id: str
    keys: list[OffloadKey]
    load_spec: CPULoadStoreSpec
    num_tokens: int


class StoreJob(NamedTuple):
    """Blocks that are copied into the pool.

    Attributes:
        job_id: Ended with this; counts up from 0 and is never reused.
        keys: Blocks, in the order of the tokens at which they end, or of the GPU's evictions.
        store_spec: Where to, one slot a key.
        evicted_keys: Blocks driven out for it.
        request_id: Whose blocks; `None` in lazy mode, where they are nobody's.
    """

    job_id: int
    keys: list[OffloadKey]
    store_spec: CPULoadStoreSpec
    evicted_keys: list[OffloadKey]
    request_id: str | None

"""The worker side: what a real engine does with its KV blocks outside the GPU, without the GPU.

Here is the model of vLLM's offloading: `manager` with its policies `lru` and `arc` decides what is kept and what goes, `tracker`
turns that into the wire's events, `block_sizes`, `layout` and `scheduler` match prefixes of hybrid models, and request traces
drive all of it. Names of classes, methods and fields are vLLM's. What those need who write an offloading tier is here by name.

Nothing here copies a byte of KV data, opens a file or a socket, or knows the time.
"""

from __future__ import annotations

from kvbus.offload.block_sizes import resolve_kv_cache_block_sizes
from kvbus.offload.events import OffloadingEvent
from kvbus.offload.groups import GroupOffloadConfig, KVCacheGroup
from kvbus.offload.keys import OffloadKey, get_offload_block_hash, get_offload_group_idx, make_offload_key
from kvbus.offload.lazy import GpuBlock
from kvbus.offload.manager import CPUOffloadingManager
from kvbus.offload.request import OffloadRequest, Request
from kvbus.offload.scheduler import OffloadScheduler
from kvbus.offload.tracker import OffloadingEventsTracker
from kvbus.offload.transfers import CPULoadStoreSpec, LoadJob, LookupResult, PrepareStoreOutput, StoreJob

__all__ = [
    "CPULoadStoreSpec",
    "CPUOffloadingManager",
    "GpuBlock",
    "GroupOffloadConfig",
    "KVCacheGroup",
    "LoadJob",
    "LookupResult",
    "OffloadKey",
    "OffloadRequest",
    "OffloadScheduler",
    "OffloadingEvent",
    "OffloadingEventsTracker",
    "PrepareStoreOutput",
    "Request",
    "StoreJob",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "make_offload_key",
    "resolve_kv_cache_block_sizes",
]

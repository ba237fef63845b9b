"""What the simulated engine is like."""

from __future__ import annotations

import msgspec

from kvbus.offload.groups import KVCacheGroup

__all__ = ["EngineOptions", "TierOptions"]


class TierOptions(msgspec.Struct, frozen=True):
    """One secondary tier behind the CPU tier.

    Attributes:
        ownership: Its name, as events carry it.
        medium: Where it keeps blocks.
        blocks: How many it holds, ≥ 1.
    """

    ownership: str
    medium: str
    blocks: int


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A model, its memory and its speed.

    The speeds are those of a mid-size model on one accelerator; they decide when things happen and how much happens at
    once, and so how caches overlap, not what a block is.

    Attributes:
        gpu_blocks: Blocks in the GPU's pool, ≥ 1, shared by all groups.
        cpu_blocks: Blocks in the CPU tier; 0 = there is none, and then no secondary tier either.
        groups: KV-cache groups of the model, at least one.
        hash_block_size: Tokens behind one hash, if it shall not be the greatest common divisor of the groups' block sizes.
        cache_policy: `lru` or `arc`, of the CPU tier and those behind it.
        cpu_medium: Medium of the CPU tier's events.
        ownership: Owner of the CPU tier's events; `None` = the engine itself.
        locality: Locality of all offloading events.
        tiers: Secondary tiers, the nearest first.
        self_describing: Whether offloading events carry tokens where these are known, or are placeholders.
        lazy_offload: Whether the CPU tier gets what the GPU is about to evict, and not what has been computed. Its events are
            placeholders then, since the request that could describe a block is gone.
        step_tokens_max: Tokens of prompts computed in one step, ≥ 1. vLLM's `max_num_batched_tokens`.
        running_max: Requests in the engine at once, ≥ 1. vLLM's `max_num_seqs`.
        step_ns_min: Shortest step, nanoseconds.
        prefill_tokens_per_second: Speed of computing prompts.
        output_tokens_per_second: Speed of one answer.
        cpu_tokens_per_second: Speed of one copy between GPU and CPU.
        tier_tokens_per_second: Speed of one copy between CPU and a secondary tier.
        clears_per_hour: How often the whole cache is reset, on average; 0 = never.
    """

    gpu_blocks: int = 2000
    cpu_blocks: int = 8000
    groups: tuple[KVCacheGroup, ...] = (KVCacheGroup("full_attention", 16),)
    hash_block_size: int | None = None
    cache_policy: str = "lru"
    cpu_medium: str = "CPU"
    ownership: str | None = None
    locality: str | None = None
    tiers: tuple[TierOptions, ...] = ()
    self_describing: bool = True
    lazy_offload: bool = False
    step_tokens_max: int = 8192
    running_max: int = 128
    step_ns_min: int = 10_000_000
    prefill_tokens_per_second: float = 50_000.0
    output_tokens_per_second: float = 50.0
    cpu_tokens_per_second: float = 500_000.0
    tier_tokens_per_second: float = 100_000.0
    clears_per_hour: float = 0.0

"""What a simulated engine has done, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kvbus.events import BlockRemoved, BlockStored, Event
from kvbus.offload.running import RunningRequest

__all__ = ["EngineCounts"]


class EngineCounts:
    """Counts of one engine; they only grow.

    Attributes:
        requests: Requests that have arrived.
        requests_refused: Of these, those that can never fit into the GPU's pool.
        requests_admitted: Prompts that were computed to their end; a preempted one counts when it is done again.
        requests_finished: Requests that have answered.
        preempted: Times that a request lost its blocks to an older one.
        clears: Resets of the whole cache.
        prompt_tokens: Tokens of all admitted prompts that have a hash, which is what could be hit. The base of hit rates.
        gpu_hit_tokens: Of these, found in the GPU's prefix cache.
        cpu_hit_tokens: Of these, loaded from the CPU tier, without what was promoted for the request.
        tier_hit_tokens: Of these, promoted from each secondary tier, by owner.
        block_events: Block hashes in events, stored and removed.
    """

    def __init__(self, tier_names: tuple[str, ...]) -> None:
        """Start at 0.

        Args:
            tier_names: Owners of the secondary tiers, in order.
        """
        self.requests = 0
        self.requests_refused = 0
        self.requests_admitted = 0
        self.requests_finished = 0
        self.preempted = 0
        self.clears = 0
        self.prompt_tokens = 0
        self.gpu_hit_tokens = 0
        self.cpu_hit_tokens = 0
        self.tier_hit_tokens = dict.fromkeys(tier_names, 0)
        self.block_events = 0
        self._tier_names = tier_names

    def admit(self, request: RunningRequest, gpu_tokens: int, external_tokens: int, hashed_tokens: int) -> None:
        """Count where the prompt of a request was found; once, however often it is preempted.

        Args:
            request: A request that is admitted now.
            gpu_tokens: Tokens hit on the GPU.
            external_tokens: Tokens loaded from the CPU tier, promoted ones included.
            hashed_tokens: Tokens of its prompt that have a hash.
        """
        if request.is_counted:
            return
        request.is_counted = True
        self.prompt_tokens += hashed_tokens
        self.gpu_hit_tokens += gpu_tokens
        self.cpu_hit_tokens += external_tokens
        if not external_tokens:
            return
        sources = Counter(request.promoted[key] for key in request.loaded_keys if key in request.promoted)
        for tier_index, key_count in sources.items():
            # By their share of the keys: with several groups, a token lies behind a key of each.
            tokens = external_tokens * key_count // len(request.loaded_keys)
            self.tier_hit_tokens[self._tier_names[tier_index]] += tokens
            self.cpu_hit_tokens -= tokens

    def take(self, events: Iterable[Event]) -> None:
        """Count what the events of a step say.

        Args:
            events: The engine's own.
        """
        for event in events:
            if isinstance(event, BlockStored | BlockRemoved):
                self.block_events += len(event.block_hashes)

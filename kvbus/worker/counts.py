"""What a trace worker has done, as values to print and compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvbus.offload.engine_counts import EngineCounts

__all__ = ["BlockCounts", "HitRates", "RankCounts", "RankTally", "WorkerCounts", "hit_rates"]


class BlockCounts(msgspec.Struct, frozen=True):
    """Events of one kind, medium and owner.

    Attributes:
        type: `BlockStored`, `BlockRemoved` or `AllBlocksCleared`.
        medium: Where; `None` for clears.
        ownership: Whose tier; `None` = the engine's own.
        events: How many events.
        blocks: How many hashes in them.
    """

    type: str
    medium: str | None
    ownership: str | None
    events: int
    blocks: int


class RankCounts(msgspec.Struct, frozen=True):
    """What one rank has published.

    Attributes:
        tensor_parallel_rank: Which rank.
        batches: Batches.
        events: Events in them.
        dropped: Batches that were numbered and not sent live, because a queue was full.
        by_kind: Events and blocks by type, medium and owner, sorted.
    """

    tensor_parallel_rank: int
    batches: int
    events: int
    dropped: int
    by_kind: list[BlockCounts]


class HitRates(msgspec.Struct, frozen=True):
    """Where prompts were found, as shares of all tokens that could be: those of full blocks.

    Attributes:
        total: Found anywhere.
        gpu: Found in the GPU's prefix cache.
        cpu: Loaded from the CPU tier.
        tiers: Promoted from each secondary tier, by owner.
    """

    total: float
    gpu: float
    cpu: float
    tiers: dict[str, float]


class WorkerCounts(msgspec.Struct, frozen=True):
    """What a trace worker has done so far.

    Attributes:
        is_done: Whether the trace has been played to its end.
        requests: Requests that have arrived.
        requests_refused: Of these, those too long for the GPU's pool.
        requests_finished: Requests answered.
        preempted: Times that a request lost its blocks to an older one.
        clears: Resets of the cache.
        steps: Steps of the engine with events.
        trace_seconds: Simulated time.
        elapsed_seconds: Time that it took.
        block_events: Blocks stored and removed, by the engine; each rank says all of them.
        hit_rates: Where prompts were found.
        ranks: What each rank has published.
    """

    is_done: bool
    requests: int
    requests_refused: int
    requests_finished: int
    preempted: int
    clears: int
    steps: int
    trace_seconds: float
    elapsed_seconds: float
    block_events: int
    hit_rates: HitRates
    ranks: list[RankCounts]


class RankTally:
    """Adds up what one rank publishes."""

    def __init__(self) -> None:
        """Start at 0."""
        self.batches = 0
        self.events = 0
        self._events: Counter[tuple[str, str, str]] = Counter()
        self._blocks: Counter[tuple[str, str, str]] = Counter()

    def add(self, events: Iterable[Event]) -> None:
        """Count one batch.

        Args:
            events: What is in it.
        """
        self.batches += 1
        for event in events:
            self.events += 1
            if isinstance(event, BlockStored | BlockRemoved):
                # Absent sorts in front of every name, and no name is empty.
                key = (type(event).__name__, event.medium or "", event.ownership or "")
                self._events[key] += 1
                self._blocks[key] += len(event.block_hashes)
            elif isinstance(event, AllBlocksCleared):
                self._events["AllBlocksCleared", "", ""] += 1

    def counts(self, tensor_parallel_rank: int, dropped: int) -> RankCounts:
        """Return the counts so far.

        Args:
            tensor_parallel_rank: Which rank this is.
            dropped: What its publisher dropped.
        """
        by_kind = [
            BlockCounts(kind, medium or None, ownership or None, count, self._blocks[kind, medium, ownership])
            for (kind, medium, ownership), count in sorted(self._events.items())
        ]
        return RankCounts(tensor_parallel_rank, self.batches, self.events, dropped, by_kind)


def hit_rates(counts: EngineCounts) -> HitRates:
    """Return where an engine found its prompts.

    Args:
        counts: Of the engine.

    Returns:
        Shares in [0, 1], all 0 where no prompt had a full block.
    """
    base = counts.prompt_tokens or 1
    total = counts.gpu_hit_tokens + counts.cpu_hit_tokens + sum(counts.tier_hit_tokens.values())
    tiers = {name: tokens / base for name, tokens in counts.tier_hit_tokens.items()}
    return HitRates(total / base, counts.gpu_hit_tokens / base, counts.cpu_hit_tokens / base, tiers)

"""Counts of a trace worker."""

from __future__ import annotations

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvbus.offload.engine_counts import EngineCounts
from kvbus.worker.counts import BlockCounts, HitRates, RankCounts, RankTally, hit_rates


def test_events_and_blocks_are_counted_by_type_medium_and_owner() -> None:
    tally = RankTally()
    tally.add([BlockStored([1, 2], medium="GPU"), BlockStored([3], medium="CPU", ownership="cpu-tier")])
    tally.add([BlockStored([4], medium="GPU"), BlockRemoved([1], medium="GPU"), AllBlocksCleared()])
    expected = [
        BlockCounts("AllBlocksCleared", None, None, 1, 0),
        BlockCounts("BlockRemoved", "GPU", None, 1, 1),
        BlockCounts("BlockStored", "CPU", "cpu-tier", 1, 1),
        BlockCounts("BlockStored", "GPU", None, 2, 3),
    ]
    assert RankCounts(3, 2, 5, 7, expected) == tally.counts(3, dropped=7)


def test_hit_rates_are_shares_of_the_tokens_that_could_be_hit() -> None:
    counts = EngineCounts(("disk",))
    assert HitRates(0, 0, 0, {"disk": 0}) == hit_rates(counts)
    counts.prompt_tokens, counts.gpu_hit_tokens, counts.cpu_hit_tokens = 200, 50, 20
    counts.tier_hit_tokens["disk"] = 10
    assert HitRates(0.4, 0.25, 0.1, {"disk": 0.05}) == hit_rates(counts)

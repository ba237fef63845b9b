"""Counts of the simulated engine."""

from __future__ import annotations

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvbus.offload.engine_counts import EngineCounts
from kvbus.offload.keys import make_offload_key
from kvbus.offload.running import RunningRequest
from kvbus.offload.trace import TraceRequest


def request() -> RunningRequest:
    return RunningRequest(1, TraceRequest(0, "", list(range(8)), 16, 130, 5), list(range(8)), 16, 1)


def test_hits_by_place() -> None:
    counts = EngineCounts(("near", "far"))
    one = request()
    one.loaded_keys = [make_offload_key(number) for number in range(4)]
    one.promoted = {make_offload_key(1): 1, make_offload_key(9): 0}
    counts.admit(one, 32, 64, 128)
    assert (128, 32, 48, {"near": 0, "far": 16}) == (
        counts.prompt_tokens,
        counts.gpu_hit_tokens,
        counts.cpu_hit_tokens,
        counts.tier_hit_tokens,
    )


def test_a_preempted_request_counts_once() -> None:
    counts = EngineCounts(())
    one = request()
    for _ in range(2):
        counts.admit(one, 16, 0, 128)
        one.restart()
    assert (128, 16) == (counts.prompt_tokens, counts.gpu_hit_tokens)


def test_block_events() -> None:
    counts = EngineCounts(())
    counts.take([BlockStored([1, 2], medium="GPU"), BlockRemoved([1], medium="CPU"), AllBlocksCleared()])
    assert 3 == counts.block_events

"""Copies between GPU, CPU tier and secondary tiers: when they end, and what they pin meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest

from kvbus.events import BlockRemoved, BlockStored
from kvbus.offload.connector import OffloadConnector, TierKey
from kvbus.offload.engine_options import EngineOptions, TierOptions
from kvbus.offload.gpu import GpuBlockPool
from kvbus.offload.gpu_cache import GpuCache
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.hits import HitFinder
from kvbus.offload.running import RunningRequest
from kvbus.offload.trace import TraceRequest

CPU = TierKey("CPU", "cpu-tier", 0)
DISK = TierKey("STORAGE", "disk", 0)
MS = 1_000_000


class Bench:
    """A connector, and a GPU that computes what it is told to."""

    def __init__(self, **options: object) -> None:
        settings = EngineOptions(
            gpu_blocks=20,
            groups=(KVCacheGroup("full_attention", 16),),
            ownership="cpu-tier",
            cpu_tokens_per_second=16_000,
            tier_tokens_per_second=1600,
            **{"cpu_blocks": 8, **options},  # type: ignore[arg-type]
        )
        finder = HitFinder(settings.groups, 16, 16)
        self.pool = GpuBlockPool(settings.gpu_blocks)
        self.cache = GpuCache(self.pool, finder)
        self.connector = OffloadConnector(settings, finder, self.pool)
        self.request_count = 0

    def request(self, *hashes: int) -> RunningRequest:
        """A request whose prompt has these full blocks and one token more."""
        self.request_count += 1
        trace = TraceRequest(0, "", list(hashes), 16, 16 * len(hashes) + 1, 1)
        return RunningRequest(self.request_count, trace, list(hashes), 16, 1)

    def compute(self, *hashes: int, now_ns: int = 0) -> RunningRequest:
        """Compute a request, offer its blocks to the CPU tier and free them."""
        request = self.request(*hashes)
        assert self.cache.allocate_slots(request.blocks, 0, request.input_tokens)
        request.computed_tokens = request.input_tokens
        self.cache.cache_blocks(request.blocks, request.computed_tokens)
        self.connector.begin_eager_store(request, now_ns)
        self.cache.free(request.blocks)
        self.connector.request_finished(request)
        return request

    def settle(self) -> None:
        while (due_ns := self.connector.next_done_ns) is not None:
            self.connector.advance(due_ns)

    def match(self, *hashes: int, computed: int = 0) -> int | None:
        return self.connector.get_num_new_matched_tokens(self.request(*hashes), computed, 0)


def test_a_store_arrives_after_its_time_and_is_announced_then() -> None:
    bench = Bench()
    bench.compute(1, 2)
    assert 2 * MS == bench.connector.next_done_ns, "two blocks of 16 tokens at 16 000 tokens a second"
    assert [] == bench.connector.advance(2 * MS - 1)
    assert ([], {}) == (bench.connector.take_events(), bench.connector.content())
    bench.connector.advance(2 * MS)
    events = bench.connector.take_events()
    assert [[1], [2]] == [event.block_hashes for event in events if isinstance(event, BlockStored)]
    assert {CPU: Counter({1: 1, 2: 1})} == bench.connector.content()
    assert None is bench.connector.next_done_ns


def test_blocks_on_their_way_are_pinned_on_the_gpu() -> None:
    bench = Bench()
    bench.compute(1, 2)
    assert 18 == bench.pool.get_num_free_blocks()
    bench.settle()
    assert 20 == bench.pool.get_num_free_blocks()


def test_what_is_on_its_way_is_waited_for_and_what_has_arrived_is_matched() -> None:
    bench = Bench()
    bench.compute(1, 2)
    assert None is bench.match(1, 2, 3)
    bench.settle()
    assert [32, 16, 0] == [bench.match(1, 2, 3), bench.match(1, 2, 3, computed=16), bench.match(7)]


def test_a_load_arrives_after_its_time() -> None:
    bench = Bench()
    bench.compute(1, 2)
    bench.settle()
    request = bench.request(1, 2, 3)
    assert 32 == bench.connector.get_num_new_matched_tokens(request, 0, 10 * MS)
    bench.connector.begin_load(request, 32, 10 * MS)
    assert [] == bench.connector.advance(12 * MS - 1)
    assert [request] == bench.connector.advance(12 * MS)


def test_nothing_to_load_begins_nothing() -> None:
    bench = Bench()
    request = bench.request(1)
    assert 0 == bench.connector.get_num_new_matched_tokens(request, 0, 0)
    bench.connector.begin_load(request, 0, 0)
    assert None is bench.connector.next_done_ns


def test_a_store_is_copied_on_and_arrives_there_later() -> None:
    bench = Bench(tiers=(TierOptions("disk", "STORAGE", 50),))
    bench.compute(1)
    bench.connector.advance(MS)
    assert 11 * MS == bench.connector.next_done_ns, "counted from the end of the first copy"
    bench.connector.advance(100 * MS)
    assert {CPU: Counter({1: 1}), DISK: Counter({1: 1})} == bench.connector.content()
    assert {"STORAGE", "CPU"} == {event.medium for event in bench.connector.take_events()}


def test_promotion_makes_a_request_wait_once() -> None:
    bench = Bench(cpu_blocks=2, tiers=(TierOptions("disk", "STORAGE", 50),))
    for hashes in ((1, 2), (3, 4)):
        bench.compute(*hashes)
        bench.settle()
    request = bench.request(1, 2)
    assert None is bench.connector.get_num_new_matched_tokens(request, 0, 0)
    assert 2 == len(request.promoted)
    bench.settle()
    assert 32 == bench.connector.get_num_new_matched_tokens(request, 0, 0)


def test_eager_and_lazy_stores() -> None:
    """Lazy: nothing goes when it is computed, and what stands at the head of the free queue goes before it is evicted."""
    bench = Bench(lazy_offload=True, step_tokens_max=160)
    bench.compute(1, 2, 3)
    assert None is bench.connector.next_done_ns
    bench.connector.begin_lazy_store(0)
    bench.settle()
    stored = bench.connector.take_events()
    assert [[3], [2], [1]] == [event.block_hashes for event in stored if isinstance(event, BlockStored)]
    eager = Bench()
    eager.compute(1)
    eager.settle()
    eager.connector.begin_lazy_store(0)
    assert None is eager.connector.next_done_ns


def test_an_eviction_is_announced_when_room_is_made() -> None:
    bench = Bench(cpu_blocks=2)
    bench.compute(1, 2)
    bench.settle()
    bench.connector.take_events()
    bench.compute(3)
    [event] = bench.connector.take_events()
    assert isinstance(event, BlockRemoved)
    assert ("CPU", "cpu-tier", 1) == (event.medium, event.ownership, len(event.block_hashes))


@pytest.mark.parametrize("under_way", ["store", "load", "tier"])
def test_reset_drops_copies_and_events(under_way: str) -> None:
    bench = Bench(tiers=(TierOptions("disk", "STORAGE", 50),))
    bench.compute(1, 2)
    if under_way != "store":
        bench.connector.advance(2 * MS)
    if under_way == "load":
        request = bench.request(1, 2, 3)
        bench.connector.get_num_new_matched_tokens(request, 0, 0)
        bench.connector.begin_load(request, 32, 0)
    bench.connector.reset()
    assert (None, [], {}) == (bench.connector.next_done_ns, bench.connector.take_events(), bench.connector.content())
    assert 20 == bench.pool.get_num_free_blocks()
    bench.compute(1, 2)
    bench.settle()
    assert Counter({1: 1, 2: 1}) == bench.connector.content()[CPU]

"""Prefix matching of hybrid models, pins, and what goes into the pool."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from kvbus.errors import ConfigError, UsageError
from kvbus.events import BlockHash, BlockRemoved, BlockStored
from kvbus.offload.block_sizes import resolve_kv_cache_block_sizes
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.keys import OffloadKey, make_offload_key
from kvbus.offload.lazy import GpuBlock
from kvbus.offload.manager import CPUOffloadingManager
from kvbus.offload.request import Request
from kvbus.offload.scheduler import OffloadScheduler
from kvbus.offload.tracker import OffloadingEventsTracker
from kvbus.offload.transfers import CPULoadStoreSpec, LoadJob, LookupResult

FULL_64_WINDOW_16 = [KVCacheGroup("full_attention", 64), KVCacheGroup("sliding_window", 16, 32)]
FULL_256_64_WINDOW_4 = [
    KVCacheGroup("full_attention", 256),
    KVCacheGroup("mla_attention", 64),
    KVCacheGroup("sliding_window", 4, 10),
]
SINGLE = [KVCacheGroup("full_attention", 16)]


def scheduler_of(groups: Sequence[KVCacheGroup], num_blocks: int = 1000, **options: Any) -> OffloadScheduler:
    manager_options = {name: options.pop(name) for name in ("cache_policy", "store_threshold") if name in options}
    manager = CPUOffloadingManager(num_blocks, enable_events=True, **manager_options)
    return OffloadScheduler(manager, groups, *resolve_kv_cache_block_sizes(groups), **options)


def request_of(num_tokens: int, hash_block_size: int, request_id: str = "r", first_hash: int = 0) -> Request:
    """Hash *i* of the request is `first_hash + i`."""
    count = num_tokens // hash_block_size
    return Request(
        request_id=request_id,
        num_tokens=num_tokens,
        block_hashes=range(first_hash, first_hash + count),
        all_token_ids=range(num_tokens),
    )


def put(scheduler: OffloadScheduler, **hashes_by_group: Sequence[int]) -> None:
    """Put blocks into the pool: `g0=[3, 7]` are hashes of group 0."""
    for name, hashes in hashes_by_group.items():
        keys = [make_offload_key(block_hash, int(name[1:])) for block_hash in hashes]
        output = scheduler.manager.prepare_store(keys)
        assert output is not None
        scheduler.manager.complete_store(output.keys_to_store)


def pinned(scheduler: OffloadScheduler) -> list[tuple[BlockHash, int]]:
    """(hash, group) of all that is pinned, sorted."""
    held = [key for key, block in scheduler.manager._blocks.items() if block.ref_count > 0]
    return [(key.block_hash, key.group_idx) for key in sorted(held)]


def one_block_size_rule(scheduler: OffloadScheduler, request: Request, num_computed_tokens: int) -> int:
    """What was right for one block size: it skips, looks up and counts in the scheduler's blocks."""
    hit_count = 0
    for block_hash in request.block_hashes[num_computed_tokens // scheduler.block_size :]:
        keys = [OffloadKey(block_hash, group_idx) for group_idx in range(len(scheduler.groups))]
        if any(scheduler.manager.peek(key) is LookupResult.MISS for key in keys):
            break
        hit_count += 1
    limit = max(0, request.num_tokens - 1 - num_computed_tokens) // scheduler.block_size
    return min(hit_count, limit) * scheduler.block_size


# Hand-worked, blocks of 64 and of 16 tokens, a window of 32. A 64-token block is known by its fourth 16-token hash. A hit at e
# needs the two 16-token blocks before e: ⌈31/16⌉.
#   full:    [0,64)=3  [64,128)=7  [128,192)=11
#   window:  [96,112)=6  [112,128)=7
WORKED_64_16 = [
    # 192 lacks the window's blocks 10 and 11; 128 has 6 and 7.
    (200, 0, (128, True), [(3, 0), (6, 1), (7, 0), (7, 1)]),
    # One full block and four hashes are skipped.
    (200, 64, (64, True), [(6, 1), (7, 0), (7, 1)]),
    # Behind 128 only 192 could end a hit.
    (200, 128, (0, False), []),
    # Not a multiple of 64.
    (200, 80, (0, False), []),
    (200, 16, (0, False), []),
    # Never the whole prompt: 127 tokens hold one block of 64, before which the window lacks 2 and 3.
    (128, 0, (0, False), []),
    (129, 0, (128, True), [(3, 0), (6, 1), (7, 0), (7, 1)]),
    # Everything is computed.
    (200, 192, (0, False), []),
    (200, 256, (0, False), []),
]


@pytest.mark.parametrize(("num_tokens", "num_computed_tokens", "expected", "pins"), WORKED_64_16)
def test_worked_blocks_of_64_and_16(
    num_tokens: int, num_computed_tokens: int, expected: tuple[int, bool], pins: list[tuple[int, int]]
) -> None:
    scheduler = scheduler_of(FULL_64_WINDOW_16)
    put(scheduler, g0=[3, 7, 11], g1=[6, 7])
    request = request_of(num_tokens, 16)
    assert expected == scheduler.get_num_new_matched_tokens(request, num_computed_tokens)
    assert pins == pinned(scheduler)


# Hand-worked, blocks of 256, 64 and 4 tokens, a window of 10: ⌈9/4⌉ = 3 blocks. 256 tokens are 64 hashes, 64 tokens are 16.
ENDS_256 = [63, 127, 191]
ENDS_64 = [15, 31, 47, 63, 79, 95, 111, 127, 143, 159, 175, 191]


@pytest.mark.parametrize(
    ("ends_256", "ends_64", "window", "num_computed_tokens", "expected"),
    [
        # All of 768 for full attention, but of its window [756, 768) the last block is missing; 512 has [500, 512).
        (ENDS_256, ENDS_64, [125, 126, 127, 189, 190], 0, 512),
        (ENDS_256, ENDS_64, [125, 126, 127, 189, 190], 256, 256),
        (ENDS_256, ENDS_64, [125, 126, 127, 189, 190], 512, 0),
        (ENDS_256, ENDS_64, [125, 126, 127, 189, 190, 191], 512, 256),
        # The 64-token group ends at 448, so both end at 256, whose window [244, 256) is missing.
        (ENDS_256, [e for e in ENDS_64 if e != 111], [125, 126, 127, 189, 190, 191], 0, 0),
        (ENDS_256, [e for e in ENDS_64 if e != 111], [61, 62, 63, 125, 126, 127], 0, 256),
        # A hole in front of what is computed does no harm.
        (ENDS_256[1:], ENDS_64[4:], [125, 126, 127], 256, 256),
        (ENDS_256[1:], ENDS_64[4:], [125, 126, 127], 0, 0),
        # A window with a hole in the middle.
        (ENDS_256, ENDS_64, [125, 127], 0, 0),
        # 768 is a multiple of 64 but 704 is not one of 256.
        (ENDS_256, ENDS_64, [125, 126, 127], 704, 0),
    ],
)
def test_worked_blocks_of_256_64_and_4(
    ends_256: list[int], ends_64: list[int], window: list[int], num_computed_tokens: int, expected: int
) -> None:
    scheduler = scheduler_of(FULL_256_64_WINDOW_4)
    put(scheduler, g0=ends_256, g1=ends_64, g2=window)
    assert (256, 4) == (scheduler.block_size, scheduler.hash_block_size)
    answer = scheduler.get_num_new_matched_tokens(request_of(1000, 4), num_computed_tokens)
    assert (expected, expected > 0) == answer


@pytest.mark.parametrize(
    ("window", "present", "expected"),
    [
        # Smaller than a block: the last one is enough, even for a single token.
        (20, [2], 192),
        (2, [2], 192),
        (65, [2], 192),
        # Only itself: nothing is needed.
        (1, [], 192),
        # One token more than a block: two.
        (66, [2], 0),
        (66, [1, 2], 192),
        # Larger than several blocks: it is cut at the start of the request, so a short hit needs less.
        (200, [0, 1], 128),
        (200, [1, 2], 0),
        (200, [0, 1, 2], 192),
        (150, [0, 2], 64),
    ],
)
def test_windows_smaller_and_larger_than_a_block(window: int, present: list[int], expected: int) -> None:
    scheduler = scheduler_of([KVCacheGroup("full_attention", 64), KVCacheGroup("sliding_window", 64, window)])
    put(scheduler, g0=[0, 1, 2], g1=present)
    assert (expected, expected > 0) == scheduler.get_num_new_matched_tokens(request_of(200, 64), 0)


def test_a_state_group_needs_the_last_block() -> None:
    scheduler = scheduler_of([KVCacheGroup("full_attention", 16), KVCacheGroup("mamba", 32)])
    put(scheduler, g0=[0, 1, 2, 3], g1=[3])
    assert (64, True) == scheduler.get_num_new_matched_tokens(request_of(100, 16), 0)
    assert [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1)] == pinned(scheduler)


@pytest.mark.parametrize(("num_tokens", "num_computed_tokens", "expected", "pins"), WORKED_64_16)
def test_the_rule_for_one_block_size_fails_here(
    num_tokens: int, num_computed_tokens: int, expected: tuple[int, bool], pins: list[tuple[int, int]]
) -> None:
    """Before and after: wherever there is a hit, the old rule misses it: it seeks 64-token blocks under 16-token hashes."""
    scheduler = scheduler_of(FULL_64_WINDOW_16)
    put(scheduler, g0=[3, 7, 11], g1=[6, 7])
    old = one_block_size_rule(scheduler, request_of(num_tokens, 16), num_computed_tokens)
    assert (0, expected[0] > 0) == (old, expected[0] != old)


def test_the_rule_for_one_block_size_finds_what_is_not_there() -> None:
    """It errs to the other side as well: two hashes of 16 tokens, in a pool filled by its own rule, pass for 128 tokens."""
    scheduler = scheduler_of(FULL_64_WINDOW_16)
    put(scheduler, g0=[0, 1, 2, 3], g1=[0, 1, 2, 3])
    request = request_of(200, 16)
    assert (192, (64, True)) == (
        one_block_size_rule(scheduler, request, 0),
        scheduler.get_num_new_matched_tokens(request, 0),
    )


def test_a_single_group_behaves_as_with_one_block_size() -> None:
    """The old rule, on all small cases: pools with and without holes, computed tokens on and off a boundary."""
    for content in range(2**4):
        present = [block for block in range(4) if content >> block & 1]
        for num_tokens in (0, 1, 16, 17, 40, 64, 65, 80):
            for num_computed_tokens in range(0, 81, 8):
                scheduler = scheduler_of(SINGLE)
                put(scheduler, g0=present)
                request = request_of(num_tokens, 16)
                expected = one_block_size_rule(scheduler, request, num_computed_tokens)
                if num_computed_tokens % 16:
                    expected = 0
                assert (expected, expected > 0) == scheduler.get_num_new_matched_tokens(request, num_computed_tokens)


KINDS = ("full_attention", "mla_attention", "sliding_window", "mamba")


def random_groups(rng: random.Random) -> list[KVCacheGroup]:
    groups = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(KINDS)
        window = rng.randint(2, 40) if kind == "sliding_window" else None
        groups.append(KVCacheGroup(kind, rng.choice([2, 4, 6, 8, 12]), window))
    return groups


def brute_force(scheduler: OffloadScheduler, request: Request, start: int) -> int:
    """Try every end from the farthest; look at every token that must be there; no thought spent."""
    if start % scheduler.block_size:
        return 0
    for end in range(request.num_tokens - 1, start, -1):
        if end % scheduler.block_size == 0 and all(
            token_is_there(scheduler, request, group_idx, token)
            for group_idx, group in enumerate(scheduler.groups)
            for token in tokens_needed(group, start, end)
        ):
            return end - start
    return 0


def tokens_needed(group: KVCacheGroup, start: int, end: int) -> list[int]:
    if group.kind == "mamba":
        return [end - 1]
    if group.sliding_window is not None:
        # The token at `end` sees sliding_window tokens, itself included.
        return [token for token in range(start, end) if token > end - group.sliding_window]
    return list(range(start, end))


def token_is_there(scheduler: OffloadScheduler, request: Request, group_idx: int, token: int) -> bool:
    block_end = (token // scheduler.groups[group_idx].block_size + 1) * scheduler.groups[group_idx].block_size
    hash_index = block_end // scheduler.hash_block_size - 1
    if hash_index >= len(request.block_hashes):
        return False
    key = OffloadKey(request.block_hashes[hash_index], group_idx)
    return scheduler.manager.peek(key) is LookupResult.HIT


def test_random_models_and_pools_agree_with_brute_force() -> None:
    hits = 0
    for seed in range(400):
        rng = random.Random(seed)
        groups = random_groups(rng)
        scheduler = scheduler_of(groups)
        size, hash_size = scheduler.block_size, scheduler.hash_block_size
        request = request_of(rng.randint(1, 5 * size), hash_size)
        density = rng.choice([0.5, 0.9, 0.97, 1.0])
        for group_idx, group in enumerate(groups):
            ends = range(group.block_size, request.num_tokens + 1, group.block_size)
            put(scheduler, **{f"g{group_idx}": [e // hash_size - 1 for e in ends if rng.random() < density]})
        start = rng.choice([0, size, 2 * size, rng.randrange(3 * size)])
        expected = brute_force(scheduler, request, start)
        assert (expected, expected > 0) == scheduler.get_num_new_matched_tokens(request, start)
        hits += expected > 0
    assert hits > 60  # the cases are not all misses


def test_a_hit_that_needs_no_block_is_none() -> None:
    """A window of one token sees only itself: nothing of the pool is of use, and nothing is to be loaded."""
    scheduler = scheduler_of([KVCacheGroup("sliding_window", 16, 1)])
    put(scheduler, g0=[0, 1])
    assert (0, False) == scheduler.get_num_new_matched_tokens(request_of(40, 16), 0)


def test_what_was_found_is_pinned_until_it_is_allocated_and_loaded() -> None:
    scheduler = scheduler_of(SINGLE, num_blocks=2)
    put(scheduler, g0=[0, 1])
    request = request_of(40, 16)
    scheduler.get_num_new_matched_tokens(request, 0)
    refused = [scheduler.manager.prepare_store([make_offload_key(9)])]
    job = scheduler.update_state_after_alloc(request, 32)
    refused.append(scheduler.manager.prepare_store([make_offload_key(9)]))
    expected = LoadJob("r", [make_offload_key(0), make_offload_key(1)], CPULoadStoreSpec([0, 1]), 32)
    assert ([None, None], expected) == (refused, job)
    scheduler.complete_load("r")
    assert scheduler.manager.prepare_store([make_offload_key(9)]) is not None


def test_a_stale_pin_is_dropped_when_the_request_asks_again() -> None:
    scheduler = scheduler_of(SINGLE)
    put(scheduler, g0=[0, 1, 2])
    request = request_of(60, 16)
    answers = [scheduler.get_num_new_matched_tokens(request, tokens) for tokens in (0, 0, 32)]
    assert ([(48, True), (48, True), (16, True)], [(2, 0)]) == (answers, pinned(scheduler))
    assert (0, False) == scheduler.get_num_new_matched_tokens(request, 48)
    assert [] == pinned(scheduler)


@pytest.mark.parametrize("num_external_tokens", [0, 16])
def test_what_is_not_taken_is_released(num_external_tokens: int) -> None:
    scheduler = scheduler_of(SINGLE)
    put(scheduler, g0=[0, 1])
    request = request_of(40, 16)
    scheduler.get_num_new_matched_tokens(request, 0)
    job = scheduler.update_state_after_alloc(request, num_external_tokens)
    assert (num_external_tokens == 0) == (job is None)
    assert [(0, 0)][: num_external_tokens // 16] == pinned(scheduler)


def test_a_shorter_load_gets_the_window_of_its_own_end() -> None:
    scheduler = scheduler_of(FULL_64_WINDOW_16)
    put(scheduler, g0=[3, 7], g1=[2, 3, 6, 7])
    request = request_of(200, 16)
    scheduler.get_num_new_matched_tokens(request, 0)
    scheduler.update_state_after_alloc(request, 64)
    assert [(2, 1), (3, 0), (3, 1)] == pinned(scheduler)


def test_a_shorter_load_without_its_window_is_no_load() -> None:
    """Taking the first blocks of the longer hit would go on from a window that nobody has."""
    scheduler = scheduler_of(FULL_64_WINDOW_16)
    put(scheduler, g0=[3, 7], g1=[6, 7])
    request = request_of(200, 16)
    scheduler.get_num_new_matched_tokens(request, 0)
    assert (None, []) == (scheduler.update_state_after_alloc(request, 64), pinned(scheduler))


def test_a_request_that_ends_early_leaves_no_pin() -> None:
    scheduler = scheduler_of(SINGLE)
    put(scheduler, g0=[0, 1])
    scheduler.get_num_new_matched_tokens(request_of(40, 16), 0)
    scheduler.request_finished("r")
    scheduler.request_finished("unknown")
    assert ([], {}) == (pinned(scheduler), scheduler._states)


def test_a_load_outlives_its_request() -> None:
    """The copy still reads the blocks."""
    scheduler = scheduler_of(SINGLE)
    put(scheduler, g0=[0])
    request = request_of(40, 16)
    scheduler.get_num_new_matched_tokens(request, 0)
    scheduler.update_state_after_alloc(request, 16)
    scheduler.request_finished("r")
    before = pinned(scheduler)
    scheduler.complete_load("r")
    assert ([(0, 0)], [], {}) == (before, pinned(scheduler), scheduler._states)


def test_a_block_still_being_stored_means_ask_again() -> None:
    scheduler = scheduler_of(SINGLE)
    put(scheduler, g0=[0])
    scheduler.manager.prepare_store([make_offload_key(1)])
    request = request_of(60, 16)
    first = scheduler.get_num_new_matched_tokens(request, 0)
    assert ((None, False), []) == (first, pinned(scheduler))
    scheduler.manager.complete_store([make_offload_key(1)])
    assert (32, True) == scheduler.get_num_new_matched_tokens(request, 0)


def test_a_block_being_stored_behind_a_missing_one_is_not_waited_for() -> None:
    scheduler = scheduler_of(SINGLE)
    put(scheduler, g0=[0])
    scheduler.manager.prepare_store([make_offload_key(2)])
    assert (16, True) == scheduler.get_num_new_matched_tokens(request_of(60, 16), 0)


def test_a_hit_is_a_use_once_it_is_allocated() -> None:
    """Asking again and again while a request waits is no use; loading is."""
    scheduler = scheduler_of(SINGLE, num_blocks=3)
    put(scheduler, g0=[0, 1, 2])
    request = request_of(32, 16)
    for _ in range(3):
        scheduler.get_num_new_matched_tokens(request, 0)
    scheduler.update_state_after_alloc(request, 16)
    scheduler.complete_load("r")
    output = scheduler.manager.prepare_store([make_offload_key(9), make_offload_key(8)])
    assert output is not None
    assert [make_offload_key(1), make_offload_key(2)] == output.evicted_keys


def test_eager_stores_full_blocks_as_they_are_computed() -> None:
    scheduler = scheduler_of(FULL_64_WINDOW_16)
    request = request_of(200, 16)
    jobs = [scheduler.prepare_eager_store(request, tokens) for tokens in (63, 64, 100, 191, 200, 200)]
    assert [None, [(2, 1), (3, 0), (3, 1)], None, [(6, 1), (7, 0), (7, 1)], [(10, 1), (11, 0), (11, 1)], None] == [
        None if job is None else [tuple(key) for key in job.keys] for job in jobs
    ]


def test_what_eager_mode_stores_is_hit_by_the_next_request() -> None:
    scheduler = scheduler_of(FULL_256_64_WINDOW_4)
    job = scheduler.prepare_eager_store(request_of(1000, 4, "first"), 1000)
    assert job is not None
    before = scheduler.get_num_new_matched_tokens(request_of(1000, 4, "second"), 0)
    scheduler.complete_store(job.job_id)
    assert ((None, False), (768, True)) == (
        before,
        scheduler.get_num_new_matched_tokens(request_of(1000, 4, "second"), 0),
    )


def test_eager_stores_what_fits_in_prefix_order_and_the_rest_later() -> None:
    scheduler = scheduler_of(SINGLE, num_blocks=3)
    request = request_of(100, 16)
    first = scheduler.prepare_eager_store(request, 96)
    again = scheduler.prepare_eager_store(request, 96)
    assert first is not None
    assert ([0, 1, 2], None) == ([key.block_hash for key in first.keys], again)
    scheduler.complete_store(first.job_id)
    later = scheduler.prepare_eager_store(request, 96)
    assert later is not None
    # The last of the prefix goes first.
    assert ([3, 4, 5], [2, 1, 0]) == (
        [key.block_hash for key in later.keys],
        [key.block_hash for key in later.evicted_keys],
    )


def test_a_failed_store_leaves_no_trace_and_is_tried_again() -> None:
    scheduler = scheduler_of(SINGLE)
    request = request_of(40, 16)
    first = scheduler.prepare_eager_store(request, 32)
    assert first is not None
    scheduler.complete_store(first.job_id, success=False)
    second = scheduler.prepare_eager_store(request, 32)
    assert second is not None
    assert (first.keys, [], True) == (second.keys, scheduler.take_events(), scheduler.has_pending_stores())


def test_of_a_window_that_moved_on_nothing_is_stored_that_the_gpu_gave_up() -> None:
    """Loaded up to 128, the GPU has the window before 128 but not the one before 64: it cannot be stored from there."""
    scheduler = scheduler_of(FULL_64_WINDOW_16)
    put(scheduler, g0=[3, 7], g1=[6, 7])
    request = request_of(200, 16)
    scheduler.get_num_new_matched_tokens(request, 0)
    scheduler.update_state_after_alloc(request, 128)
    scheduler.complete_load("r")
    job = scheduler.prepare_eager_store(request, 200)
    assert job is not None
    assert [(10, 1), (11, 0), (11, 1)] == [tuple(key) for key in job.keys]


def test_a_failed_store_of_a_window_that_moved_on_is_not_tried_again() -> None:
    scheduler = scheduler_of(FULL_64_WINDOW_16)
    request = request_of(200, 16)
    first = scheduler.prepare_eager_store(request, 64)
    second = scheduler.prepare_eager_store(request, 128)
    assert first is not None
    assert second is not None
    scheduler.complete_store(first.job_id, success=False)
    third = scheduler.prepare_eager_store(request, 192)
    assert third is not None
    assert [(3, 0), (10, 1), (11, 0), (11, 1)] == [tuple(key) for key in third.keys]


def test_a_prefix_that_only_the_gpu_has_is_stored_after_a_hit() -> None:
    """Computed by an earlier request, never stored or evicted since: it is on the GPU, so it can be stored now."""
    scheduler = scheduler_of(SINGLE)
    request = request_of(60, 16)
    scheduler.get_num_new_matched_tokens(request, 32)
    scheduler.update_state_after_alloc(request, 0)
    job = scheduler.prepare_eager_store(request, 48)
    assert job is not None
    assert [0, 1, 2] == [key.block_hash for key in job.keys]


def test_every_block_counts_towards_the_threshold_once_a_request() -> None:
    """Also those behind the first missing one, and not again because the request had to wait."""
    scheduler = scheduler_of(SINGLE, store_threshold=2)
    stored = []
    for number in range(2):
        request = request_of(60, 16, str(number))
        for _ in range(3):
            scheduler.get_num_new_matched_tokens(request, 0)
        scheduler.update_state_after_alloc(request, 0)
        stored.append(scheduler.prepare_eager_store(request, 48))
    assert stored[0] is None
    assert stored[1] is not None
    assert [0, 1, 2] == [key.block_hash for key in stored[1].keys]


def test_lazy_stores_what_the_gpu_would_evict_next() -> None:
    scheduler = scheduler_of(FULL_64_WINDOW_16, lazy_offload=True, max_num_batched_tokens=64)
    put(scheduler, g0=[3])
    queue = [GpuBlock(make_offload_key(h, g), size) for h, g, size in ((3, 0, 64), (6, 1, 16), (7, 0, 64))]
    job = scheduler.prepare_lazy_store(
        [GpuBlock(None, 16), *queue, *[GpuBlock(None, 16)] * 4, queue[1]._replace(key=make_offload_key(9, 1))]
    )
    assert job is not None
    # Two steps of 64 tokens may take 2 · (1 + 3) blocks, so the ninth is not looked at.
    assert (8, [(6, 1), (7, 0)], None) == (
        scheduler.lazy_target_blocks,
        [tuple(key) for key in job.keys],
        job.request_id,
    )
    scheduler.complete_store(job.job_id)
    assert scheduler.prepare_lazy_store(queue) is None


@pytest.mark.parametrize("block", [(3, 1, 64), (3, 0, 16)])
def test_a_windows_block_never_enters_under_the_hash_of_another_size(block: tuple[int, int, int]) -> None:
    scheduler = scheduler_of(FULL_64_WINDOW_16, lazy_offload=True)
    good = GpuBlock(make_offload_key(7, 0), 64)
    with pytest.raises(UsageError, match="cannot stand for"):
        scheduler.prepare_lazy_store([good, GpuBlock(make_offload_key(block[0], block[1]), block[2])])
    assert ([], False) == (scheduler.manager.stored_keys(), scheduler.has_pending_stores())


def test_eager_mode_enters_a_windows_blocks_under_hashes_of_their_own_size() -> None:
    """A window of larger blocks than full attention: its keys are the hashes where its own blocks end, and no others."""
    scheduler = scheduler_of([KVCacheGroup("full_attention", 16), KVCacheGroup("sliding_window", 64, 128)])
    job = scheduler.prepare_eager_store(request_of(200, 16), 192)
    assert job is not None
    assert [3, 7, 11] == [key.block_hash for key in job.keys if key.group_idx == 1]
    assert list(range(12)) == [key.block_hash for key in job.keys if key.group_idx == 0]


def test_events_describe_themselves_if_the_tracker_says_so() -> None:
    scheduler = scheduler_of(FULL_64_WINDOW_16, tracker=OffloadingEventsTracker())
    request = request_of(200, 16)
    job = scheduler.prepare_eager_store(request, 64)
    assert job is not None
    scheduler.complete_store(job.job_id)
    events = scheduler.take_events()
    assert [(0, 1, 2), (64, 0, 3), (0, 1, 3)] == [
        (event.block_size, event.group_idx, event.block_hashes[0])  # type: ignore[union-attr]
        for event in events
    ]
    assert list(range(64)) == events[1].token_ids  # type: ignore[union-attr]


def test_a_hit_describes_what_was_not_described() -> None:
    scheduler = scheduler_of(SINGLE, tracker=OffloadingEventsTracker())
    put(scheduler, g0=[0])
    scheduler.take_events()
    scheduler.get_num_new_matched_tokens(request_of(40, 16), 0)
    assert scheduler.tracker._tracked[make_offload_key(0)].payload is not None


def test_reset_empties_everything_and_voids_what_is_under_way() -> None:
    scheduler = scheduler_of(SINGLE, tracker=OffloadingEventsTracker())
    request = request_of(60, 16)
    job = scheduler.prepare_eager_store(request, 16)
    assert job is not None
    scheduler.complete_store(job.job_id)
    scheduler.get_num_new_matched_tokens(request, 0)
    scheduler.update_state_after_alloc(request, 16)
    job = scheduler.prepare_eager_store(request, 48)
    assert job is not None
    scheduler.take_events()
    scheduler.reset()
    assert [BlockRemoved([0], medium="CPU", group_idx=0)] == scheduler.take_events()
    assert (0, False, 1000) == (len(scheduler.tracker), scheduler.has_pending_stores(), scheduler.manager.free_count)
    with pytest.raises(UsageError):
        scheduler.complete_store(job.job_id)
    with pytest.raises(UsageError):
        scheduler.complete_load("r")


@pytest.mark.parametrize(
    ("groups", "sizes", "named"),
    [
        (FULL_64_WINDOW_16, (64, 48), "48"),
        (FULL_64_WINDOW_16, (96, 16), "64"),
        (FULL_64_WINDOW_16, (32, 16), "64"),
        ([KVCacheGroup("full_attention", 16), KVCacheGroup("sliding_window", 64, 128)], (32, 16), "64"),
        (FULL_64_WINDOW_16, (64, 32), "32"),
        (FULL_64_WINDOW_16, (64, 0), "hash_block_size"),
        (FULL_64_WINDOW_16, (-64, 16), "-64"),
        ([], (64, 16), "groups"),
        ([KVCacheGroup("unknown", 64, None, False)], (64, 64), "prefix caching"),
        ([KVCacheGroup("full_attention", -64)], (64, 64), "-64"),
    ],
)
def test_sizes_that_cannot_work_are_refused_at_construction(
    groups: list[KVCacheGroup], sizes: tuple[int, int], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        OffloadScheduler(CPUOffloadingManager(4), groups, *sizes)


def test_a_step_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        scheduler_of(SINGLE, max_num_batched_tokens=0)


ILLEGAL: dict[str, Any] = {
    "negative computed tokens": lambda s, r: s.get_num_new_matched_tokens(r, -16),
    "computed tokens that are no number": lambda s, r: s.get_num_new_matched_tokens(r, 16.0),
    "asking while a load is under way": lambda s, r: s.get_num_new_matched_tokens(r, 0),
    "allocating while a load is under way": lambda s, r: s.update_state_after_alloc(r, 16),
    "allocating more than was found": lambda s, r: s.update_state_after_alloc(other(), 48),
    "allocating what was never asked for": lambda s, r: s.update_state_after_alloc(request_of(40, 16, "new"), 16),
    "allocating part of a block": lambda s, r: s.update_state_after_alloc(other(), 8),
    "allocating a negative number": lambda s, r: s.update_state_after_alloc(other(), -16),
    "ending a load that is not": lambda s, r: s.complete_load("other"),
    "ending a load of a stranger": lambda s, r: s.complete_load("stranger"),
    "ending a store that is not": lambda s, r: s.complete_store(77),
    "storing a negative number": lambda s, r: s.prepare_eager_store(r, -1),
    "storing lazily in eager mode": lambda s, r: s.prepare_lazy_store([]),
    "text hashes in a lookup": lambda s, r: s.get_num_new_matched_tokens(bad(["a", "b"]), 0),
    "list hashes in a lookup": lambda s, r: s.get_num_new_matched_tokens(bad([[1], [2]]), 0),
    "text hashes in a store": lambda s, r: s.prepare_eager_store(bad(["a", "b"]), 32),
    "list hashes in a store": lambda s, r: s.prepare_eager_store(bad([[1], [2]]), 32),
    "too few tokens in a lookup": lambda s, r: s.get_num_new_matched_tokens(bad([0, 1], ()), 0),
    "too few tokens in a store": lambda s, r: s.prepare_eager_store(bad([7, 8], range(31)), 32),
}


def other() -> Request:
    return request_of(60, 16, "other")


def bad(hashes: list[Any], tokens: Sequence[int] = range(40)) -> Request:
    return Request(request_id="bad", num_tokens=40, block_hashes=hashes, all_token_ids=tokens)


@pytest.mark.parametrize("what", ILLEGAL)
def test_an_illegal_call_says_so_and_changes_nothing(what: str) -> None:
    scheduler = scheduler_of(SINGLE, tracker=OffloadingEventsTracker())
    put(scheduler, g0=[0, 1])
    request = request_of(60, 16)
    scheduler.get_num_new_matched_tokens(request, 0)
    scheduler.update_state_after_alloc(request, 32)
    scheduler.get_num_new_matched_tokens(other(), 0)
    scheduler.prepare_eager_store(request, 48)
    before = picture(scheduler)
    with pytest.raises(UsageError):
        ILLEGAL[what](scheduler, request)
    assert before == picture(scheduler)


def picture(scheduler: OffloadScheduler) -> object:
    return (
        {key: (block.block_id, block.ref_count) for key, block in scheduler.manager._blocks.items()},
        {name: [getattr(state, field) for field in state.__slots__] for name, state in scheduler._states.items()},
        dict(scheduler._stores),
        len(scheduler.tracker),
        list(scheduler.manager._policy._order),  # type: ignore[attr-defined]
    )


def test_storing_eagerly_in_lazy_mode_is_refused() -> None:
    scheduler = scheduler_of(SINGLE, lazy_offload=True)
    with pytest.raises(UsageError, match="lazy"):
        scheduler.prepare_eager_store(request_of(40, 16), 32)


def test_random_schedules_keep_the_pool_and_the_events_true() -> None:
    """Requests that come, wait, load, store, fail and leave in any order; a consumer that counts sees what the pool holds."""
    for seed in range(60):
        run_schedule(random.Random(seed))


def run_schedule(rng: random.Random) -> None:
    groups = random_groups(rng)
    scheduler = scheduler_of(
        groups, rng.randint(3, 40), cache_policy=rng.choice(["lru", "arc"]), tracker=OffloadingEventsTracker()
    )
    size, hash_size = scheduler.block_size, scheduler.hash_block_size
    requests = [request_of(rng.randint(1, 4 * size), hash_size, str(n), 100 * rng.randrange(3)) for n in range(5)]
    stores: list[int] = []
    loads: list[str] = []
    residency: Counter[tuple[int | None, BlockHash]] = Counter()
    for _ in range(80):
        request = rng.choice(requests)
        action = rng.randrange(6)
        if action <= 1 and request.request_id not in loads:
            tokens, _ = scheduler.get_num_new_matched_tokens(request, size * rng.randrange(3))
            if tokens and rng.random() < 0.7:
                accepted = size * rng.randint(0, tokens // size)
                if scheduler.update_state_after_alloc(request, accepted):
                    loads.append(request.request_id)
        elif action == 2:
            job = scheduler.prepare_eager_store(request, rng.randint(0, request.num_tokens))
            stores += [job.job_id] if job else []
        elif action == 3 and stores:
            scheduler.complete_store(stores.pop(rng.randrange(len(stores))), rng.random() < 0.8)
        elif action == 4 and loads:
            scheduler.complete_load(loads.pop(rng.randrange(len(loads))))
        elif action == 5:
            scheduler.request_finished(request.request_id)
        for event in scheduler.take_events():
            assert isinstance(event, BlockStored | BlockRemoved)
            for block_hash in event.block_hashes:
                residency[event.group_idx, block_hash] += 1 if isinstance(event, BlockStored) else -1
        assert {tuple(key[::-1]): 1 for key in scheduler.manager.stored_keys()} == {
            k: n for k, n in residency.items() if n
        }
    for job_id in stores:
        scheduler.complete_store(job_id)
    for request_id in loads:
        scheduler.complete_load(request_id)
    for request in requests:
        scheduler.request_finished(request.request_id)
    assert len(scheduler.manager.stored_keys()) == scheduler.manager.evictable_count
    assert {} == scheduler._states

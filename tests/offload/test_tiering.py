"""Secondary tiers behind the CPU pool."""

from __future__ import annotations

import random

import pytest

from kvbus.errors import UsageError
from kvbus.offload.events import OffloadingEvent
from kvbus.offload.keys import OffloadKey, make_offload_key
from kvbus.offload.manager import CPUOffloadingManager
from kvbus.offload.tiering import JobKind, TieringOffloadingManager, TierJob
from kvbus.offload.transfers import LookupResult

A, B, C, D, E = (make_offload_key(number) for number in range(5))


def tiers(primary_blocks: int = 4, *secondary_blocks: int) -> TieringOffloadingManager:
    return TieringOffloadingManager(
        CPUOffloadingManager(primary_blocks, enable_events=True),
        [
            CPUOffloadingManager(blocks, enable_events=True, medium="STORAGE", ownership=f"t{index}")
            for index, blocks in enumerate(secondary_blocks)
        ],
    )


def store(manager: TieringOffloadingManager, *keys: OffloadKey) -> None:
    output = manager.primary.prepare_store(keys)
    assert output is not None
    manager.primary.complete_store(output.keys_to_store)
    manager.copy_on(output.keys_to_store)


def settle(manager: TieringOffloadingManager) -> None:
    """End every copy, and those that these begin."""
    while jobs := manager.take_jobs():
        for job in jobs:
            manager.complete_job(job)


def test_without_secondary_tiers_nothing_is_copied_on() -> None:
    manager = tiers(4)
    store(manager, A)
    assert [] == manager.take_jobs()
    assert [OffloadingEvent([A], "CPU", removed=False)] == manager.take_events()


def test_a_store_is_copied_to_every_tier_and_announced_when_it_has_arrived() -> None:
    manager = tiers(4, 4, 4)
    store(manager, A, B)
    jobs = manager.take_jobs()
    assert [TierJob(JobKind.STORE, 0, [A, B]), TierJob(JobKind.STORE, 1, [A, B])] == jobs
    assert [OffloadingEvent([A, B], "CPU", removed=False)] == manager.take_events()
    manager.complete_job(jobs[1])
    assert [OffloadingEvent([A, B], "STORAGE", removed=False, ownership="t1")] == manager.take_events()


def test_blocks_being_copied_on_are_not_evicted() -> None:
    manager = tiers(2, 4)
    store(manager, A, B)
    assert None is manager.primary.prepare_store([C])
    settle(manager)
    assert [A] == manager.primary.prepare_store([C]).evicted_keys  # type: ignore[union-attr]


def test_what_a_tier_has_is_not_copied_again() -> None:
    manager = tiers(1, 4)
    store(manager, A)
    settle(manager)
    store(manager, B)
    settle(manager)
    store(manager, A)
    assert [] == manager.take_jobs()


def test_a_full_tier_refuses_and_counts() -> None:
    manager = tiers(4, 1)
    store(manager, A, B)
    assert [] == manager.take_jobs()
    assert 2 == manager.stores_refused_count


def test_promotion_brings_back_what_the_pool_has_dropped() -> None:
    manager = tiers(2, 4)
    for key in (A, B, C):
        store(manager, key)
        settle(manager)
    assert LookupResult.MISS is manager.primary.lookup(A)
    manager.take_events()
    assert {A: 0} == manager.promote([A, C])
    assert LookupResult.HIT_PENDING is manager.primary.lookup(A)
    assert LookupResult.HIT is manager.primary.lookup(C), "wanted too, so not evicted for it"
    settle(manager)
    assert LookupResult.HIT is manager.primary.lookup(A)
    expected = [OffloadingEvent([B], "CPU", removed=True), OffloadingEvent([A], "CPU", removed=False)]
    assert expected == manager.take_events()


def test_promotion_takes_the_nearest_tier() -> None:
    manager = tiers(1, 2, 8)
    for key in (A, B, C):
        store(manager, key)
        settle(manager)
    assert {A: 1} == manager.promote([A])
    settle(manager)
    assert {B: 1} == manager.promote([B]), "A came back to the pool and was copied on to tier 0, which dropped B"
    settle(manager)
    assert {A: 0} == manager.promote([A])


def test_what_no_tier_has_is_not_promoted() -> None:
    manager = tiers(3, 4)
    store(manager, A)
    settle(manager)
    store(manager, B, C)
    settle(manager)
    store(manager, D)
    settle(manager)
    assert {A: 0} == manager.promote([A, E])
    assert LookupResult.MISS is manager.primary.lookup(E)


def test_promotion_without_room_does_nothing() -> None:
    manager = tiers(1, 4)
    store(manager, A)
    settle(manager)
    store(manager, B)
    assert {} == manager.promote([A]), "B is being copied on and cannot go"
    settle(manager)
    assert {A: 0} == manager.promote([A])


def test_a_job_ends_once() -> None:
    manager = tiers(2, 2)
    store(manager, A)
    [job] = manager.take_jobs()
    manager.complete_job(job)
    with pytest.raises(UsageError):
        manager.complete_job(job)


def test_reset_voids_what_is_under_way() -> None:
    manager = tiers(2, 2)
    store(manager, A)
    [job] = manager.take_jobs()
    store(manager, B)
    manager.reset()
    assert [] == manager.take_jobs()
    with pytest.raises(UsageError):
        manager.complete_job(job)
    assert [[], []] == [tier.stored_keys() for tier in (manager.primary, *manager.secondary)]


def test_events_folded_are_the_content_of_every_tier() -> None:
    rng = random.Random(5)
    manager = tiers(6, 9, 14)
    jobs: list[TierJob] = []
    folded: dict[tuple[str, str | None], set[OffloadKey]] = {}
    for _ in range(3000):
        keys = [make_offload_key(rng.randrange(40)) for _ in range(rng.randint(1, 4))]
        action = rng.random()
        if action < 0.3 and (output := manager.primary.prepare_store(keys)) is not None:
            manager.primary.complete_store(output.keys_to_store)
            manager.copy_on(output.keys_to_store)
        elif action < 0.5:
            manager.promote(keys)
        elif action < 0.6:
            manager.primary.touch(keys)
        elif jobs:
            manager.complete_job(jobs.pop(rng.randrange(len(jobs))))
        jobs += manager.take_jobs()
        for event in manager.take_events():
            held = folded.setdefault((event.medium, event.ownership), set())
            assert held.isdisjoint(event.keys) != event.removed
            held.symmetric_difference_update(event.keys)
        for tier in (manager.primary, *manager.secondary):
            assert folded.get((tier.medium, tier.ownership), set()) == set(tier.stored_keys())

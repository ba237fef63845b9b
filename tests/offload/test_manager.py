"""The bounded pool: what can be loaded, what may be evicted, and that a refused call changes nothing."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from kvbus.errors import ConfigError, UsageError
from kvbus.offload.events import OffloadingEvent
from kvbus.offload.keys import OffloadKey, make_offload_key
from kvbus.offload.manager import (
    CPULoadStoreSpec,
    CPUOffloadingManager,
    LookupResult,
    PrepareStoreOutput,
)

MISS, HIT, PENDING = LookupResult.MISS, LookupResult.HIT, LookupResult.HIT_PENDING


def keys(*hashes: int, group_idx: int = 0) -> list[OffloadKey]:
    return [make_offload_key(block_hash, group_idx) for block_hash in hashes]


def hashes(of: list[OffloadKey]) -> list[Any]:
    return [key.block_hash for key in of]


def store(manager: CPUOffloadingManager, *block_hashes: int) -> PrepareStoreOutput:
    """Store and finish at once."""
    output = manager.prepare_store(keys(*block_hashes))
    assert output is not None
    manager.complete_store(output.keys_to_store)
    return output


def states(manager: CPUOffloadingManager, *block_hashes: int) -> list[LookupResult]:
    return [manager.lookup(key) for key in keys(*block_hashes)]


def picture(manager: CPUOffloadingManager) -> object:
    """Everything that a call could change, for tests of calls that must change nothing."""
    return (
        {key: (block.block_id, block.ref_count) for key, block in manager._blocks.items()},
        manager._used_slot_count,
        list(manager._free_slots),
        manager.evictable_count,
        manager.stores_skipped_count,
        list(manager._events or []),
        vars(manager._policy).__repr__(),
        dict(manager._lookup_counts or {}),
    )


@pytest.fixture(params=["lru", "arc"])
def pool(request: pytest.FixtureRequest) -> Callable[..., CPUOffloadingManager]:
    def build(num_blocks: int = 4, **options: Any) -> CPUOffloadingManager:
        return CPUOffloadingManager(num_blocks, request.param, True, **options)

    return build


def test_a_block_is_loadable_only_after_its_store_ended(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool()
    seen = states(manager, 1)
    manager.prepare_store(keys(1))
    seen += states(manager, 1)
    manager.complete_store(keys(1))
    seen += states(manager, 1)
    assert [MISS, PENDING, HIT] == seen


def test_one_hash_in_two_groups_takes_two_slots(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool()
    output = manager.prepare_store(keys(1) + keys(1, group_idx=1))
    assert output is not None
    assert 2 == len(set(output.store_spec.block_ids))


def test_a_store_names_what_to_copy_where(pool: Callable[..., CPUOffloadingManager]) -> None:
    assert PrepareStoreOutput(keys(1, 2), CPULoadStoreSpec([0, 1]), []) == pool().prepare_store(keys(1, 2))


def test_what_is_there_or_under_way_is_not_stored_again(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool()
    store(manager, 1)
    manager.prepare_store(keys(2))
    output = manager.prepare_store(keys(1, 2, 3))
    assert output is not None
    assert [3] == hashes(output.keys_to_store)


def test_a_key_named_twice_is_stored_once(pool: Callable[..., CPUOffloadingManager]) -> None:
    output = pool(1).prepare_store(keys(1, 1))
    assert output is not None
    assert [1] == hashes(output.keys_to_store)


def test_storing_nothing_is_fine(pool: Callable[..., CPUOffloadingManager]) -> None:
    assert PrepareStoreOutput([], CPULoadStoreSpec([]), []) == pool().prepare_store([])


def test_the_least_recent_goes_first_and_frees_its_slot(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(2)
    store(manager, 1, 2)
    assert PrepareStoreOutput(keys(3), CPULoadStoreSpec([0]), keys(1)) == manager.prepare_store(keys(3))


def test_a_load_reads_the_slots_that_the_store_wrote(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(3)
    written = store(manager, 1, 2, 3)
    assert written.store_spec.block_ids[::-1] == manager.prepare_load(keys(3, 2, 1)).block_ids


def test_a_pinned_block_is_not_evicted_until_the_last_load_ended(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(1)
    store(manager, 1)
    manager.prepare_load(keys(1))
    manager.prepare_load(keys(1))
    outcomes = [manager.prepare_store(keys(2))]
    manager.complete_load(keys(1))
    outcomes.append(manager.prepare_store(keys(2)))
    manager.complete_load(keys(1))
    assert [None, None] == outcomes
    assert manager.prepare_store(keys(2)) is not None


def test_an_unfinished_block_is_not_evicted(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(1)
    manager.prepare_store(keys(1))
    assert manager.prepare_store(keys(2)) is None


def test_no_key_of_a_call_is_evicted_for_it(pool: Callable[..., CPUOffloadingManager]) -> None:
    """A prefix half there must not lose its first half to its second."""
    manager = pool(3)
    store(manager, 1, 2, 3)
    output = manager.prepare_store(keys(1, 4))
    assert output is not None
    assert [2] == hashes(output.evicted_keys)


def test_a_key_left_out_by_the_threshold_is_protected_too(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(2, store_threshold=2)
    states(manager, 1, 2, 1, 2)
    store(manager, 1, 2)
    states(manager, 3, 3)
    output = manager.prepare_store(keys(1, 3, 9))
    assert output is not None
    assert ([3], [2]) == (hashes(output.keys_to_store), hashes(output.evicted_keys))


@pytest.mark.parametrize("pinned", [[1], [2], [1, 3]])
def test_a_store_that_does_not_fit_changes_nothing(
    pool: Callable[..., CPUOffloadingManager], pinned: list[int]
) -> None:
    manager = pool(3)
    store(manager, 1, 2, 3)
    manager.prepare_load(keys(*pinned))
    before = picture(manager)
    outcome = manager.prepare_store(keys(4, 5, 6))
    assert (None, before) == (outcome, picture(manager))


def test_blocks_of_the_call_do_not_count_as_room_for_it(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(2)
    store(manager, 1, 2)
    before = picture(manager)
    outcome = manager.prepare_store(keys(1, 3, 4))
    assert (None, before) == (outcome, picture(manager))


def test_more_than_the_pool_holds_never_fits(pool: Callable[..., CPUOffloadingManager]) -> None:
    assert pool(2).prepare_store(keys(1, 2, 3)) is None


def test_a_failed_store_leaves_no_trace(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(2)
    store(manager, 1)
    manager.take_events()
    manager.prepare_store(keys(2))
    manager.complete_store(keys(2), success=False)
    after = (states(manager, 2), manager.free_count, manager.take_events(), manager.stored_keys())
    assert ([MISS], 1, [], keys(1)) == after
    assert [1] == manager.prepare_store(keys(2)).store_spec.block_ids  # type: ignore[union-attr]


def test_a_store_may_end_in_portions_and_in_part(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool()
    manager.prepare_store(keys(1, 2, 3))
    manager.complete_store(keys(2))
    manager.complete_store(keys(3), success=False)
    manager.complete_store(keys(1))
    assert [HIT, HIT, MISS] == states(manager, 1, 2, 3)


def test_touch_saves_a_block_and_ignores_strangers(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(2)
    store(manager, 1, 2)
    manager.touch(keys(9, 1))
    output = manager.prepare_store(keys(3))
    assert output is not None
    assert [2] == hashes(output.evicted_keys)


def test_of_a_touched_prefix_the_tail_goes_first(pool: Callable[..., CPUOffloadingManager]) -> None:
    """Without its start nothing after it can be loaded."""
    manager = pool(3)
    store(manager, 1, 2, 3)
    manager.touch(keys(1, 2, 3))
    output = manager.prepare_store(keys(4, 5))
    assert output is not None
    assert [3, 2] == hashes(output.evicted_keys)


def test_events_say_what_became_loadable_and_what_no_longer_is(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(2, medium="STORAGE", ownership="kvcr", locality="REMOTE")
    store(manager, 1, 2)
    manager.prepare_store(keys(3))
    expected = [
        OffloadingEvent(keys(1, 2), "STORAGE", False, "REMOTE", "kvcr"),
        OffloadingEvent(keys(1), "STORAGE", True, "REMOTE", "kvcr"),
    ]
    assert (expected, []) == (manager.take_events(), manager.take_events())


def test_blocks_of_different_sizes_share_an_event(pool: Callable[..., CPUOffloadingManager]) -> None:
    """Group 0 may have 256-token blocks and group 1 64-token ones: one transfer, one event, and no size in it."""
    manager = pool()
    mixed = keys(1) + keys(1, 2, group_idx=1)
    manager.prepare_store(mixed)
    manager.complete_store(mixed)
    assert [OffloadingEvent(mixed, "CPU", False)] == manager.take_events()


def test_without_events_enabled_there_are_none() -> None:
    manager = CPUOffloadingManager(1)
    store(manager, 1)
    assert [] == manager.take_events()


def test_reset_empties_the_pool_and_says_so(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(3)
    store(manager, 1, 2)
    manager.prepare_load(keys(1))
    manager.prepare_store(keys(3))
    manager.take_events()
    manager.reset()
    assert [OffloadingEvent(keys(1, 2), "CPU", True)] == manager.take_events()
    assert ([MISS] * 3, 3, 0) == (states(manager, 1, 2, 3), manager.free_count, manager.evictable_count)
    assert [0, 1, 2] == manager.prepare_store(keys(4, 5, 6)).store_spec.block_ids  # type: ignore[union-attr]


def test_transfers_under_way_at_a_reset_are_void(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool()
    store(manager, 1)
    manager.prepare_load(keys(1))
    manager.prepare_store(keys(2))
    manager.reset()
    with pytest.raises(UsageError):
        manager.complete_load(keys(1))
    with pytest.raises(UsageError):
        manager.complete_store(keys(2))


def test_a_block_is_stored_once_it_was_asked_for_often_enough(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(store_threshold=2)
    outcomes = []
    for _ in range(2):
        states(manager, 1)
        output = manager.prepare_store(keys(1))
        assert output is not None
        outcomes.append(hashes(output.keys_to_store))
    assert ([[], [1]], 1) == (outcomes, manager.stores_skipped_count)


def test_the_key_looked_up_longest_ago_is_no_longer_counted(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(store_threshold=2, max_tracker_size=2)
    states(manager, 1, 2, 1, 3)
    output = manager.prepare_store(keys(1, 2, 3))
    assert output is not None
    assert [1] == hashes(output.keys_to_store)


def test_stored_keys_lists_what_can_be_loaded(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool()
    store(manager, 2, 1)
    manager.prepare_load(keys(1))
    manager.prepare_store(keys(3))
    assert keys(2, 1) == manager.stored_keys()


ILLEGAL: dict[str, Callable[[CPUOffloadingManager], object]] = {
    "load of an absent block": lambda manager: manager.prepare_load(keys(1, 9)),
    "load of an unfinished block": lambda manager: manager.prepare_load(keys(1, 3)),
    "end of a load that was not begun": lambda manager: manager.complete_load(keys(2, 1)),
    "end of a load once too often": lambda manager: manager.complete_load(keys(2, 2)),
    "end of a load of an absent block": lambda manager: manager.complete_load(keys(2, 9)),
    "end of a load of an unfinished block": lambda manager: manager.complete_load(keys(2, 3)),
    "end of a store that was not begun": lambda manager: manager.complete_store(keys(3, 9)),
    "end of a store that has ended": lambda manager: manager.complete_store(keys(3, 1)),
    "failure of a store that has ended": lambda manager: manager.complete_store(keys(3, 1), success=False),
    "end of a store twice in a call": lambda manager: manager.complete_store(keys(3, 3)),
    "hash as key in lookup": lambda manager: manager.lookup(1),  # type: ignore[arg-type]
    "text hash in lookup": lambda manager: manager.lookup(OffloadKey("1", 0)),  # type: ignore[arg-type]
    "text hash in a store": lambda manager: manager.prepare_store([*keys(4), OffloadKey("5", 0)]),  # type: ignore[arg-type]
    "bare hash in a store": lambda manager: manager.prepare_store([*keys(4), 5]),  # type: ignore[list-item]
    "single key in a store": lambda manager: manager.prepare_store(keys(4)[0]),  # type: ignore[arg-type]
    "raw bytes in a touch": lambda manager: manager.touch([*keys(1), b"x"]),  # type: ignore[list-item]
    "raw bytes in a load": lambda manager: manager.prepare_load([*keys(1), b"x"]),  # type: ignore[list-item]
    "negative group in a load": lambda manager: manager.complete_load([OffloadKey(2, -1)]),
}


@pytest.mark.parametrize("what", ILLEGAL)
def test_an_illegal_call_says_so_and_changes_nothing(pool: Callable[..., CPUOffloadingManager], what: str) -> None:
    manager = pool(4, store_threshold=1)
    store(manager, 1, 2)
    manager.prepare_load(keys(2))
    manager.prepare_store(keys(3))
    before = picture(manager)
    with pytest.raises(UsageError):
        ILLEGAL[what](manager)
    assert before == picture(manager)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("num_blocks", {"num_blocks": -1}),
        ("num_blocks", {"num_blocks": 0}),
        ("num_blocks", {"num_blocks": 2.0}),
        ("num_blocks", {"num_blocks": True}),
        ("cache_policy", {"cache_policy": "mru"}),
        ("cache_policy", {"cache_policy": ["lru"]}),
        ("store_threshold", {"store_threshold": -1}),
        ("max_tracker_size", {"max_tracker_size": 0}),
        ("medium", {"medium": ""}),
        ("ownership", {"ownership": ""}),
        ("locality", {"locality": 5}),
    ],
)
def test_options_that_cannot_work_are_refused(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        CPUOffloadingManager(**{"num_blocks": 4, **options})
    assert [field] == [problem.field for problem in caught.value.problems]


def test_every_bad_option_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        CPUOffloadingManager(-5, "fifo", store_threshold=-1)
    assert ["num_blocks", "store_threshold", "cache_policy"] == [problem.field for problem in caught.value.problems]


def test_random_calls_keep_the_books_right(pool: Callable[..., CPUOffloadingManager]) -> None:
    """Counts, slots and events agree with what a plain set of keys says, whatever the order of calls."""
    for seed in range(40):
        drive(pool(random.Random(seed).randint(1, 6)), random.Random(seed))


def drive(manager: CPUOffloadingManager, rng: random.Random) -> None:
    """Call at random and check after each call what must hold."""
    unfinished: list[OffloadKey] = []
    pins: list[OffloadKey] = []
    loadable: set[OffloadKey] = set()
    for _ in range(120):
        some = keys(*rng.sample(range(10), rng.randint(0, 4)))
        action = rng.randrange(6)
        if action <= 1:
            output = manager.prepare_store(some)
            unfinished += output.keys_to_store if output else []
        elif action == 2:
            done = rng.sample(unfinished, rng.randint(0, len(unfinished)))
            manager.complete_store(done, success=rng.random() < 0.7)
            unfinished = [key for key in unfinished if key not in done]
        elif action == 3:
            ready = [key for key in some if key in loadable]
            manager.prepare_load(ready)
            pins += ready
        elif action == 4:
            rng.shuffle(pins)
            manager.complete_load(pins[: len(pins) // 2])
            del pins[: len(pins) // 2]
        else:
            manager.touch(some)
        for event in manager.take_events():
            for key in event.keys:
                (loadable.remove if event.removed else loadable.add)(key)
        assert loadable == set(manager.stored_keys())
        assert set(pins) <= loadable
        assert len(loadable - set(pins)) == manager.evictable_count
        assert manager.num_blocks - len(loadable) - len(unfinished) == manager.free_count
        slots = [block.block_id for block in manager._blocks.values()]
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < manager.num_blocks for slot in slots)


def test_peek_sees_what_lookup_sees_and_counts_nothing(pool: Callable[..., CPUOffloadingManager]) -> None:
    manager = pool(store_threshold=2)
    assert [MISS, MISS] == [manager.peek(keys(1)[0]), manager.peek(keys(1)[0])]
    output = manager.prepare_store(keys(1))
    assert output is not None
    assert [] == output.keys_to_store


def test_fitting_is_the_longest_leading_part_that_is_not_refused(pool: Callable[..., CPUOffloadingManager]) -> None:
    """Against the dumb way: try one key more until it is refused, on a copy of the pool."""
    for seed in range(60):
        rng = random.Random(seed)
        setup = [rng.sample(range(8), 2) for _ in range(3)]
        pinned = rng.sample(range(8), 2)
        wanted = keys(*rng.sample(range(12), 6))

        def build(setup: list[list[int]] = setup, pinned: list[int] = pinned) -> CPUOffloadingManager:
            manager = pool(5)
            for block_hashes in setup:
                store(manager, *block_hashes)
            manager.prepare_load([key for key in keys(*pinned) if manager.peek(key) is HIT])
            return manager

        expected = max(n for n in range(len(wanted) + 1) if build().prepare_store(wanted[:n]) is not None)
        assert wanted[:expected] == build().fitting(wanted)

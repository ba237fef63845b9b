"""Least recently used, by hand and against the dumbest model of it."""

import random

from kvbus.offload.keys import OffloadKey, make_offload_key
from kvbus.offload.lru import LRUCachePolicy


def keys(*hashes: int) -> list[OffloadKey]:
    return [make_offload_key(block_hash) for block_hash in hashes]


def anything(key: OffloadKey) -> bool:
    return True


def test_the_oldest_goes_first() -> None:
    policy = LRUCachePolicy()
    policy.admit(keys(1, 2, 3), 0, anything)
    assert keys(1, 2) == policy.admit(keys(4, 5), 2, anything)


def test_a_touched_key_goes_later_and_the_first_of_a_touch_last() -> None:
    policy = LRUCachePolicy()
    policy.admit(keys(1, 2, 3), 0, anything)
    policy.touch(keys(1, 2))
    assert keys(3, 2, 1) == policy.admit(keys(4, 5, 6), 3, anything)


def test_what_may_not_go_is_passed_over_and_keeps_its_place() -> None:
    policy = LRUCachePolicy()
    policy.admit(keys(1, 2, 3), 0, anything)
    first = policy.admit(keys(4), 1, lambda key: key.block_hash != 1)
    assert (keys(2), keys(1)) == (first, policy.admit(keys(5), 1, anything))


def test_a_withdrawn_key_is_forgotten() -> None:
    policy = LRUCachePolicy()
    policy.admit(keys(1, 2), 0, anything)
    policy.withdraw(keys(1)[0])
    assert keys(2) == policy.admit(keys(3), 1, anything)


def test_nothing_is_left_after_clear() -> None:
    policy = LRUCachePolicy()
    policy.admit(keys(1), 0, anything)
    policy.clear()
    policy.touch(keys(1))
    policy.admit(keys(2), 0, anything)
    assert keys(2) == policy.admit(keys(3), 1, anything)


class OldestStamp:
    """A stamp per key; the smallest stamp goes. Nothing clever."""

    def __init__(self) -> None:
        self.clock = 0
        self.stamps: dict[OffloadKey, int] = {}

    def stamp(self, key: OffloadKey) -> None:
        self.clock += 1
        self.stamps[key] = self.clock

    def evict(self, pinned: set[OffloadKey]) -> OffloadKey:
        victim = min((key for key in self.stamps if key not in pinned), key=lambda key: self.stamps[key])
        del self.stamps[victim]
        return victim


def test_random_operations_agree_with_a_stamp_per_key() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        capacity = rng.randint(1, 8)
        policy, model = LRUCachePolicy(), OldestStamp()
        for _ in range(100):
            some = keys(*rng.sample(range(16), rng.randint(1, 4)))
            pinned = set(rng.sample(list(model.stamps), rng.randint(0, len(model.stamps)))) if model.stamps else set()
            new = [key for key in some if key not in model.stamps]
            evict_count = max(0, len(model.stamps) + len(new) - capacity)
            roll = rng.random()
            if roll < 0.4:
                policy.touch(some)
                for key in reversed([key for key in some if key in model.stamps]):
                    model.stamp(key)
            elif roll < 0.5 and model.stamps:
                gone = rng.choice(list(model.stamps))
                policy.withdraw(gone)
                del model.stamps[gone]
            elif evict_count <= min(len(new), len(model.stamps) - len(pinned)):
                free = set(model.stamps) - pinned
                expected = [model.evict(pinned) for _ in range(evict_count)]
                for key in new:
                    model.stamp(key)
                assert expected == policy.admit(new, evict_count, free.__contains__)

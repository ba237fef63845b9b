"""ARC, worked by hand, against the paper's own figure, and with what the paper does not have: transfers.

The models below are lists that are searched from the front; they are meant to be read beside figure 4 of the paper, not to be
fast.
"""

import random
from collections.abc import Iterable

import pytest

from kvbus.offload.arc import ARCCachePolicy
from kvbus.offload.keys import OffloadKey, make_offload_key
from kvbus.offload.manager import CPUOffloadingManager, LookupResult


def key(name: str | int) -> OffloadKey:
    return make_offload_key(ord(name) if isinstance(name, str) else name)


def names(keys: Iterable[OffloadKey]) -> str:
    return "".join(chr(k.block_hash) for k in keys)  # type: ignore[arg-type]


def anything(_: OffloadKey) -> bool:
    return True


class Cache:
    """A pool of c slots on top of the policy, one request at a time, as in the paper."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.policy = ARCCachePolicy(slots)

    def request(self, name: str | int) -> None:
        wanted = key(name)
        if wanted in self.policy._t1 or wanted in self.policy._t2:
            self.policy.touch([wanted])
            return
        is_full = len(self.policy._t1) + len(self.policy._t2) == self.slots
        self.policy.admit([wanted], int(is_full), anything)
        self.policy.settle(wanted)

    def lists(self) -> tuple[str, str, str, str, float]:
        policy = self.policy
        return (
            names(policy._t1),
            names(policy._t2),
            names(policy._b1),
            names(policy._b2),
            policy.target_t1_size,
        )


def test_an_example_worked_by_hand() -> None:
    """Three slots; after each request T1, T2, B1, B2 (least recent first) and p, as figure 4 gives them on paper."""
    worked = [
        ("a", ("a", "", "", "", 0)),
        ("b", ("ab", "", "", "", 0)),
        ("c", ("abc", "", "", "", 0)),
        # Case IV A, T1 fills L1 alone: a goes without a ghost.
        ("d", ("bcd", "", "", "", 0)),
        # Case I.
        ("b", ("cd", "b", "", "", 0)),
        # Case IV B: |T1| = 2 > p, c becomes a ghost.
        ("e", ("de", "b", "c", "", 0)),
        # Case II: p = 1; |T1| = 2 > 1, d goes; c was used twice.
        ("c", ("e", "bc", "d", "", 1)),
        # Case IV B: |T1| = 1 is not above p, so T2 gives.
        ("f", ("ef", "c", "d", "b", 1)),
        # Case III: p = 0; |T1| = 2 > 0, e goes.
        ("b", ("f", "cb", "de", "", 0)),
        ("d", ("f", "bd", "e", "c", 1)),
        ("c", ("", "bdc", "ef", "", 0)),
        # Case II with T1 empty: T2 gives.
        ("e", ("", "dce", "f", "b", 1)),
        # Case IV B: L1 has 1, all have 5.
        ("g", ("g", "ce", "f", "bd", 1)),
        # Case IV B with all lists full, 2c = 6: the oldest ghost of B2 is forgotten first.
        ("h", ("gh", "e", "f", "dc", 1)),
    ]
    cache = Cache(3)
    seen = []
    for name, _ in worked:
        cache.request(name)
        seen.append((name, cache.lists()))
    assert worked == seen


def test_a_ghost_of_the_shorter_list_moves_the_target_by_the_ratio() -> None:
    """Figure 4: δ1 = |B2| / |B1| where B2 is the longer, δ2 = |B1| / |B2| where B1 is; p stays in [0, c]."""
    cache = Cache(4)
    seen = []
    for run in ("abcdabcdefegh", "f", "ijkcde", "f"):
        for name in run:
            cache.request(name)
        seen.append(cache.lists())
    expected = [
        ("gh", "de", "f", "abc", 1),
        ("gh", "ef", "", "abcd", 4),
        ("k", "cde", "hij", "f", 1),
        ("", "cdef", "hijk", "", 0),
    ]
    assert expected == seen


def test_at_the_target_a_ghost_of_b2_takes_from_t1() -> None:
    """REPLACE, the second half of its condition: |T1| = p, and x is in B2."""
    cache = Cache(4)
    for name in "abcdabcdefeghfijg":
        cache.request(name)
    before = cache.lists()
    cache.request("c")
    assert (("hij", "g", "", "cdef", 4), ("ij", "gc", "h", "def", 3)) == (before, cache.lists())


def test_a_scan_does_not_wash_out_what_is_used_often() -> None:
    """The point of ARC: a long run of keys used once costs one place, not the cache."""
    cache = Cache(4)
    for name in "abcabc":
        cache.request(name)
    for number in range(1000, 1100):
        cache.request(number)
    assert {"a", "b", "c"} == set(names(cache.policy._t2))


class Figure4:
    """Figure 4 of the paper, line by line, with lists (least recent first)."""

    def __init__(self, c: int) -> None:
        self.c, self.p = c, 0.0
        self.t1: list[OffloadKey] = []
        self.t2: list[OffloadKey] = []
        self.b1: list[OffloadKey] = []
        self.b2: list[OffloadKey] = []

    def request(self, x: OffloadKey) -> None:
        c, t1, t2, b1, b2 = self.c, self.t1, self.t2, self.b1, self.b2
        if x in t1 or x in t2:
            (t1 if x in t1 else t2).remove(x)
            t2.append(x)
        elif x in b1:
            self.p = min(self.p + (1 if len(b1) >= len(b2) else len(b2) / len(b1)), c)
            self.replace(x)
            b1.remove(x)
            t2.append(x)
        elif x in b2:
            self.p = max(self.p - (1 if len(b2) >= len(b1) else len(b1) / len(b2)), 0)
            self.replace(x)
            b2.remove(x)
            t2.append(x)
        else:
            if len(t1) + len(b1) == c:
                if len(t1) < c:
                    b1.pop(0)
                    self.replace(x)
                else:
                    t1.pop(0)
            elif len(t1) + len(t2) + len(b1) + len(b2) >= c:
                if len(t1) + len(t2) + len(b1) + len(b2) == 2 * c:
                    b2.pop(0)
                self.replace(x)
            t1.append(x)

    def replace(self, x: OffloadKey) -> None:
        if self.t1 and (len(self.t1) > self.p or (x in self.b2 and len(self.t1) == self.p)):
            self.b1.append(self.t1.pop(0))
        else:
            self.b2.append(self.t2.pop(0))


def lists_of(policy: ARCCachePolicy) -> tuple[object, ...]:
    return (list(policy._t1), list(policy._t2), list(policy._b1), list(policy._b2), policy.target_t1_size)


def test_random_requests_agree_with_figure_4() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        c = rng.randint(1, 8)
        cache, model = Cache(c), Figure4(c)
        for _ in range(150):
            # Some keys are wanted far more often than others, so that all four lists see traffic.
            number = min(rng.randrange(3 * c), rng.randrange(4 * c))
            cache.request(number)
            model.request(key(number))
            assert (model.t1, model.t2, model.b1, model.b2, model.p) == lists_of(cache.policy)


def test_an_unfinished_block_is_not_a_victim_and_using_it_is_no_second_use() -> None:
    policy = ARCCachePolicy(2)
    policy.admit([key("a")], 0, anything)
    policy.settle(key("a"))
    policy.admit([key("b")], 0, anything)
    policy.touch([key("b"), key("a")])
    assert ("b", "a") == (names(policy._t1), names(policy._t2))


def test_a_failed_store_of_a_new_key_leaves_no_trace() -> None:
    cache = Cache(3)
    for name in "abc":
        cache.request(name)
    cache.policy.touch([key("a")])
    before = cache.lists()
    cache.policy.admit([key("x")], 1, anything)
    cache.policy.withdraw(key("x"))
    assert ("c", "a", "b", "", 0) == cache.lists()
    assert ("bc", "a", "", "", 0) == before


def test_a_failed_store_of_a_ghost_makes_it_a_ghost_again() -> None:
    cache = Cache(3)
    for name in "abcdbe":
        cache.request(name)
    assert ("de", "b", "c", "", 0) == cache.lists()
    cache.policy.admit([key("c")], 1, anything)
    cache.policy.withdraw(key("c"))
    assert ("e", "b", "dc", "", 1) == cache.lists()


def test_a_ghost_that_comes_back_does_not_break_the_bound_of_its_list() -> None:
    """L1 must not pass c: the oldest ghost makes room, which may be another."""
    policy = ARCCachePolicy(3)
    cache = Cache(3)
    cache.policy = policy
    for name in "abcdbe":
        cache.request(name)
    policy.admit([key("c")], 1, anything)  # T1 e, T2 b and unfinished c, B1 d
    policy.admit([key("f")], 1, lambda k: k == key("b"))  # T1 e f, T2 c, B1 d, B2 b
    policy.withdraw(key("c"))
    assert ("ef", "", "c", "b", 1) == cache.lists()


def test_where_the_named_list_has_nothing_that_may_go_the_other_gives() -> None:
    cache = Cache(3)
    for name in "abcb":
        cache.request(name)
    # p = 0, so REPLACE names T1 (a c), but only b may go.
    assert [key("b")] == cache.policy.admit([key("d")], 1, lambda k: k == key("b"))


def test_nothing_is_left_after_clear() -> None:
    cache = Cache(3)
    for name in "abcdbecf":
        cache.request(name)
    cache.policy.admit([key("x")], 1, anything)
    cache.policy.clear()
    assert ("", "", "", "", 0) == cache.lists()


class WithTransfers(Figure4):
    """The same with unfinished and pinned blocks and free slots, as the module says they count."""

    def __init__(self, c: int) -> None:
        super().__init__(c)
        self.unfinished: dict[OffloadKey, list[OffloadKey] | None] = {}
        self.held: set[OffloadKey] = set()
        self.evicted: list[OffloadKey] = []

    def may_go(self, k: OffloadKey) -> bool:
        return k not in self.held and k not in self.unfinished

    def admit(self, keys: list[OffloadKey], held: set[OffloadKey]) -> list[OffloadKey]:
        self.held, self.evicted = held | set(keys), []
        for x in keys:
            ghosts = self.b1 if x in self.b1 else self.b2 if x in self.b2 else None
            if ghosts is self.b1:
                self.p = min(self.p + max(1, len(self.b2) / len(self.b1)), self.c)
            elif ghosts is self.b2:
                self.p = max(self.p - max(1, len(self.b1) / len(self.b2)), 0)
            is_full = len(self.t1) + len(self.t2) == self.c
            if ghosts is None and len(self.t1) + len(self.b1) == self.c and not self.b1:
                victim = next(k for k in self.t1 if self.may_go(k))
                self.t1.remove(victim)
                self.evicted.append(victim)
            else:
                if ghosts is None and len(self.t1) + len(self.b1) == self.c:
                    self.b1.pop(0)
                elif ghosts is None and len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) == 2 * self.c:
                    self.b2.pop(0)
                if is_full:
                    self.replace(x)
            if ghosts is not None:
                ghosts.remove(x)
            (self.t1 if ghosts is None else self.t2).append(x)
            self.unfinished[x] = ghosts
        return self.evicted

    def replace(self, x: OffloadKey) -> None:
        old1 = [k for k in self.t1 if self.may_go(k)]
        old2 = [k for k in self.t2 if self.may_go(k)]
        wants_t1 = bool(self.t1) and (len(self.t1) > self.p or (x in self.b2 and len(self.t1) == self.p))
        source, ghosts, victim = (
            (self.t1, self.b1, old1[0]) if old1 and (wants_t1 or not old2) else (self.t2, self.b2, old2[0])
        )
        source.remove(victim)
        ghosts.append(victim)
        self.evicted.append(victim)

    def touch(self, keys: list[OffloadKey]) -> None:
        for x in reversed(keys):
            if x in self.t1 and x in self.unfinished:
                self.t1.remove(x)
                self.t1.append(x)
            elif x in self.t1 or x in self.t2:
                (self.t1 if x in self.t1 else self.t2).remove(x)
                self.t2.append(x)

    def withdraw(self, x: OffloadKey) -> None:
        ghosts = self.unfinished.pop(x)
        (self.t1 if ghosts is None else self.t2).remove(x)
        if ghosts is not None:
            ghosts.append(x)
            if len(self.t1) + len(self.b1) > self.c:
                self.b1.pop(0)


def test_random_operations_with_transfers_agree_with_the_model() -> None:
    for seed in range(150):
        run_transfers(random.Random(seed))


def run_transfers(rng: random.Random) -> None:
    c = rng.randint(1, 8)
    policy, model = ARCCachePolicy(c), WithTransfers(c)
    for _ in range(120):
        pool = model.t1 + model.t2
        some = [key(number) for number in rng.sample(range(3 * c + 3), rng.randint(1, 4))]
        roll = rng.random()
        if roll < 0.3:
            policy.touch(some)
            model.touch(some)
        elif roll < 0.6 and model.unfinished:
            done = rng.choice(list(model.unfinished))
            if rng.random() < 0.75:
                policy.settle(done)
                del model.unfinished[done]
            else:
                policy.withdraw(done)
                model.withdraw(done)
        else:
            pinned = set(rng.sample(pool, rng.randint(0, len(pool) // 2)))
            new = [k for k in some if k not in pool]
            evict_count = max(0, len(pool) + len(new) - c)
            evictable = set(pool) - pinned - set(model.unfinished) - set(some)
            if evict_count <= min(len(new), len(evictable)):
                expected = model.admit(new, pinned | set(some))
                assert expected == policy.admit(new, evict_count, evictable.__contains__)
        assert (model.t1, model.t2, model.b1, model.b2, model.p) == lists_of(policy)
        assert len(model.t1) + len(model.b1) <= c
        assert len(model.t1) + len(model.t2) + len(model.b1) + len(model.b2) <= 2 * c
        assert 0 <= policy.target_t1_size <= c


@pytest.mark.parametrize(("policy_name", "expected"), [("lru", 2), ("arc", 400)])
def test_the_manager_drives_it(policy_name: str, expected: int) -> None:
    """A hot prefix between runs of keys used once: LRU loses it in every round, ARC never."""
    manager = CPUOffloadingManager(4, policy_name)
    hot = [key("a"), key("b")]
    hits = 0
    for step in range(200):
        cold = [[key(1000 * part + step)] for part in range(1, 5)]
        for wanted in [hot, hot, *cold] if step == 0 else [hot, *cold]:
            hits += sum(manager.lookup(k) is LookupResult.HIT for k in wanted)
            manager.touch(wanted)
            output = manager.prepare_store(wanted)
            assert output is not None
            manager.complete_store(output.keys_to_store)
    assert expected == hits

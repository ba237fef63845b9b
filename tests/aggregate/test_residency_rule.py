"""A block is announced while a quorum holds it: at every step, against a dumb oracle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable
from typing import Any

import pytest

from kvbus.aggregate.description import Kind
from kvbus.aggregate.residency_rule import (
    BLOCK_BYTES,
    Announced,
    Change,
    Cleared,
    Effect,
    Passed,
    ResidencyRule,
    Withdrawn,
)
from kvbus.errors import DecodeError, UsageError

GPU, CPU = "GPU", "CPU"
Event = tuple[Any, ...]


def store(*hashes: Hashable, place: str = GPU, described: bool = True) -> Event:
    return ("store", place, hashes, described)


def removal(*hashes: Hashable, place: str = GPU) -> Event:
    return ("removal", place, hashes)


CLEAR: Event = ("clear", None)
CLEAR_CPU: Event = ("clear", CPU)
ODD: Event = ("odd",)


def describe(event: Event) -> Effect:
    if event[0] == "bad":
        raise DecodeError("$", "bad")
    if event[0] == "store":
        return Effect(Kind.STORE, event[1], event[2], is_described=event[3], size_bytes=10)
    if event[0] == "removal":
        return Effect(Kind.REMOVAL, event[1], event[2])
    if event[0] == "clear":
        scope = event[1]
        return Effect(Kind.CLEAR, covers=None if scope is None else lambda place: place == scope)
    return Effect(Kind.OTHER)


def rule(workers: str = "ab", **options: Any) -> ResidencyRule[Event]:
    return ResidencyRule(workers, describe=describe, **options)


class Reader:
    """What a router believes that applies the changes."""

    def __init__(self) -> None:
        self.held: set[tuple[Hashable, Hashable]] = set()

    def apply(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, Announced):
                place, hashes = change.event[1], change.event[2]  # type: ignore[index]
                assert change.indices == sorted(set(change.indices))
                for index in change.indices:
                    assert (place, hashes[index]) not in self.held
                    self.held.add((place, hashes[index]))
            elif isinstance(change, Withdrawn):
                for block_hash in change.hashes:
                    self.held.remove((change.place, block_hash))
                if change.event is not None:
                    assert change.hashes == [change.event[2][index] for index in change.indices]  # type: ignore[index]
            elif isinstance(change, Cleared):
                assert self.held
                self.held.clear()


class Oracle:
    """References by worker, counted by hand."""

    def __init__(self, workers: str, quorum: Any, counts_copies: bool) -> None:
        self.references: dict[str, Counter[tuple[Hashable, Hashable]]] = {worker: Counter() for worker in workers}
        self.quorum, self.counts_copies = quorum, counts_copies

    def apply(self, worker: str, event: Event) -> None:
        held = self.references[worker]
        if event[0] == "store":
            for block_hash in event[2]:
                key = (event[1], block_hash)
                held[key] = held[key] + 1 if self.counts_copies else 1
        elif event[0] == "removal":
            for block_hash in event[2]:
                key = (event[1], block_hash)
                held[key] = max(held[key] - 1, 0)
        elif event[0] == "clear":
            for key in list(held):
                if event[1] in (None, key[0]):
                    del held[key]

    def announced(self) -> set[tuple[Hashable, Hashable]]:
        needed = {"all": len(self.references), "any": 1}.get(self.quorum, self.quorum)
        holders = Counter(key for held in self.references.values() for key, count in held.items() if count > 0)
        return {key for key, count in holders.items() if count >= needed}


def draw(rng: random.Random) -> Event:
    place = rng.choice([GPU, GPU, CPU])
    hashes = rng.sample(range(12), rng.choice([1, 1, 2, 4]))
    dice = rng.random()
    if dice < 0.02:
        return CLEAR
    if dice < 0.04:
        return CLEAR_CPU
    if dice < 0.06:
        return ODD
    return store(*hashes, place=place, described=rng.random() < 0.8) if dice < 0.6 else removal(*hashes, place=place)


@pytest.mark.parametrize("quorum", ["all", "any", 1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_a7_announced_is_held_by_the_quorum_at_every_step(seed: int, quorum: Any) -> None:
    """Duplicates, different cuts, clears, losses, departures and joins, of one worker and of all."""
    rng = random.Random(seed)
    counts_copies = rng.random() < 0.7
    workers = "abc"
    tested = rule(workers, quorum=quorum, counts_copies=counts_copies)
    oracle, reader = Oracle(workers, quorum, counts_copies), Reader()
    for _ in range(400):
        seated = list(oracle.references)
        dice = rng.random()
        if dice < 0.02 and seated:
            worker = rng.choice(seated)
            oracle.references[worker].clear()
            reader.apply(tested.lose(worker))
        elif dice < 0.03 and len(seated) > 1:
            worker = rng.choice(seated)
            policy = rng.choice(["clear", "shrink"])
            if policy == "clear":
                for held in oracle.references.values():
                    held.clear()
            del oracle.references[worker]
            reader.apply(tested.remove_worker(worker, policy))
        elif dice < 0.05:
            worker = rng.choice("abcde")
            if worker not in oracle.references:
                oracle.references[worker] = Counter()
            reader.apply(tested.add_worker(worker))
        else:
            worker = rng.choice(seated)
            events = [draw(rng) for _ in range(rng.choice([1, 1, 3]))]
            for event in events:
                oracle.apply(worker, event)
            reader.apply(tested.add_events(worker, events))
        assert oracle.announced() == reader.held
        assert tested.announced_count == len(reader.held)
        held = Counter(key for references in oracle.references.values() for key, count in references.items() if count)
        assert dict(held) == {(place, name): holders for place, name, holders, _ in tested.held()}
        assert tested.blocks_count == len(held)


def test_event_cuts_do_not_matter() -> None:
    """One rank says in one event what another says in three: counted by event, they would never agree."""
    tested = rule("ab")
    assert [] == tested.add_events("a", [store(1, 2, 3)])
    assert [Announced(store(1), [0])] == tested.add_events("b", [store(1)])
    assert [Announced(store(2, 3), [0, 1])] == tested.add_events("b", [store(2, 3)])
    assert [Withdrawn(GPU, [2], removal(9, 2), [1])] == tested.add_events("a", [removal(9, 2)])


def test_blocks_that_one_event_completes_go_out_as_one_event() -> None:
    """The indices say which, so that tokens and parents can be cut right."""
    tested = rule("ab")
    tested.add_events("a", [store(2), store(4, 5)])
    assert [Announced(store(1, 2, 3, 4, 5), [1, 3, 4])] == tested.add_events("b", [store(1, 2, 3, 4, 5)])


def test_a_description_is_preferred_to_a_placeholder() -> None:
    """Whichever comes first."""
    for events in ([store(1, 2), store(2, described=False)], [store(2, described=False), store(1, 2)]):
        tested = rule("ab")
        tested.add_events("a", events[:1])
        assert [Announced(store(1, 2), [1])] == tested.add_events("b", events[1:])


def test_a_worker_that_is_lost_takes_only_what_it_completed() -> None:
    """The others' blocks stay; its own come back as it stores them again."""
    tested = rule("abc", quorum=2)
    tested.add_events("a", [store(1, 2)])
    tested.add_events("b", [store(1, 2)])
    tested.add_events("c", [store(1)])
    assert [Withdrawn(GPU, [2])] == tested.lose("b")
    assert [] == tested.lose("b")
    assert [Announced(store(2), [0])] == tested.add_events("b", [store(2)])


def test_a_clear_of_the_last_holder_is_one_clear() -> None:
    """Not a removal for each of a million blocks."""
    tested = rule("ab")
    for worker in "ab":
        tested.add_events(worker, [store(1, 2), store(3, place=CPU)])
    assert [Cleared(CLEAR)] == tested.add_events("a", [CLEAR])
    assert [] == tested.add_events("b", [CLEAR])
    assert 0 == tested.blocks_count


def test_a_clear_with_a_scope_takes_that_scope() -> None:
    """An engine that resets one tier keeps the others."""
    tested = rule("a")
    tested.add_events("a", [store(1), store(1, 1, place=CPU)])
    assert [Withdrawn(CPU, [1])] == tested.add_events("a", [CLEAR_CPU])
    assert [Withdrawn(GPU, [1], removal(1), [0])] == tested.add_events("a", [removal(1)])


def test_g23_ranks_that_store_different_blocks_need_a_smaller_quorum() -> None:
    """Few key-value heads over many ranks: two of four hold each block; seen by all would drop everything, in silence."""
    for quorum, announced in (("all", 0), (2, 2), ("any", 2), (3, 0)):
        tested = rule("abcd", quorum=quorum)
        for worker, block in zip("abcd", [1, 1, 2, 2], strict=True):
            tested.add_events(worker, [store(block)])
        assert announced == tested.announced_count
        assert 2 == tested.blocks_count


def test_a_join_withdraws_what_the_new_worker_lacks() -> None:
    """It has announced nothing; with any, nothing changes."""
    tested = rule("a")
    tested.add_events("a", [store(1)])
    assert [Cleared()] == tested.add_worker("b")
    assert [] == tested.add_worker("b")
    assert [Announced(store(1), [0])] == tested.add_events("b", [store(1)])
    other = rule("a", quorum="any")
    other.add_events("a", [store(1)])
    assert [] == other.add_worker("b")


def test_departures_clear_shrink_or_hold() -> None:
    """What is left agrees by itself, begins anew, or waits."""
    for policy, changes in (("shrink", [Announced(store(2), [0])]), ("clear", [Cleared()]), ("hold", [])):
        tested = rule("ab")
        tested.add_events("a", [store(1), store(2)])
        tested.add_events("b", [store(1)])
        assert changes == tested.remove_worker("b", policy), policy
        assert (["b"] if policy == "hold" else []) == tested.away
    assert [] == tested.add_worker("b") == tested.away
    assert [] == tested.remove_worker("nobody")
    assert [Cleared()] == tested.lose_all()


def test_a_worker_that_has_left_is_not_counted() -> None:
    """Its seat is gone, and so is its bit: another one may take it."""
    tested = rule("ab")
    tested.remove_worker("b", "shrink")
    with pytest.raises(UsageError):
        tested.add_events("b", [])
    with pytest.raises(UsageError):
        tested.accounting("b")
    assert [] == tested.lose("b")
    tested.add_worker("c")
    assert ["a", "c"] == tested.workers
    tested.add_events("a", [store(1)])
    assert [Announced(store(1), [0])] == tested.add_events("c", [store(1)])


def test_unknown_events_pass_once() -> None:
    """Nobody can say whether they are the same, so the first worker speaks for all."""
    tested = rule("ab")
    assert [Passed(ODD)] == tested.add_events("a", [ODD])
    assert [] == tested.add_events("b", [ODD])


def test_e1_events_of_a_worker_add_up() -> None:
    """One that cannot be read costs itself."""
    tested = rule("a")
    tested.add_events("a", [store(1), ("bad",), removal(7)])
    assert (3, 2, 0, 0, 0, 1) == tested.accounting("a")
    assert tested.accounting("a").adds_up


def test_bounds_hold_and_what_is_forgotten_is_withdrawn() -> None:
    """Nothing grows without a limit; a router merely no longer counts on a block that is there."""
    tested = rule("a", blocks_max=2)
    reader = Reader()
    reader.apply(tested.add_events("a", [store(1), store(1), store(2), store(3)]))
    assert {(GPU, 2), (GPU, 3)} == reader.held
    assert 1 == tested.forgotten_blocks
    reader.apply(tested.add_events("a", [removal(1), store(1)]))
    assert {(GPU, 3), (GPU, 1)} == reader.held
    small = rule("a", bytes_max=2 * (BLOCK_BYTES + 10))
    reader = Reader()
    reader.apply(small.add_events("a", [store(n) for n in range(5)]))
    assert {(GPU, 3), (GPU, 4)} == reader.held
    assert small.size_bytes <= 2 * (BLOCK_BYTES + 10)


@pytest.mark.parametrize("options", [{"quorum": 0}, {"blocks_max": 0}, {"bytes_max": 0}])
def test_numbers_out_of_range_are_the_callers_mistake(options: dict[str, Any]) -> None:
    """Before anything is held."""
    with pytest.raises(UsageError):
        rule("a", **options)

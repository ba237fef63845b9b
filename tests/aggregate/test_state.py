"""An aggregator restored from what was written down goes on as if nothing had happened."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from kvbus.aggregate.aggregator import KVEventAggregator
from kvbus.aggregate.state import AggregatorState, bits_of, bytes_of
from kvbus.errors import DecodeError
from tests.aggregate.oracle import CLEAR, assert_sound, toy_aggregator

SECOND = 1_000_000_000

WEIGHTS = {"emit": 12, "all": 5, "time": 3, "lose": 1, "anew": 1, "add": 1, "remove": 1}


def written_and_read(aggregator: KVEventAggregator[str]) -> AggregatorState[str]:
    """The state after a trip through bytes."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(aggregator.capture()), type=AggregatorState[str])


def step_of(chance: random.Random, known: list[str]) -> tuple[str, tuple[Any, ...], int]:
    """One random call, and by how much the clock moves in front of it."""
    step = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    moved_ns = chance.choice([0, 0, SECOND // 3, 2 * SECOND, 31 * SECOND]) if step == "time" else 0
    worker = chance.choice(known)
    if step == "emit":
        return "add_events", (worker, chance.choices(["x", "X", "y", "-x", "?", "#", CLEAR], k=3)), moved_ns
    if step == "all":
        return "all", (chance.choices(["x", "y", "-x", CLEAR], k=3),), moved_ns
    if step == "time":
        return "expire", (), moved_ns
    if step == "lose":
        return "lose", (worker,), moved_ns
    if step == "anew":
        return "begin_anew", (), moved_ns
    if step == "add":
        return "add_worker", (chance.choice([*known, f"w{len(known)}"]),), moved_ns
    return "remove_worker", (worker, chance.choice(["clear", "shrink", "hold"])), moved_ns


def call(aggregator: KVEventAggregator[str], name: str, args: tuple[Any, ...], now_ns: int) -> list[str]:
    """Make a call, where it makes sense."""
    here = aggregator.workers + aggregator.set_aside
    if name == "all":
        return [event for worker in here for event in aggregator.add_events(worker, args[0], now_ns)]
    if name in ("add_events", "lose", "remove_worker") and args[0] not in here:
        return []
    return getattr(aggregator, name)(*args, now_ns=now_ns)


def check_restored(seed: int) -> int:
    """Restart at random points, the clock moved each time; returns how much was pending at them."""
    chance = random.Random(seed)
    known = [f"w{index}" for index in range(chance.randint(1, 4))]
    options = {
        "same": lambda a, b: a.lower() == b.lower(),
        "losses_per_minute": chance.choice([None, 2]),
        "pending_events_max": chance.choice([8, 1_000_000]),
        "loss_window_ns": chance.choice([0, SECOND]),
    }
    original = toy_aggregator(known, **options)
    restored = toy_aggregator(known, **options)
    now_ns, shift_ns, pending = 100 * SECOND, 0, 0
    for _ in range(chance.randint(10, 60)):
        if chance.random() < 0.2:
            pending += restored.pending_count
            state = written_and_read(restored)
            moved_ns = chance.choice([0, 7 * SECOND, 10_000 * SECOND, -50 * SECOND])
            if now_ns + shift_ns + moved_ns > 0:
                shift_ns += moved_ns
                restored = toy_aggregator(["other"], **options)
                restored.restore(state, moved_ns)
        name, args, step_ns = step_of(chance, known)
        now_ns += step_ns
        expected = call(original, name, args, now_ns)
        assert expected == call(restored, name, args, now_ns + shift_ns)
        if name == "add_worker" and args[0] not in known:
            known.append(args[0])
        assert original.workers == restored.workers
        assert original.totals == restored.totals
        for each in known:
            assert original.accounting(each) == restored.accounting(each)
        due_ns = original.deadline_ns
        assert (None if due_ns is None else due_ns + shift_ns) == restored.deadline_ns
        assert_sound(restored, known)
    return pending


def test_a_restored_aggregator_cannot_be_told_from_the_one_captured() -> None:
    """Votes, their order, their age, repeats, segments, losses and accounts all survive."""
    assert 1000 < sum(check_restored(seed) for seed in range(300))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_restored_aggregators_cannot_be_told_apart() -> None:
    """As the fast form, deeper."""
    for seed in range(1_000, 11_000):
        check_restored(seed)


def test_a_state_is_a_copy() -> None:
    """What has been captured is being written while the aggregator goes on."""
    aggregator = toy_aggregator(["a", "b"])
    aggregator.add_events("a", ["x", "x", CLEAR, "y"])
    state = aggregator.capture()
    before = msgspec.msgpack.encode(state)
    aggregator.add_events("b", ["x", "x", CLEAR, "y"])
    assert before == msgspec.msgpack.encode(state)


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_known_of_new_lives_survives(lost: bool) -> None:
    """Else what a journal replays would release other events than those that have gone out."""
    aggregator = toy_aggregator(["a", "b"])
    for worker in "ab":
        aggregator.add_events(worker, ["w"], SECOND)
    aggregator.lose("a", SECOND, is_restart=True)
    if lost:
        aggregator.lose("a", SECOND)
    aggregator.add_events("a", ["x"], SECOND)
    restored = toy_aggregator(["a", "b"])
    restored.restore(written_and_read(aggregator))
    for each in (aggregator, restored):
        each.lose("b", SECOND, is_restart=True)
        each.add_events("b", ["x"], SECOND)
        assert ([] if lost else ["x"]) == each.expire(2 * SECOND)


def test_an_event_that_cannot_be_read_any_more_is_an_error() -> None:
    """The caller must not go on with half of the votes."""
    aggregator = toy_aggregator(["a", "b"])
    aggregator.add_events("a", ["x"])
    state = msgspec.msgpack.encode(aggregator.capture()).replace(b"\xa1x", b"\xa1#")
    with pytest.raises(DecodeError):
        toy_aggregator(["a", "b"]).restore(msgspec.msgpack.decode(state, type=AggregatorState[str]))


def test_begin_anew_is_nobodys_fault() -> None:
    """A broker that was away, again and again, must not set its workers aside for it."""
    aggregator = toy_aggregator(["a", "b"], losses_per_minute=1)
    aggregator.add_events("a", ["x"])
    assert [[CLEAR]] * 5 == [aggregator.begin_anew(number * 2 * SECOND) for number in range(1, 6)]
    assert ([], 0, 5) == (aggregator.set_aside, aggregator.pending_count, aggregator.totals.clears_loss)


@pytest.mark.parametrize("bits", [0, 1, 255, 256, 1 << 63, 1 << 200])
def test_sets_of_voters_have_any_size(bits: int) -> None:
    """A group of more than 64 workers is rare and no reason to fail."""
    assert bits == bits_of(bytes_of(bits))

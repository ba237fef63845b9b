"""The hold buffer: three bounds, and the holes between what is held."""

import random

from kvbus.streams.hold import Held, HoldBuffer, Span


def held(size: int = 1) -> Held:
    """Return a batch of a size."""
    return Held(bytes(size), False)


def test_bounds_refuse_and_change_nothing() -> None:
    """By count and by bytes; an unreadable batch has no bytes."""
    hold = HoldBuffer(2, 10)
    assert [True, False, True, False] == [
        hold.put(1, held(6), 0),
        hold.put(2, held(5), 0),
        hold.put(3, Held(None, False), 0),
        hold.put(4, held(1), 0),
    ]
    assert (2, 6, True, False) == (len(hold), hold.held_bytes, 3 in hold, 2 in hold)


def test_pop_gives_back_room() -> None:
    """And what is not held is no error."""
    hold = HoldBuffer(1, 10)
    hold.put(1, held(6), 0)
    assert (held(6), None, None) == (hold.pop(1), hold.pop(1), hold.get(1))
    assert (0, 0) == (len(hold), hold.held_bytes)
    assert hold.oldest_at_ns is None


def test_oldest_is_by_arrival_not_by_number() -> None:
    """The time bound is about waiting."""
    hold = HoldBuffer(9, 99)
    for at_ns, seq in enumerate((7, 3, 5), start=10):
        hold.put(seq, held(), at_ns)
    assert 10 == hold.oldest_at_ns
    hold.pop(7)
    assert 11 == hold.oldest_at_ns
    assert [3, 5] == hold.clear()
    assert 0 == hold.held_bytes
    assert hold.oldest_at_ns is None


def test_number_held_again_counts_from_its_second_arrival_or_earlier() -> None:
    """It never counts as younger than it is."""
    hold = HoldBuffer(9, 99)
    hold.put(1, held(), 10)
    hold.put(2, held(), 11)
    hold.pop(1)
    hold.put(1, held(), 12)
    assert hold.oldest_at_ns in (10, 11)


def test_holes_of_a_hostile_width_cost_nothing() -> None:
    """A range of 2⁶³ numbers is one span."""
    hold = HoldBuffer(9, 99)
    hold.put(2**62, held(), 0)
    assert [Span(5, 2**62), Span(2**62 + 1, 2**63)] == hold.holes(5, 2**63)
    assert [] == hold.holes(2**62, 2**62 + 1)


def test_holes_equal_the_dumb_way() -> None:
    """Against a set of numbers."""
    for seed in range(60):
        rng = random.Random(seed)
        hold = HoldBuffer(99, 999)
        numbers = set(rng.sample(range(20), rng.randrange(12)))
        for seq in sorted(numbers, key=lambda _: rng.random()):
            hold.put(seq, held(), 0)
        start, stop = rng.randrange(20), rng.randrange(24)
        missing = [seq for span in hold.holes(start, stop) for seq in range(*span)]
        assert [seq for seq in range(start, stop) if seq not in numbers] == missing

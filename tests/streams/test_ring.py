"""The replay ring: two bounds, numbers that ascend, and an answer from any number on."""

import random

import pytest

from kvbus.errors import UsageError
from kvbus.streams.ring import KeptBatch, ReplayRing


def filled(count: int, **bounds: int) -> ReplayRing:
    """Return a ring after `count` batches of one byte."""
    ring = ReplayRing(**bounds)
    for seq in range(count):
        ring.append(seq, b"", b"x")
    return ring


def test_empty_ring_knows_its_next_number() -> None:
    """Before the first batch, oldest and next are the same."""
    ring = ReplayRing(first_seq=7)
    assert (7, 7, 0, []) == (ring.oldest_seq, ring.next_seq, len(ring), ring.read(0, 10, 10))


def test_keeps_the_newest_by_count() -> None:
    """Ten of a hundred: the last ten."""
    ring = filled(100, batches_max=10)
    assert (90, 100, 10, 10) == (ring.oldest_seq, ring.next_seq, len(ring), ring.kept_bytes)


def test_keeps_the_newest_by_bytes() -> None:
    """Topics count too, since they are kept."""
    ring = ReplayRing(100, 25)
    for seq in range(5):
        ring.append(seq, b"topic", b"12345")
    assert (3, 20) == (ring.oldest_seq, ring.kept_bytes)


def test_batch_larger_than_the_bound_is_not_kept() -> None:
    """The bound holds whatever comes; the number is used all the same."""
    ring = filled(3, bytes_max=10)
    ring.append(3, b"", bytes(11))
    assert (4, 4, 0, 0) == (ring.oldest_seq, ring.next_seq, len(ring), ring.kept_bytes)
    ring.append(4, b"", bytes(10))
    assert 4 == ring.oldest_seq


def test_read_stops_at_a_bound_but_always_makes_progress() -> None:
    """A batch above the byte bound comes alone."""
    ring = ReplayRing()
    for seq, size in enumerate((1, 100, 1, 1)):
        ring.append(seq, b"", bytes(size))
    seqs = [[batch.seq for batch in ring.read(start, 3, 50)] for start in range(5)]
    assert [[0], [1], [2, 3], [3], []] == seqs
    assert [0, 1, 2] == [batch.seq for batch in ring.read(0, 3, 1000)]


def test_read_of_an_older_start_begins_at_the_oldest() -> None:
    """The caller sees from the number that something is gone."""
    assert [95, 96] == [batch.seq for batch in filled(100, batches_max=5).read(3, 2, 100)]


def test_numbers_may_jump_but_not_go_back() -> None:
    """A jump is a number that carries nothing; a way back is a bug."""
    ring = filled(2)
    ring.append(5, b"t", b"y")
    assert [KeptBatch(5, b"t", b"y")] == ring.read(2, 9, 9)
    for seq in (5, 0):
        with pytest.raises(UsageError, match="cannot follow"):
            ring.append(seq, b"", b"")


@pytest.mark.parametrize("bounds", [{"batches_max": 0}, {"bytes_max": 0}, {"first_seq": -1}])
def test_bounds_must_hold_something(bounds: dict[str, int]) -> None:
    """A ring of nothing is a mistake of the caller."""
    with pytest.raises(UsageError):
        ReplayRing(**bounds)


def test_equals_a_plain_list_under_random_use() -> None:
    """Compaction and eviction against the dumb way."""
    for seed in range(5):
        rng = random.Random(seed)
        ring = ReplayRing(rng.randrange(1, 200), rng.randrange(20, 2000))
        plain: list[KeptBatch] = []
        seq = 0
        for _ in range(600):
            batch = KeptBatch(seq, bytes(rng.randrange(3)), bytes(rng.randrange(25)))
            seq += 1 if rng.random() < 0.9 else rng.randrange(1, 5)
            ring.append(*batch)
            plain.append(batch)
            while len(plain) > ring.batches_max or sum(len(b.topic) + len(b.payload) for b in plain) > ring.bytes_max:
                plain.pop(0)
            start = rng.randrange(seq + 2)
            assert [b for b in plain if b.seq >= start][:7] == ring.read(start, 7, 10**9)
            assert len(plain) == len(ring)
            assert (plain[0].seq if plain else ring.next_seq) == ring.oldest_seq


def test_restart_forgets_and_goes_on_with_any_number() -> None:
    """A broker that comes back has another past than the one it was made with."""
    ring = ReplayRing(10, 100)
    ring.append(5, b"t", b"x")
    ring.restart(3)
    assert (0, 3, 3, 0) == (len(ring), ring.oldest_seq, ring.next_seq, ring.kept_bytes)
    ring.append(3, b"t", b"y")
    assert [3] == [batch.seq for batch in ring.read(0, 10, 100)]

"""What is void is freed a share at a time, and what is small at once."""

from __future__ import annotations

from collections import deque

from kvbus.aggregate.remains import SHARE, Remains
from tests.aggregate.test_lockstep import Pair


def test_large_containers_are_emptied_share_by_share():
    count = 2 * SHARE + 1
    containers = [dict.fromkeys(range(count)), list(range(count)), deque(range(count))]
    remains = Remains()
    remains.take(*containers, {1: 1}, [1])
    for left in (6, 5, 4, 3, 2, 1):
        assert remains
        before = sum(map(len, containers))
        remains.free()
        assert before - sum(map(len, containers)) <= SHARE
        assert left
    for _ in range(3):
        remains.free()
    assert not remains
    assert [0, 0, 0] == list(map(len, containers))
    remains.free()


def test_what_is_void_is_freed_by_later_calls():
    """The call that makes a million votes void returns at once, and asks to be called again until all is freed."""
    pair = Pair(["a", "b"])
    counter = pair.lane
    counter.add_events("a", [f"x{number}" for number in range(3 * SHARE)], 1)
    assert ["!"] == counter.lose("a", 2)
    assert (0, 2) == (counter.pending_count, counter.deadline_ns)
    calls = 0
    while counter.deadline_ns == 2:
        assert [] == counter.expire(2)
        calls += 1
    assert 3 <= calls <= 20
    assert counter.deadline_ns is None

"""An idle view shows that it is alive, ever more seldom."""

from __future__ import annotations

from kvbus.broker.heartbeat import LONGEST_NS, Heartbeat

SECOND = 1_000_000_000


def test_v5_waits_double_up_to_ten_minutes():
    heartbeat, now_ns, waits = Heartbeat(5 * SECOND), 0, []
    heartbeat.sent(0)
    for _ in range(12):
        waits.append((heartbeat.due_ns - now_ns) // SECOND)
        now_ns = heartbeat.due_ns
        assert not heartbeat.beat(now_ns - 1)
        assert heartbeat.beat(now_ns)
    assert [5, 10, 20, 40, 80, 160, 320, 600, 600, 600, 600, 600] == waits
    assert 600 * SECOND == LONGEST_NS


def test_a_batch_begins_it_anew():
    heartbeat = Heartbeat(5 * SECOND)
    heartbeat.sent(0)
    assert heartbeat.beat(5 * SECOND)
    heartbeat.sent(6 * SECOND)
    assert 11 * SECOND == heartbeat.due_ns


def test_there_is_none_before_the_first_batch_nor_when_it_is_off():
    assert Heartbeat(5 * SECOND).due_ns is None
    off = Heartbeat(0)
    off.sent(0)
    assert off.due_ns is None
    assert not off.beat(SECOND)

"""Whether a worker is there: one socket's evidence."""

from __future__ import annotations

from kvbus.broker.presence import LATE_NS, LATE_NS_MAX, Presence


def test_gone_means_that_no_connection_is_left():
    """A bound SUB may have several peers."""
    presence = Presence()
    presence.connected()
    presence.connected()
    presence.disconnected(5)
    assert presence.gone_since_ns(None) is None
    presence.disconnected(9)
    assert 9 == presence.gone_since_ns(None)
    presence.connected()
    assert presence.gone_since_ns(None) is None


def test_one_that_was_never_there_has_not_gone():
    assert Presence().gone_since_ns(None) is None


def test_unanswered_questions_count_too_and_the_earlier_of_both():
    presence = Presence()
    presence.connected()
    assert 7 == presence.gone_since_ns(7)
    presence.disconnected(9)
    assert 7 == presence.gone_since_ns(7)
    assert 9 == presence.gone_since_ns(11)


def test_complaints_come_at_growing_intervals():
    presence = Presence()
    assert not presence.is_late(1 << 60)
    presence.await_first(0)
    told = [at_ns for at_ns in range(0, 10**13, LATE_NS) if presence.is_late(at_ns)]
    waits = [later - earlier for earlier, later in zip([0, *told], told, strict=False)]
    assert [LATE_NS, 2 * LATE_NS, 4 * LATE_NS] == waits[:3]
    assert LATE_NS_MAX == max(waits)

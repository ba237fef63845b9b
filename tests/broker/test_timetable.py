"""The broker asks everybody when something unusual has happened, and nobody else; and is never late for anything."""

from __future__ import annotations

from typing import Any

import pytest

from kvbus.broker.timetable import Timetable
from kvbus.events import BlockStored
from kvbus.sim.world import World
from kvbus.streams.receiver import StreamReceiver
from tests.broker.playbook import SECOND, Playbook


def events(first: int, count: int = 3) -> list[Any]:
    return [BlockStored([bytes([number]) * 4], None, [1], 1) for number in range(first, first + count)]


@pytest.mark.parametrize("seed", range(12))
def test_it_is_never_later_than_what_it_stands_for(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Through losses, restarts, departures, probes, changes of workers and whatever else a simulated run brings."""
    asked = [0, 0]
    original = Timetable.is_due

    def is_due(self: Timetable, now_ns: int) -> bool:
        mine, fresh = self.deadline_ns, Timetable(self._intake, self._attendance).deadline_ns
        assert fresh is None or (mine is not None and mine <= fresh)
        asked[0] += 1
        asked[1] += mine == fresh
        return original(self, now_ns)

    monkeypatch.setattr(Timetable, "is_due", is_due)
    assert World(seed).run().violation is None
    assert asked[0] > 100
    assert asked[1] > asked[0] / 2


def test_expected_batches_ask_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """With twenty workers, a batch of one costs a question to that one."""
    workers = "abcdefghijklmnopqrst"
    book = Playbook(workers, replay=True)
    for number in range(3):
        for worker in workers:
            book.send(worker, *events(10 * number))
    book.node.on_time(book.now_ns)
    assert book.node.deadline_ns is not None
    asked = 0
    original = StreamReceiver.deadline_ns

    def deadline_ns(self: StreamReceiver) -> int | None:
        nonlocal asked
        asked += 1
        return original.fget(self)  # type: ignore[attr-defined, no-any-return]

    monkeypatch.setattr(StreamReceiver, "deadline_ns", property(deadline_ns))
    for worker in workers:
        book.send(worker, *events(100))
        book.node.on_time(book.now_ns)
        assert book.node.deadline_ns is not None
    assert len(workers) == asked
    book.node.disconnected(3, book.now_ns)
    assert book.node.deadline_ns is not None
    assert 2 * len(workers) <= asked


def test_all_are_asked_after_a_while() -> None:
    """So that nothing that was forgotten here is late by more than a moment."""
    book = Playbook("ab", replay=True)
    for worker in "ab":
        book.send(worker, *events(0))
    table = book.node._timetable
    book.node.on_time(book.now_ns)
    source = book.node.sources[0]
    source.discover_at_ns = book.now_ns + 10
    assert not table.is_due(book.now_ns + 10)
    assert table.is_due(book.now_ns + SECOND // 20)


def test_nothing_is_due_where_nothing_waits() -> None:
    """No worker has ever been there and none is awaited."""
    book = Playbook.ingest(2)
    table = Timetable(book.node.followed.intake, book.node.followed.attendance)
    assert table.deadline_ns == book.node.followed.attendance.deadline_ns

"""What goes wrong with a stream is counted once."""

from __future__ import annotations

from collections import Counter

import pytest

from kvbus.broker.mishaps import StreamCounts
from kvbus.streams.outputs import AskReplay, Deliver, Lost, NewEpoch


def test_a_gap_that_a_replay_fills_is_a_gap_and_no_loss() -> None:
    counts, reasons = StreamCounts(), Counter[str]()
    assert "gap_opened" == counts.note([AskReplay(3, 1)], True, reasons)
    assert counts.note([Deliver(4, b"", True)], True, reasons) is None
    assert "gap_closed" == counts.note([Deliver(5, b"", True)], False, reasons)
    assert (1, 1, 0, 0) == (counts.gaps, counts.replays, counts.losses, counts.lost_batches)
    assert not reasons


def test_a_gap_that_nobody_can_fill_is_one_gap_and_one_loss() -> None:
    counts, reasons = StreamCounts(), Counter[str]()
    counts.note([AskReplay(3, 1)], True, reasons)
    counts.note([Lost(4, 7, "silent"), Deliver(7, b"")], False, reasons)
    counts.note([Lost(9, 10, "no_replay"), Deliver(10, b"")], False, reasons)
    assert (2, 2, 4) == (counts.gaps, counts.losses, counts.lost_batches)
    assert {"silent": 1, "no_replay": 1} == reasons


@pytest.mark.parametrize("reason", ["unreadable", "unverified", "conflict", "joined_late"])
def test_some_losses_come_without_a_gap(reason) -> None:
    counts, reasons = StreamCounts(), Counter[str]()
    assert counts.note([Lost(4, 5, reason)], False, reasons) is None
    assert (0, 1) == (counts.gaps, counts.losses)


def test_a_restart_is_a_loss_of_unknown_size() -> None:
    counts, reasons = StreamCounts(), Counter[str]()
    counts.note([NewEpoch(9, "changed")], False, reasons)
    assert (1, 1, 0, 0) == (counts.losses, counts.restarts, counts.lost_batches, counts.gaps)
    assert {"restart": 1} == reasons

"""The demo finds figures that do not agree."""

from __future__ import annotations

from collections import Counter

from kvbus_cli.demonstration import QUIET_S, SILENCE_S, _disagreements, _is_over, _tiers


def sides(*, released=5, received=5, pending=0):
    """Two ranks, one kind of event, as each side tells it."""
    row = {"type": "BlockStored", "medium": "CPU", "ownership": "cpu-tier", "events": 5}
    worker = {"ranks": [{"tensor_parallel_rank": rank, "events": 5, "by_kind": [row]} for rank in range(2)]}
    vote = {"received": 5, "released": released, "pending": pending, "void": 0, "given_up": 0, "rejected": 0}
    broker = {
        "workers": [{"worker_id": f"rank{rank}", **vote} for rank in range(2)],
        "copies": [{"kind": "stored", "medium": "CPU", "ownership": "cpu-tier", "events": released}],
        "views": [{"released": released, "sent": released, "filtered": 0}],
    }
    tally = Counter({("stored", "CPU", "cpu-tier"): received})
    tiers = _tiers(worker, broker, tally)
    return _disagreements(worker, broker, received, tiers), tiers


def test_figures_that_agree():
    found, tiers = sides()
    assert [] == found
    assert [("stored", "CPU", "cpu-tier", [5, 5], 5, 5)] == [tuple(row) for row in tiers]


def test_an_event_that_the_tail_missed():
    found, _ = sides(received=4)
    assert {"tail: events", "stored CPU cpu-tier"} == {item.what for item in found}


def test_a_vote_that_is_nowhere():
    found, _ = sides(released=4, received=4)
    assert {"rank0: votes", "rank1: votes", "stored CPU cpu-tier"} == {item.what for item in found}


def test_a_tail_that_is_short_of_events_is_given_time():
    """A pause of half a second is nothing on a machine that has other things to do."""
    assert not _is_over(4, 5, QUIET_S)
    assert not _is_over(5, 5, 0.0)
    assert _is_over(5, 5, QUIET_S)
    assert _is_over(4, 5, SILENCE_S)

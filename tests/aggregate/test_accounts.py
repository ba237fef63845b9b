"""The two kinds of account."""

from __future__ import annotations

from kvbus.aggregate.accounts import Accounting, Totals


def test_e1_an_account_adds_up_or_not() -> None:
    """Every vote is somewhere, once."""
    assert Accounting(received=15, released=5, pending=4, void=3, given_up=2, rejected=1).adds_up
    assert not Accounting(received=14, released=5, pending=4, void=3, given_up=2, rejected=1).adds_up


def test_e1_sent_is_all_that_went_out() -> None:
    """What was dropped did not; every kind of clear did."""
    totals = Totals(released=1, removals_alone=2, dropped=100)
    assert 3 == totals.sent
    for number, name in enumerate(["loss", "departure", "join", "wait", "room"], 1):
        setattr(totals, f"clears_{name}", 1)
        assert 3 + number == totals.sent

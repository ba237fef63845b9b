"""Who counts in which rank's quorum, before and after workers are seen (A6)."""

from __future__ import annotations

from kvbus.broker.membership import Membership


def test_a_worker_not_yet_seen_counts_in_every_rank():
    """Else the first rank to speak would be released on one worker's word."""
    membership = Membership({"a": None, "b": None})
    membership.see("a", 0)
    assert ["a", "b"] == membership.quorum(0)
    assert ["b"] == membership.quorum(1)


def test_first_batch_of_another_rank_takes_a_worker_out_of_the_quorum():
    """Data-parallel engines: each worker has a rank of its own and waits for nobody."""
    membership = Membership({"a": None, "b": None})
    membership.see("a", 0)
    membership.see("b", 1)
    assert ["a"] == membership.quorum(0)
    assert ["b"] == membership.quorum(1)


def test_a_worker_that_appears_in_a_second_rank_joins_it():
    """It may hold blocks there that nobody has counted."""
    membership = Membership({"a": None, "b": None})
    membership.see("a", 0)
    membership.see("b", 1)
    membership.see("b", 0)
    assert ["a", "b"] == membership.quorum(0)
    assert ["b"] == membership.quorum(1)


def test_declared_ranks_decide_before_anything_is_seen():
    membership = Membership({"a": (0, 1), "b": (1,), "c": None})
    assert ["a", "c"] == membership.quorum(0)
    assert ["a", "b", "c"] == membership.quorum(1)
    assert ["c"] == membership.quorum(2)


def test_a_rank_outside_the_declaration_is_believed_when_seen():
    membership = Membership({"a": (0,)})
    membership.see("a", 5)
    assert ["a"] == membership.quorum(5)
    assert ["a"] == membership.quorum(0)


def test_nil_rank_waits_for_every_unseen_worker_even_a_declared_one():
    """Engines that send no rank (two-element envelopes) still agree among all."""
    membership = Membership({"a": (0,), "b": (0,)})
    membership.see("a", None)
    assert ["a", "b"] == membership.quorum(None)
    membership.see("b", 0)
    assert ["a"] == membership.quorum(None)
    assert ["a", "b"] == membership.quorum(0)


def test_workers_come_and_go_at_run_time():
    """A new one counts everywhere until it is seen; of one that was removed nothing is left."""
    membership = Membership({"a": None})
    membership.see("a", 0)
    membership.add("b", None)
    assert ["a", "b"] == membership.quorum(0)
    membership.remove("a")
    assert ["b"] == membership.quorum(0)
    assert not membership.serves("a", 0)


def test_a_seat_that_changes_hands_is_seen_anew():
    """The next worker may serve another rank; it must not hold up its predecessor's."""
    membership = Membership({"seat-0": None, "seat-1": None})
    membership.see("seat-0", 0)
    membership.unsee("seat-0")
    membership.see("seat-0", 1)
    assert ["seat-1"] == membership.quorum(0)

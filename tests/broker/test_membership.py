"""Who counts in which rank's quorum, before and after workers are seen (A6)."""

from __future__ import annotations

from kvbus.broker.membership import Membership, QuorumChange


def test_a_worker_not_yet_seen_counts_in_every_rank():
    """Else the first rank to speak would be released on one worker's word."""
    membership = Membership({"a": None, "b": None})
    membership.see("a", 0)
    assert ["a", "b"] == membership.quorum(0)
    assert ["b"] == membership.quorum(1)


def test_first_batch_of_another_rank_takes_a_worker_out_of_the_quorum():
    """Data-parallel engines: each worker has a rank of its own and waits for nobody."""
    membership = Membership({"a": None, "b": None})
    assert [] == membership.see("a", 0)
    assert [QuorumChange(0, "b", joins=False)] == membership.see("b", 1)
    assert ["a"] == membership.quorum(0)
    assert ["b"] == membership.quorum(1)


def test_a_worker_that_appears_in_a_second_rank_joins_it():
    """It may hold blocks there that nobody has counted."""
    membership = Membership({"a": None, "b": None})
    membership.see("a", 0)
    membership.see("b", 1)
    assert [QuorumChange(0, "b", joins=True)] == membership.see("b", 0)
    assert [] == membership.see("b", 0)


def test_declared_ranks_decide_before_anything_is_seen():
    membership = Membership({"a": (0, 1), "b": (1,), "c": None})
    assert ["a", "c"] == membership.quorum(0)
    assert ["a", "b", "c"] == membership.quorum(1)
    assert ["c"] == membership.quorum(2)


def test_a_rank_outside_the_declaration_is_believed_when_seen():
    membership = Membership({"a": (0,)})
    assert [] == membership.see("a", 5)
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

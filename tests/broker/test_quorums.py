"""Workers join and leave quorums by comparison of what should be with what is."""

from __future__ import annotations

import random

from kvbus.broker.intake import Intake
from kvbus.broker.quorums import Quorums
from kvbus.broker.rankgroup import RankGroup
from kvbus.config import BrokerConfig, parse_worker


class Rig:
    """Quorums over workers that declare ranks, or none."""

    def __init__(self, *workers: str, policy="clear"):
        self.config = BrokerConfig(workers=tuple(map(parse_worker, workers)))
        self.intake = Intake(self.config, random.Random(0))
        self.groups = {}
        self.quorums = Quorums(self.intake, self.groups, lambda group: policy)

    def open(self, rank):
        group = RankGroup("", rank, self.quorums.members[""].quorum(rank), self.config)
        self.groups["", rank] = group
        self.quorums.settle_new(group, 0)
        return group

    def leave(self, index):
        self.intake.by_index[index].presence.departed_at_ns = 0
        self.quorums.settle("", self.intake.by_index[index].worker_id, 0)

    def come_back(self, index):
        self.intake.by_index[index].presence.departed_at_ns = None
        self.quorums.settle("", self.intake.by_index[index].worker_id, 0)


def test_each_rank_loses_only_whom_its_own_socket_lost():
    """The ranks of an engine are processes of their own, and one of them may die alone."""
    rig = Rig("a=tcp://h:10,ranks=0-1", "b=tcp://h:20,ranks=0-1")
    zero, one = rig.open(0), rig.open(1)
    rig.leave(1)
    assert (["a", "b"], ["b"]) == (zero.aggregator.workers, one.aggregator.workers)
    rig.come_back(1)
    assert ["b", "a"] == one.aggregator.workers


def test_batches_without_a_rank_wait_for_whoever_is_there_at_all():
    rig = Rig("a=tcp://h:10,ranks=0-1", "b=tcp://h:20,ranks=0-1")
    group = rig.open(None)
    rig.leave(0)
    assert ["a", "b"] == group.aggregator.workers
    rig.leave(1)
    assert ["b"] == group.aggregator.workers


def test_settling_twice_changes_nothing():
    rig = Rig("a=tcp://h:1", "b=tcp://h:2")
    group = rig.open(0)
    rig.leave(0)
    clears = group.aggregator.totals.clears_departure
    rig.leave(0)
    assert clears == group.aggregator.totals.clears_departure == 1
    rig.come_back(0)
    rig.come_back(0)
    assert 1 == group.aggregator.totals.clears_join


def test_whoever_is_away_from_a_new_rank_leaves_it_without_a_word():
    rig = Rig("a=tcp://h:1", "b=tcp://h:2")
    rig.leave(0)
    group = rig.open(0)
    assert ["b"] == group.aggregator.workers
    assert 0 == group.aggregator.totals.sent


def test_a_worker_that_was_removed_by_hand_is_not_held():
    rig = Rig("a=tcp://h:1", "b=tcp://h:2", policy="hold")
    group = rig.open(0)
    rig.intake.remove_worker("", "a")
    rig.quorums.members[""].remove("a")
    rig.quorums.settle("", "a", 0)
    assert ["b"] == group.aggregator.workers


def test_missing_tells_who_is_not_where_it_belongs():
    rig = Rig("a=tcp://h:1", "b=tcp://h:2")
    rig.open(0)
    assert not rig.quorums.missing("", "a")
    rig.leave(0)
    assert rig.quorums.missing("", "a")

"""What a new configuration changes in a running broker, and what it cannot."""

from __future__ import annotations

import msgspec
import pytest

from kvbus.broker.change import plan_change
from kvbus.config import BrokerConfig, GroupConfig, IngestConfig, ViewConfig, parse_worker
from kvbus.errors import ConfigError

A, B, C = (
    parse_worker(f"{name}=tcp://h:{port},replay=tcp://h:{port + 1}") for name, port in (("a", 1), ("b", 3), ("c", 5))
)
OLD = BrokerConfig(workers=(A, B))


def replace(**fields) -> BrokerConfig:
    return msgspec.structs.replace(OLD, **fields)


def refused(new: BrokerConfig, old: BrokerConfig = OLD) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan_change(old, new)
    return [problem.field for problem in caught.value.problems]


def test_the_same_configuration_changes_nothing():
    change = plan_change(OLD, replace())
    assert ((), (), False) == (change.removed, change.added, change.is_shape_new)


def test_workers_come_and_go_and_what_stays_is_not_named():
    change = plan_change(OLD, replace(workers=(B, C)))
    assert ((A,), (C,), True) == (change.removed, change.added, change.is_shape_new)


def test_a_worker_at_another_endpoint_goes_and_comes():
    moved = msgspec.structs.replace(A, endpoint="tcp://h:9")
    change = plan_change(OLD, replace(workers=(moved, B)))
    assert ((A,), (moved,)) == (change.removed, change.added)


def test_policies_change_alone():
    change = plan_change(OLD, replace(on_loss="ignore", on_departure="hold", worker_timeout_s=1.0))
    assert not change.is_shape_new
    plan_change(OLD, replace(groups=(GroupConfig(name="", on_departure="shrink"),)))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"views": (ViewConfig(endpoint="tcp://127.0.0.1:1"),)}, ["views"]),
        ({"age_s": 1.0, "journal": "x"}, ["age_s", "journal"]),
        ({"probe_s": 1.0}, ["probe_s"]),
        ({"workers": (), "ingest": IngestConfig()}, ["ingest"]),
        ({"groups": (GroupConfig(name="", stores="reports"),)}, ["groups.stores"]),
    ],
)
def test_what_was_laid_out_at_the_start_stays(fields, named):
    assert named == refused(replace(**fields))


def test_seats_change_and_the_socket_does_not():
    old = BrokerConfig(ingest=IngestConfig(workers=2))
    assert plan_change(old, BrokerConfig(ingest=IngestConfig(workers=3, topics=("x",)))).is_shape_new
    assert ["ingest.endpoint"] == refused(BrokerConfig(ingest=IngestConfig(workers=2, endpoint="tcp://h:1")), old)


def test_a_view_that_is_split_by_rank_has_the_ranks_that_it_had():
    view = ViewConfig(split="rank")
    old = BrokerConfig(workers=(parse_worker("a=tcp://h:1,ranks=0-1"),), views=(view,))
    new = BrokerConfig(workers=(parse_worker("a=tcp://h:1,ranks=0-3"),), views=(view,))
    assert ["workers"] == refused(new, old)


def test_a_worker_that_binds_cannot_take_over_its_own_endpoint():
    """It is not free before the old one has gone."""
    old = BrokerConfig(workers=(parse_worker("a=tcp://*:1"),))
    new = BrokerConfig(workers=(parse_worker("a=tcp://*:1,replay=tcp://h:2"),))
    assert ["workers"] == refused(new, old)

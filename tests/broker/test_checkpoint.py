"""Which changes of the configuration a journal bears."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvbus.broker.checkpoint import rules_of, shape_of
from kvbus.config import BrokerConfig, IngestConfig, ViewConfig, parse_worker
from kvbus.views.filters import EventFilter

CONFIG = BrokerConfig(workers=(parse_worker("a=tcp://h:1,replay=tcp://h:2"),), views=(ViewConfig(),))


def changed(**fields: Any) -> BrokerConfig:
    return msgspec.structs.replace(CONFIG, **fields)


@pytest.mark.parametrize(
    "config",
    [
        changed(workers=(parse_worker("a=tcp://other:1"),)),
        changed(views=(ViewConfig(endpoint="tcp://h:9", buffer_batches=5, hwm=7, heartbeat_s=0),)),
        changed(journal="x", journal_reset=True, journal_age_s=1.0, linger_s=0.0),
    ],
)
def test_where_things_are_may_change(config: BrokerConfig) -> None:
    """State and log mean the same."""
    assert (shape_of(CONFIG), rules_of(CONFIG)) == (shape_of(config), rules_of(config))


@pytest.mark.parametrize("fields", [{"age_s": 1.0}, {"flush_events": 1}, {"residency_blocks_max": 5}])
def test_other_bounds_are_other_rules(fields: dict[str, Any]) -> None:
    """The log cannot be done again exactly."""
    assert shape_of(CONFIG) == shape_of(changed(**fields))
    assert rules_of(CONFIG) != rules_of(changed(**fields))


@pytest.mark.parametrize(
    "config",
    [
        changed(workers=(*CONFIG.workers, parse_worker("b=tcp://h:3"))),
        changed(workers=(parse_worker("a=tcp://h:1,ranks=0-1"),)),
        changed(workers=(parse_worker("a=tcp://h:1,group=g"),)),
        changed(workers=(), ingest=IngestConfig()),
        changed(views=(ViewConfig(), ViewConfig(name="b"))),
        changed(views=(ViewConfig(filter=EventFilter(medium="CPU")),)),
        changed(views=(ViewConfig(topic="x"),)),
        changed(views=(ViewConfig(snapshot=False),)),
        changed(views=(ViewConfig(copies="count"),)),
    ],
)
def test_other_workers_and_views_are_another_shape(config: BrokerConfig) -> None:
    """What was announced means something else."""
    assert shape_of(CONFIG) != shape_of(config)

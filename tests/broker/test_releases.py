"""Released events become runs, one by one or a sheet at a time, with the same result."""

from __future__ import annotations

import random

from kvbus.broker.releases import Releases
from kvbus.broker.sheet import sheet_of
from kvbus.config import BrokerConfig, ViewConfig
from kvbus.events import BlockRemoved, BlockStored
from kvbus.views.filters import EventFilter
from kvbus.wire.envelope import join_batch, split_batch
from kvbus.wire.head import read_head
from kvbus.wire.writing import encode_event


def releases(**config):
    return Releases("", 0, BrokerConfig(flush_events=7, flush_bytes=900, **config))


def runs(made):
    made.finish_run()
    return made.take_finished()


def batches(seed):
    """Batches of removals and stores, mostly of one form."""
    chance = random.Random(seed)
    for number in range(30):
        events = []
        for _ in range(chance.randint(1, 12)):
            event = BlockRemoved([chance.getrandbits(60)], chance.choice(("GPU", "CPU")))
            if chance.random() < 0.5:
                event = BlockStored([chance.getrandbits(60)], None, [1] * chance.choice((1, 40)), 1, medium="GPU")
            events.append(encode_event(event, "array" if chance.random() < 0.03 else "map"))
        yield float(number), events


def test_a_sheet_at_a_time_is_event_by_event():
    for seed in range(40):
        one, many = releases(), releases()
        chance = random.Random(seed)
        for ts, events in batches(seed):
            one.put(events, list(map(read_head, events)), ts)
            payload = join_batch(ts, events, 0)
            sheet = sheet_of(payload, split_batch(payload))
            cut = chance.choice((0, chance.randint(0, len(events))))
            many.put_part(sheet, 0, cut, ts)
            many.put_part(sheet, cut, len(events), ts)
        whole, found = runs(one), runs(many)
        assert [event for run in whole for event in run.events] == [event for run in found for event in run.events]
        assert all(run.events_count <= 7 for run in found)
        for run in found:
            assert len(run.events) == len(run.facets) == run.events_count
            assert split_batch(run.select(EventFilter()).payload).events == run.events
            assert sum(map(len, run.events)) == run.size_bytes
            assert {run.form} == {read_head(event).form for event in run.events}
        assert one.released_by == many.released_by


def test_where_a_view_needs_the_residency_a_sheet_is_folded():
    view = ViewConfig(name="late", endpoint="tcp://127.0.0.1:5600", replay_endpoint="tcp://127.0.0.1:5700")
    made = releases(views=(view,))
    payload = join_batch(1.0, [encode_event(BlockStored([1, 2], None, [1, 2], 1, medium="GPU"), "map")], 0)
    made.put_part(sheet_of(payload, split_batch(payload)), 0, 1, 1.0)
    assert made.residency is not None
    assert 2 == made.residency.blocks_count

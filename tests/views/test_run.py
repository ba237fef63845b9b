"""A run is grouped once and encoded once per choice."""

from __future__ import annotations

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, facets_of
from kvbus.views.filters import EventFilter, SpecKinds
from kvbus.views.run import Run
from kvbus.wire.codec import decode_batch
from kvbus.wire.head import Form
from kvbus.wire.writing import encode_event

GPU = BlockStored([1], None, [1], 1, medium="GPU")
TIER = BlockStored([1], None, [], 0, medium="CPU", ownership="cpu-tier")
CLEAR = AllBlocksCleared()


def run_of(*events, ts=1.0, kinds=None):
    run = Run("", 0, Form.MAP, ts, SpecKinds() if kinds is None else kinds)
    for event in events:
        run.append(encode_event(event), facets_of(event), ts)
    return run


def test_a_choice_holds_the_wanted_events_in_order():
    count, payload = run_of(GPU, TIER, CLEAR, GPU).select(EventFilter(ownership="primary"))
    assert (3, [GPU, CLEAR, GPU]) == (count, decode_batch(payload).events)


def test_nothing_wanted_is_no_batch():
    assert (0, b"") == run_of(GPU, GPU).select(EventFilter(ownership="kvcr"))


def test_views_that_choose_alike_share_one_payload():
    """The cost of a view is a look at the kinds of events, not at events."""
    run = run_of(GPU, TIER)
    first = run.select(EventFilter(ownership="cpu-tier"))[1]
    assert first is run.select(EventFilter(medium="CPU"))[1]


def test_ts_is_the_newest_and_rank_is_kept():
    run = Run("", None, Form.MAP, 1.0, SpecKinds())
    for ts in (3.0, 2.0):
        run.append(encode_event(GPU), facets_of(GPU), ts)
    batch = decode_batch(run.select(EventFilter())[1])
    assert (3.0, None) == (batch.ts, batch.data_parallel_rank)


def test_a_removal_follows_its_groups_stores_through_a_filter_on_the_spec_kind():
    """It names no kind itself; what let a store in must let its removal out."""
    full = BlockStored([1], None, [1], 1, group_idx=0, kv_cache_spec_kind="full_attention")
    window = BlockStored([2], None, [1], 1, group_idx=1, kv_cache_spec_kind="sliding_window")
    gone = [BlockRemoved([1], group_idx=0), BlockRemoved([2], group_idx=1)]
    payload = run_of(full, window, *gone).select(EventFilter(spec_kind="full_attention"))[1]
    assert [full, gone[0]] == decode_batch(payload).events


def test_a_scoped_clear_is_judged_by_its_scope():
    scoped = AllBlocksCleared(extra={"ownership": "kvcr"})
    assert 0 == run_of(scoped).select(EventFilter(ownership="primary"))[0]
    assert 1 == run_of(scoped).select(EventFilter(ownership="kvcr"))[0]

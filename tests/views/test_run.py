"""A run is grouped once and encoded once per choice."""

from __future__ import annotations

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, UnknownEvent, facets_of
from kvbus.views.encoding import PASSTHROUGH, EventEncoder, Spelling
from kvbus.views.filters import EventFilter, SpecKinds
from kvbus.views.run import Run, Shape
from kvbus.wire.codec import decode_batch
from kvbus.wire.envelope import split_batch
from kvbus.wire.head import Form, form_of
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
    taken = run_of(GPU, TIER, CLEAR, GPU).select(EventFilter(ownership="primary"))
    assert (3, [GPU, CLEAR, GPU]) == (taken.sent, decode_batch(taken.payload).events)


def test_nothing_wanted_is_no_batch():
    assert (0, 0, 0, b"") == run_of(GPU, GPU).select(EventFilter(ownership="kvcr"))


def test_views_that_choose_alike_share_one_payload():
    """The cost of a view is a look at the kinds of events, not at events."""
    run = run_of(GPU, TIER)
    first = run.select(EventFilter(ownership="cpu-tier")).payload
    assert first is run.select(EventFilter(medium="CPU")).payload


def test_ts_is_the_newest_and_rank_is_kept():
    run = Run("", None, Form.MAP, 1.0, SpecKinds())
    for ts in (3.0, 2.0):
        run.append(encode_event(GPU), facets_of(GPU), ts)
    batch = decode_batch(run.select(EventFilter()).payload)
    assert (3.0, None) == (batch.ts, batch.data_parallel_rank)


def test_a_removal_follows_its_groups_stores_through_a_filter_on_the_spec_kind():
    """It names no kind itself; what let a store in must let its removal out."""
    full = BlockStored([1], None, [1], 1, group_idx=0, kv_cache_spec_kind="full_attention")
    window = BlockStored([2], None, [1], 1, group_idx=1, kv_cache_spec_kind="sliding_window")
    gone = [BlockRemoved([1], group_idx=0), BlockRemoved([2], group_idx=1)]
    payload = run_of(full, window, *gone).select(EventFilter(spec_kind="full_attention")).payload
    assert [full, gone[0]] == decode_batch(payload).events


def test_a_scoped_clear_is_judged_by_its_scope():
    scoped = AllBlocksCleared(extra={"ownership": "kvcr"})
    assert 0 == run_of(scoped).select(EventFilter(ownership="primary")).sent
    assert 1 == run_of(scoped).select(EventFilter(ownership="kvcr")).sent


def test_views_that_spell_alike_share_the_work_and_the_payload():
    """Decoding and writing anew is the dear part: once per event and spelling, however many views."""
    run = run_of(GPU, TIER)
    arrays = [Shape(EventEncoder(Spelling(encoding="array"))) for _ in range(2)]
    first = run.select(EventFilter(), arrays[0]).payload
    assert first is run.select(EventFilter(), arrays[1]).payload
    assert {Form.ARRAY} == {form_of(raw) for raw in split_batch(first).events}
    assert [GPU, TIER] == decode_batch(first).events
    assert first != run.select(EventFilter()).payload


def test_a_nil_rank_is_filled_only_on_request():
    """A nil rank costs AIBrix the batch; nobody else is told a rank that no engine has named."""
    run = Run("", None, Form.MAP, 1.0, SpecKinds())
    run.append(encode_event(GPU), facets_of(GPU), 1.0)
    plain = Shape(EventEncoder(PASSTHROUGH))
    assert [None, 0] == [
        decode_batch(run.select(EventFilter(), shape).payload).data_parallel_rank
        for shape in (plain, plain._replace(fill_rank=0))
    ]


def test_what_was_altered_at_release_shows_only_in_views_that_asked():
    """A counting view does not hear of a second copy; all others do, byte for byte."""
    run = run_of(GPU)
    first = encode_event(BlockStored([7], None, [1], 1, medium="GPU"))
    run.append(encode_event(GPU), facets_of(GPU), 1.0)
    run.alter(True, False, ())
    run.append(encode_event(TIER), facets_of(TIER), 1.0)
    run.alter(True, False, (first, first))
    shape = Shape(EventEncoder(PASSTHROUGH), counts_copies=True)
    counted = run.select(EventFilter(), shape)
    assert (2, 1, 0) == counted[:3]
    assert [7, 7] == [event.block_hashes[0] for event in decode_batch(counted.payload).events[1:]]
    assert [GPU, GPU, TIER] == decode_batch(run.select(EventFilter()).payload).events
    resolving = run.select(EventFilter(), shape._replace(counts_copies=False, resolves=True))
    assert resolving.payload is run.select(EventFilter()).payload


def test_what_has_no_words_is_counted_as_dropped():
    """Every event that a filter takes is accounted for."""
    odd = UnknownEvent("Odd", {"x": 1})
    shape = Shape(EventEncoder(Spelling(unknown_types="drop")))
    assert (1, 0, 1) == run_of(odd, GPU).select(EventFilter(), shape)[:3]
    assert (0, 0, 1, b"") == run_of(odd).select(EventFilter(), shape)

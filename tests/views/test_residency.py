"""The one fold of events into state, against a dumb one."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, UnknownEvent
from kvbus.views.filters import EventFilter
from kvbus.views.residency import BLOCK_BYTES, SHELVES_SPARE, Place, Residency
from kvbus.wire.head import Form, read_head
from kvbus.wire.reading import decode_event
from tests.views.folding import World, encoded, fold

GPU = Place("GPU", None, None, None)


def residency_of(*events, encoding="map", **config):
    residency = Residency("", 0, **config)
    residency.fold(*encoded(events, encoding), 1.0)
    return residency


def content(residency):
    """References by key, as the oracle counts them."""
    return Counter(
        {
            (0, *place, block_hash): residency.count(place, block_hash)
            for place in residency.places()
            for block_hash, _ in residency.blocks(place)
        }
    )


def store(*hashes, parent=None, medium="GPU", size=4, **more):
    tokens = [int(name) for name in hashes for _ in range(size)]
    return BlockStored(list(hashes), parent, tokens, size, medium=medium, **more)


@pytest.mark.parametrize("encoding", ["map", "array"])
@pytest.mark.parametrize("seed", range(12))
def test_equals_a_dumb_fold_at_every_step(seed, encoding):
    """Stores, removals of anything, clears with and without a scope, copies, placeholders."""
    world = World(random.Random(seed))
    residency, held = Residency("", 0), Counter()
    for _ in range(400):
        event = world.event()
        if encoding == "array" and isinstance(event, AllBlocksCleared):
            event = AllBlocksCleared()
        assert [] == residency.fold(*encoded([event], encoding), 1.0)
        fold([event], held)
        assert held == content(residency)
        assert len(held) == residency.blocks_count


@pytest.mark.parametrize("seed", range(8))
def test_a_block_can_be_rebuilt_from_the_store_that_it_came_from(seed):
    """Whatever has become of its neighbours, and however often the event was cut down."""
    world = World(random.Random(seed))
    residency = Residency("", 0)
    for _ in range(500):
        residency.fold(*encoded([world.event()]), 1.0)
    for place in residency.places():
        for block_hash, origin in residency.blocks(place):
            event = decode_event(origin.raw)
            world.check_store(event)
            assert list(origin.hashes) == event.block_hashes
            assert block_hash in origin.hashes
            assert place == Place(event.medium, event.ownership, event.locality, event.group_idx)


@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold_and_what_was_forgotten_is_withdrawn(seed):
    """E1: a residency that forgets in silence could give no exact snapshot; so it says what it forgot, like any removal."""
    world = World(random.Random(seed))
    residency, held, withdrawn = Residency("", 0, blocks_max=25, bytes_max=8000), Counter(), 0
    for _ in range(400):
        event = world.event()
        forgotten = [decode_event(raw) for raw in residency.fold(*encoded([event]), 1.0)]
        withdrawn += len(forgotten)
        fold([event, *forgotten], held)
        assert held == content(residency)
        assert residency.blocks_count <= 25
        assert residency.size_bytes <= 8000
    assert withdrawn > 0


def test_the_oldest_is_forgotten_first_with_every_reference():
    residency = Residency(blocks_max=2)
    residency.fold(*encoded([store(1), store(1), store(2)]), 1.0)
    forgotten = [decode_event(raw) for raw in residency.fold(*encoded([store(3)]), 1.0)]
    assert [BlockRemoved([1], "GPU"), BlockRemoved([1], "GPU")] == forgotten
    assert 1 == residency.forgotten_blocks
    assert [2, 3] == [name for name, _ in residency.blocks(GPU)]


def test_what_is_forgotten_is_withdrawn_in_the_form_in_which_it_came():
    residency = Residency(blocks_max=1)
    residency.fold(*encoded([store(1)], "array"), 1.0)
    (raw,) = residency.fold(*encoded([store(2)], "array"), 1.0)
    assert Form.ARRAY is read_head(raw).form


def test_a_removal_of_what_is_not_held_is_harmless_and_counted():
    residency = residency_of(BlockRemoved([1], "GPU"), store(1), BlockRemoved([1], "CPU"), BlockRemoved([1, 2], "GPU"))
    assert (0, 3) == (residency.blocks_count, residency.unknown_removals)


def test_copies_are_references_unless_the_group_only_reports():
    """V8: `stores = "reports"` re-announces what it has, and one removal ends it."""
    assert 2 == residency_of(store(1), store(1)).count(GPU, 1)
    reports = residency_of(store(1), store(1), counts_copies=False)
    assert 1 == reports.count(GPU, 1)
    reports.fold(*encoded([BlockRemoved([1], "GPU")]), 1.0)
    assert 0 == reports.count(GPU, 1)


def test_media_owners_localities_and_groups_are_different_places():
    events = [
        store(1),
        store(1, medium="CPU"),
        store(1, medium="CPU", ownership="kvcr"),
        store(1, medium="CPU", locality="LOCAL"),
        store(1, medium="CPU", group_idx=0),
        store(1, medium=None),
    ]
    residency = residency_of(*events)
    assert 6 == residency.blocks_count == len(residency.places())
    residency.fold(*encoded([BlockRemoved([1], "CPU")]), 1.0)
    assert 5 == residency.blocks_count


def test_a_scoped_clear_drops_its_scope_only():
    events = [store(1), store(1, medium="CPU"), store(1, medium="CPU", ownership="kvcr")]
    scoped = AllBlocksCleared({"medium": "CPU", "ownership": "kvcr"})
    assert 2 == residency_of(*events, scoped).blocks_count
    assert 1 == residency_of(*events, AllBlocksCleared({"medium": "CPU"})).blocks_count
    assert 0 == residency_of(*events, AllBlocksCleared()).blocks_count


def test_hashes_compare_as_they_are():
    residency = residency_of(store(-1), BlockStored([2**64 - 1, b"\xff" * 8], None, [], 0, medium="GPU"))
    assert 3 == residency.blocks_count


def test_a_description_takes_the_place_of_a_placeholder():
    """A router that drops placeholders must be able to learn the block from a snapshot."""
    placeholder = BlockStored([1], None, [], 0, medium="GPU")
    for events in ([placeholder, store(1)], [store(1), placeholder]):
        residency = residency_of(*events)
        assert 2 == residency.count(GPU, 1)
        assert store(1) == decode_event(residency.origin(GPU, 1).raw)


def test_an_event_of_which_most_is_gone_keeps_only_the_rest():
    """A shared prefix must not keep the bytes of every suffix that it ever had."""
    names = list(range(1, 65))
    residency = residency_of(store(*names, size=16), BlockRemoved(names[4:], "GPU"))
    origin = residency.origin(GPU, 3)
    assert (1, 2, 3, 4) == origin.hashes
    assert store(1, 2, 3, 4, size=16) == decode_event(origin.raw)
    assert residency.raw_bytes == len(origin.raw)


def test_bytes_are_those_of_the_events_kept():
    raws, heads = encoded([store(1, 2), store(3)])
    residency = Residency()
    residency.fold(raws, heads, 1.0)
    assert residency.raw_bytes == sum(map(len, raws))
    assert residency.size_bytes == residency.raw_bytes + 3 * BLOCK_BYTES
    residency.fold(*encoded([BlockRemoved([1, 2, 3], "GPU")]), 1.0)
    assert 0 == residency.size_bytes


def test_records_of_events_that_are_gone_do_not_pile_up():
    residency = Residency()
    for number in range(5000):
        residency.fold(*encoded([store(number), BlockRemoved([number], "GPU")]), 1.0)
    assert len(residency._origins) < 2000


def test_places_that_a_peer_makes_up_do_not_pile_up():
    residency = Residency()
    for number in range(1000):
        residency.fold(*encoded([store(1, medium=f"m{number}"), BlockRemoved([1], f"m{number}")]), 1.0)
    assert len(residency._shelves) <= SHELVES_SPARE + 1


def test_unknown_events_change_nothing():
    assert 1 == residency_of(store(1), UnknownEvent("BlockTransferred", {"block_hashes": [1]})).blocks_count


class TestFreeze:
    def test_is_a_copy(self):
        residency = residency_of(store(1), store(1))
        frozen = residency.freeze(EventFilter())
        residency.fold(*encoded([AllBlocksCleared()]), 2.0)
        (shelf,) = frozen.shelves
        assert ([1], {1: 2}, 1.0) == (list(shelf.blocks), shelf.copies, frozen.ts)

    def test_holds_what_the_filter_lets_through(self):
        events = [store(1), store(2, medium="CPU", ownership="kvcr"), store(3, medium="CPU")]
        residency = residency_of(*events)
        for wanted, expected in (({"ownership": "primary"}, {1, 3}), ({"medium": "CPU"}, {2, 3}), ({}, {1, 2, 3})):
            frozen = residency.freeze(EventFilter(**wanted))
            assert expected == {name for shelf in frozen.shelves for name in shelf.blocks}

    def test_filters_on_the_spec_kind_block_by_block(self):
        full = store(1, group_idx=0, kv_cache_spec_kind="full_attention")
        window = store(2, group_idx=0, kv_cache_spec_kind="sliding_window")
        frozen = residency_of(full, window).freeze(EventFilter(spec_kind="full_attention"))
        assert [[1]] == [list(shelf.blocks) for shelf in frozen.shelves]

    def test_knows_form_and_newest_time(self):
        residency = Residency("g", 3)
        residency.fold(*encoded([store(1)], "array"), 5.0)
        residency.fold(*encoded([store(2)], "array"), 4.0)
        frozen = residency.freeze(EventFilter())
        assert ("g", 3, 5.0, Form.ARRAY) == (frozen.group, frozen.data_parallel_rank, frozen.ts, frozen.form)


def test_events_of_which_only_the_head_can_be_read_are_held_too():
    """W3: the broker judges the fields that it uses, and passes the event on; so it is announced, so it is held."""
    raw = msgspec.msgpack.encode(
        {
            "type": "BlockStored",
            "block_hashes": list(range(10, 20)),
            "token_ids": "odd",
            "block_size": 4,
            "medium": "GPU",
        }
    )
    residency = Residency()
    residency.fold([raw], [read_head(raw)], 1.0)
    residency.fold(*encoded([BlockRemoved(list(range(12, 20)), "GPU")]), 1.0)
    assert BlockStored([10, 11], None, [], 0, medium="GPU") == decode_event(residency.origin(GPU, 11).raw)


def test_v8_first_references_that_come_and_last_ones_that_go_are_told():
    """What a view that counts copies announces; `None` is all, which is nearly always."""
    residency = Residency()
    firsts = []
    events = [store(1, 2), store(2, 3), BlockRemoved([2, 9], "GPU"), BlockRemoved([2], "GPU"), AllBlocksCleared()]
    residency.fold(*encoded(events), 1.0, firsts)
    assert [None, [False, True], [False, True], None, None] == firsts

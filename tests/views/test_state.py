"""What a client can know from one replay, and how much of it that is."""

from __future__ import annotations

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvbus.views.filters import EventFilter
from kvbus.views.residency import Place
from kvbus.views.state import Holding, StateBlock, ViewState
from kvbus.wire.codec import encode_batch
from tests.views.test_residency import store

GPU = Place("GPU", None, None, None)
TIER = BlockStored([1], None, [], 0, medium="CPU", ownership="cpu-tier")


def state_of(*batches, first_seq=0, rank=0):
    state = ViewState()
    for seq, events in enumerate(batches, first_seq):
        state.take(b"t", seq, encode_batch(EventBatch(1.0, list(events), rank)))
    return state


def test_holdings_count_blocks_references_and_descriptions():
    state = state_of([store(1, 2, 3), store(2, parent=1)], [TIER, BlockRemoved([3], "GPU")])
    tier = Place("CPU", "cpu-tier", None, None)
    assert [Holding(b"t", 0, GPU, 2, 3, 2), Holding(b"t", 0, tier, 1, 1, 0)] == state.holdings(EventFilter())
    assert [GPU] == [row.place for row in state.holdings(EventFilter(ownership="primary"))]


def test_blocks_have_parent_size_and_references():
    state = state_of([store(1, 2, parent=9), store(2, parent=1), TIER])
    place = Place("CPU", "cpu-tier", None, None)
    assert [
        StateBlock(b"t", 0, GPU, 1, 9, 4, 1),
        StateBlock(b"t", 0, GPU, 2, 1, 4, 2),
        StateBlock(b"t", 0, place, 1, None, 0, 1),
    ] == list(state.blocks(EventFilter()))


def test_ranks_and_topics_are_kept_apart_and_in_order():
    state = ViewState()
    for seq, (topic, rank) in enumerate([(b"b", 0), (b"a", 1), (b"a", None), (b"a", 0)]):
        state.take(topic, seq, encode_batch(EventBatch(1.0, [store(1)], rank)))
    rows = state.holdings(EventFilter())
    assert [(b"a", None), (b"a", 0), (b"a", 1), (b"b", 0)] == [(row.topic, row.data_parallel_rank) for row in rows]


def test_a_history_from_the_first_number_is_complete():
    for first_seq in (0, 1):
        assert not state_of([store(1)], first_seq=first_seq).begins_midway


def test_a_history_that_begins_with_a_clear_is_complete_too():
    """That is how a snapshot begins, wherever its numbers do."""
    assert not state_of([], [AllBlocksCleared(), store(1)], first_seq=1000).begins_midway
    assert state_of([store(1)], first_seq=1000).begins_midway
    assert state_of([AllBlocksCleared({"medium": "CPU"})], first_seq=1000).begins_midway


def test_holes_and_what_cannot_be_read_are_counted():
    state = state_of([store(1)])
    state.take(b"t", 5, b"\xc1")
    state.take(b"t", 6, b"\x93\xcb" + bytes(8) + b"\x92\x07\x91\xa3odd\xc0")
    assert (4, 2, 0, 7) == (state.missing, state.unreadable, state.first_seq, state.next_seq)
    assert 1 == state.holdings(EventFilter())[0].blocks

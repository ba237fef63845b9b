"""A snapshot leads to exactly what was announced, in an order that a router can use."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, facets_of
from kvbus.views.filters import EventFilter
from kvbus.views.residency import Residency
from kvbus.views.snapshot import Snapshot, SnapshotBuilder
from kvbus.wire.codec import decode_batch
from kvbus.wire.head import Form, form_of, read_head
from tests.views.folding import World, encoded, fold, fold_batches
from tests.views.test_residency import residency_of, store

CLEAR = AllBlocksCleared()
EVERYTHING = EventFilter()


def snapshot_of(*residencies, wanted=EVERYTHING, work=7, **config) -> Snapshot:
    builder = SnapshotBuilder([residency.freeze(wanted) for residency in residencies], **config)
    numbers_min = builder.numbers_min
    while (snapshot := builder.step(work)) is None:
        pass
    assert numbers_min == snapshot.numbers_min
    return snapshot


def batches_of(*residencies, **config):
    return [decode_batch(payload) for payload in snapshot_of(*residencies, **config).payloads]


def events_of(*residencies, **config):
    return [event for batch in batches_of(*residencies, **config) for event in batch.events]


def check_order(events):
    """Assert that no block comes before its parent, if that comes at all in the same KV-cache group."""
    last = {
        (event.group_idx, name): index
        for index, event in reversed(list(enumerate(events)))
        if isinstance(event, BlockStored)
        for name in event.block_hashes
    }
    for index, event in enumerate(events):
        if isinstance(event, BlockStored) and event.parent_block_hash is not None:
            assert last.get((event.group_idx, event.parent_block_hash), -1) < index


@pytest.mark.parametrize("encoding", ["map", "array"])
@pytest.mark.parametrize("seed", range(15))
def test_v4_equals_the_fold_of_what_was_announced(seed, encoding):
    """At any moment, with every copy, each block with its own tokens and parent, parents first."""
    world = World(random.Random(seed))
    residency, held = Residency("", 0), Counter()
    for step in range(300):
        event = world.event()
        residency.fold(*encoded([event], encoding), 1.0)
        fold([event], held)
        if step % 10 == 0:
            events = events_of(residency, batch_bytes=world.rng.choice([100, 1000, 100_000]))
            assert CLEAR == events[0]
            assert held == fold(events)
            check_order(events)
            for each in events[1:]:
                world.check_store(each)


@pytest.mark.parametrize(
    "wanted", [{"ownership": "primary"}, {"medium": "CPU"}, {"group_idx": 1}, {"locality": "LOCAL"}]
)
def test_a_filtered_view_gets_what_it_has_announced(wanted):
    """Equal to the fold of the events that the filter lets through, and nothing else."""
    world, chosen = World(random.Random(5)), EventFilter(**wanted)
    residency, held = Residency("", 0), Counter()
    for _ in range(500):
        event = world.event()
        residency.fold(*encoded([event]), 1.0)
        if chosen.accepts(facets_of(event), isinstance(event, AllBlocksCleared) and event.is_scoped):
            fold([event], held)
        if not residency.blocks_count % 7:
            assert held == fold(events_of(residency, wanted=chosen))


def test_whole_events_leave_as_they_came():
    """W2: what need not change, does not; unknown fields and wide integers included."""
    odd = b"\x85\xa4type\xabBlockStored\xacblock_hashes\x91\xcf" + (7).to_bytes(8, "big")
    odd += b"\xa9token_ids\x90\xaablock_size\x00\xa5later\x01"
    residency = Residency("", 0)
    residency.fold([odd], [read_head(odd)], 1.0)
    assert odd in snapshot_of(residency).payloads[0]


def test_a_block_without_its_neighbours_has_its_own_tokens_and_parent():
    residency = residency_of(store(1, 2, 3, parent=9), BlockRemoved([2], "GPU"))
    assert {store(1, parent=9), store(3, parent=2)} == set(events_of(residency)[1:])


def test_a_child_whose_parent_was_stored_again_comes_behind_it():
    """The parent's place in the order is its last store, which is behind the child's."""
    residency = residency_of(store(1, 2, 3), BlockRemoved([2], "GPU"), store(2, parent=1), store(4, parent=3))
    events = events_of(residency)
    check_order(events)
    assert [store(1), store(2, parent=1), store(3, parent=2), store(4, parent=3)] == events[1:]


def test_a_parent_in_another_medium_comes_first():
    """Its child alone would hang in the air."""
    residency = residency_of(store(2, parent=1, medium="CPU"), store(1), store(3, parent=2))
    check_order(events_of(residency))


def test_copies_come_as_often_as_they_are_referred_to():
    residency = residency_of(store(1, 2, 3), store(2, parent=1), store(2, 3, parent=1))
    events = events_of(residency)
    assert Counter({1: 1, 2: 3, 3: 2}) == Counter(name for event in events[1:] for name in event.block_hashes)
    assert [store(1, 2, 3), store(2, 3, parent=1), store(2, parent=1)] == events[1:]
    assert [store(1, 2, 3)] == events_of(residency, counts_copies=False)[1:]


def test_a_chain_that_bites_its_tail_ends():
    """Only a hostile peer can make one."""
    residency = residency_of(store(1, parent=3), store(2, parent=1), store(3, parent=2), store(5, 6, parent=6))
    assert {1, 2, 3, 5, 6} == {name for event in events_of(residency)[1:] for name in event.block_hashes}


def test_a_long_chain_of_single_blocks_needs_no_recursion():
    residency = Residency("", 0)
    for number in range(1, 3000):
        residency.fold(*encoded([store(number, parent=number - 1 or None)]), 1.0)
    names = [event.block_hashes[0] for event in events_of(residency, work=100)[1:]]
    assert list(range(1, 3000)) == names


def test_a_slice_is_bounded():
    """V3: building takes place between two drains of live input."""
    residency = residency_of(*(store(number) for number in range(1, 500)))
    builder = SnapshotBuilder([residency.freeze(EVERYTHING)])
    steps = 1
    while builder.step(10) is None:
        steps += 1
    assert steps >= 50


def test_batches_hold_one_form_each():
    """W5."""
    residency = Residency("", 0)
    for number, encoding in enumerate(["map", "array", "map"], 1):
        residency.fold(*encoded([store(number, parent=number - 1 or None)], encoding), 1.0)
    raws = [msgspec.msgpack.decode(payload)[1] for payload in snapshot_of(residency).payloads]
    assert [[dict, dict], [list], [dict]] == [[type(raw) for raw in batch] for batch in raws]


def test_the_clear_is_written_as_the_stores_are():
    residency = residency_of(store(1), encoding="array")
    (payload,) = snapshot_of(residency).payloads
    assert all(isinstance(raw, list) for raw in msgspec.msgpack.decode(payload)[1])


def test_nothing_held_is_a_clear():
    residency = residency_of(store(1), CLEAR)
    assert [CLEAR] == events_of(residency)
    assert 0 == snapshot_of().numbers_min


def test_batches_carry_rank_and_newest_time():
    residency = Residency("", 3)
    residency.fold(*encoded([store(1)]), 7.5)
    (batch,) = batches_of(residency)
    assert (3, 7.5) == (batch.data_parallel_rank, batch.ts)


def ranks():
    """Three groups at two ranks, one of them empty."""
    residencies = [Residency("a", 0), Residency("b", 0), Residency("a", 1), Residency("c", None)]
    for index, residency in enumerate(residencies[:3]):
        residency.fold(*encoded(store(10 * index + number) for number in range(1, 6)), 1.0)
    return residencies


def test_clears_of_all_ranks_come_before_all_stores():
    """A consumer tells groups of one rank not apart: the clear of one must not take what was said of the other."""
    batches = batches_of(*ranks())
    assert [[CLEAR], [CLEAR], [CLEAR]] == [batch.events for batch in batches[:3]]
    assert [0, 1, None] == [batch.data_parallel_rank for batch in batches[:3]]
    assert [0, 0, 1] == [batch.data_parallel_rank for batch in batches[3:]]
    assert 15 == len(fold_batches(batches))


class TestPress:
    @pytest.mark.parametrize("numbers", range(6, 20))
    def test_batches_grow_until_they_fit(self, numbers):
        """A client that asks shortly before the buffer leaves few numbers."""
        snapshot = snapshot_of(*ranks(), batch_events=1)
        assert (18, 6) == (len(snapshot.payloads), snapshot.numbers_min)
        pressed = snapshot.press(numbers).payloads
        assert len(pressed) == min(18, numbers) or numbers - len(pressed) < 3
        assert len(pressed) <= numbers
        decoded = [decode_batch(payload) for payload in pressed]
        assert fold_batches(map(decode_batch, snapshot.payloads)) == fold_batches(decoded)
        before = [event for payload in snapshot.payloads for event in decode_batch(payload).events]
        assert before == [event for batch in decoded for event in batch.events]

    def test_what_is_joined_has_one_form(self):
        residency = Residency("", 0)
        for number, encoding in enumerate(["map", "array", "map"], 1):
            residency.fold(*encoded([store(number, parent=number - 1 or None)], encoding), 1.0)
        (payload,) = snapshot_of(residency).press(1).payloads
        assert [Form.MAP] * 4 == [form_of(msgspec.msgpack.encode(raw)) for raw in msgspec.msgpack.decode(payload)[1]]
        assert 4 == len(decode_batch(payload).events)

    def test_what_fits_is_left_alone(self):
        snapshot = snapshot_of(*ranks())
        assert snapshot.payloads is snapshot.press(100).payloads

"""Counting copies: what sets and counters make of it is the same, and what the engine holds."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from kvbus.events import BlockRemoved, BlockStored
from kvbus.views.copies import counted_pieces
from kvbus.views.residency import Residency
from kvbus.wire.head import read_head
from kvbus.wire.reading import decode_event
from kvbus.wire.writing import encode_event
from tests.views.folding import World, encoded, fold

STORE = BlockStored([1, 2, 3, 4], 9, [10, 11, 20, 21, 30, 31, 40, 41], 2, medium="GPU", lora_name="l")


def pieces(event, *firsts, encoding="map"):
    raw = encode_event(event, encoding)
    return [decode_event(piece) for piece in counted_pieces(raw, read_head(raw), list(firsts))]


def test_a_store_is_cut_into_runs_with_tokens_and_parents_right():
    """A router drops what hangs in the air, and credits a block by its tokens."""
    assert [
        BlockStored([1], 9, [10, 11], 2, medium="GPU", lora_name="l"),
        BlockStored([3, 4], 2, [30, 31, 40, 41], 2, medium="GPU", lora_name="l"),
    ] == pieces(STORE, True, False, True, True)


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_a_removal_loses_hashes_and_what_belongs_to_them(encoding):
    """A field of another engine may be one per block."""
    removal = BlockRemoved([1, 2, 3], "GPU", 0, extra={"remaining_copy_counts": [0, 1, 0], "why": "full"})
    left = BlockRemoved([1, 3], "GPU", 0, extra={"remaining_copy_counts": [0, 0], "why": "full"})
    assert [left] == pieces(removal, True, False, True, encoding=encoding)


def test_all_or_nothing_is_not_touched():
    """Nearly every event has no copy beside it."""
    raw = encode_event(STORE)
    assert (raw,) == counted_pieces(raw, read_head(raw), [True] * 4)
    assert () == counted_pieces(raw, read_head(raw), [False] * 4)


def test_a_removal_of_which_only_the_head_can_be_read_loses_hashes_too():
    """Its other fields are nothing that a router knows."""
    deep = 0
    for _ in range(100):
        deep = [deep]
    raw = msgspec.msgpack.encode({"type": "BlockRemoved", "block_hashes": [1, 2], "medium": "GPU", "x": deep})
    (left,) = counted_pieces(raw, read_head(raw), [False, True])
    assert BlockRemoved([2], "GPU") == decode_event(left)


@pytest.mark.parametrize("counts_copies", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_v8_sets_and_counters_agree_with_the_engine_at_every_step(seed, counts_copies):
    """The oracle folds what the engine said, by copies or as a set; the counted stream must lead both readers there."""
    world = World(random.Random(seed))
    residency = Residency("", 0, counts_copies=counts_copies)
    engine, counter, reader = Counter(), Counter(), set()
    for _ in range(300):
        event = world.event()
        raws, heads = encoded([event])
        firsts: list[list[bool] | None] = []
        residency.fold(raws, heads, 1.0, firsts)
        out = raws if firsts[0] is None else counted_pieces(raws[0], heads[0], firsts[0])
        fold([event], engine)
        if not counts_copies:
            engine = Counter(dict.fromkeys(engine, 1))
        for piece in map(decode_event, out):
            fold([piece], counter)
            held = fold([piece], Counter(dict.fromkeys(reader, 1)))
            reader = set(held)
            if isinstance(piece, BlockStored):
                world.check_store(piece)
        assert set(engine) == set(counter) == reader
        assert set(counter.values()) <= {1}

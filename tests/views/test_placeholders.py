"""Placeholders with what was said of their blocks before."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvbus.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event
from kvbus.views.placeholders import BLOCK_BYTES, Descriptions
from kvbus.wire.head import read_head
from kvbus.wire.reading import decode_event
from kvbus.wire.writing import encode_event
from tests.views.folding import World

FULL = BlockStored(
    [1, 2, 3],
    9,
    [10, 11, 20, 21, 30, 31],
    2,
    medium="GPU",
    lora_name="sql",
    extra_keys=[["sql"], None, ["x"]],
    group_idx=0,
    kv_cache_spec_kind="full_attention",
    cache_salt="s",
)


def placeholder(*hashes: BlockHash, **more: Any) -> BlockStored:
    return BlockStored(list(hashes), None, [], 0, **{"medium": "CPU", "group_idx": 0} | more)


def see(known: Descriptions, event: Event, encoding: Any = "map", **how: Any) -> list[Event] | None:
    raw = encode_event(event, encoding)
    pieces = known.see(raw, read_head(raw), **how)
    return None if pieces is None else [decode_event(piece) for piece in pieces]


def knowing(*events: Event, **limits: Any) -> Descriptions:
    known = Descriptions(**limits)
    for event in events:
        assert None is see(known, event)
    return known


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_v7_a_placeholder_goes_out_with_tokens_parent_and_size(encoding: Any) -> None:
    """A router that hashes tokens itself then sees the tier; who holds the block stays the placeholder's to say."""
    known = knowing(FULL)
    wanted = BlockStored(
        [2],
        1,
        [20, 21],
        2,
        medium="CPU",
        locality="LOCAL",
        ownership="kvcr",
        lora_name="sql",
        extra_keys=[None],
        group_idx=0,
        kv_cache_spec_kind="full_attention",
        cache_salt="s",
        session_id="r",
    )
    named = placeholder(2, locality="LOCAL", ownership="kvcr", session_id="r")
    assert [wanted] == see(known, named, encoding)
    assert (1, 0) == (known.resolved_blocks, known.unresolved_blocks)


def test_runs_of_one_description_stay_together_and_the_rest_stays_a_placeholder() -> None:
    """Neighbours in the chain are one event, as the engine would say them."""
    known = knowing(FULL, BlockStored([7], None, [70, 71], 2, medium="GPU", group_idx=0))
    pieces = see(known, placeholder(1, 2, 7, 8, 3))
    assert pieces is not None
    assert [[1, 2], [7], [8], [3]] == [piece.block_hashes for piece in pieces]
    assert [[10, 11, 20, 21], [70, 71], [], [30, 31]] == [piece.token_ids for piece in pieces]
    assert [9, None, None, 2] == [piece.parent_block_hash for piece in pieces]
    assert (4, 1) == (known.resolved_blocks, known.unresolved_blocks)


def test_what_nobody_has_described_goes_out_as_it_came() -> None:
    """And is counted, so that the share of events that describe themselves can be told."""
    known = knowing(FULL)
    assert None is see(known, placeholder(8))
    assert (0, 1) == (known.resolved_blocks, known.unresolved_blocks)


def test_a_kv_cache_group_is_another_block_and_a_medium_is_not() -> None:
    """Groups have blocks of different sizes under equal hashes; a hash in another medium is the same tokens."""
    known = knowing(FULL)
    assert None is see(known, placeholder(1, group_idx=1))
    assert None is see(known, placeholder(1, group_idx=None))
    assert see(known, placeholder(1, medium="STORAGE"))


def test_a_description_outlives_the_block() -> None:
    """A tier often speaks of a block that the engine has evicted meanwhile."""
    known = knowing(FULL, BlockRemoved([1, 2, 3], "GPU", 0), AllBlocksCleared())
    assert see(known, placeholder(3))


def test_tokens_that_do_not_fit_are_not_shared_out() -> None:
    """Skipped blocks: nobody can say which tokens belong to one of them; all of them together are as they were said."""
    skewed = BlockStored([1, 2], None, [5, 6, 7, 8, 9, 10], 2, medium="GPU", group_idx=0)
    known = knowing(skewed)
    assert None is see(known, placeholder(2))
    assert (0, 1) == (known.resolved_blocks, known.unresolved_blocks)
    (whole,) = see(known, placeholder(1, 2)) or []
    assert [5, 6, 7, 8, 9, 10] == whole.token_ids


def test_somebody_else_may_know() -> None:
    """After a restart the residency does."""
    other = knowing(FULL)
    known = Descriptions()
    assert None is see(known, placeholder(1))
    assert see(known, placeholder(1), describing=other.of)


def test_describing_for_a_snapshot_counts_and_learns_nothing() -> None:
    """It says again what was said before."""
    known = knowing(FULL)
    for event, pieces in ((placeholder(1), 1), (placeholder(8), 1), (FULL, 1), (BlockRemoved([1]), 1)):
        raw = encode_event(event)
        assert pieces == len(known.describe(raw, read_head(raw)))
    assert (0, 0, 3) == (known.resolved_blocks, known.unresolved_blocks, known.blocks_count)


def test_the_oldest_is_forgotten_first_and_what_was_said_again_is_kept() -> None:
    """Nothing grows without a limit (rule E1)."""
    events = [BlockStored([n], None, [n, n], 2, medium="GPU", group_idx=0) for n in range(5)]
    known = knowing(*events[:4], blocks_max=3)
    assert [None, True, True, True] == [see(known, placeholder(n)) and True for n in range(4)]
    again = BlockStored([1], None, [1, 1], 2, medium="CPU", group_idx=0)
    for event in (again, events[4]):
        see(known, event)
    assert [True, None, True, True] == [see(known, placeholder(n)) and True for n in range(1, 5)]


def test_all_can_be_forgotten_and_learnt_again() -> None:
    known = knowing(FULL)
    known.clear()
    assert (0, 0, []) == (known.blocks_count, known.size_bytes, known.capture())
    assert see(known, placeholder(2)) is None
    see(known, FULL)
    assert see(known, placeholder(2)) is not None
    assert (1, 1) == (known.resolved_blocks, known.unresolved_blocks)


def test_bytes_are_bounded_too_and_the_same_said_again_costs_nothing() -> None:
    """A prefix that is stored over and over is one description."""
    raw_bytes = len(encode_event(FULL))
    known = knowing(FULL, FULL, FULL)
    assert (3, raw_bytes) == (known.blocks_count, known.raw_bytes)
    assert known.size_bytes == raw_bytes + 3 * BLOCK_BYTES
    small = knowing(FULL, bytes_max=known.size_bytes - 1)
    assert (0, 0) == (small.blocks_count, small.raw_bytes)
    assert {} == small._groups


@pytest.mark.parametrize("seed", range(8))
def test_whatever_comes_out_says_what_was_said_of_the_block(seed: int) -> None:
    """Random chains, placeholders and bounds: a description is the block's own or there is none."""
    world = World(random.Random(seed))
    known = Descriptions(blocks_max=20)
    for _ in range(400):
        event = world.event()
        pieces = see(known, event)
        assert known.blocks_count <= 20
        assert known.blocks_count == sum(map(len, known._groups.values()))
        if pieces is None:
            continue
        assert isinstance(event, BlockStored)
        assert event.block_hashes == [each for piece in pieces for each in piece.block_hashes]
        for piece in pieces:
            assert (event.medium, event.ownership, event.group_idx) == (piece.medium, piece.ownership, piece.group_idx)
            world.check_store(piece)


@pytest.mark.parametrize("seed", range(6))
def test_what_was_written_down_knows_and_forgets_the_same(seed: int) -> None:
    """A broker that goes on after it was killed must not send bare placeholders where it had words."""
    world = World(random.Random(seed))
    limits = {"blocks_max": 30, "bytes_max": 9_000}
    original, restored = Descriptions(**limits), Descriptions(**limits)
    for number in range(300):
        if number % 20 == 0:
            stores, restored = restored.capture(), Descriptions(**limits)
            restored.restore(stores)
        raw = encode_event(world.event())
        assert original.see(raw, read_head(raw)) == restored.see(raw, read_head(raw))
        assert (original.blocks_count, original.raw_bytes) == (restored.blocks_count, restored.raw_bytes)

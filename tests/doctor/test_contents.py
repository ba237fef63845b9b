"""Facts about batches: counted, bounded, and without a token."""

from __future__ import annotations

import msgspec
import pytest

from kvbus.doctor.contents import KINDS_MAX, Contents, Tier
from kvbus.doctor.traits import Trait
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, UnknownEvent
from tests.doctor.made import NOW_S, payload, stored


def contents(*payloads: bytes, arrived_s: float | None = NOW_S) -> Contents:
    found = Contents()
    for each in payloads:
        found.take(each, arrived_s)
    return found


def test_what_is_counted():
    placeholder = BlockStored([9], None, [], 0, medium="CPU", ownership="kvcr")
    found = contents(
        payload(stored(1), BlockRemoved([5], "DISK"), AllBlocksCleared(), UnknownEvent("Else")),
        payload(placeholder, rank=None),
    )
    assert {"BlockStored": 2, "BlockRemoved": 1, "AllBlocksCleared": 1, "Else": 1} == found.events
    assert {Tier("GPU", None): 1, Tier("CPU", "kvcr"): 1} == found.stores
    assert {Tier("CPU", "kvcr"): 1} == found.placeholders
    assert {0: 1, None: 1} == found.ranks
    assert {"GPU", "DISK", "CPU"} == set(found.media)
    assert {None: {4}} == found.block_sizes
    assert ({stored(1).block_hashes[0]}, {9}) == (found.described, found.undescribed)
    assert {
        Trait.MAP_FORM,
        Trait.UNKNOWN_TYPE,
        Trait.NIL_RANK,
        Trait.OWNED,
        Trait.PLACEHOLDER,
        Trait.SHORT_HASH,
    } == set(found.traits)


def test_the_rank_of_a_batch_is_told():
    assert [3, None, None] == [Contents().take(each) for each in (payload(rank=3), payload(rank=None), b"\x01")]


def test_what_cannot_be_read_is_counted_by_reason():
    bad = msgspec.msgpack.encode([NOW_S, [{"type": "BlockRemoved", "block_hashes": 5}], 0])
    found = contents(b"\x01", b"\x01", bad)
    assert ([2], 1, 1) == (list(found.batches_unreadable.values()), sum(found.events_rejected.values()), found.batches)


@pytest.mark.parametrize(("ts", "expected"), [(NOW_S - 5, 5.0), (NOW_S + 5, -5.0), ((NOW_S - 5) * 1000, 5.0)])
def test_the_smallest_age_is_that_of_the_clocks(ts, expected):
    found = contents(payload(ts=ts), payload(ts=ts - 100 if ts < 1e11 else ts))
    assert expected == pytest.approx(found.skew_s)
    assert (ts > 1e11) == found.has_millisecond_ts


def test_a_replayed_batch_has_no_age():
    assert contents(payload(ts=1.0), arrived_s=None).skew_s is None


def test_equal_events_are_known_in_any_form():
    one, other = contents(payload(stored(1))), contents(payload(stored(1), encoding="array"))
    assert one.identities == other.identities


def test_the_first_block_of_a_prompt_is_known_by_its_content():
    """However a worker cuts its stores; a block with a parent is not compared, since its hash depends on the parent."""
    whole = BlockStored([1 << 62, 1 << 61], None, [7] * 8, 4, medium="GPU")
    cut = BlockStored([1 << 60], None, [7] * 4, 4, medium="GPU")
    child = BlockStored([1 << 59], 1 << 60, [7] * 4, 4, medium="GPU")
    one, other = contents(payload(whole)), contents(payload(cut, child))
    assert [1 << 62] == list(one.by_tokens.values())
    assert [1 << 60] == list(other.by_tokens.values())
    assert one.by_tokens.keys() == other.by_tokens.keys()


def test_kinds_are_bounded():
    """A publisher that makes up media does not fill the memory."""
    found = contents(*(payload(stored(number, medium=f"M{number}")) for number in range(2 * KINDS_MAX)))
    assert (KINDS_MAX, KINDS_MAX) == (len(found.media), len(found.stores))


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        (Tier("CPU", None), "CPU"),
        (Tier(None, None), "no medium"),
        (Tier("CPU", "kvcr"), "CPU of kvcr"),
        (Tier("", ""), '"" of ""'),
    ],
)
def test_a_tier_in_words(tier, expected):
    assert expected == str(tier)
